// Health and the drain, as a load balancer and an orchestrator see them.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as grpc from "@grpc/grpc-js";
import { service as definition } from "grpc-health-check";
import { serve, SERVICE, unary } from "./service.js";

const Health = grpc.makeClientConstructor(definition, "grpc.health.v1.Health");
const FOLLOW_THE_DRAIN = ["", SERVICE, "readiness", "capacity", "pool/cpu"];

const DRAINED = `
pool.cpu.workers = 2
kind.echo = { pool = "cpu", builtin = "echo" }
[drain]
notice = "2s"
`;

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

test("a watch of a name that does not exist stays open", async (t) => {
  const service = await serve(t, DRAINED);
  const unknown = watch(healthAt(t, service.address), "pool/none", 1_000);
  assert.equal(await unknown.next(), "SERVICE_UNKNOWN");
  // Nothing more comes until the caller's own timeout.
  assert.deepEqual(await unknown.rest(), { statuses: [], code: "DEADLINE_EXCEEDED" });
});

test("a drain seen through Check and Watch", async (t) => {
  const service = await serve(t, DRAINED);
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
