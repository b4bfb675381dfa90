// Failures: a code for everybody, a reason and details for programs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refusal, ROOMY, serve } from "./service.js";

test("all fields out of their bounds are named at once", async (t) => {
  const service = await serve(t, ROOMY);
  const said = await refusal(service.submit("", "", { tenant: "x".repeat(129), contentType: "x".repeat(129) }));
  assert.deepEqual([said.code, said.reason, said.domain], ["INVALID_ARGUMENT", "INVALID_FIELD", "waterwheel.dev"]);
  assert.deepEqual([said.pushbackMs, said.metadata.execution], [undefined, "NOT_STARTED"]);
  assert.deepEqual(Object.keys(said.violations).toSorted(), ["job.content_type", "job.kind", "job.tenant"]);
});

test("the largest payload and output fit a client with the limits that it begins with", async (t) => {
  const service = await serve(t, ROOMY);
  assert.equal((await service.submit("sha256", Buffer.alloc(4 << 20))).output.length, 64);
  const largest = (4 << 20) - (64 << 10);
  assert.equal((await service.submit("echo", Buffer.alloc(largest))).output.length, largest);
});
