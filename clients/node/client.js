// Calls of one server, or of all replicas that a name resolves to.
"use strict";

const { randomUUID } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { channel, encoded, metadataOf, services } = require("./connection.js");
const { Refused, Missed, Lost, ofCall, ofDetached } = require("./errors.js");
const { Many, inParallel } = require("./many.js");

// That of a call without one; the server has the same. All times are in milliseconds.
const TIMEOUT = 30_000;
const LATE = { code: "DEADLINE_EXCEEDED", reason: "DEADLINE_EXCEEDED" };
const BALANCED = {
  "grpc.service_config": JSON.stringify({
    loadBalancingConfig: [{ round_robin: {} }],
    healthCheckConfig: { serviceName: "waterwheel.v1.WorkerPoolService" },
  }),
};

// The tries of one call. `runs` is how often it may be made again where the work may have started.
class Tries {
  #count = 0;

  constructor({ timeout = TIMEOUT, idempotent = false, resend = true, signal, runs = idempotent ? 2 : 0 }) {
    Object.assign(this, { end: Date.now() + timeout, runs, resend, signal });
  }

  // Waits for the delay of the server, or for our own where any server may take the call. Throws the failure if no other
  // try makes sense in the time that is left.
  async another(failure) {
    const delay = failure.retryAfter || Math.min(50 << Math.min(this.#count++, 5), 1000) * (1 + Math.random()) / 2;
    const isSoon = failure.retryAfter > 0 || failure.code === "UNAVAILABLE";
    // The server says UNAVAILABLE of what it lost if the kind is idempotent there.
    const isSaid = failure.started === true && failure.code === "UNAVAILABLE";
    const may = (failure instanceof Refused && isSoon) || (failure instanceof Lost && (isSaid || this.runs-- > 0));
    if (!may || !this.resend || Date.now() + delay >= this.end) throw failure;
    await sleep(delay, null, { signal: this.signal }).catch(() => {
      throw this.signal.reason;
    });
  }
}

// A duration of the contract, or a timestamp.
const seconds = (time) => time == null ? undefined : { seconds: Math.floor(time / 1000), nanos: Math.round((time % 1000) * 1e6) };

const CLASSES = ["sheddable", "sheddable-plus", "critical", "critical-plus"];
const POLICIES = ["reject", "wait", "shed", "drop-oldest"];
function choice(prefix, names, name) {
  if (name == null) return undefined;
  if (!names.includes(name)) throw new TypeError(`"${name}" is none of ${names.join(", ")}`);
  return `${prefix}_${name.toUpperCase().replace("-", "_")}`;
}

// The message of a job.
function jobOf(kind, payload, fields = {}) {
  const { contentType, runTimeout, queueTimeout, criticality, whenFull, tenant, orderingKey, labels, limitKey } = fields;
  const [bytes, type] = encoded(payload, contentType);
  return {
    ...{ kind, payload: bytes, contentType: type, tenant, orderingKey, labels, limitKey },
    ...{ runTimeout: seconds(runTimeout), queueTimeout: seconds(queueTimeout) },
    criticality: choice("CRITICALITY", CLASSES, criticality),
    whenFull: choice("WHEN_FULL", POLICIES, whenFull),
  };
}

class Result {
  constructor({ output, contentType, jobId = "", waterfall = null }) {
    Object.assign(this, { output, contentType, jobId, waterfall });
  }
  get text() {
    return this.output.toString();
  }
  json() {
    return JSON.parse(this.text);
  }
}

class Client {
  #channel;
  #options;
  #pool;
  #jobs;

  constructor(address = process.env.WATERWHEEL_SERVER || "127.0.0.1:7070", options = {}) {
    this.#options = options;
    this.#channel = channel(address, options, options.behindProxy ? {} : BALANCED);
    const over = { channelOverride: this.#channel };
    this.#pool = new services.WorkerPoolService(address, null, over);
    this.#jobs = new services.JobService(address, null, over);
  }

  close() {
    this.#channel.close();
  }

  async submit(kind, payload, options = {}) {
    const request = { job: jobOf(kind, payload, options) };
    return new Result((await this.#unary(this.#pool.submit.bind(this.#pool), request, options)).result);
  }

  // The pieces of the output, as they are made. A loop that ends early cancels the job.
  stream(kind, payload, options = {}) {
    const request = { job: jobOf(kind, payload, options) };
    const pieces = this.#pieces(request, options, () => pieces);
    return Object.assign(pieces, { progress: null, result: null });
  }

  async *#pieces(request, options, its) {
    let began = false;
    for await (const event of this.#follow(this.#pool, "stream", () => request, options, () => !began)) {
      began = true;
      if (event.progress) options.onProgress?.((its().progress = event.progress));
      if (event.finished) its().result = new Result({ ...event.finished, output: null });
      if (event.outputChunk) yield event.outputChunk.data;
    }
  }

  async *submitMany(jobs, options = {}) {
    const deadline = Date.now() + (options.timeout ?? Infinity);
    const open = async () => this.#pool.submitMany(await metadataOf(this.#options), { deadline });
    const many = new Many(open, this.#channel.getTarget());
    const run = async ({ kind, payload, idempotent, ...fields }) => {
      const timeout = options.timeout == null ? TIMEOUT : deadline - Date.now();
      const job = jobOf(kind, payload, fields);
      if (timeout <= 0) throw new Missed("it was not sent before the deadline", { ...LATE, started: false });
      return new Result(await this.#persist({ ...options, idempotent, timeout }, () => many.submit(job)));
    };
    try {
      yield* inParallel(jobs, options.atOnce ?? 256, run);
    } finally {
      many.close();
    }
  }

  // The same id is the same job: without one, the client makes one, so that the call can be sent again.
  async create(kind, payload, options = {}) {
    const { id = randomUUID(), delay, expireIn, retainFor, retry } = options;
    const policy = retry && { maxAttempts: retry.attempts, initial: seconds(retry.initial), max: seconds(retry.max) };
    const expireTime = seconds(expireIn == null ? null : Date.now() + expireIn);
    const when = { delay: seconds(delay), retry: policy, retainFor: seconds(retainFor), expireTime };
    const request = { job: jobOf(kind, payload, options), jobId: id, options: when };
    const { alreadyExisted } = await this.#repeat("createJob", request, options);
    return this.job(id, alreadyExisted);
  }

  job(id, alreadyExisted = true) {
    return new Detached(id, alreadyExisted, (...all) => this.#repeat(...all), (...all) => this.#follow(this.#jobs, ...all));
  }

  #tries(options) {
    return new Tries({ resend: this.#options.resend, ...options });
  }

  // A call about a detached job may be made again and again.
  #repeat(method, request, options = {}) {
    return this.#unary(this.#jobs[method].bind(this.#jobs), request, { ...options, runs: Infinity });
  }

  #unary(method, request, options) {
    return this.#persist(options, (tries) => this.#once(method, request, tries, options));
  }

  async #persist(options, attempt) {
    for (const tries = this.#tries(options); ; ) {
      try {
        return await attempt(tries);
      } catch (failure) {
        await tries.another(failure);
      }
    }
  }

  async #once(method, request, { end }, { signal, requestId }) {
    const metadata = await metadataOf(this.#options, requestId);
    signal?.throwIfAborted();
    let stop;
    const answer = new Promise((resolve, reject) => {
      const call = method(request, metadata, { deadline: end }, (error, answer) => {
        if (!error) resolve(answer);
        else reject(signal?.aborted ? signal.reason : ofCall(error, call, this.#channel.getTarget()));
      });
      stop = () => call.cancel();
    });
    signal?.addEventListener("abort", stop);
    return answer.finally(() => signal?.removeEventListener("abort", stop));
  }

  // The messages of a call, which is made again while `mayResume` says so.
  async *#follow(service, method, request, options, mayResume) {
    for (const tries = this.#tries(options); ; ) {
      const deadline = options.timeout === Infinity ? Infinity : tries.end;
      const call = service[method](request(), await metadataOf(this.#options, options.requestId), { deadline });
      const stop = () => call.cancel();
      options.signal?.addEventListener("abort", stop);
      let failure;
      try {
        yield* call;
        return;
      } catch (error) {
        options.signal?.throwIfAborted();
        failure = ofCall(error, call, this.#channel.getTarget());
      } finally {
        options.signal?.removeEventListener("abort", stop);
        call.cancel();
      }
      if (!mayResume()) throw failure;
      await tries.another(failure);
    }
  }
}

const ENDED = ["FAILED", "CANCELLED", "EXPIRED"].map((state) => `JOB_STATE_${state}`);

// A job that outlives its calls.
class Detached {
  #call;
  #follow;

  constructor(id, alreadyExisted, call, follow) {
    Object.assign(this, { id, alreadyExisted });
    this.#call = call;
    this.#follow = follow;
  }

  async get(options) {
    return (await this.#call("getJob", { jobId: this.id }, options)).job;
  }

  async cancel({ reason, ...options } = {}) {
    return (await this.#call("cancelJob", { jobId: this.id, reason }, options)).state;
  }

  async retry({ reason, ...options } = {}) {
    await this.#call("retryJob", { jobId: this.id, reason }, options);
  }

  // The result, once there is one. A job that has not ended in time goes on.
  async wait({ timeout = Infinity, signal } = {}) {
    for (const end = Date.now() + timeout; ; ) {
      const most = Math.min(end - Date.now(), TIMEOUT);
      const late = new DOMException(`job ${this.id} has not ended in ${timeout} ms`, "TimeoutError");
      if (most <= 0) throw late;
      const { job } = await this.#call("waitJob", { jobId: this.id }, { timeout: most, signal }).catch((failure) => {
        if (failure.code !== "DEADLINE_EXCEEDED") throw failure;
        return { job: {} };
      });
      if (job.state === "JOB_STATE_SUCCEEDED") return new Result({ ...job, contentType: job.outputType });
      if (ENDED.includes(job.state)) throw ofDetached(job);
      // The server answers a little before the deadline of the call.
      if (end - Date.now() < 100) throw late;
    }
  }

  // Its events to its end, over broken connections.
  async *watch({ signal } = {}) {
    let fromSequence = "0";
    const request = () => ({ jobId: this.id, fromSequence });
    const options = { timeout: Infinity, runs: Infinity, signal };
    for await (const event of this.#follow("watchJob", request, options, () => true)) {
      fromSequence = event.sequence;
      yield event;
    }
  }
}

module.exports = { Client };
