// Deadlines and cancellation: the server answers before the client gives up, and a caller that left frees its worker.

import assert from "node:assert/strict";
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
// The promise is 50 ms. Asking for the statistics is within what is measured, on a machine that may be busy.
const FREED_WITHIN = 500;

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
