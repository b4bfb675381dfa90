// A worker that attaches to every address of its servers' names.
"use strict";

const { lookup } = require("node:dns/promises");
const { isIP } = require("node:net");
const { setTimeout: sleep } = require("node:timers/promises");
const { channel, metadataOf, services } = require("./connection.js");
const { Session } = require("./session.js");

const warn = (address, error) => console.error(`${address}: ${error.message}`);

// By a signal it takes no more jobs, and resolves with the last answer.
async function attachAll(worker, name, addresses, options) {
  const leaving = new AbortController();
  const leave = () => leaving.abort();
  for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, leave);
  options.signal?.addEventListener("abort", leave);
  if (options.signal?.aborted) leave();
  const how = { worker, name, options, leave };
  try {
    await Promise.all(addresses.map((address) => follow({ ...how, given: address.trim() }, leaving.signal)));
  } finally {
    for (const signal of ["SIGTERM", "SIGINT"]) process.off(signal, leave);
    options.signal?.removeEventListener("abort", leave);
  }
}

// Resolves early if the signal says so.
const pause = (milliseconds, signal) => sleep(milliseconds, null, { signal }).catch(() => {});

// Stays attached to each address of a name, which it resolves every three seconds.
async function follow(how, leaving) {
  const attached = new Map();
  const loops = new Set();
  while (!leaving.aborted) {
    const found = await resolve(how.given).catch((error) => warn(how.given, error));
    for (const [address, its] of found ? attached : []) {
      // A name may lack an address for a moment.
      if (found.includes(address) || ++its.missing < 3) continue;
      its.gone.abort();
      attached.delete(address);
    }
    for (const address of found ?? []) {
      if (!attached.has(address)) {
        const gone = new AbortController();
        attached.set(address, { gone });
        const loop = stay(how, address, AbortSignal.any([leaving, gone.signal])).finally(() => loops.delete(loop));
        loops.add(loop);
      }
      attached.get(address).missing = 0;
    }
    await pause(3000, leaving);
  }
  await Promise.all(loops);
}

// The IPv4 addresses of a name where there are any. What is none of DNS is its own address.
async function resolve(given) {
  const [, scheme = "", host, port] = /^(https?:\/\/)?(.*):(\d+)$/.exec(given) ?? [];
  if (!host || given.startsWith("unix:") || isIP(host.replace(/[[\]]/g, ""))) return [given];
  const found = await lookup(host, { all: true, family: 4 }).catch(() => lookup(host, { all: true }));
  return found.map(({ address, family }) => `${scheme}${family === 6 ? `[${address}]` : address}:${port}`);
}

// Attaches again whenever the call ends: the server restarts, or the network breaks.
async function stay(how, address, leaving) {
  while (!leaving.aborted) {
    const call = { isFollowed: null };
    await attach(how, address, leaving, call).catch((error) => warn(address, error));
    if (call.isFollowed) return call.isFollowed;
    await pause(100 + 900 * Math.random(), leaving);
  }
}

// Runs the jobs of one call, until it ends.
async function attach(how, address, leaving, its) {
  const { worker, name, options, given } = how;
  const authority = address === given ? undefined : given.replace(/^https?:\/\//, "");
  const over = channel(address, options, {}, authority);
  const client = new services.WorkerService(address, null, { channelOverride: over });
  const call = client.attach(await metadataOf(options));
  const session = new Session(worker, (message) => new Promise((resolve) => call.write(message, resolve)));
  const leave = () => session.send({ leaving: {} });
  leaving.addEventListener("abort", leave);
  session.send({ hello: { name, kinds: worker.kinds, concurrency: worker.slots } });
  worker.sessions.add(session);
  session.share();
  try {
    for await (const message of call) {
      session.receive(message);
      if (message.leave?.idle) how.leave();
      // The jobs of this call may take long: the free slots attach again at once.
      if (message.leave && !leaving.aborted) its.isFollowed ??= stay(how, address, leaving);
    }
  } finally {
    leaving.removeEventListener("abort", leave);
    worker.sessions.delete(session);
    session.detach();
    over.close();
  }
}

module.exports = { attachAll };
