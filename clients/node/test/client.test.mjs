// Callers, against a real server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, Failed, Lost, Missed, Refused } from "../index.js";
import { dial, held, start, until } from "./server.mjs";

const ONE = `
[pool.one]
workers = 1
queue = { jobs = 1 }
when_full = "reject"
[kind.echo]
pool = "one"
builtin = "echo"
[kind.rare]
pool = "one"
builtin = "echo"
limit = { rate = 0.01 }
[kind.gzip]
pool = "one"
builtin = "gzip"
[kind.sleep]
pool = "one"
builtin = "sleep"
[kind.sad]
pool = "one"
exec = ["/bin/sh", "-c", "echo out of paint >&2; exit 3"]
exit_codes = { "3" = "FAILED_PRECONDITION" }
[kind.crash]
pool = "one"
exec = ["/bin/sh", "-c", "kill -9 $$"]
[store]
memory = true
`;

async function serve(t, options) {
  const server = await start(t, ONE);
  return { ...server, pool: dial(t, server.address, options) };
}

// The error of a promise, of one class.
async function fault(type, promise) {
  const error = await promise.then(() => assert.fail("it succeeded"), (error) => error);
  assert.ok(error instanceof type, `${type.name} was expected, not ${error.stack}`);
  return error;
}

test("each class of errors", async (t) => {
  const { pool, address, kill } = await serve(t);
  const result = await pool.submit("echo", { a: 1 });
  assert.deepEqual([result.json(), result.contentType], [{ a: 1 }, "application/json"]);
  assert.ok(result.waterfall.budgetSeconds > 29);

  const refused = await fault(Refused, pool.submit("nothing"));
  assert.deepEqual([refused.reason, refused.started, refused.retryAfter], ["UNKNOWN_KIND", false, undefined]);
  // The text has the reason, what is wrong, and what to do.
  assert.equal(refused.message, `UNKNOWN_KIND: ${refused.details} (${refused.help})`);
  assert.equal(refused.details, "unknown kind");
  assert.match(refused.help, /^name a kind/);
  const missed = await fault(Missed, pool.submit("sleep", "60000", { runTimeout: 200 }));
  assert.deepEqual([missed.reason, missed.started], ["RUN_TIMEOUT", true]);
  const failed = await fault(Failed, pool.submit("sad"));
  assert.deepEqual([failed.code, failed.reason, failed.stderr.trim()], ["FAILED_PRECONDITION", "HANDLER_FAILED", "out of paint"]);
  const lost = await fault(Lost, pool.submit("crash"));
  assert.deepEqual([lost.reason, lost.started], ["WORKER_CRASHED", true]);
  await assert.rejects(pool.submit("sleep", "60000", { signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
  await until(async () => (await held(address)) === 0);
  await assert.rejects(pool.submit("echo", 7), TypeError);
  await assert.rejects(pool.submit("echo", "", { whenFull: "sometimes" }), TypeError);
  await kill();
  const alone = dial(t, address);
  const unreachable = await fault(Refused, alone.submit("echo", "", { timeout: 500 }));
  assert.equal(unreachable.reason, "UNREACHABLE");
  assert.match(unreachable.message, /ECONNREFUSED/);
});

test("a refusal is tried again within one deadline", async (t) => {
  const { pool, address } = await serve(t);
  const busy = [pool.submit("sleep", "1000"), pool.submit("sleep", "1000")];
  await until(async () => (await held(address)) === 2);
  assert.equal((await pool.submit("echo", "hello")).text, "hello");
  await Promise.all(busy);
  await pool.submit("rare");
  // There is no time for another try: the refusal is the error, at once, and not a deadline.
  const began = Date.now();
  const refused = await fault(Refused, pool.submit("rare", "", { timeout: 10_000 }));
  assert.equal(refused.reason, "LIMIT_EXCEEDED");
  assert.ok(refused.retryAfter > 10_000 && Date.now() - began < 5000, `${refused.retryAfter}`);
});

test("a lost job is tried again only if it may run twice", async (t) => {
  const { pool, address, kill } = await serve(t);
  const lost = fault(Lost, pool.submit("sleep", "1500"));
  await until(async () => (await held(address)) === 1);
  const twice = dial(t, address).submit("sleep", "1500", { idempotent: true });
  await until(async () => (await held(address)) === 2);
  await kill();
  const { started, reason } = await lost;
  assert.deepEqual([started, reason], [undefined, "UNAVAILABLE"]);
  await start(t, ONE, address);
  await twice;
});

test("a stream", async (t) => {
  const { pool, address } = await serve(t);
  let reports = 0;
  const stream = pool.stream("gzip", "hello ".repeat(100_000), { onProgress: () => reports++ });
  let bytes = 0;
  for await (const piece of stream) bytes += piece.length;
  assert.ok(bytes > 0 && reports > 0 && stream.progress.fraction > 0);
  assert.equal(Number(stream.result.waterfall.worker) >= 0, true);
  for await (const piece of pool.stream("gzip", "hello ".repeat(600_000))) {
    assert.ok(piece.length > 0);
    break;
  }
  await until(async () => (await held(address)) === 0);
  await fault(Failed, pool.stream("sad")[Symbol.asyncIterator]().next());
});

test("many jobs, as they are done", async (t) => {
  const { pool, address } = await serve(t);
  let taken = 0;
  function* jobs(count) {
    for (taken = 0; taken < count; taken++) yield { kind: "echo", payload: String(taken) };
  }
  const ended = new Set();
  const ids = [];
  for await (const { job, result } of pool.submitMany(jobs(1000))) {
    assert.equal(result.text, job.payload);
    ended.add(result.text);
    ids[Number(result.text)] = parseInt(result.jobId.split("-")[1], 16);
  }
  assert.equal(ended.size, 1000);
  // They are sent in their order.
  assert.ok(ids.every((id, number) => number === 0 || id > ids[number - 1]), String(ids));
  for await (const { error } of pool.submitMany(jobs(Infinity), { atOnce: 10 })) {
    assert.equal(error, undefined);
    assert.ok(taken <= 10, `${taken} are taken`);
    break;
  }
  await until(async () => (await held(address)) === 0);
  async function* faulty() {
    yield { kind: "echo", payload: "x" };
    throw new RangeError("no more");
  }
  await assert.rejects(async () => {
    for await (const { error } of pool.submitMany(faulty())) assert.equal(error, undefined);
  }, RangeError);
});

test("each of many has its own error", async (t) => {
  const { pool, address, kill } = await serve(t);
  const jobs = [{ kind: "echo" }, { kind: "sad" }, { kind: "nothing" }, { kind: "echo", payload: 7 }];
  const errors = new Map();
  for await (const { job, error } of pool.submitMany(jobs)) errors.set(job, error?.constructor.name);
  assert.deepEqual(jobs.map((job) => errors.get(job)), [undefined, "Failed", "Refused", "TypeError"]);
  async function* broken() {
    yield { kind: "sleep", payload: "60000" };
    yield { kind: "sleep", payload: "60001", runTimeout: 100, idempotent: true };
    await until(async () => (await held(address)) === 2);
    await kill();
    await start(t, ONE, address);
    yield { kind: "echo" };
  }
  const ends = {};
  for await (const { job, error } of pool.submitMany(broken(), { timeout: 20_000 })) ends[job.payload] = error?.constructor.name;
  // The first one may have run; the others go on by another call.
  assert.deepEqual(ends, { 60000: "Lost", 60001: "Missed", undefined: undefined });
});

test("the deadline of many is theirs together", async (t) => {
  const { pool } = await serve(t);
  const timeout = 2000;
  async function* jobs() {
    const began = Date.now();
    yield { kind: "echo" };
    for (let number = 0; number < 2; number++) yield { kind: "sleep", payload: "60000" };
    await until(() => Date.now() > began + timeout);
    for (let number = 0; number < 3; number++) yield { kind: "gzip" };
  }
  const ends = { echo: [], sleep: [], gzip: [] };
  for await (const { job, error } of pool.submitMany(jobs(), { timeout })) ends[job.kind].push(error);
  assert.deepEqual(ends.echo, [undefined]);
  assert.equal(ends.sleep.length, 2);
  for (const error of ends.sleep) assert.ok(error instanceof Missed, error?.stack);
  // These were not sent.
  assert.deepEqual(ends.gzip.map((error) => [error instanceof Missed, error.started]), Array(3).fill([true, false]));
});

test("one of many that is refused is sent again", async (t) => {
  const { pool, address } = await serve(t);
  const busy = [pool.submit("sleep", "1500"), pool.submit("sleep", "1500")];
  await until(async () => (await held(address)) === 2);
  const jobs = [{ kind: "echo", payload: "x", whenFull: "reject" }];
  for await (const { error } of pool.submitMany(jobs, { resend: false })) assert.ok(error instanceof Refused);
  for await (const { result } of pool.submitMany(jobs, { timeout: 20_000 })) assert.equal(result.text, "x");
  await Promise.all(busy);
});

// It drains, and another one takes its place.
test("no call fails while a server is replaced", async (t) => {
  const config = '[pool.one]\nworkers = 4\nwhen_full = "wait"\n[kind.sleep]\npool = "one"\nbuiltin = "sleep"\n';
  let { address, kill } = await start(t, config);
  const pool = dial(t, address);
  let isOver = false;
  t.after(() => (isOver = true));
  let [calls, outcomes] = [0, 0];
  const single = async () => {
    for (; !isOver; calls++) await pool.submit("sleep", "5");
  };
  function* endless() {
    while (!isOver) yield { kind: "sleep", payload: "5" };
  }
  const many = async () => {
    for await (const { error } of pool.submitMany(endless(), { atOnce: 16 })) {
      if (error) throw error;
      outcomes++;
    }
  };
  const all = Promise.all([...Array.from({ length: 8 }, single), many()]);
  for (let round = 1; round <= 3; round++) {
    await Promise.race([all, until(() => Math.min(calls, outcomes) > 100 * round)]);
    await kill("SIGTERM");
    ({ kill } = await start(t, config, address));
  }
  isOver = true;
  await all;
});

test("detached jobs", async (t) => {
  const { pool } = await serve(t);
  for (const existed of [false, true]) {
    const { alreadyExisted } = await pool.create("echo", "hello", { id: "order-4711" });
    assert.equal(alreadyExisted, existed);
  }
  assert.equal((await pool.job("order-4711").wait()).text, "hello");
  const sad = await pool.create("sad", "", { retry: { attempts: 1 } });
  const failed = await fault(Failed, sad.wait());
  assert.deepEqual([failed.code, failed.stderr.trim()], ["FAILED_PRECONDITION", "out of paint"]);
  const later = await pool.create("echo", "", { delay: 3_600_000 });
  await assert.rejects(later.wait({ timeout: 200 }), { name: "TimeoutError" });
  assert.equal(await later.cancel({ reason: "a test" }), "JOB_STATE_CANCELLED");
  assert.equal((await fault(Refused, later.wait())).reason, "CANCELLED");
  await later.retry();
  assert.equal((await later.wait()).text, "");
  assert.equal((await fault(Refused, pool.job("unknown").get())).reason, "NOT_FOUND");
  let last;
  for await (const event of pool.job("order-4711").watch()) last = event;
  assert.equal(last.job.state, "JOB_STATE_SUCCEEDED");
});

test("an address of the environment", async (t) => {
  const { address } = await start(t, ONE);
  process.env.WATERWHEEL_SERVER = address;
  t.after(() => delete process.env.WATERWHEEL_SERVER);
  const pool = new Client();
  assert.equal((await pool.submit("echo", "x")).text, "x");
  pool.close();
});
