// Submits a job, streams one, and prints the reason of a refusal.
//
//     npm install @grpc/grpc-js @grpc/proto-loader
//     node examples/node/client.cjs 127.0.0.1:7070

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const ROOT = join(__dirname, "../..");
const PROTOS = ["waterwheel/v1/worker_pool_service.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"];
const contract = loadSync(PROTOS, { includeDirs: [join(ROOT, "proto")], longs: Number, defaults: true, oneofs: true });
const { waterwheel } = grpc.loadPackageDefinition(contract);

// A channel that balances, checks health, and tries again when the server says that it may.
function connect(address) {
  const serviceConfig = readFileSync(join(ROOT, "deploy/service-config.json"), "utf8");
  const options = { "grpc.service_config": serviceConfig, "grpc.enable_retries": 1 };
  return new waterwheel.v1.WorkerPoolService(address, grpc.credentials.createInsecure(), options);
}

// The deadline is that of the whole job: queue, run and answer.
function submit(pool, job, milliseconds) {
  return new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer.result));
    pool.submit({ job }, { deadline: Date.now() + milliseconds }, done);
  });
}

// Why a call failed, the figures of the reason, and the seconds until a retry makes sense, if any does.
function reason(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  const details = packed ? contract["google.rpc.Status"].deserialize(packed).details : [];
  const find = (type) => {
    const detail = details.find(({ type_url }) => type_url.endsWith(`/${type}`));
    return detail && contract[type].deserialize(detail.value);
  };
  const info = find("google.rpc.ErrorInfo") ?? { reason: grpc.status[error.code], metadata: {} };
  const delay = find("google.rpc.RetryInfo")?.retryDelay;
  return { ...info, retryAfter: delay && delay.seconds + delay.nanos / 1e9 };
}

async function main(address) {
  const pool = connect(address);
  const result = await submit(pool, { kind: "sha256", payload: Buffer.from("hello") }, 2000);
  console.log(`${result.output} by job ${result.jobId}`);

  const job = { kind: "gzip", payload: Buffer.alloc(60_000, "hello ") };
  // To leave this loop early, call `cancel()` on the call: `break` alone does not cancel the job.
  for await (const event of pool.stream({ job }, { deadline: Date.now() + 2000 })) {
    console.log(event.sequence, event.event);
  }

  try {
    await submit(pool, { kind: "nothing" }, 2000);
  } catch (error) {
    const { reason: why, metadata, retryAfter } = reason(error);
    console.log(why, JSON.stringify(metadata), retryAfter ? `retry after ${retryAfter} s` : "no retry");
  }
  pool.close();
}

main(process.argv[2]);
