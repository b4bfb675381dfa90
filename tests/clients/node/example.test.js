// The example of the documentation does what it says.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { ROOMY, serve } from "./service.js";

// The lines that an example prints.
async function told(t, name, config) {
  const service = await serve(t, config);
  const example = fileURLToPath(new URL(`../../../examples/node/${name}`, import.meta.url));
  const env = { ...process.env, NODE_PATH: fileURLToPath(new URL("node_modules", import.meta.url)) };
  const { stdout } = await promisify(execFile)(process.execPath, [example, service.address], { env });
  return stdout.trim().split("\n");
}

test("the example of detached jobs runs", async (t) => {
  const lines = await told(t, "jobs.cjs", `${ROOMY}\n[store]\nmemory = true\n`);
  assert.match(lines[0], /^created report-.* true$/);
  assert.match(lines.at(-5), / output$/);
  assert.match(lines.at(-4), / job$/);
  assert.deepEqual(lines.slice(-3), [
    "waited JOB_STATE_SUCCEEDED slept 300 ms",
    "cancelled JOB_STATE_CANCELLED",
    "retried JOB_STATE_SUCCEEDED",
  ]);
});

test("the example runs", async (t) => {
  const lines = await told(t, "client.cjs", ROOMY);
  assert.match(lines[0], /^2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job [0-9a-f]+-[0-9a-f]+$/);
  assert.equal(lines[1], "1 started");
  assert.match(lines.at(-2), / finished$/);
  assert.match(lines.at(-1), /^UNKNOWN_KIND .*NOT_STARTED/);
});
