// A worker: its handlers, and how it runs them as a child of a server, attached to servers, or in a test.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const { attachAll } = require("./attach.js");
const { Batch } = require("./batch.js");
const { isChild, runChild } = require("./child.js");
const { encoded, fromEnvironment } = require("./connection.js");
const { Failed, Later } = require("./errors.js");
const { Session } = require("./session.js");

// A result with its media type.
class Output {
  constructor(data, contentType) {
    Object.assign(this, { data, contentType });
  }
}

class Worker {
  #kinds = new Map([["conformance", { run: (job, worker) => worker.answerTo(job, conformance) }]]);
  // Jobs that run, of those that servers may give together; without a bound in a child, whose server counts them.
  slots = Infinity;
  #running = 0;
  #waiting = [];
  // The jobs that are not answered, and the servers that they come from.
  held = 0;
  sessions = new Set();

  kind(name, handler, { contentType } = {}) {
    this.#kinds.set(name, { run: (job) => this.answerTo(job, handler, contentType) });
    return handler;
  }

  batch(name, { max = 32, contentType } = {}, handler) {
    const batch = new Batch(handler, max, () => this.slots, (value) => this.read(value, contentType));
    this.#kinds.set(name, { batch, max, run: (job) => batch.add(job) });
    return handler;
  }

  get kinds() {
    return [...this.#kinds.keys()].sort();
  }

  isBatch(kind) {
    return Boolean(this.#kinds.get(kind)?.batch);
  }

  // Runs jobs until the server lets the child go, or SIGTERM or SIGINT the attached worker.
  async run({ name = "", slots, address = process.env.WATERWHEEL_ADDRESS, ...options } = {}) {
    const addresses = [address ?? []].flat().flatMap((text) => text.split(","));
    if (addresses.length > 0) {
      this.slots = slots ?? Math.max(4, ...[...this.#kinds.values()].map(({ max = 0 }) => max));
      return attachAll(this, name, addresses, { ...fromEnvironment(), ...options });
    }
    if (isChild()) return runChild(this, name);
    throw new Error(
      "neither a server started this worker, nor does WATERWHEEL_ADDRESS say where to attach: " +
        "`waterwheel dev --worker FILE` does the first",
    );
  }

  // Runs one job without a server. Rejects with Failed if the handler fails.
  test(payload, { kind, labels = {}, contentType, budget = 30_000, cancelAfter, ...fields } = {}) {
    const [bytes, type] = encoded(payload, contentType);
    const tested = { pieces: [], progress: [], contentType: "" };
    return new Promise((resolve, reject) => {
      const session = new Session(this, ({ output, progress, done, failed }) => {
        if (output) session.taken(output.id);
        if (progress) tested.progress.push(progress);
        if (output ?? done) tested.pieces.push((output ?? done).data);
        if (failed) reject(errorOf(failed));
        if (done) resolve({ ...tested, output: Buffer.concat(tested.pieces), contentType: done.contentType });
      });
      const [only, ...others] = this.kinds.filter((name) => name !== "conformance");
      kind ??= others.length > 0 ? "" : only;
      const ids = { id: "1", jobId: "test-1", requestId: "", traceparent: "", tenant: "", attempt: 1 };
      session.start({ ...ids, kind, labels, contentType: type, budgetMs: budget, payload: bytes, ...fields });
      if (cancelAfter != null) sleep(cancelAfter).then(() => session.cancel("1", "CALLER"));
    });
  }

  start(job) {
    const unknown = () => job.fail(new Failed("UNIMPLEMENTED", `no handler for the kind ${job.kind}`));
    (this.#kinds.get(job.kind)?.run ?? unknown)(job, this);
  }

  // Every way out of the handler is an answer.
  async answerTo(job, handler, contentType) {
    // Each server gives as many jobs as there are slots. One that is cancelled here is answered at once.
    while (this.#running >= this.slots && !job.cancelled) {
      await new Promise((resolve) => {
        this.#waiting.push(resolve);
        job.signal.addEventListener("abort", resolve, { once: true });
      });
    }
    this.#running++;
    try {
      job.signal.throwIfAborted();
      let value = await job.within(() => handler(job));
      if (isIterator(value)) [value, contentType] = await pass(job, value, contentType);
      await job.finish(...this.read(value, contentType));
    } catch (error) {
      job.fail(error);
    } finally {
      this.#running--;
      // All of them look again: those that were cancelled meanwhile do not need the slot.
      this.#waiting.splice(0).forEach((resolve) => resolve());
    }
  }

  // The bytes of a result and their media type.
  read(value, contentType) {
    return value instanceof Output ? encoded(value.data, value.contentType ?? contentType) : encoded(value, contentType);
  }
}

// The error of a message about a job that failed.
function errorOf({ code, message, retryable, retryAfterMs, counts, scope }) {
  if (!scope) return new Failed(code, message, { retryable });
  return new Later(retryAfterMs, message, { code, counts, scope: scope.toLowerCase().replace("_", "-") });
}

const isIterator = (value) => typeof value?.next === "function";

// Passes on the pieces of a generator, which say what the whole is.
async function pass(job, pieces, contentType) {
  for await (const piece of pieces) {
    const [bytes, type] = encoded(piece, contentType);
    contentType ??= type;
    await job.output(bytes);
  }
  return [null, contentType];
}

// What `waterwheel worker test` asks for.
async function conformance(job) {
  switch (job.labels.task) {
    case "chunks":
      for (let number = 0; number < 3; number++) await job.output(`${number}\n`);
      return "end\n";
    case "progress":
      job.progress(0.5, "half of it");
      break;
    case "fail":
      throw new Failed("NOT_FOUND", "no such picture");
    case "wait":
      await new Promise((resolve) => job.signal.addEventListener("abort", resolve));
      throw job.signal.reason;
    case "print":
      console.log("a line on standard output");
      break;
    case "crash":
      process.exit(3);
  }
  return new Output(job.payload, job.contentType);
}

module.exports = { Worker, Output };
