// Submit, Stream and SubmitMany: what comes back is what was asked for, once.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { gunzipSync } from "node:zlib";
import { all, job, ROOMY, serve } from "./service.js";

test("a stream gives the output in order", async (t) => {
  const service = await serve(t, ROOMY);
  const payload = randomBytes(3 << 20);
  const events = await all(service.stream("gzip", payload));
  const names = events.map((event) => event.event);
  assert.deepEqual(events.map((event) => event.sequence), events.map((_, index) => index + 1));
  assert.equal(names[0], "started");
  assert.equal(names.filter((name) => name === "started").length, 1);
  assert.equal(names.indexOf("finished"), names.length - 1);
  const chunks = events.filter((event) => event.event === "outputChunk").map((event) => event.outputChunk.data);
  assert.ok(chunks.length > 10 && chunks.every((chunk) => chunk.length > 0));
  const output = Buffer.concat(chunks);
  assert.deepEqual(gunzipSync(output), payload);
  const fractions = events.filter((event) => event.event === "progress").map((event) => event.progress.fraction);
  assert.deepEqual(fractions, fractions.toSorted((a, b) => a - b));
  assert.equal(fractions.at(-1), 1);
  const { finished } = events.at(-1);
  assert.equal(finished.jobId, events[0].started.jobId);
  assert.equal(finished.outputBytes, output.length);
  assert.equal(finished.contentType, "application/gzip");
});

// Sends all of `jobs`, by tag, over one call, as fast as the service reads; gives the answers by tag.
async function many(service, jobs) {
  const call = service.client.SubmitMany({ deadline: Date.now() + 60_000 });
  const sent = (async () => {
    for (const [tag, one] of Object.entries(jobs)) {
      if (!call.write({ tag, job: one })) await new Promise((resolve) => call.once("drain", resolve));
    }
    call.end();
  })();
  const answers = await all(call);
  await sent;
  const byTag = Object.fromEntries(answers.map((answer) => [answer.tag, answer]));
  assert.deepEqual(answers.map((answer) => answer.tag).toSorted(), Object.keys(jobs).toSorted());
  return byTag;
}

// So many jobs, with tags of their own.
function numbered(count, make) {
  return Object.fromEntries(Array.from({ length: count }, (_, number) => [`job-${number}`, make(number)]));
}

test("SubmitMany answers every job once", async (t) => {
  const service = await serve(t, ROOMY);
  const jobs = numbered(500, (number) => job("echo", `${number}`));
  const answers = await many(service, jobs);
  for (const [tag, one] of Object.entries(jobs)) assert.deepEqual(answers[tag].result.output, one.payload);
  assert.equal(new Set(Object.values(answers).map((answer) => answer.result.jobId)).size, 500);
  const { accepted, completed } = (await service.pool()).jobs;
  assert.deepEqual([accepted, completed], [500, 500]);
});

test("the largest payload and output fit a client with the limits that it begins with", async (t) => {
  const service = await serve(t, ROOMY);
  assert.equal((await service.submit("sha256", Buffer.alloc(4 << 20))).output.length, 64);
  const largest = (4 << 20) - (64 << 10);
  assert.equal((await service.submit("echo", Buffer.alloc(largest))).output.length, largest);
});
