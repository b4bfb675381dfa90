// The example of a worker that attaches keeps the protocol, and runs the jobs of a server.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { PROGRAM, serve, until } from "./service.js";

const WORKER = [process.execPath, fileURLToPath(new URL("../../../examples/node/worker.cjs", import.meta.url))];
const ENV = { ...process.env, NODE_PATH: fileURLToPath(new URL("node_modules", import.meta.url)) };

const FAR = `
[pool.far]
when_full = "wait"
[kind.thumbnail]
pool = "far"
remote = true
`;

test("the worker keeps the protocol", { timeout: 240_000 }, async () => {
  const args = ["worker", "test", "--attach", "--output", "json", "--", ...WORKER];
  // Where a row fails, so does the command; what it printed says why.
  const { stdout } = await promisify(execFile)(PROGRAM, args, { env: ENV }).catch((error) => error);
  const rows = stdout.trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(rows.length === 16 && rows.every((row) => row.verdict === "pass"), stdout);
});

test("the worker runs the jobs of a server", async (t) => {
  const service = await serve(t, FAR);
  // It waits for the worker, which is still to attach.
  const early = service.submit("thumbnail", "early");
  const [program, ...args] = WORKER;
  const env = { ...ENV, WATERWHEEL_ADDRESS: service.address };
  const worker = spawn(program, args, { env, stdio: "inherit" });
  t.after(() => worker.kill("SIGKILL"));
  assert.equal((await early).output.toString(), "early");
  const workers = async () => (await service.pool()).size.workers;
  assert.equal(await workers(), 4);
  const exit = once(worker, "exit");
  worker.kill("SIGTERM");
  assert.deepEqual(await exit, [0, null]);
  await until(async () => (await workers()) === 0);
});
