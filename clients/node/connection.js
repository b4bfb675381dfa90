// The contract, channels, and what callers and workers send.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { existsSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const FILES = ["worker_pool_service", "job_service", "worker_service"].map((name) => `waterwheel/v1/${name}.proto`);
// In the package, and in the repository.
const includeDirs = [join(__dirname, "proto"), join(__dirname, "../../proto")].filter(existsSync).slice(0, 1);
const contract = loadSync([...FILES, "google/rpc/status.proto", "google/rpc/error_details.proto"], {
  includeDirs,
  // A sequence has more bits than a number of JavaScript.
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const services = grpc.loadPackageDefinition(contract).waterwheel.v1;

// The job of the handler that runs: calls carry on its request id and its trace.
const current = new AsyncLocalStorage();

const OPTIONS = {
  // It finds a server that is gone.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 3_000,
  // The server has the bounds of messages.
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
  // Other channels' pauses before they connect again are not this one's.
  "grpc.use_local_subchannel_pool": 1,
  "grpc.enable_retries": 0,
};

// A channel to an address as the commands take it, and its options. `name` is the host that an address is one of.
function channel(address, options, more = {}, name = undefined) {
  const [, scheme, target] = /^(https?:\/\/)?(.*)$/.exec(address);
  const { ca, cert, key, tls = Boolean(ca || cert) || scheme === "https://", authority = name } = options;
  const bytes = (text) => text && Buffer.from(text);
  const credentials = tls
    ? grpc.credentials.createSsl(bytes(ca), bytes(key), bytes(cert))
    : grpc.credentials.createInsecure();
  const named = authority ? { "grpc.default_authority": authority, "grpc.ssl_target_name_override": host(authority) } : {};
  return new grpc.Channel(target, credentials, { ...OPTIONS, ...named, ...more, ...options.channel });
}

const host = (authority) => authority.replace(/:\d+$/, "");

// The variables of the commands.
function fromEnvironment() {
  const file = (name) => process.env[name] && readFileSync(process.env[name]);
  const token = process.env.WATERWHEEL_TOKEN_FILE;
  return {
    ca: file("WATERWHEEL_CA"),
    cert: file("WATERWHEEL_CERT"),
    key: file("WATERWHEEL_KEY"),
    token: token && (() => readFileSync(token, "utf8").trim()),
  };
}

// The metadata of a call: a token may be a text, or a function that returns one.
async function metadataOf({ token }, requestId = current.getStore()?.requestId) {
  const metadata = new grpc.Metadata();
  const trace = current.getStore()?.traceparent;
  if (token) metadata.set("authorization", `Bearer ${typeof token === "function" ? await token() : token}`);
  if (requestId) metadata.set("x-request-id", requestId);
  if (trace) metadata.set("traceparent", trace);
  return metadata;
}

// Bytes and their media type: of bytes, a text, or what JSON can say. Nothing else is sent.
function encoded(value, contentType) {
  if (value == null) return [Buffer.alloc(0), contentType ?? ""];
  if (typeof value === "string") return [Buffer.from(value), contentType ?? "text/plain"];
  if (ArrayBuffer.isView(value)) {
    return [Buffer.from(value.buffer, value.byteOffset, value.byteLength), contentType ?? "application/octet-stream"];
  }
  if (value instanceof ArrayBuffer) return [Buffer.from(value), contentType ?? "application/octet-stream"];
  if (Array.isArray(value) || [Object.prototype, null].includes(Object.getPrototypeOf(Object(value)))) {
    return [Buffer.from(JSON.stringify(value)), contentType ?? "application/json"];
  }
  throw new TypeError(`bytes, a text, an object or an array was expected, not ${value?.constructor?.name ?? typeof value}`);
}

module.exports = { contract, services, current, channel, fromEnvironment, metadataOf, encoded };
