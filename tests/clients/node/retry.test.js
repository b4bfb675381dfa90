// A stock client with a retry policy comes back when the server says, and stays away when the server says that.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { refusal, ROOMY, serve, TINY, until } from "./service.js";

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
