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
const contract = loadSync(PROTOS, { includeDirs: [join(ROOT, "proto")], longs: Number, oneofs: true });
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

// Why a call failed, whether its work had started, and the figures of the reason.
function reason(error) {
  const [packed] = error.metadata.get("grpc-status-details-bin");
  const details = packed ? contract["google.rpc.Status"].deserialize(packed).details : [];
  const info = details.find(({ type_url }) => type_url.endsWith("/google.rpc.ErrorInfo"));
  return info ? contract["google.rpc.ErrorInfo"].deserialize(info.value) : { reason: grpc.status[error.code] };
}

async function main(address) {
  const pool = connect(address);
  const result = await submit(pool, { kind: "sha256", payload: Buffer.from("hello") }, 2000);
  console.log(`${result.output} by job ${result.jobId}`);

  const job = { kind: "gzip", payload: Buffer.alloc(60_000, "hello ") };
  for await (const event of pool.stream({ job }, { deadline: Date.now() + 2000 })) {
    console.log(event.sequence, event.event);
  }

  try {
    await submit(pool, { kind: "nothing" }, 2000);
  } catch (error) {
    const { reason: why, metadata } = reason(error);
    console.log(why, JSON.stringify(metadata));
  }
  pool.close();
}

main(process.argv[2]);
