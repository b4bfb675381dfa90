// What a client library decides: whether the server's answer at a deadline comes first, what a cancel does, whether to
// retry, and how large a message may be.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { duration, refusal, ROOMY, serve, TINY, until } from "./service.js";

const CALLS = 5;
// A machine that is busy with other work may lose a race, even one that has 100 ms to spare.
const ROUNDS = 5;
// The margin is at most a tenth of the budget: with 1 s the server answers 100 ms before the client gives up.
const BUDGET = 1000;
const EARLY = `
[deadline]
reply_margin = "1s"
`;

// Calls that run out of time bring the server's reason, and not the client's own timer.
async function assertToldWhy(t, call, reason) {
  const told = [];
  while (told.length < ROUNDS) {
    let count = 0;
    for (let n = 0; n < CALLS; n++) {
      const said = await refusal(call());
      // A pool whose worker is not free yet may refuse a job that is like one which took too long.
      if (said.reason === "DEADLINE_UNREACHABLE") continue;
      assert.equal(said.code, "DEADLINE_EXCEEDED");
      if (!said.reason) continue;
      assert.deepEqual([said.reason, said.pushbackMs], [reason, -1]);
      count += 1;
    }
    told.push(count);
    t.diagnostic(`${reason}: the server's answer came first in ${count} of ${CALLS} calls`);
    if (count === CALLS) return;
  }
  assert.fail(`of ${CALLS} calls in each round, these were told ${reason}: ${told}`);
}

test("a job that runs too long is told so", async (t) => {
  const service = await serve(t, ROOMY + EARLY);
  await assertToldWhy(t, () => service.submit("sleep", "60000", { timeout: BUDGET }), "RUN_TIMEOUT");
});

test("a stream is told why after it began", async (t) => {
  const service = await serve(t, ROOMY);
  const events = [];
  const call = service.stream("sleep", "60000", { runTimeout: duration(150) });
  call.on("data", (event) => events.push(event.event));
  const said = await refusal(new Promise((resolve, reject) => call.on("end", resolve).on("error", reject)));
  assert.deepEqual([said.code, said.reason, events[0]], ["DEADLINE_EXCEEDED", "RUN_TIMEOUT", "started"]);
});

// The promise is 50 ms. Asking for the statistics is within what is measured, on a machine that may be busy.
const FREED_WITHIN = 500;

// `leave` must free the worker, and the places in the queue of the jobs that wait.
async function assertFreed(t, service, queued, leave) {
  const { cancelled } = (await service.pool()).jobs;
  leave();
  const took = await until(async () => (await service.load()) === "0,0,0", FREED_WITHIN);
  t.diagnostic(`freed within ${took.toFixed(1)} ms`);
  assert.equal((await service.pool()).jobs.cancelled, cancelled + 1 + queued);
}

for (const queued of [0, 1]) {
  test(`a cancelled call frees its place, with ${queued} queued`, async (t) => {
    const service = await serve(t, TINY);
    const started = await service.fill(queued);
    await assertFreed(t, service, queued, () => started.toReversed().forEach(({ call }) => call.cancel()));
    for (const { ended } of started) assert.equal((await refusal(ended)).code, "CANCELLED");
    assert.equal((await service.submit("echo", "next")).output.toString(), "next");
  });
}

test("the largest payload and output fit a client with the limits that it begins with", async (t) => {
  const service = await serve(t, ROOMY);
  assert.equal((await service.submit("sha256", Buffer.alloc(4 << 20))).output.length, 64);
  const largest = (4 << 20) - (64 << 10);
  assert.equal((await service.submit("echo", Buffer.alloc(largest))).output.length, largest);
});

// What a program passes to its channel.
const CONFIG = JSON.parse(readFileSync(new URL("../../../deploy/service-config.json", import.meta.url), "utf8"));
// A backoff of its own of a minute would outlast every test: whoever comes back was told to.
const PATIENCE = { initialBackoff: "60s", maxBackoff: "60s" };

// Answers UNAVAILABLE to whoever asks, and means it.
const NEVER = `
[kind.never]
pool = "cpu"
exec = ["/bin/sh", "-c", "exit 6"]
exit_codes = { 6 = "UNAVAILABLE" }
`;

// A server, and a client with the policy.
function retrying(t, config) {
  const [method] = CONFIG.methodConfig;
  const methodConfig = [{ ...method, retryPolicy: { ...method.retryPolicy, ...PATIENCE } }];
  return serve(t, config, { "grpc.service_config": JSON.stringify({ ...CONFIG, methodConfig }) });
}

// Fills the pool for a while; it learned before how long its jobs take, so that it knows when there is room.
async function occupy(service, sleep) {
  await service.submit("sleep", sleep);
  service.start("sleep", sleep);
  await until(async () => (await service.load()) === "1,0,0");
  service.start("sleep", sleep);
  await until(async () => (await service.load()) === "1,1,0");
}

test("a call that finds the queue full comes back when told", async (t) => {
  const service = await retrying(t, TINY);
  await occupy(service, "300");
  const began = performance.now();
  const result = await service.submit("echo", "patient");
  const took = performance.now() - began;
  const refused = await service.rejected("QUEUE_FULL");
  t.diagnostic(`done after ${refused} refusals and ${took.toFixed(0)} ms`);
  assert.equal(result.output.toString(), "patient");
  assert.ok(refused >= 1 && refused <= 4, `${refused}`);
  assert.ok(took > 100 && took < 10_000, "a client that follows its own backoff comes back after a minute");
});

test("a handler that says UNAVAILABLE is not asked again", async (t) => {
  const service = await retrying(t, ROOMY + NEVER);
  const said = await refusal(service.submit("never"));
  assert.deepEqual([said.code, said.reason, said.pushbackMs], ["UNAVAILABLE", "HANDLER_FAILED", -1]);
  assert.equal((await service.pool()).jobs.failed, 1);
});
