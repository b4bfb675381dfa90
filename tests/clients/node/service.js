// A waterwheel server of a test's own, and what every client of one needs: the stub, calls as promises, and the details
// of errors. Stubs come from proto/ when the program starts, by `@grpc/proto-loader`.
//
// What to copy into a program of your own: `load`, `refusal` and the channel options that the tests pass.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
export const PROGRAM = process.env.WATERWHEEL_BIN ?? join(ROOT, "target/debug/waterwheel");
const LOADING = { longs: Number, enums: String, defaults: true, oneofs: true };

const PROTO = { ...LOADING, includeDirs: [join(ROOT, "proto")] };

const details = loadSync(["google/rpc/status.proto", "google/rpc/error_details.proto"], PROTO);
const contract = loadSync("waterwheel/v1/worker_pool_service.proto", PROTO);
const SERVICE = "waterwheel.v1.WorkerPoolService";
const WorkerPool = grpc.makeClientConstructor(contract[SERVICE], SERVICE);

// Two workers and the built-in kinds: enough where a test is not about bounds.
export const ROOMY = `
pool.cpu.workers = 2
kind.echo = { pool = "cpu", builtin = "echo" }
kind.sha256 = { pool = "cpu", builtin = "sha256" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "cpu", builtin = "sleep" }
`;

// One worker, one place in the queue.
export const TINY = `
kind.echo = { pool = "tiny", builtin = "echo" }
kind.sleep = { pool = "tiny", builtin = "sleep" }
[pool.tiny]
workers = 1
queue = { jobs = 1 }
`;

// Starts a server that ends with the test `t`, and a client of it.
export async function serve(t, config, options = {}) {
  const folder = mkdtempSync(join(tmpdir(), "waterwheel-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "waterwheel.toml");
  writeFileSync(path, config);
  // Port 0: the system chooses, and the server says what it chose.
  const flags = ["--config", path, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"];
  const process = spawn(PROGRAM, ["serve", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  const exit = new Promise((resolve) => process.on("exit", resolve));
  t.after(async () => {
    process.kill("SIGKILL");
    await exit;
  });
  const log = [];
  process.stderr.on("data", (data) => log.push(data));
  const lines = createInterface({ input: process.stdout })[Symbol.asyncIterator]();
  const { value: announced = "" } = await lines.next();
  const [, address] = /^grpc (\S+) /.exec(announced) ?? [];
  if (!address) throw new Error(`no server: ${announced}\n${Buffer.concat(log)}`);
  const service = new Service(address, options);
  t.after(() => service.close());
  return service;
}

class Service {
  constructor(address, options) {
    this.address = address;
    this.held = [];
    // Without this option grpc-js shares connections between channels of equal options.
    const own = { "grpc.use_local_subchannel_pool": 1, ...options };
    this.client = new WorkerPool(address, grpc.credentials.createInsecure(), own);
  }

  close() {
    this.held.forEach((call) => call.cancel());
    this.client.close();
  }

  // Starts one job: the call to cancel, and the promise of its end.
  start(kind, payload = "", { timeout = 30_000, ...fields } = {}) {
    const started = unary(this.client, "Submit", { job: job(kind, payload, fields) }, { timeout });
    // Who waits for the end hears of its failure; nobody must.
    started.ended.catch(() => {});
    this.held.push(started.call);
    return started;
  }

  // Runs one job and gives its result.
  async submit(kind, payload, options) {
    const { response } = await this.start(kind, payload, options).ended;
    return response.result;
  }

  // Runs one job as a stream; the call gives its events.
  stream(kind, payload = "", { timeout = 30_000, ...fields } = {}) {
    const request = { job: job(kind, payload, fields) };
    return this.client.Stream(request, { deadline: Date.now() + timeout });
  }

  // Statistics of one pool; of the first one without a name.
  async pool(name = "") {
    const { response } = await unary(this.client, "Stats", { pool: name }).ended;
    return response.stats.pools[0];
  }

  // How many jobs run, are queued, and wait for room.
  async load() {
    const { inFlight, queue } = await this.pool();
    return [inFlight, queue.jobs, queue.waiting].join();
  }

  // How often the first pool refused for `reason`.
  async rejected(reason) {
    const { jobs } = await this.pool();
    return jobs.rejected.find((row) => row.reason === reason)?.count ?? 0;
  }

  // Occupies a worker, then places in the queue, for as long as the test lasts; gives the calls.
  async fill(queued) {
    const started = [this.start("sleep", "600000")];
    await until(async () => (await this.load()) === "1,0,0");
    for (let n = 0; n < queued; n++) started.push(this.start("sleep", "600000"));
    await until(async () => (await this.load()) === `1,${queued},0`);
    return started;
  }
}

// A job; `fields` are those of the message.
export function job(kind, payload = "", fields = {}) {
  return { kind, payload: Buffer.from(payload), ...fields };
}

// Starts a unary call: the call, and the promise of its response.
export function unary(client, method, request, { timeout = 10_000 } = {}) {
  let call;
  const ended = new Promise((resolve, reject) => {
    const done = (error, response) => (error ? reject(error) : resolve({ response }));
    call = client[method](request, { deadline: Date.now() + timeout }, done);
  });
  return { call, ended };
}

// Asks again and again until `holds()` is true; gives the milliseconds that it took.
export async function until(holds, within = 10_000) {
  const began = performance.now();
  while (!(await holds())) {
    if (performance.now() - began > within) throw new Error(`not within ${within} ms`);
    // Lets the events in that the next look is for.
    await new Promise(setImmediate);
  }
  return performance.now() - began;
}

// What the failure of a call says: its code and message, and the details that a program decides by.
export async function refusal(promise) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    if (!(error.metadata instanceof grpc.Metadata)) throw error;
    const [packed] = error.metadata.get("grpc-status-details-bin");
    const [pushback] = error.metadata.get("grpc-retry-pushback-ms");
    const status = packed ? details["google.rpc.Status"].deserialize(packed) : { details: [] };
    const infos = status.details.filter(({ typeUrl, type_url = typeUrl }) => type_url.endsWith("/google.rpc.ErrorInfo"));
    return {
      code: grpc.status[error.code],
      reason: infos.map(({ value }) => details["google.rpc.ErrorInfo"].deserialize(value).reason)[0],
      pushbackMs: pushback === undefined ? undefined : Number(pushback),
    };
  }
  throw new Error(`the call succeeded: ${JSON.stringify(result)}`);
}

// A duration of so many milliseconds.
export function duration(ms) {
  return { seconds: Math.floor(ms / 1e3), nanos: (ms % 1e3) * 1e6 };
}
