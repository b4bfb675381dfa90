// A server of a test's own.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { Client } from "../index.js";
import { services } from "../connection.js";

export const PROGRAM = process.env.WATERWHEEL_BIN ?? fileURLToPath(new URL("../../../target/debug/waterwheel", import.meta.url));

// A folder that is gone after the test.
export function folder(t) {
  const path = mkdtempSync(join(tmpdir(), "waterwheel-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

// Starts a server that ends with the test.
export async function start(t, config, listen = "127.0.0.1:0") {
  const path = join(folder(t), "waterwheel.toml");
  writeFileSync(path, config);
  const flags = ["--config", path, "--listen", listen, "--ops-listen", "127.0.0.1:0", "--set", "telemetry.log=error"];
  const server = spawn(PROGRAM, ["serve", ...flags, "--set", "drain.notice=0s"], { stdio: ["ignore", "pipe", "inherit"] });
  const exit = once(server, "exit");
  const kill = async (signal = "SIGKILL") => {
    server.kill(signal);
    await exit;
  };
  t.after(() => kill());
  const { value: line } = await createInterface({ input: server.stdout })[Symbol.asyncIterator]().next();
  return { address: /^grpc (\S+) /.exec(line)[1], kill };
}

export function dial(t, address, options) {
  const pool = new Client(address, options);
  t.after(() => pool.close());
  return pool;
}

// The jobs that run or wait in the only pool.
export async function held(address) {
  const client = new services.WorkerPoolService(address, grpc.credentials.createInsecure());
  const stats = await new Promise((resolve, reject) => {
    client.stats({}, { deadline: Date.now() + 5000 }, (error, answer) => (error ? reject(error) : resolve(answer.stats)));
  });
  client.close();
  return stats.pools[0].inFlight + Number(stats.pools[0].queue.jobs);
}

// Polls until it holds: the time limit of the test bounds it.
export async function until(condition) {
  while (!(await condition())) await sleep(5);
}
