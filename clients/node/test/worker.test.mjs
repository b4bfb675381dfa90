// Workers: in a test, as a child of a real server, and attached to it.

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { createPrivateKey, sign } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Batch } from "../batch.js";
import { Failed, Later, Lost, Missed, Refused, Worker } from "../index.js";
import { program } from "./program.mjs";
import { PROGRAM, dial, folder, held, start, until } from "./server.mjs";

const COMMAND = [process.execPath, fileURLToPath(new URL("program.mjs", import.meta.url))];

// How each malformed result ends.
const ENDS = {
  throw: "INTERNAL: a bug",
  null: "INTERNAL: null",
  evil: "INTERNAL: an error that cannot be read",
  number: "INTERNAL: bytes, a text, an object or an array was expected, not Number",
  date: "INTERNAL: bytes, a text, an object or an array was expected, not Date",
  halfway: "NOT_FOUND: no b",
  time: "INTERNAL: a time is a number of milliseconds, and not negative: '30' is not",
  past: "INTERNAL: a time is a number of milliseconds, and not negative: -1 is not",
  scope: "INTERNAL: a scope is job, limit-key or kind, not 'all'",
  timeless: "INTERNAL: the scope kind needs a time",
  counts: "INTERNAL: counts is true or false, not 0",
};
const RESULTS = { json: '{"a":[1]}', pieces: "ab", nothing: "", late: "late", nan: "nan", type: "x", plain: "plain" };

test("a test of a handler needs no server", async () => {
  const worker = program();
  for (const [payload, end] of Object.entries(ENDS)) {
    const error = await worker.test(payload, { kind: "do" }).catch((error) => error);
    assert.equal(`${error.code}: ${error.details}`, end);
  }
  for (const [payload, output] of Object.entries(RESULTS)) {
    assert.equal((await worker.test(payload, { kind: "do" })).output.toString(), output);
  }
  assert.deepEqual((await worker.test("pieces", { kind: "do" })).pieces.map(String), ["a", "b", ""]);
  assert.equal((await worker.test("json", { kind: "do" })).contentType, "application/json");
  assert.match((await worker.test("cycle", { kind: "do" }).catch(String)).toString(), /circular/);
  const ids = await worker.test("ids", { kind: "do", labels: { size: "3" } });
  assert.equal(ids.output.toString(), '["",true,"3"]');
  const later = await worker.test("hold", { kind: "do", labels: { scope: "kind" } }).catch((error) => error);
  assert.ok(later instanceof Later && later instanceof Failed);
  assert.deepEqual([later.code, later.retryAfter, later.scope, later.counts], ["UNAVAILABLE", 600_000, "kind", true]);
  for (const kind of ["do", "batch"]) {
    const error = await worker.test("wait", { kind, cancelAfter: 10 }).catch((error) => error);
    assert.deepEqual([error.code, error.details], ["CANCELLED", "stopped because of CALLER"]);
  }
  for (const kind of ["unknown", undefined]) await assert.rejects(worker.test("", { kind }), { code: "UNIMPLEMENTED" });
  const single = new Worker();
  single.kind("only", ({ text }) => text);
  assert.equal((await single.test("x")).output.toString(), "x");
});

for (const attach of [[], ["--attach"]]) {
  test(`the worker keeps the protocol ${attach}`, async () => {
    const args = ["worker", "test", "--output", "json", ...attach, "--", ...COMMAND];
    const { stdout } = await promisify(execFile)(PROGRAM, args).catch((error) => error);
    const rows = stdout.trim().split("\n").map((line) => JSON.parse(line));
    assert.ok(rows.length >= 15 && rows.every(({ verdict }) => verdict === "pass"), stdout);
  });
}

const KINDS = ["do", "batch"].map((kind) => `[kind.${kind}]\npool = "one"\nlimit.per_key.concurrency = 99\n?\n`).join("") + "[store]\nmemory = true\n";
const FAR = `[pool.one]\nwhen_full = "wait"\n${KINDS.replaceAll("?", "remote = true")}`;
const CHILD = `
[pool.one]
workers = 8
[program.test]
command = ${JSON.stringify(COMMAND)}
jobs_per_process = 8
${KINDS.replaceAll("?", 'program = "test"')}`;

// Attaches a worker until the test ends.
function work(t, worker, options) {
  const leaving = new AbortController();
  const ended = worker.run({ ...options, signal: leaving.signal });
  t.after(async () => {
    leaving.abort();
    await ended;
  });
}

// Every result is an answer, and one costs no other.
async function malformed(pool) {
  for (const [payload, end] of Object.entries(ENDS)) {
    const error = await pool.submit("do", payload).catch((error) => error);
    assert.ok(error instanceof Failed, error.stack);
    assert.equal(error.details, end.slice(end.indexOf(" ") + 1));
  }
  for (const [payload, output] of Object.entries(RESULTS)) assert.equal((await pool.submit("do", payload)).text, output);
  assert.equal((await pool.submit("do", "large")).output.length, 3 << 20);
  const long = await pool.submit("do", "long").catch((error) => error);
  assert.ok(long instanceof Failed && long.details.startsWith("ü\ufffd") && Buffer.byteLength(long.details) <= 4096);
  await assert.rejects(pool.submit("do", "code"), Failed);
  await assert.rejects(pool.submit("do", "wait", { timeout: 200 }), Missed);
}

// A member that fails, or is cancelled, harms no other.
async function batches(pool, address) {
  const leaving = new AbortController();
  const left = assert.rejects(pool.submit("batch", "wait", { signal: leaving.signal }), { name: "AbortError" });
  await until(async () => (await held(address)) === 1);
  const [good, bad, wrong] = ["a", "fail", "number"].map((payload) => pool.submit("batch", payload));
  const failing = Promise.all([assert.rejects(bad, Failed), assert.rejects(wrong, Failed)]);
  await until(async () => (await held(address)) === 4);
  leaving.abort();
  // The answer of the cancelled one comes before its batch ends.
  await until(async () => (await held(address)) === 3);
  assert.equal((await good).text, "3");
  await Promise.all([left, failing]);
  for (const [payload, details] of [["throw", "a bug"], ["few", "the handler returned 0 results for 1 jobs"]]) {
    await assert.rejects(pool.submit("batch", payload), { details });
  }
  assert.equal((await pool.submit("batch", "a")).text, "1");
}

// It waits, and with it its limit key or its kind.
async function later(pool) {
  const job = await pool.create("do", "again", { limitKey: "other", retry: { attempts: 1 } });
  assert.equal((await job.wait()).text, "attempt 2", "the first one does not count");
  for (const [scope, limitKey, another, limit] of [["limit-key", "a", "a", "key_hold"], ["kind", "b", "c", "hold"]]) {
    const held = await pool.submit("do", "hold", { labels: { scope }, limitKey }).catch((error) => error);
    assert.ok(held instanceof Failed && held.code === "UNAVAILABLE" && held.retryAfter > 50_000, held.stack);
    const refused = await pool.submit("do", "x", { limitKey: another }).catch((error) => error);
    assert.deepEqual([refused.reason, refused.metadata.limit], ["LIMIT_EXCEEDED", limit]);
  }
}

test("a child", async (t) => {
  const { address } = await start(t, CHILD);
  const pool = dial(t, address);
  await malformed(pool);
  await batches(pool, address);
  await later(pool);
  const lost = await pool.submit("batch", "crash").catch((error) => error);
  assert.ok(lost instanceof Lost && lost.reason === "WORKER_CRASHED", lost.stack);
  assert.equal((await pool.submit("batch", "a")).text, "1");
});

test("an attached worker, by name", async (t) => {
  const { address } = await start(t, FAR);
  const pool = dial(t, address);
  work(t, program(), { address: `localhost:${address.split(":")[1]}` });
  await malformed(pool);
  await batches(pool, address);
  await later(pool);
});

test("a worker comes back to a server that was killed", async (t) => {
  const { address, kill } = await start(t, FAR);
  work(t, program(), { address });
  const lost = assert.rejects(dial(t, address).submit("do", "wait"), Lost);
  const text = (pool) => pool.submit("do", "x").then((result) => result.text);
  assert.equal(await text(dial(t, address)), "x");
  await kill();
  await lost;
  await start(t, FAR, address);
  assert.equal(await text(dial(t, address)), "x");
});

// As many jobs wait as a batch has: each batch but the first and the last is full, and not half of it.
test("batches are refilled", async (t) => {
  const { address } = await start(t, FAR);
  const worker = new Worker();
  worker.kind("do", () => null);
  worker.batch("batch", { max: 8 }, async (jobs) => {
    // The worker waits for a twentieth of it, in which a busy machine must hand out eight jobs.
    await sleep(400);
    return jobs.map(() => String(jobs.length));
  });
  work(t, worker, { address });
  let full = 0;
  const jobs = Array.from({ length: 64 }, () => ({ kind: "batch" }));
  for await (const { result } of dial(t, address).submitMany(jobs)) full += Number(result.text === "8");
  assert.ok(full >= 16, `only ${full} of 64 jobs were in full batches`);
});

test("a worker ends when no server has had a job for it", async (t) => {
  const config = FAR.replace("when_full", 'attached.idle_leave = "1s"\nwhen_full');
  const servers = [await start(t, config), await start(t, config)];
  const worker = new Worker();
  for (const kind of ["do", "batch"]) worker.kind(kind, async ({ text }) => text && (await sleep(2500), text));
  const ended = worker.run({ address: servers.map(({ address }) => address) }).then(() => "ended");
  const [idle, pool] = servers.map(({ address }) => dial(t, address));
  const long = pool.submit("do", "long").then(({ text }) => text);
  assert.equal(await Promise.race([long, ended]), "long");
  assert.equal((await idle.submit("do", "")).text, "");
  assert.equal(await ended, "ended");
});

test("one budget of slots over all servers", async (t) => {
  const servers = [await start(t, FAR), await start(t, FAR)];
  let running = 0;
  let most = 0;
  const worker = new Worker();
  for (const kind of ["do", "batch"]) {
    worker.kind(kind, async () => {
      most = Math.max(most, ++running);
      await sleep(2);
      running--;
    });
  }
  work(t, worker, { address: servers.map(({ address }) => address), slots: 2 });
  const submit = async ({ address }) => {
    const jobs = Array.from({ length: 100 }, () => ({ kind: "do" }));
    for await (const { error } of dial(t, address).submitMany(jobs)) assert.equal(error, undefined);
  };
  await Promise.all(servers.map(submit));
  assert.equal(most, 2);
});

test("a job goes to a worker that no other server uses", async (t) => {
  const servers = [await start(t, FAR), await start(t, FAR)];
  const began = [];
  for (const at of [0, 1]) {
    const worker = new Worker();
    for (const kind of ["do", "batch"]) worker.kind(kind, async ({ text }) => void (began.push(at), await sleep(Number(text))));
    work(t, worker, { address: servers.map(({ address }) => address), slots: 1 });
  }
  const [one, other] = servers.map(({ address }) => dial(t, address));
  // Both are attached to both.
  for (const pool of [one, other]) await Promise.all([pool.submit("do", "500"), pool.submit("do", "500")]);
  assert.equal(new Set(began).size, 2);
  let isDone = false;
  const long = one.submit("do", "3000").then(() => (isDone = true));
  await until(() => began.length === 5);
  for (let number = 0; number < 6; number++) await other.submit("do", "0");
  assert.ok(!isDone);
  await long;
});

test("TLS and tokens", async (t) => {
  const path = folder(t);
  const run = (...args) => execFileSync("openssl", args, { cwd: path, stdio: ["ignore", "pipe", "ignore"] });
  run("req", "-x509", "-newkey", "ed25519", "-noenc", "-subj", "/CN=test", "-addext", "subjectAltName=DNS:localhost",
    "-keyout", "tls.key", "-out", "tls.crt", "-days", "1");
  const key = createPrivateKey(readFileSync(join(path, "tls.key")));
  const { x } = key.export({ format: "jwk" });
  writeFileSync(join(path, "jwks.json"), JSON.stringify({ keys: [{ kty: "OKP", crv: "Ed25519", alg: "EdDSA", kid: "1", x }] }));
  const claims = { iss: "https://issuer.example", aud: "waterwheel", sub: "user-7", exp: Date.now() / 1000 + 3600 | 0 };
  const parts = [{ alg: "EdDSA", kid: "1" }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString("base64url"));
  const token = `${parts.join(".")}.${sign(null, Buffer.from(parts.join(".")), key).toString("base64url")}`;
  const { address } = await start(t, `
[server.tls]
cert = "${path}/tls.crt"
key = "${path}/tls.key"
[auth.jwt]
jwks = "${path}/jwks.json"
issuer = "https://issuer.example"
audience = ["waterwheel"]
[auth.rule.all]
principals = ["jwt:user-*"]
rpcs = ["Submit", "Attach"]
${FAR}`);
  const name = `localhost:${address.split(":")[1]}`;
  const ca = readFileSync(join(path, "tls.crt"));
  work(t, program(), { address: name, ca, token });
  assert.equal((await dial(t, `https://${name}`, { ca, token: async () => token }).submit("do", "x")).text, "x");
  assert.equal((await dial(t, address, { ca, token, authority: "localhost" }).submit("do", "x")).text, "x");
  const denied = await dial(t, name, { ca }).submit("do", "x").catch((error) => error);
  assert.ok(denied instanceof Refused && denied.reason === "NO_CREDENTIALS", denied.stack);
});

test("Unix sockets", async (t) => {
  const address = `unix:${join(folder(t), "socket")}`;
  await start(t, FAR, address);
  work(t, program(), { address });
  assert.equal((await dial(t, address).submit("do", "x")).text, "x");
});

test("a slow reader of a batch holds up its own job alone", async () => {
  let resume;
  const read = new Promise((resolve) => (resume = resolve)), finished = [];
  const batch = new Batch((jobs) => jobs.map((job) => job.name), 2, () => 2, (result) => [result, ""]);
  const give = (name, until) => {
    const finish = async () => {
      await until;
      finished.push(name);
    };
    return batch.add({ name, finish, fail: assert.fail });
  };
  await give("slow", read);
  await give("other");
  assert.deepEqual(finished, ["other"]);
  resume();
  await read;
  await new Promise(setImmediate);
  assert.deepEqual(finished, ["other", "slow"]);
});
