// A child of the server: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
"use strict";

const { fstatSync } = require("node:fs");
const { Socket } = require("node:net");
const { Session } = require("./session.js");

// Whether the descriptors are those that a server gives: where it does not, 3 is of Node itself, and no pipe.
function isChild() {
  try {
    return [3, 4].every((descriptor) => fstatSync(descriptor).isFIFO());
  } catch {
    return false;
  }
}

const inJson = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const inScript = (name) => name.replace(/_[a-z]/g, (letter) => letter[1].toUpperCase());
const renamed = (message, rename) => Object.fromEntries(Object.entries(message).map(([name, it]) => [rename(name), it]));

function line(message) {
  const [[name, { data = Buffer.alloc(0), ...rest }]] = Object.entries(message);
  const header = JSON.stringify({ [name]: renamed(rest, inJson), bytes: data.length });
  return Buffer.concat([Buffer.from(`${header}\n`), data]);
}

// Never resolves: it ends the process, as a server expects of a child.
async function runChild(worker, name) {
  const requests = new Socket({ fd: 3, writable: false });
  const responses = new Socket({ fd: 4, readable: false });
  // The server is gone.
  responses.on("error", () => process.exit(0));
  const session = new Session(worker, (message) => {
    if (message.output) session.taken(message.output.id);
    return new Promise((resolve) => responses.write(line(message), resolve));
  });
  responses.write(line({ ready: { protocol: 1, kinds: worker.kinds, name } }));
  for await (const [message, payload] of messages(requests)) {
    if (message.run) message.run = { ...renamed(message.run, inScript), payload };
    session.receive(message);
    // What is written before this is flushed by then.
    if (message.leave) session.idle().then(() => responses.end(() => process.exit(0)));
  }
  process.exit(0);
}

async function* messages(requests) {
  let pieces = [];
  let held = 0;
  let needed = 1;
  for await (const piece of requests) {
    pieces.push(piece);
    held += piece.length;
    if (held < needed) continue;
    let buffer = Buffer.concat(pieces);
    for (;;) {
      const end = buffer.indexOf("\n") + 1;
      const message = end ? JSON.parse(buffer.subarray(0, end).toString()) : {};
      needed = end ? end + (message.bytes ?? 0) : buffer.length + 1;
      if (buffer.length < needed) break;
      yield [message, buffer.subarray(end, needed)];
      buffer = buffer.subarray(needed);
    }
    pieces = [buffer];
    held = buffer.length;
  }
}

module.exports = { isChild, runChild };
