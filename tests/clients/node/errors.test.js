// Failures: a code for everybody, a reason and details for programs.

import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { all, job, refusal, ROOMY, serve, TINY } from "./service.js";

// A program per job, that ends as its input says.
const PROGRAM = `#!/bin/sh
read -r code
case "$code" in
    signal) kill -SEGV $$ ;;
    quotes) yes '{"a": "b c"}' | head -c 100000 >&2; echo the end >&2; exit 1 ;;
    wide) i=0; while [ $i -lt 2000 ]; do printf '\\342\\202\\254' >&2; i=$((i + 1)); done; echo the end >&2; exit 1 ;;
esac
echo "cannot go on: $code" >&2
exit "$code"
`;

function programs(t) {
  const folder = mkdtempSync(join(tmpdir(), "waterwheel-program-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const program = join(folder, "legacy");
  writeFileSync(program, PROGRAM);
  chmodSync(program, 0o755);
  return serve(
    t,
    `
[pool.cpu]
workers = 2
[kind.legacy]
pool = "cpu"
exec = ["${program}"]
exit_codes = { 3 = "INVALID_ARGUMENT", 4 = "NOT_FOUND", 5 = "FAILED_PRECONDITION", 6 = "UNAVAILABLE" }
stderr_tail = "3KiB"
`,
  );
}

function assertRefused(said, code, reason, { pushback, execution = "NOT_STARTED" } = {}) {
  assert.deepEqual([said.code, said.reason, said.domain], [code, reason, "waterwheel.dev"]);
  assert.equal(said.metadata.execution, execution);
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

test("the limit holds for what a compressed message becomes", async (t) => {
  const service = await serve(t, ROOMY, { "grpc.default_compression_algorithm": 2 });
  assert.equal((await service.submit("echo", Buffer.alloc(1 << 20))).output.length, 1 << 20);
  const said = await refusal(service.submit("echo", Buffer.alloc(40 << 20)));
  assertRefused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", { pushback: -1 });
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

test("a talkative program keeps its status", async (t) => {
  const service = await programs(t);
  for (const noise of ["quotes", "wide"]) {
    const said = await refusal(service.submit("legacy", noise));
    assertRefused(said, "UNKNOWN", "HANDLER_FAILED", { pushback: -1, execution: "STARTED" });
    assert.match(said.message, /exited with code 1/);
    assert.match(said.message, /the end$/, "the reason is in the last line that a program writes");
    const details = said.trailers["grpc-status-details-bin"].toString("base64");
    // Message and details go out percent-encoded and in base64.
    const encoded = said.message.replace(/[^ -$&-~]/gu, (sign) => "%00".repeat(Buffer.byteLength(sign)));
    const onTheWire = encoded.length + details.length;
    assert.ok(onTheWire > 2_000 && onTheWire < 4_096, `${onTheWire}`);
  }
});
