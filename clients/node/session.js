// The jobs of one server: of a child, or of one call of `Attach`.
"use strict";

const { inspect } = require("node:util");
const { current, encoded } = require("./connection.js");
const { Failed, Later } = require("./errors.js");

// Most bytes of one message: a server takes no more than its largest payload.
const PIECE = 1 << 18;
// Pieces of one job that the server has not taken: more would hold up the other jobs.
const UNTAKEN = 4;

// A text in UTF-8, which half a character is not, of so many bytes at most.
const text = (value, most) => Buffer.from(String(value)).subarray(0, most).toString();

// What an error says, whose fields may be anything.
function words(error) {
  try {
    return typeof error?.message === "string" ? error.message : inspect(error);
  } catch {
    return "an error that cannot be read";
  }
}

class Job {
  #abort = new AbortController();
  #end;
  #say;
  #untaken = 0;
  #taken = () => {};

  constructor(run, say) {
    const { id, jobId, kind, contentType, requestId, traceparent, tenant, attempt, idempotencyKey, token } = run;
    Object.assign(this, { id, jobId, kind, contentType, requestId, traceparent, tenant, attempt, idempotencyKey, token });
    Object.assign(this, { labels: run.labels ?? {}, payload: run.payload, signal: this.#abort.signal, reason: "" });
    this.#end = Date.now() + Number(run.budgetMs);
    this.#say = say;
  }

  get text() {
    return this.payload.toString();
  }

  json() {
    return JSON.parse(this.text);
  }

  // Milliseconds until it is stopped.
  get budget() {
    return this.#end - Date.now();
  }

  get cancelled() {
    return this.signal.aborted;
  }

  get isAnswered() {
    return this.#say === null;
  }

  // Sends a piece of the result now. It waits for a slow caller, and rejects once the job is to stop.
  async output(piece) {
    let [data] = encoded(piece);
    for (; data.length > 0; data = data.subarray(PIECE)) {
      while (this.#untaken >= UNTAKEN && !this.cancelled) await new Promise((resolve) => (this.#taken = resolve));
      this.signal.throwIfAborted();
      this.#untaken++;
      await this.#say?.({ output: { id: this.id, data: data.subarray(0, PIECE) } });
    }
  }

  progress(fraction, message = "") {
    const number = Number.isFinite(fraction) ? fraction : 0;
    this.#say?.({ progress: { id: this.id, fraction: number, message: text(message, 4096) } });
  }

  log(...all) {
    console.error(`[job ${this.jobId} request ${this.requestId}]`, ...all);
  }

  // Calls that a function makes carry on the request id and the trace.
  within(handler) {
    return current.run(this, handler);
  }

  async finish(data, contentType) {
    const last = Math.max(data.length - PIECE, 0);
    if (last > 0) await this.output(data.subarray(0, last));
    this.#answer({ done: { id: this.id, data: data.subarray(last), contentType: text(contentType ?? "", 128) } });
  }

  fail(error) {
    let failed = { code: "INTERNAL", message: words(error) };
    if (error instanceof Failed) {
      failed.code = words({ message: error.code });
      failed.message = words({ message: error.details });
      if (error.retryable != null) failed.retryable = Boolean(error.retryable);
      if (error instanceof Later) Object.assign(failed, error.next);
    } else if (this.cancelled && (error === this.signal.reason || error?.name === "AbortError")) {
      failed = { code: "CANCELLED", message: this.signal.reason.message };
    } else if (!this.isAnswered) {
      this.log(words({ message: error?.stack ?? failed.message }));
    }
    const said = { id: this.id, ...failed, code: text(failed.code, 64), message: text(failed.message, 4096) };
    this.#answer({ failed: said });
  }

  // Nothing is said about it after that.
  #answer(message) {
    const say = this.#say;
    this.#say = null;
    say?.(message);
  }

  taken() {
    this.#untaken--;
    this.#taken();
  }

  cancel(reason) {
    this.reason = reason;
    this.#abort.abort(new DOMException(`stopped because of ${reason}`, "AbortError"));
    this.#taken();
  }
}

class Session {
  #jobs = new Map();
  #idle = () => {};
  #told = 0;

  constructor(worker, send) {
    Object.assign(this, { worker, send });
  }

  receive({ run, cancel, taken }) {
    if (run) this.start(run);
    if (taken) this.taken(taken.id);
    if (cancel) this.cancel(cancel.id, cancel.reason);
  }

  start(run) {
    const job = new Job(run, (message) => {
      if (message.done ?? message.failed) {
        this.#jobs.delete(run.id);
        this.#hold(-1);
      }
      if (this.#jobs.size === 0) this.#idle();
      return this.send(message);
    });
    this.#jobs.set(run.id, job);
    this.#hold(1);
    this.worker.start(job);
  }

  #hold(change) {
    this.worker.held += change;
    for (const other of this.worker.sessions) if (other !== this) other.share();
  }

  // Tells the server how many slots the jobs of others have.
  share() {
    const elsewhere = this.worker.held - this.#jobs.size;
    if (elsewhere !== this.#told) this.send({ slots: { elsewhere: (this.#told = elsewhere) } });
  }

  taken(id) {
    this.#jobs.get(id)?.taken();
  }

  // Lets a handler stop and answer. A member of a batch has its answer at once: the batch goes on without it.
  cancel(id, reason) {
    const job = this.#jobs.get(id);
    job?.cancel(reason);
    if (job && this.worker.isBatch(job.kind)) job.fail(job.signal.reason);
  }

  // No caller waits for the jobs any more.
  detach() {
    for (const id of this.#jobs.keys()) this.cancel(id, "DETACHED");
  }

  // Resolves once every job is answered.
  idle() {
    return this.#jobs.size === 0 ? Promise.resolve() : new Promise((resolve) => (this.#idle = resolve));
  }
}

module.exports = { Session };
