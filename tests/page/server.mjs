// A server with load: jobs that run, wait, fail, and stay for good.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const CONFIG = new URL("page.toml", import.meta.url).pathname;
/** A tenant and a label that would be markup, run from right to left, and are long. */
const MARKUP = `<script>document.title=2</script>\u202e${"x".repeat(30)}`;

/** Starts `waterwheel serve`. Without addresses, the system chooses them. */
export async function serve(binary, options = {}) {
  const { grpc = "127.0.0.1:0", ops = "127.0.0.1:0", mode = "act", finish = "1s", config = CONFIG } = options;
  const set = ["--set", `server.listen=${grpc}`, "--set", `server.ops_listen=${ops}`, "--set", `ops.page=${mode}`];
  set.push("--set", `drain.finish=${finish}`);
  const child = spawn(binary, ["serve", "--config", config, ...set], { stdio: ["ignore", "pipe", "ignore"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  for await (const line of createInterface({ input: child.stdout })) {
    const found = line.match(/^grpc (\S+) .*ops http:\/\/(\S+) /);
    if (found) return { child, ended, grpc: found[1], ops: found[2] };
  }
  throw new Error("the server did not start");
}

export async function call(address, method, request) {
  const answer = await fetch(`http://${address}/waterwheel.v1.${method}`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(request),
  });
  return { status: answer.status, body: await answer.json() };
}

const payload = (value) => Buffer.from(JSON.stringify(value)).toString("base64");

/** Sends jobs that stay as they are for minutes, and waits until they are there. */
export async function load({ grpc, ops }) {
  const held = (kind, count) => {
    const job = { kind, payload: payload({ ms: 500_000 }), labels: { note: MARKUP } };
    for (let index = 0; index < count; index++) {
      const sent = fetch(`http://${grpc}/waterwheel.v1.WorkerPoolService/Submit`, {
        method: "POST", body: JSON.stringify({ job: { ...job, tenant: index % 2 ? "web" : "<b>acme</b>" } }),
        headers: { "content-type": "application/json", "connect-timeout-ms": "600000" },
      });
      sent.catch(() => {});
    }
  };
  held("thumbnail", 4);
  held("charge", 3);
  const stored = (jobId, kind, options) => call(grpc, "JobService/CreateJob", {
    jobId, job: { kind, payload: payload({ ms: 1 }), labels: { note: MARKUP } }, options,
  });
  for (let index = 0; index < 12; index++) await stored(`mail-${index}`, "mail");
  await stored("later", "thumbnail", { delay: "86400s" });
  // A group that is open, with two members that wait.
  await call(grpc, "JobService/CreateGroup", { groupId: "night", job: { kind: "thumbnail", payload: payload({ ms: 1 }) } });
  await stored("night-1", "thumbnail", { delay: "86400s", group: "night" });
  await stored("night-2", "charge", { delay: "86400s", group: "night" });
  const jobs = async (method, request) => (await call(ops, method, request)).body.jobs ?? [];
  const failed = { filter: { states: ["JOB_STATE_FAILED"] } };
  await until("the jobs run", async () =>
    (await jobs("AdminService/ListJobs", { stages: ["JOB_STAGE_RUNNING"] })).length >= 5);
  await until("the mails failed", async () => (await jobs("JobService/ListJobs", failed)).length === 12);
  const running = await jobs("AdminService/ListJobs", { stages: ["JOB_STAGE_RUNNING"] });
  const queued = await jobs("AdminService/ListJobs", { stages: ["JOB_STAGE_QUEUED"] });
  const ended = await jobs("AdminService/ListJobs", { stages: ["JOB_STAGE_FAILED"] });
  return { running: running[0].jobId, queued: queued[0].jobId, ended: ended[0].jobId };
}

/** Waits, for a minute at most, until something holds. */
export async function until(what, holds) {
  const last = Date.now() + 60_000;
  while (Date.now() < last) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`in a minute, it did not come that ${what}`);
}
