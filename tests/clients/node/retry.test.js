// A stock client with a retry policy comes back when the server says, and stays away when the server says that.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { all, refusal, ROOMY, serve, TINY, until } from "./service.js";

// What a program passes to its channel.
const CONFIG = JSON.parse(readFileSync(new URL("../../../deploy/service-config.json", import.meta.url), "utf8"));
// A backoff of its own of a minute would outlast every test: whoever comes back was told to.
const PATIENCE = { initialBackoff: "60s", maxBackoff: "60s" };
const HASTE = { initialBackoff: "0.001s", maxBackoff: "0.001s" };

// Answers UNAVAILABLE to whoever asks, and means it.
const NEVER = `
[kind.never]
pool = "cpu"
exec = ["/bin/sh", "-c", "exit 6"]
exit_codes = { 6 = "UNAVAILABLE" }
`;

// A server, and a client with the policy.
function retrying(t, config, policy = {}) {
  const [method] = CONFIG.methodConfig;
  const methodConfig = [{ ...method, retryPolicy: { ...method.retryPolicy, ...PATIENCE, ...policy } }];
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

test("a client in a hurry is held back", async (t) => {
  const service = await retrying(t, TINY, { ...HASTE, maxAttempts: 3 });
  await service.submit("sleep", "400");
  await service.fill(1);
  const began = performance.now();
  const said = await refusal(service.submit("echo"));
  const took = performance.now() - began;
  assert.deepEqual([said.reason, await service.rejected("QUEUE_FULL")], ["QUEUE_FULL", 3]);
  // Two waits of at least 200 ms each: half of the time of the queued job. Its own backoff is a millisecond.
  t.diagnostic(`3 attempts within ${took.toFixed(0)} ms; the last pushback was ${said.pushbackMs} ms`);
  assert.ok(took > 200, `${took}`);
});

test("a handler that says UNAVAILABLE is not asked again", async (t) => {
  const service = await retrying(t, ROOMY + NEVER);
  const said = await refusal(service.submit("never"));
  assert.deepEqual([said.code, said.reason, said.pushbackMs], ["UNAVAILABLE", "HANDLER_FAILED", -1]);
  assert.equal((await service.pool()).jobs.failed, 1);
});

test("a payload over its limit is not sent again", async (t) => {
  const service = await retrying(t, ROOMY, HASTE);
  const payload = Buffer.alloc((4 << 20) + 1);
  for (const call of [() => service.submit("echo", payload), () => all(service.stream("echo", payload))]) {
    const said = await refusal(call());
    assert.deepEqual([said.code, said.pushbackMs], ["RESOURCE_EXHAUSTED", -1]);
  }
  assert.equal(await service.rejected("PAYLOAD_TOO_LARGE"), 2);
});

test("a stream that is refused comes back when told", async (t) => {
  const service = await retrying(t, TINY);
  await occupy(service, "200");
  const events = await all(service.stream("echo", "patient"));
  assert.deepEqual(events.map((event) => event.event), ["started", "outputChunk", "finished"]);
  const refused = await service.rejected("QUEUE_FULL");
  assert.ok(refused >= 1 && refused <= 4, `${refused}`);
});
