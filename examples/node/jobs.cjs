// Creates a detached job, watches it, waits for it; cancels another one, and runs that again.
//
//     npm ci --prefix clients/node
//     node examples/node/jobs.cjs 127.0.0.1:7070

const { randomUUID } = require("node:crypto");
// In a program of your own: require("waterwheel-pool").
const { Client } = require("../../clients/node");

async function main(address) {
  const pool = new Client(address);
  const id = `report-${randomUUID()}`;
  await pool.create("sleep", "300", { id });
  // The same id is the same job.
  const job = await pool.create("sleep", "300", { id });
  console.log("created", id, job.alreadyExisted);
  for await (const event of job.watch()) console.log("event", event.sequence, event.event);
  console.log("waited", (await job.wait({ timeout: 60_000 })).text);

  const later = await pool.create("sleep", "300", { delay: 3_600_000 });
  console.log("cancelled", await later.cancel());
  await later.retry();
  console.log("retried", (await later.wait({ timeout: 60_000 })).text);
  pool.close();
}

main(process.argv[2]);
