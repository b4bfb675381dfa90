// Reflection: tools learn the contract from the server, in both versions of the protocol.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import * as grpc from "@grpc/grpc-js";
import { loadFileDescriptorSetFromBuffer, loadSync } from "@grpc/proto-loader";
import { all, refusal, ROOMY, serve, SERVICE, unary } from "./service.js";

const PROTOS = join(dirname(createRequire(import.meta.url).resolve("@grpc/reflection")), "../proto/grpc/reflection");
// What the service's own file imports, and what that imports.
const FILES = [
  "google/protobuf/any.proto",
  "google/protobuf/duration.proto",
  "waterwheel/v1/job.proto",
  "waterwheel/v1/stats.proto",
  "waterwheel/v1/worker_pool_service.proto",
];

// Asks one question in one version of the protocol.
async function ask(t, service, version, request) {
  const name = `grpc.reflection.${version}.ServerReflection`;
  const Reflection = grpc.makeClientConstructor(loadSync(join(PROTOS, version, "reflection.proto"))[name], name);
  const client = new Reflection(service.address, grpc.credentials.createInsecure());
  t.after(() => client.close());
  const call = client.ServerReflectionInfo({ deadline: Date.now() + 10_000 });
  call.write(request);
  call.end();
  const [answer] = await all(call);
  return answer;
}

// A `FileDescriptorSet` of some files: field 1, once for each.
function descriptorSet(files) {
  const parts = files.map((file) => {
    const length = [];
    for (let rest = file.length; ; rest >>>= 7) {
      length.push(rest < 0x80 ? rest : (rest & 0x7f) | 0x80);
      if (rest < 0x80) break;
    }
    return Buffer.concat([Buffer.from([0x0a, ...length]), file]);
  });
  return Buffer.concat(parts);
}

for (const version of ["v1", "v1alpha"]) {
  test(`a job runs with nothing known but the address, by ${version}`, async (t) => {
    const service = await serve(t, ROOMY);
    const files = [];
    for (const name of FILES) {
      const answer = await ask(t, service, version, { fileByFilename: name });
      files.push(answer.fileDescriptorResponse.fileDescriptorProto[0]);
    }
    const learned = loadFileDescriptorSetFromBuffer(descriptorSet(files));
    const WorkerPool = grpc.makeClientConstructor(learned[SERVICE], SERVICE);
    const client = new WorkerPool(service.address, grpc.credentials.createInsecure());
    t.after(() => client.close());
    const request = { job: { kind: "echo", payload: Buffer.from("unseen") } };
    assert.equal((await unary(client, "Submit", request).ended).response.result.output.toString(), "unseen");
    assert.equal((await refusal(unary(client, "Submit", {}).ended)).reason, "INVALID_FIELD");
  });
}
