// Failures: a code for everybody, a reason and details for programs.

import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { all, job, refusal, ROOMY, serve, TINY, until } from "./service.js";

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

test("an unknown kind names its neighbour", async (t) => {
  const service = await serve(t, ROOMY);
  const said = await refusal(service.submit("sha265"));
  assertRefused(said, "INVALID_ARGUMENT", "UNKNOWN_KIND");
  assert.match(said.message, /did you mean "sha256"/);
  assert.match(said.violations["job.kind"], /sha256/);
  assert.equal(said.metadata.kind, "sha265");
});

test("a kind like no other has no neighbour", async (t) => {
  const service = await serve(t, ROOMY);
  const said = await refusal(service.submit("transmogrify"));
  assertRefused(said, "INVALID_ARGUMENT", "UNKNOWN_KIND");
  assert.doesNotMatch(said.message, /did you mean/);
});

test("a field out of its bounds is named", async (t) => {
  const service = await serve(t, ROOMY);
  const labels = Object.fromEntries(Array.from({ length: 17 }, (_, number) => [`${number}`, "1"]));
  for (const [field, value, name] of [
    ["contentType", "x".repeat(129), "job.content_type"],
    ["tenant", "x".repeat(129), "job.tenant"],
    ["orderingKey", "x".repeat(257), "job.ordering_key"],
    ["labels", { UPPER: "1" }, "job.labels"],
    ["labels", labels, "job.labels"],
    ["criticality", 9, "job.criticality"],
    ["whenFull", 9, "job.when_full"],
  ]) {
    const said = await refusal(service.submit("echo", "", { [field]: value }));
    assertRefused(said, "INVALID_ARGUMENT", "INVALID_FIELD");
    assert.deepEqual(Object.keys(said.violations).map((key) => key.split("[")[0]), [name]);
  }
});

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

test("a message over its limit ends a SubmitMany call", async (t) => {
  const service = await serve(t, ROOMY);
  const call = service.client.SubmitMany({ deadline: Date.now() + 10_000 });
  call.write({ tag: "1", job: job("echo", Buffer.alloc(5 << 20)) });
  const said = await refusal(all(call));
  assertRefused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", { pushback: -1 });
  assert.ok(said.trailers["x-request-id"]);
});

test("the limit holds for what a compressed message becomes", async (t) => {
  const service = await serve(t, ROOMY, { "grpc.default_compression_algorithm": 2 });
  assert.equal((await service.submit("echo", Buffer.alloc(1 << 20))).output.length, 1 << 20);
  const said = await refusal(service.submit("echo", Buffer.alloc(40 << 20)));
  assertRefused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", { pushback: -1 });
});

test("an output over its limit is refused for good", async (t) => {
  const short = '[kind.short]\npool = "cpu"\nbuiltin = "echo"\nmax_output = "10B"\n';
  const service = await serve(t, ROOMY + short);
  assert.equal((await service.submit("short", "0123456789")).output.toString(), "0123456789");
  const said = await refusal(service.submit("short", "0123456789+"));
  assertRefused(said, "RESOURCE_EXHAUSTED", "OUTPUT_TOO_LARGE", { pushback: -1, execution: "STARTED" });
});

test("a tenant over its share is refused", async (t) => {
  const service = await serve(t, TINY.replace("jobs = 1", "jobs = 8"));
  await service.fill();
  for (const tenant of ["modest", "greedy", "greedy"]) service.start("sleep", "600000", { tenant });
  await until(async () => (await service.load()) === "1,3,0");
  const said = await refusal(service.submit("sleep", "1", { tenant: "greedy" }));
  assertRefused(said, "RESOURCE_EXHAUSTED", "TENANT_SHARE", { pushback: "later" });
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

test("a job that cannot start in time is refused at once", async (t) => {
  const service = await serve(t, TINY);
  await service.submit("sleep", "400");
  await service.fill();
  const said = await refusal(service.submit("sleep", "400", { timeout: 200 }));
  assertRefused(said, "RESOURCE_EXHAUSTED", "DEADLINE_UNREACHABLE", { pushback: "later" });
  assert.ok(Number(said.metadata.needed_budget_ms) > Number(said.metadata.budget_ms));
});

test("a job that made room is told so", async (t) => {
  const service = await serve(t, TINY);
  await service.fill();
  const cheap = service.start("echo", "", { criticality: "CRITICALITY_SHEDDABLE" });
  await until(async () => (await service.load()) === "1,1,0");
  service.start("sleep", "1", { whenFull: "WHEN_FULL_SHED" });
  assertRefused(await refusal(cheap.ended), "RESOURCE_EXHAUSTED", "SHED", { pushback: "later" });
});

test("a program says no by its exit code", async (t) => {
  const service = await programs(t);
  // The first four are configured, 77 is EX_NOPERM of sysexits.h, and nothing is known of 99.
  for (const [exitCode, code] of [
    [3, "INVALID_ARGUMENT"],
    [4, "NOT_FOUND"],
    [5, "FAILED_PRECONDITION"],
    [6, "UNAVAILABLE"],
    [77, "PERMISSION_DENIED"],
    [99, "UNKNOWN"],
  ]) {
    const said = await refusal(service.submit("legacy", `${exitCode}`));
    assertRefused(said, code, "HANDLER_FAILED", { pushback: -1, execution: "STARTED" });
    assert.ok(said.message.includes(`cannot go on: ${exitCode}`), said.message);
    for (const fact of ["job", "kind", "pool", "queue_ms", "run_ms"]) assert.ok(said.metadata[fact], fact);
  }
});

test("a program that crashes is told apart", async (t) => {
  const service = await programs(t);
  const said = await refusal(service.submit("legacy", "signal"));
  assertRefused(said, "INTERNAL", "WORKER_CRASHED", { pushback: -1, execution: "STARTED" });
  assert.match(said.message, /SIGSEGV/);
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

test("a handler says no by its code", async (t) => {
  const service = await serve(t, ROOMY);
  const said = await refusal(service.submit("sleep", "soon"));
  assertRefused(said, "INVALID_ARGUMENT", "HANDLER_FAILED", { pushback: -1, execution: "STARTED" });
  assert.ok(said.message.includes('{"ms":1500}'), said.message);
});
