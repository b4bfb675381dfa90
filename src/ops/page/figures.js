// Calls, and figures as a person reads them.

/** What the page remembers of its reader: a token, for as long as the tab is open. */
let token = "";
export const useToken = (text) => (token = text);

function post(method, request, more, signal) {
  const headers = { "content-type": "application/json", "connect-protocol-version": "1", ...more };
  if (token) headers.authorization = `Bearer ${token}`;
  return fetch(`/waterwheel.v1.${method}`, { method: "POST", headers, body: JSON.stringify(request), signal });
}

const refusal = (method, { message, code }) => Object.assign(new Error(message), { code, method });

/** Calls an RPC by JSON. An error has the `message` and the `code` of the server. */
export async function call(method, request = {}) {
  const answer = await post(method, request, {}, AbortSignal.timeout(8000));
  const body = await answer.json();
  if (!answer.ok) throw refusal(method, body);
  return body;
}

/** Calls an RPC whose answer streams, and leaves it after the first message. */
export async function callStream(method, request) {
  const leave = new AbortController();
  const answer = await post(method, request, { accept: "application/x-ndjson" }, leave.signal);
  const { value } = await answer.body.pipeThrough(new TextDecoderStream()).getReader().read();
  leave.abort();
  const first = JSON.parse(firstLine(value));
  if (first.error) throw refusal(method, first.error);
}

// Protobuf's JSON leaves out zeros and empty lists, and writes large numbers and times as texts.
export const number = (value) => Number(value ?? 0);
export const list = (value) => value ?? [];
/** The seconds of a duration such as `"1.5s"`. */
export const seconds = (duration) => (duration == null ? undefined : parseFloat(duration));
/** The seconds of a time since 1970. */
export const epoch = (time) => Date.parse(time) / 1000;
export const sum = (values, of) => values.reduce((total, value) => total + number(of(value)), 0);

export const whole = (value) => number(value).toLocaleString("en");
export const many = (count, one, more = `${one}s`) => `${whole(count)} ${number(count) === 1 ? one : more}`;

/** A rate by the second: `240`, `24`, `3.1`, `0.02`. */
export function rate(value) {
  if (value == null) return "–";
  if (value >= 9.95) return whole(Math.round(value));
  if (value >= 0.05) return value.toFixed(1);
  return value < 0.005 ? "0" : value.toFixed(2);
}

export function time(value) {
  if (value == null || Number.isNaN(value)) return "–";
  if (value < 0.0005) return "0 ms";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 90) return `${value.toFixed(0)} s`;
  if (value < 5400) return `${(value / 60).toFixed(0)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(value < 36000 ? 1 : 0)} h`;
  return `${(value / 86400).toFixed(0)} days`;
}

export function bytes(value) {
  const count = number(value);
  if (count < 1024) return `${count} B`;
  if (count < 1048576) return `${(count / 1024).toFixed(count < 10240 ? 1 : 0)} KiB`;
  return `${(count / 1048576).toFixed(1)} MiB`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** A time of day, or a date if that is more than half a day away. */
export function moment(value) {
  if (!value) return "–";
  const date = new Date(value);
  return Math.abs(Date.now() - date) < 43200e3 ? CLOCK.format(date) : DAY.format(date);
}

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
export const firstLine = (text) => (text ?? "").trim().split("\n")[0];
