// Submits a job, streams one, and says what a refusal tells.
//
//     npm install @grpc/grpc-js @grpc/proto-loader
//     node examples/node/client.cjs 127.0.0.1:7070

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const ROOT = join(__dirname, "../..");
const { waterwheel } = grpc.loadPackageDefinition(
  loadSync("waterwheel/v1/worker_pool_service.proto", { includeDirs: [join(ROOT, "proto")], longs: Number, oneofs: true }),
);

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

async function main(address) {
  const pool = connect(address);
  const result = await submit(pool, { kind: "sha256", payload: Buffer.from("hello") }, 2000);
  console.log(`${result.output} by job ${result.job_id}`);

  const job = { kind: "gzip", payload: Buffer.alloc(60_000, "hello ") };
  for await (const event of pool.stream({ job }, { deadline: Date.now() + 2000 })) {
    console.log(event.sequence, event.event);
  }

  try {
    await submit(pool, { kind: "nothing" }, 2000);
  } catch (error) {
    // A refusal that is worth a new try says when: in milliseconds, and -1 for never.
    console.log(grpc.status[error.code], error.details, error.metadata.get("grpc-retry-pushback-ms")[0] ?? "");
  }
  pool.close();
}

main(process.argv[2]);
