// `x-request-id`: a caller's own id comes back, else one is made; with results as with failures.

import assert from "node:assert/strict";
import { test } from "node:test";
import { all, duration, headers, refusal, ROOMY, serve } from "./service.js";

const NAME = "x-request-id";
const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

// Runs one job; gives the id of the response headers.
async function submit(service, own) {
  const metadata = own === undefined ? {} : { [NAME]: own };
  const { headers } = await service.start("echo", "", { metadata }).ended;
  return headers[NAME];
}

test("an own id comes back", async (t) => {
  const service = await serve(t, ROOMY);
  for (const own of ["a", "order-4711/retry=2", "!~", "x".repeat(128)]) assert.equal(await submit(service, own), own);
});

for (const [kind, payload, reason] of [
  ["ecko", "", "UNKNOWN_KIND"],
  ["", "", "INVALID_FIELD"],
  ["sleep", "soon", "HANDLER_FAILED"],
]) {
  test(`a failure carries it in its trailers: ${reason}`, async (t) => {
    const service = await serve(t, ROOMY);
    const named = await refusal(service.submit(kind, payload, { metadata: { [NAME]: "mine" } }));
    assert.deepEqual([named.reason, named.trailers[NAME]], [reason, "mine"]);
    assert.match((await refusal(service.submit(kind, payload))).trailers[NAME], UUID_V7);
  });
}

test("a stream carries it in headers and in the trailers of its failure", async (t) => {
  const service = await serve(t, ROOMY);
  const call = service.stream("sleep", "60000", { metadata: { [NAME]: "streamed" }, runTimeout: duration(50) });
  const answered = new Promise((resolve) => call.once("metadata", resolve));
  const said = await refusal(all(call));
  assert.deepEqual([said.reason, said.trailers[NAME]], ["RUN_TIMEOUT", "streamed"]);
  assert.deepEqual((await answered).get(NAME), ["streamed"]);
});
