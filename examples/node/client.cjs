// Submits a job, streams one, and prints the reason of a refusal.
//
//     npm ci --prefix clients/node
//     node examples/node/client.cjs 127.0.0.1:7070

// In a program of your own: require("waterwheel-pool").
const { Client, Refused, Missed, Failed, Lost } = require("../../clients/node");

async function main(address) {
  // It balances, checks health, and tries again when the server says that it may.
  const pool = new Client(address);
  // The timeout is that of the whole job: queue, run and answer, over all tries.
  const result = await pool.submit("sha256", "hello", { timeout: 2000 });
  console.log(`${result.text} by job ${result.jobId}`);

  // Leave the loop to cancel the job.
  const stream = pool.stream("gzip", "hello ".repeat(10_000), { timeout: 2000 });
  for await (const piece of stream) console.log("output", piece.length);
  console.log("finished", stream.result.jobId);

  try {
    await pool.submit("nothing", "", { timeout: 2000 });
  } catch (error) {
    if (error instanceof Refused) {
      // It did not start.
      const again = error.retryAfter ? `retry after ${error.retryAfter} ms` : "no retry";
      console.log(error.reason, JSON.stringify(error.metadata), again);
    } else if (error instanceof Missed) {
      console.log("too late", error.reason);
    } else if (error instanceof Failed) {
      // Its handler says no.
      console.log(error.code, error.message, error.stderr);
    } else if (error instanceof Lost) {
      // It may have had effects.
      console.log("lost", error.reason, error.started);
    } else throw error;
  }
  pool.close();
}

main(process.argv[2]);
