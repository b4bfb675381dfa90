// Health and the drain, as a load balancer and an orchestrator see them.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as grpc from "@grpc/grpc-js";
import { service as definition } from "grpc-health-check";
import { all, refusal, serve, SERVICE, unary, until } from "./service.js";

const Health = grpc.makeClientConstructor(definition, "grpc.health.v1.Health");
const FOLLOW_THE_DRAIN = ["", SERVICE, "readiness", "capacity", "pool/cpu"];

// A server whose drain takes as long as a test says.
function drained(t, { notice = "2s", finish = "10s", kill = "1s" } = {}) {
  return serve(
    t,
    `
[pool.cpu]
workers = 2
cancel_grace = "50ms"
[kind.echo]
pool = "cpu"
builtin = "echo"
[kind.sleep]
pool = "cpu"
builtin = "sleep"
[drain]
notice = "${notice}"
finish = "${finish}"
kill = "${kill}"
`,
  );
}

function healthAt(t, address) {
  const client = new Health(address, grpc.credentials.createInsecure());
  t.after(() => client.close());
  return client;
}

async function check(client, service) {
  const { response } = await unary(client, "Check", { service }).ended;
  return response.status;
}

// Watches a name; `next` gives each status, and undefined after the end of the call.
function watch(client, service, timeout = 20_000) {
  const updates = client.Watch({ service }, { deadline: Date.now() + timeout })[Symbol.asyncIterator]();
  return {
    next: async () => (await updates.next()).value?.status,
    rest: async () => {
      const statuses = [];
      try {
        for await (const update of { [Symbol.asyncIterator]: () => updates }) statuses.push(update.status);
      } catch (error) {
        return { statuses, code: grpc.status[error.code] };
      }
      return { statuses, code: "OK" };
    },
  };
}

test("every name serves, on both listeners", async (t) => {
  const service = await drained(t);
  for (const address of [service.address, service.opsAddress]) {
    const client = healthAt(t, address);
    for (const name of [...FOLLOW_THE_DRAIN, "liveness"]) {
      assert.equal(await check(client, name), "SERVING", name);
      assert.equal(await watch(client, name).next(), "SERVING", name);
    }
  }
});

test("a name that does not exist is NOT_FOUND by Check", async (t) => {
  const service = await drained(t);
  const client = healthAt(t, service.address);
  for (const name of ["pool/none", "cpu", "waterwheel.v1.Nothing"]) {
    assert.equal((await refusal(check(client, name))).code, "NOT_FOUND");
  }
});

test("a watch of a name that does not exist stays open", async (t) => {
  const service = await drained(t);
  const unknown = watch(healthAt(t, service.address), "pool/none", 1_000);
  assert.equal(await unknown.next(), "SERVICE_UNKNOWN");
  // Nothing more comes until the caller's own timeout.
  assert.deepEqual(await unknown.rest(), { statuses: [], code: "DEADLINE_EXCEEDED" });
});

test("a drain seen through Check and Watch", async (t) => {
  const service = await drained(t);
  const client = healthAt(t, service.address);
  const watches = FOLLOW_THE_DRAIN.map((name) => watch(client, name));
  const alive = watch(client, "liveness");
  for (const one of [...watches, alive]) assert.equal(await one.next(), "SERVING");
  service.terminate();
  for (const one of watches) assert.equal(await one.next(), "NOT_SERVING");
  // Within the notice, while load balancers learn of it, the process lives and takes jobs.
  for (const name of FOLLOW_THE_DRAIN) assert.equal(await check(client, name), "NOT_SERVING", name);
  assert.equal(await check(client, "liveness"), "SERVING");
  assert.equal((await service.submit("echo", "late")).output.toString(), "late");
  const { receipt, code } = await service.end();
  // The open watches did not hold the process up, and liveness never changed.
  assert.deepEqual((await alive.rest()).statuses, []);
  assert.deepEqual([code, receipt.event, receipt.lost], [0, "drained", []]);
  assert.ok(receipt.elapsed_ms >= 2_000 && receipt.elapsed_ms < 4_000, `${receipt.elapsed_ms}`);
});

test("liveness serves on the ops listener until the end of the drain", async (t) => {
  const service = await drained(t, { notice: "0s" });
  const client = healthAt(t, service.opsAddress);
  assert.equal(await check(client, "readiness"), "SERVING");
  const { ended } = service.start("sleep", "1500");
  await until(async () => (await service.load()) === "1,0,0");
  service.terminate();
  await until(async () => (await check(client, "readiness")) === "NOT_SERVING");
  assert.equal(await check(client, "liveness"), "SERVING");
  assert.equal((await ended).response.result.output.toString(), "slept 1500 ms");
  const { receipt, code } = await service.end();
  assert.deepEqual([code, receipt.finished, receipt.lost], [0, 1, []]);
});

test("new jobs are refused after the notice while a call stays open", async (t) => {
  const service = await drained(t, { notice: "100ms" });
  const call = service.stream("sleep", "1000");
  await until(async () => (await service.load()) === "1,0,0");
  service.terminate();
  // The listener is closed: what comes now goes to another backend, at once.
  const refused = () => service.submit("echo", "", { timeout: 2_000 }).then(() => false, (error) => error.code);
  await until(async () => (await refused()) === grpc.status.UNAVAILABLE);
  assert.equal((await all(call)).at(-1).event, "finished");
  const { receipt, code } = await service.end();
  assert.deepEqual([code, receipt.lost], [0, []]);
});

for (const stubborn of [false, true]) {
  test(`the receipt names the job that was lost, stubborn: ${stubborn}`, async (t) => {
    const service = await drained(t, { notice: "0s", finish: "100ms", kill: "500ms" });
    const metadata = { "x-request-id": "precious" };
    const { ended } = service.start("sleep", `{"ms":600000,"ignore_cancel":${stubborn}}`, { metadata });
    await until(async () => (await service.load()) === "1,0,0");
    const running = (await service.pool()).workers.find((worker) => worker.jobId).jobId;
    service.terminate();
    const said = await refusal(ended);
    const { receipt, code } = await service.end();
    assert.deepEqual([said.code, said.reason, said.pushbackMs], ["ABORTED", "DRAIN_KILLED", -1]);
    assert.deepEqual([said.metadata.execution, said.metadata.job], ["STARTED", running]);
    assert.equal(code, 3);
    const lost = { job: running, request_id: "precious", kind: "sleep", pool: "cpu", while: "running" };
    assert.deepEqual(receipt.lost, [lost]);
  });
}

test("a job that never began may run elsewhere", async (t) => {
  const service = await drained(t, { notice: "0s", finish: "100ms", kill: "500ms" });
  for (let n = 0; n < 2; n++) service.start("sleep", "600000");
  await until(async () => (await service.load()) === "2,0,0");
  const { ended } = service.start("sleep", "1");
  await until(async () => (await service.load()) === "2,1,0");
  service.terminate();
  const said = await refusal(ended);
  const { receipt, code } = await service.end();
  // No pushback: a client's own policy may send it to another backend, at once.
  assert.deepEqual([said.code, said.reason, said.pushbackMs], ["UNAVAILABLE", "DRAINING", undefined]);
  assert.equal(said.metadata.execution, "NOT_STARTED");
  assert.equal(code, 3);
  assert.deepEqual(receipt.lost.filter((row) => row.job === said.metadata.job).map((row) => row.while), ["queued"]);
});

test("a drain forces what would outlast it", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "waterwheel-program-"));
  t.after(() => rmSync(folder, { recursive: true }));
  // Ignores SIGTERM, and writes where its process group can be found.
  const file = join(folder, "pid");
  const program = `trap '' TERM; echo $$ >${file}.new; mv ${file}.new ${file}; sleep 600; sleep 600`;
  const service = await serve(
    t,
    `
[pool.cpu]
workers = 1
cancel_grace = "10s"
[kind.stubborn]
pool = "cpu"
exec = ["/bin/sh", "-c", "${program}"]
[drain]
notice = "0s"
finish = "100ms"
kill = "500ms"
`,
  );
  const { ended } = service.start("stubborn");
  await until(async () => existsSync(file));
  service.terminate();
  const said = await refusal(ended);
  const { receipt, code } = await service.end();
  assert.deepEqual([said.code, said.reason], ["ABORTED", "DRAIN_KILLED"]);
  assert.deepEqual([code, receipt.lost.map((row) => row.job)], [3, [said.metadata.job]]);
  assert.deepEqual(group(readFileSync(file, "utf8").trim()), []);
});

// The processes of a group. Those that are dead and that nobody reaped do not count.
function group(leader) {
  const listed = execFileSync("ps", ["-A", "-o", "pgid=,stat=,args="], { encoding: "utf8" });
  const rows = listed.split("\n").map((line) => line.trim().split(/\s+/));
  return rows.filter(([pgid, state]) => pgid === leader && !state.startsWith("Z"));
}
