// What is published has all that it needs: it is packed, and installed into an empty folder.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { folder } from "./server.mjs";

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
  const installed = readdirSync(`${cwd}/node_modules/waterwheel-pool`);
  assert.ok(["index.d.ts", "proto", "README.md"].every((name) => installed.includes(name)), String(installed));
});
