// A worker that runs jobs of the kind `thumbnail`: as a child of a server, or attached to servers from anywhere.
//
//     npm ci --prefix clients/node
//     node examples/node/worker.cjs 127.0.0.1:7070 [ADDRESS...]
//
// Load what is slow to load (a model, a connection) here, once. It is kept from job to job.

// In a program of your own: require("waterwheel-pool").
const { Output, worker } = require("../../clients/node");

// Does one job. It shares one thread with the connection: what computes for long, without an `await`, belongs in a `Worker`
// of `node:worker_threads`. A server that gets no answer to its ping, by default for 15 to 20 s, takes the jobs of this
// process for lost.
worker.kind("thumbnail", async (job) => new Output(job.payload, job.contentType));

const addresses = process.argv.slice(2);
worker.run({ name: "thumbnail", ...(addresses.length && { address: addresses }) });
