// The examples do what they say; the one of a worker that attaches keeps the protocol, too.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { PROGRAM, ROOMY, serve, until } from "./service.js";

// The lines that an example prints.
async function told(t, name, config) {
  const service = await serve(t, config);
  const example = fileURLToPath(new URL(`../../../examples/node/${name}`, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [example, service.address]);
  return stdout.trim().split("\n");
}

test("the example of detached jobs runs", async (t) => {
  const lines = await told(t, "jobs.cjs", `${ROOMY}\n[store]\nmemory = true\n`);
  assert.match(lines[0], /^created report-.* true$/);
  assert.match(lines.at(-5), / output$/);
  assert.match(lines.at(-4), / job$/);
  assert.deepEqual(lines.slice(-3), ["waited slept 300 ms", "cancelled JOB_STATE_CANCELLED", "retried slept 300 ms"]);
});

test("the example runs", async (t) => {
  const lines = await told(t, "client.cjs", ROOMY);
  assert.match(lines[0], /^2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job [0-9a-f]+-[0-9a-f]+$/);
  assert.match(lines.at(-3), /^output \d+$/);
  assert.match(lines.at(-2), /^finished [0-9a-f]+-[0-9a-f]+$/);
  assert.match(lines.at(-1), /^UNKNOWN_KIND .*NOT_STARTED/);
});

const WORKER = [process.execPath, fileURLToPath(new URL("../../../examples/node/worker.cjs", import.meta.url))];

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
  const { stdout } = await promisify(execFile)(PROGRAM, args).catch((error) => error);
  const rows = stdout.trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(rows.length === 16 && rows.every((row) => row.verdict === "pass"), stdout);
});

test("the worker runs the jobs of a server", async (t) => {
  const service = await serve(t, FAR);
  // It waits for the worker, which is still to attach.
  const early = service.submit("thumbnail", "early");
  const [program, ...args] = WORKER;
  const env = { ...process.env, WATERWHEEL_ADDRESS: service.address };
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
