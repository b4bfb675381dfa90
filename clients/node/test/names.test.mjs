// A worker and the addresses of a name, with a resolver of the test's own.

import assert from "node:assert/strict";
import dns from "node:dns/promises";
import { test } from "node:test";
import timers from "node:timers/promises";

let found = ["127.0.0.1"];
let looks = 0;
dns.lookup = async (host) => {
  assert.equal(host, "pool.example");
  looks++;
  if (found.length === 0) throw new Error("no answer");
  return found.map((address) => ({ address, family: 4 }));
};
const { setTimeout: sleep } = timers;
timers.setTimeout = (milliseconds, ...rest) => sleep(milliseconds === 3000 ? 20 : milliseconds, ...rest);
// The package takes both when it is loaded.
const { Worker } = await import("../index.js");
const { dial, start, until } = await import("./server.mjs");

const FAR = `[pool.one]\nwhen_full = "wait"\n[kind.slow]\npool = "one"\nremote = true`;

test("a worker follows the addresses of a name", async (t) => {
  const { address } = await start(t, FAR);
  const port = address.split(":")[1];
  const other = dial(t, (await start(t, FAR, `127.0.0.2:${port}`)).address);
  const one = dial(t, address);
  const looked = (since) => until(() => looks > since + 5);
  const text = async (pool, milliseconds) => (await pool.submit("slow", String(milliseconds))).text;
  const worker = new Worker();
  let isAsked = false;
  worker.kind("slow", async (job) => {
    isAsked = true;
    await sleep(Number(job.text), null, { signal: job.signal });
    return "not stopped";
  });
  const leaving = new AbortController();
  const ended = worker.run({ address: `pool.example:${port}`, signal: leaving.signal });
  assert.equal(await text(one, 0), "not stopped");
  found = ["127.0.0.1", "127.0.0.2"];
  assert.equal(await text(other, 0), "not stopped");
  found = [];
  await looked(looks);
  // Nobody can tell what is gone.
  assert.equal(await text(one, 0), "not stopped");
  isAsked = false;
  const long = text(one, 1000);
  await until(() => isAsked);
  found = ["127.0.0.2"];
  await looked(looks);
  await assert.rejects(one.submit("slow", "0", { timeout: 300 }));
  assert.deepEqual([await long, await text(other, 0)], ["not stopped", "not stopped"]);
  leaving.abort();
  await ended;
});
