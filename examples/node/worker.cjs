// A worker that attaches to servers from anywhere, and runs their jobs of the kind `thumbnail`.
//
//     npm install @grpc/grpc-js @grpc/proto-loader
//     node examples/node/worker.cjs 127.0.0.1:7070 [ADDRESS...]
//
// Load what is slow to load (a model, a connection) here, once. It is kept from job to job.

const { join } = require("node:path");
const { setTimeout } = require("node:timers/promises");
const { inspect } = require("node:util");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

// Jobs at once from each server.
const CONCURRENCY = 4;
// Most bytes of one message: a server takes no more than its largest payload.
const PIECE = 1 << 20;

// Does one job: returns the result, as bytes and their content type. It shares one thread with the connection: what
// computes for long, without an `await`, belongs in a `Worker` of `node:worker_threads`. A server that gets no answer to
// its ping, by default for 15 to 20 s, takes the jobs of this process for lost.
async function run(job) {
  return [job.payload, job.contentType];
}

// What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
async function conformance(job) {
  switch (job.labels.task) {
    case "chunks":
      for (let number = 0; number < 3; number++) await job.output(Buffer.from(`${number}\n`));
      return [Buffer.from("end\n"), "text/plain"];
    case "progress":
      job.progress(0.5, "half of it");
      break;
    case "fail":
      throw new Failed("NOT_FOUND", "no such picture");
    case "wait":
      // `job.signal` also stops what takes one, such as `fetch`.
      if (!job.signal.aborted) await new Promise((resolve) => job.signal.addEventListener("abort", resolve));
      throw new Failed("CANCELLED", `stopped because of ${job.signal.reason}`);
    case "print":
      console.log("a line on standard output");
      break;
    case "crash":
      process.exit(3);
  }
  return [job.payload, job.contentType];
}

const KINDS = { thumbnail: run, conformance };

// Ends a job with a gRPC status code. Any other error ends it with INTERNAL.
class Failed extends Error {
  constructor(code, message, retryable) {
    super(message);
    Object.assign(this, { code, retryable });
  }
}

class Job {
  #abort = new AbortController();
  #say;
  // Pieces of output that the server has not taken: at most four.
  #untaken = 0;
  #waiting = [];

  constructor(run, say) {
    Object.assign(this, run); // id, jobId, kind, contentType, budgetMs, requestId, tenant, labels, attempt, payload
    this.signal = this.#abort.signal;
    this.#say = say;
  }

  // Sends a piece of the result now, which a caller of `Stream` gets as a chunk. It waits for a slow caller.
  async output(data) {
    while (this.#untaken >= 4) await new Promise((resolve) => this.#waiting.push(resolve));
    this.#untaken += 1;
    return this.#say({ output: { id: this.id, data } });
  }

  progress(fraction, message = "") {
    return this.#say({ progress: { id: this.id, fraction, message: text(message) } });
  }

  // The server has taken so many pieces of the output.
  taken(pieces = 1) {
    this.#untaken -= pieces;
    this.#waiting.splice(0).forEach((resolve) => resolve());
  }

  cancel(reason) {
    this.#abort.abort(reason);
    this.taken(Infinity);
  }
}

// The answer to a job: every way out of its handler is one, and a result that cannot be sent is an error of it.
async function serve(job) {
  try {
    if (!Object.hasOwn(KINDS, job.kind)) throw new Failed("UNIMPLEMENTED", `no handler for the kind ${job.kind}`);
    let [data, contentType] = await KINDS[job.kind](job);
    data = ArrayBuffer.isView(data) ? Buffer.from(data.buffer, data.byteOffset, data.byteLength) : Buffer.from(data);
    contentType = text(contentType ?? "");
    for (; data.length > PIECE; data = data.subarray(PIECE)) await job.output(data.subarray(0, PIECE));
    return { done: { id: job.id, data, contentType } };
  } catch (error) {
    if (!(error instanceof Failed)) console.error(error);
    const [code, retryable] = error instanceof Failed ? [text(error.code), error.retryable] : ["INTERNAL"];
    const message = typeof error?.message === "string" ? error.message : inspect(error);
    const failed = { id: job.id, code, message: text(message).slice(0, 1000) };
    return { failed: retryable == null ? failed : { ...failed, retryable: Boolean(retryable) } };
  }
}

// A text in UTF-8, which half a character is not.
function text(value) {
  return Buffer.from(String(value)).toString();
}

const includeDirs = [join(__dirname, "../../proto")];
const contract = loadSync("waterwheel/v1/worker_service.proto", { includeDirs, defaults: true, longs: Number });
const { WorkerService } = grpc.loadPackageDefinition(contract).waterwheel.v1;
// The keepalive finds a server that is gone, and payloads may be larger than gRPC's default of 4 MiB. A connection that
// other channels do not share has no pause of theirs before its next try.
const OPTIONS = {
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
  "grpc.use_local_subchannel_pool": 1,
};
const leaving = new AbortController();

// Attaches to one server, and runs its jobs until the call ends. Returns whether another loop has taken over.
async function attach(address) {
  const client = new WorkerService(address, grpc.credentials.createInsecure(), OPTIONS);
  const call = client.attach();
  const jobs = new Map();
  let isFollowed = false;
  const say = (message) => new Promise((resolve) => call.write(message, resolve));
  const leave = () => say({ leaving: {} });
  leaving.signal.addEventListener("abort", leave);
  say({ hello: { name: "thumbnail", kinds: Object.keys(KINDS), concurrency: CONCURRENCY } });
  try {
    for await (const { run, cancel, taken, leave } of call) {
      if (run) {
        const job = new Job(run, say);
        jobs.set(job.id, job);
        serve(job).then((answer) => {
          jobs.delete(job.id);
          return say(answer);
        });
      }
      if (taken) jobs.get(taken.id)?.taken();
      if (cancel) jobs.get(cancel.id)?.cancel(cancel.reason);
      // The jobs of this call may take long: the free slots attach again at once.
      if (leave && !isFollowed) stayAttached(address);
      isFollowed ||= Boolean(leave);
    }
  } catch (error) {
    console.error(`${address}: ${error.message}`);
  } finally {
    leaving.signal.removeEventListener("abort", leave);
    client.close();
    // No caller waits for these any more.
    jobs.forEach((job) => job.cancel("DETACHED"));
  }
  return isFollowed;
}

// Attaches again whenever the call ends: the server restarts, or the network breaks.
async function stayAttached(address) {
  while (!leaving.signal.aborted && !(await attach(address))) {
    await setTimeout(100 + 900 * Math.random(), null, leaving).catch(() => {});
  }
}

// Takes no more jobs, and ends once those that run are answered.
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => leaving.abort());

const addresses = process.argv.slice(2);
(addresses.length ? addresses : process.env.WATERWHEEL_ADDRESS.split(",")).forEach(stayAttached);
