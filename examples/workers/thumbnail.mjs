#!/usr/bin/env node
// A worker of waterwheel that serves the kind `thumbnail`. It needs Node 18 and nothing else.
//
//   waterwheel worker test -- node thumbnail.mjs     checks that it keeps the protocol
//   waterwheel dev --worker thumbnail.mjs            serves it, and starts it anew when this file changes
//
// Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
import { realpathSync } from 'node:fs';
import { Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';

// Does one job: returns the result, as bytes and their content type.
export async function run(job) {
  return [job.payload, job.content_type];
}

// What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
async function conformance(job) {
  switch (job.labels.task) {
    case 'chunks':
      for (let number = 0; number < 3; number++) await job.output(Buffer.from(`${number}\n`));
      return [Buffer.from('end\n'), 'text/plain'];
    case 'progress':
      job.progress(0.5, 'half of it');
      break;
    case 'fail':
      throw new Failed('NOT_FOUND', 'no such picture');
    case 'wait':
      // `job.signal` also stops what takes one, such as `fetch`.
      await new Promise((resolve) => job.signal.addEventListener('abort', resolve));
      throw new Failed('CANCELLED', `stopped because of ${job.signal.reason}`);
    case 'print':
      console.log('a line on standard output');
      break;
    case 'crash':
      process.exit(3);
  }
  return [job.payload, job.content_type];
}

const KINDS = { thumbnail: run, conformance };

// Ends a job with a gRPC status code. Any other error ends it with INTERNAL.
class Failed extends Error {
  constructor(code, message, retryable) {
    super(message);
    Object.assign(this, { code, retryable });
  }
}

class Job {
  #abort = new AbortController();

  constructor(header, payload) {
    Object.assign(this, header); // id, job_id, kind, content_type, budget_ms, request_id, tenant, labels, attempt, token
    this.payload = payload;
    this.signal = this.#abort.signal;
  }

  // Sends a piece of the result now, which a caller of `Stream` gets as a chunk.
  output(piece) {
    return write(encoded('output', { id: this.id }, piece));
  }

  progress(fraction, message = '') {
    return write(encoded('progress', { id: this.id, fraction, message }, ''));
  }

  cancel(reason) {
    this.#abort.abort(reason);
  }
}

// The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
const jobs = new Map();
let responses;
let leaving = false;

// A message with its bytes: a text is sent in UTF-8, whose length is not the text's.
function encoded(name, message, data) {
  const bytes = ArrayBuffer.isView(data) ? Buffer.from(data.buffer, data.byteOffset, data.byteLength) : Buffer.from(data);
  return Buffer.concat([Buffer.from(`${JSON.stringify({ [name]: message, bytes: bytes.length })}\n`), bytes]);
}

function write(message) {
  return new Promise((resolve) => responses.write(message, resolve));
}

// Runs one job. Every way out of its handler is an answer, and a result that cannot be sent is an error of it.
async function answer(job) {
  try {
    if (!Object.hasOwn(KINDS, job.kind)) throw new Failed('UNIMPLEMENTED', `no handler for the kind ${job.kind}`);
    const [result, contentType] = await KINDS[job.kind](job);
    return encoded('done', { id: job.id, content_type: contentType }, result);
  } catch (error) {
    const isOurs = error instanceof Failed;
    if (!isOurs) console.error(error);
    const message = typeof error?.message === 'string' ? error.message : inspect(error);
    const failed = { id: job.id, code: isOurs ? String(error.code) : 'INTERNAL', message: message.slice(0, 2000) };
    if (isOurs && error.retryable != null) failed.retryable = Boolean(error.retryable);
    return encoded('failed', failed, '');
  }
}

async function start(job) {
  jobs.set(job.id, job);
  const message = await answer(job);
  jobs.delete(job.id);
  await write(message);
  if (leaving && jobs.size === 0) process.exit(0);
}

function take(message, data) {
  if (message.run) start(new Job(message.run, data));
  if (message.cancel) jobs.get(message.cancel.id)?.cancel(message.cancel.reason);
  if (message.leave) {
    leaving = true;
    if (jobs.size === 0) process.exit(0);
  }
}

async function main() {
  const requests = new Socket({ fd: 3, writable: false });
  responses = new Socket({ fd: 4, readable: false });
  // The service is gone.
  requests.on('end', () => process.exit(0));
  write(encoded('ready', { protocol: 1, kinds: Object.keys(KINDS), name: 'thumbnail' }, ''));

  let pieces = [];
  let held = 0;
  let needed = 1;
  for await (const piece of requests) {
    pieces.push(piece);
    held += piece.length;
    if (held < needed) continue;
    let buffer = Buffer.concat(pieces);
    for (;;) {
      const end = buffer.indexOf('\n') + 1;
      const message = end ? JSON.parse(buffer.subarray(0, end).toString()) : {};
      needed = end ? end + (message.bytes ?? 0) : buffer.length + 1;
      if (buffer.length < needed) break;
      take(message, buffer.subarray(end, needed));
      buffer = buffer.subarray(needed);
    }
    pieces = [buffer];
    held = buffer.length;
  }
}

// A test can import this file.
if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await main();
