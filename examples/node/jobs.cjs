// Creates a detached job, watches it, waits for it; cancels another one, and runs that again.
//
//     npm install @grpc/grpc-js @grpc/proto-loader
//     node examples/node/jobs.cjs 127.0.0.1:7070

const { randomUUID } = require("node:crypto");
const { join } = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

// A sequence has more bits than a number of JavaScript.
const LOADING = { includeDirs: [join(__dirname, "../../proto")], longs: String, enums: String, defaults: true, oneofs: true };
const { waterwheel } = grpc.loadPackageDefinition(loadSync("waterwheel/v1/job_service.proto", LOADING));
const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"].map((state) => `JOB_STATE_${state}`);

function call(jobs, method, request, milliseconds) {
  const options = milliseconds ? { deadline: Date.now() + milliseconds } : {};
  return new Promise((resolve, reject) => {
    jobs[method](request, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Creates a job. The same id is the same job: after a failure, send it again.
async function create(jobs, job, jobId, options) {
  for (;;) {
    try {
      return await call(jobs, "createJob", { job, jobId, options }, 5000);
    } catch (error) {
      if (![grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED].includes(error.code)) throw error;
      await sleep(200);
    }
  }
}

// The events of a job to its end, over broken connections.
async function* watch(jobs, jobId) {
  for (let fromSequence = "0"; ; await sleep(200)) {
    try {
      for await (const event of jobs.watchJob({ jobId, fromSequence })) {
        fromSequence = event.sequence;
        yield event;
      }
      return;
    } catch (error) {
      if (error.code !== grpc.status.UNAVAILABLE) throw error;
    }
  }
}

// The job at its end. A call waits for as long as the server lets it.
async function wait(jobs, jobId) {
  for (;;) {
    const { job } = await call(jobs, "waitJob", { jobId });
    if (ENDED.includes(job.state)) return job;
  }
}

async function main(address) {
  const jobs = new waterwheel.v1.JobService(address, grpc.credentials.createInsecure());
  const work = { kind: "sleep", payload: Buffer.from("300") };
  const id = `report-${randomUUID()}`;
  await create(jobs, work, id);
  console.log("created", id, (await create(jobs, work, id)).alreadyExisted);
  for await (const event of watch(jobs, id)) console.log("event", event.sequence, event.event);
  const job = await wait(jobs, id);
  console.log("waited", job.state, job.output.toString());

  const later = `later-${randomUUID()}`;
  await create(jobs, work, later, { delay: { seconds: 3600 } });
  console.log("cancelled", (await call(jobs, "cancelJob", { jobId: later }, 5000)).state);
  await call(jobs, "retryJob", { jobId: later }, 5000);
  console.log("retried", (await wait(jobs, later)).state);
  jobs.close();
}

main(process.argv[2]);
