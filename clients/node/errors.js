// One class for each thing that a caller does differently.
"use strict";

const { inspect } = require("node:util");
const { status } = require("@grpc/grpc-js");
const { contract } = require("./connection.js");

// Its `message` has the reason and what to do, too; `details` is the text alone.
class JobError extends Error {
  constructor(details, fields = {}) {
    const { reason = "", code = "UNKNOWN", help = "" } = fields;
    const name = reason === "HANDLER_FAILED" ? code : reason;
    super((name && `${name}: `) + details + (help && ` (${help})`));
    Object.assign(this, { metadata: {}, jobId: "", ...fields, code, reason, help, details });
  }
  get name() {
    return this.constructor.name;
  }
}

// It did not start.
class Refused extends JobError {}
// It did not end in time.
class Missed extends JobError {}
// Nobody knows how it ended.
class Lost extends JobError {}

// The handler said no. A handler throws it, too: `new Failed("NOT_FOUND", "no such picture")`.
class Failed extends JobError {
  constructor(code, details, fields = {}) {
    super(details, { ...fields, code, started: true });
    // What a program of `exec` printed last on standard error follows how it ended.
    this.stderr = /\bexit(?:ed with)? (?:code |status )?\d+: ([^]*)/.exec(details)?.[1] ?? "";
  }
}

// Longest time to another attempt.
const HOUR = 3_600_000;

// Not now: the job is tried again after so many milliseconds, of an hour at most; null leaves the time to the kind.
class Later extends Failed {
  constructor(after, message = "not now", { scope = "job", counts = true, code = "UNAVAILABLE" } = {}) {
    const isTime = after == null || (typeof after === "number" && after >= 0);
    if (!isTime) throw new TypeError(`a time is a number of milliseconds, and not negative: ${inspect(after)} is not`);
    if (!["job", "limit-key", "kind"].includes(scope)) throw new TypeError(`a scope is job, limit-key or kind, not ${inspect(scope)}`);
    if (typeof counts !== "boolean") throw new TypeError(`counts is true or false, not ${inspect(counts)}`);
    if (scope !== "job" && after == null) throw new TypeError(`the scope ${scope} needs a time`);
    super(code, message, { retryAfter: after ?? undefined, scope, counts });
    const most = Math.ceil(Math.min(after, HOUR));
    // What is sent of it.
    this.next = { retryAfterMs: after == null ? null : most, counts, scope: scope.toUpperCase().replace("-", "_") };
  }
}

// Makes an error of a code, a text, the details of `google.rpc.Status`, and whether a server was reached.
function failureOf(number, text, details, wasReached) {
  const find = (type) => {
    const detail = details.find(({ type_url }) => type_url.endsWith(`/google.rpc.${type}`));
    return detail && contract[`google.rpc.${type}`].deserialize(detail.value);
  };
  const info = find("ErrorInfo");
  const delay = find("RetryInfo")?.retryDelay;
  const code = status[number] ?? "UNKNOWN";
  const isUnreachable = !info && !wasReached && code !== "DEADLINE_EXCEEDED";
  const execution = info?.metadata.execution ?? (isUnreachable ? "NOT_STARTED" : "UNKNOWN");
  return classify(execution, text, {
    code,
    reason: info?.reason ?? (isUnreachable ? "UNREACHABLE" : code),
    help: find("Help")?.links[0]?.description,
    metadata: info?.metadata ?? {},
    jobId: info?.metadata.job ?? "",
    retryAfter: delay && Number(delay.seconds) * 1000 + Math.ceil(delay.nanos / 1e6),
  });
}

function classify(execution, text, fields) {
  const started = { NOT_STARTED: false, STARTED: true }[execution];
  fields = { ...fields, started };
  if (["HANDLER_FAILED", "OUTPUT_TOO_LARGE"].includes(fields.reason)) return new Failed(fields.code, text, fields);
  const type = fields.code === "DEADLINE_EXCEEDED" ? Missed : started === false ? Refused : Lost;
  return new type(text, fields);
}

// The error of a call. Its peer is the target of the channel until it has a connection. A server that drains refuses the
// streams that it has not read, which grpc-js says only in words.
function ofCall(error, call, target) {
  const [packed] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const details = packed ? contract["google.rpc.Status"].deserialize(packed).details : [];
  const isRefused = [target, "unknown"].includes(call.getPeer()) || error.details === "Stream refused by server";
  return failureOf(error.code, error.details ?? error.message, details, !isRefused);
}

// The error of one job of many.
const ofFailure = ({ code, message, details }) => failureOf(code, message, details, true);

// The error of a detached job that ended without a result.
function ofDetached({ state, attempts, jobId }) {
  const { code, outcome, message } = attempts.at(-1) ?? { code: 0, outcome: "", message: "" };
  const last = { JOB_STATE_EXPIRED: ["DEADLINE_EXCEEDED", "EXPIRED"], JOB_STATE_CANCELLED: ["CANCELLED", "CANCELLED"] };
  const [name, reason] = last[state] ?? [status[code], outcome];
  return classify(attempts.length ? "STARTED" : "NOT_STARTED", message || reason, { code: name, reason, jobId });
}

module.exports = { JobError, Refused, Missed, Failed, Later, Lost, ofCall, ofFailure, ofDetached };
