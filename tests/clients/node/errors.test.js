// Failures: a code for everybody, a reason and details for programs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { refusal, ROOMY, serve, TINY } from "./service.js";

function assertRefused(said, code, reason, { pushback } = {}) {
  assert.deepEqual([said.code, said.reason, said.domain], [code, reason, "waterwheel.dev"]);
  assert.equal(said.metadata.execution, "NOT_STARTED");
  if (pushback === "later") {
    assert.ok(said.pushbackMs > 0 && said.pushbackMs <= 5_000, `${said.pushbackMs}`);
    assert.ok(Math.abs(said.retryAfterMs - said.pushbackMs) <= 1, `${said.retryAfterMs}`);
  } else {
    assert.deepEqual([said.pushbackMs, said.retryAfterMs], [pushback, undefined]);
  }
}

test("all fields out of their bounds are named at once", async (t) => {
  const service = await serve(t, ROOMY);
  const said = await refusal(service.submit("", "", { tenant: "x".repeat(129), contentType: "x".repeat(129) }));
  assertRefused(said, "INVALID_ARGUMENT", "INVALID_FIELD");
  assert.deepEqual(Object.keys(said.violations).toSorted(), ["job.content_type", "job.kind", "job.tenant"]);
});

test("a payload over its limit is refused for good", async (t) => {
  const service = await serve(t, ROOMY);
  // The first is over the limit of a payload, the second over that of a message too.
  for (const over of [1, 1 << 20]) {
    const said = await refusal(service.submit("echo", Buffer.alloc((4 << 20) + over)));
    assertRefused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", { pushback: -1 });
  }
});

test("the largest payload passes", async (t) => {
  const service = await serve(t, ROOMY);
  assert.equal((await service.submit("sha256", Buffer.alloc(4 << 20))).output.length, 64);
});

test("the largest output fits a client with the limits that it begins with", async (t) => {
  const service = await serve(t, ROOMY);
  const largest = (4 << 20) - (64 << 10);
  assert.equal((await service.submit("echo", Buffer.alloc(largest))).output.length, largest);
});

test("a full queue says when to come back", async (t) => {
  const service = await serve(t, TINY);
  await service.fill(1);
  const said = await refusal(service.submit("echo", "", { whenFull: "WHEN_FULL_REJECT" }));
  assertRefused(said, "RESOURCE_EXHAUSTED", "QUEUE_FULL", { pushback: "later" });
  assert.deepEqual([said.metadata.kind, said.metadata.pool], ["echo", "tiny"]);
  assert.equal(await service.rejected("QUEUE_FULL"), 1);
});
