// A worker of waterwheel that serves the kind `thumbnail`, by the package waterwheel-pool.
//
//     waterwheel worker test -- node thumbnail.mjs     checks that it keeps the protocol
//     waterwheel dev --worker thumbnail.mjs            serves it, and starts it anew when this file changes
//     WATERWHEEL_ADDRESS=HOST:PORT node thumbnail.mjs  attaches it to a server whose kind is `remote`
//
// Load what is slow to load (a model, a connection) here, once. It is kept from job to job.

import { realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Failed, Output, worker } from "waterwheel-pool";

// Does one job: returns the result and its content type. Long work passes `job.signal` on, or looks at `job.cancelled`.
worker.kind("thumbnail", async (job) => {
  if (job.payload.length === 0) throw new Failed("INVALID_ARGUMENT", "the payload is empty");
  return new Output(job.payload, job.contentType);
});

// A test imports this file, and calls `worker.test("data")` of the package.
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await worker.run();
