// What is published has all that it needs: it is packed, and installed into an empty folder.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { PROGRAM, folder } from "./server.mjs";

test("the package works where it is installed", (t) => {
  const cwd = folder(t);
  const quiet = ["--ignore-scripts=false", "--loglevel=error", "--no-audit", "--no-fund"];
  execFileSync("npm", ["pack", ...quiet, "--pack-destination", cwd], { cwd: fileURLToPath(new URL("..", import.meta.url)) });
  const [tarball] = readdirSync(cwd);
  execFileSync("npm", ["install", ...quiet, "--prefer-offline", `./${tarball}`], { cwd });
  const program = `
    const { Client, worker } = require("waterwheel-pool");
    worker.kind("upper", (job) => job.text.toUpperCase());
    worker.test("hello").then(({ output }) => console.log(String(output)));
    new Client().close();`;
  assert.equal(execFileSync(process.execPath, ["-e", program], { cwd }).toString(), "HELLO\n");
  // The file that `worker new` writes finds it, and keeps the protocol.
  const told = execFileSync(PROGRAM, ["worker", "new", "--language", "node", "thumb"], { cwd }).toString();
  assert.match(told, /CLONE\/clients\/node/);
  const args = ["worker", "test", "--output", "json", "--", process.execPath, "thumb.mjs"];
  const rows = execFileSync(PROGRAM, args, { cwd }).toString().trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(rows.length >= 15 && rows.every(({ verdict }) => verdict === "pass"), JSON.stringify(rows));
  const unit = `
    await import("./thumb.mjs");
    const { worker } = await import("waterwheel-pool");
    console.log(String((await worker.test("data")).output));`;
  assert.equal(execFileSync(process.execPath, ["--input-type=module", "-e", unit], { cwd }).toString(), "data\n");
  const installed = readdirSync(`${cwd}/node_modules/waterwheel-pool`);
  assert.ok(["index.d.ts", "proto", "README.md"].every((name) => installed.includes(name)), String(installed));
});
