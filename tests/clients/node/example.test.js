// The example of the documentation does what it says.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { ROOMY, serve } from "./service.js";

test("the example runs", async (t) => {
  const service = await serve(t, ROOMY);
  const example = fileURLToPath(new URL("../../../examples/node/client.cjs", import.meta.url));
  const env = { ...process.env, NODE_PATH: fileURLToPath(new URL("node_modules", import.meta.url)) };
  const { stdout } = await promisify(execFile)(process.execPath, [example, service.address], { env });
  const lines = stdout.trim().split("\n");
  assert.match(lines[0], /^2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job [0-9a-f]+-[0-9a-f]+$/);
  assert.equal(lines[1], "1 started");
  assert.match(lines.at(-2), / finished$/);
  assert.match(lines.at(-1), /^UNKNOWN_KIND .*NOT_STARTED/);
});
