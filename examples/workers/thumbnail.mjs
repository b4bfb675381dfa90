#!/usr/bin/env node
// A worker of waterwheel that serves the kind `thumbnail`. It needs Node 18 and nothing else.
//
//   waterwheel worker test -- node thumbnail.mjs     checks that it keeps the protocol
//   waterwheel dev --worker thumbnail.mjs            serves it, and starts it anew when this file changes
//
// Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
import { Socket } from 'node:net';

// Does one job: returns the result, as bytes and their content type.
async function run(job) {
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
    return send('output', { id: this.id }, piece);
  }

  progress(fraction, message = '') {
    return send('progress', { id: this.id, fraction, message });
  }

  cancel(reason) {
    this.#abort.abort(reason);
  }
}

// The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
const requests = new Socket({ fd: 3, writable: false });
const responses = new Socket({ fd: 4, readable: false });
const jobs = new Map();
let leaving = false;

function send(name, message, data = Buffer.alloc(0)) {
  responses.write(`${JSON.stringify({ [name]: message, bytes: data.length })}\n`);
  return new Promise((resolve) => responses.write(data, resolve));
}

async function start(job) {
  jobs.set(job.id, job);
  let answer;
  try {
    const handler = KINDS[job.kind];
    if (!handler) throw new Failed('UNIMPLEMENTED', `no handler for the kind ${job.kind}`);
    const [result, contentType] = await handler(job);
    answer = ['done', { id: job.id, content_type: contentType }, result];
  } catch (error) {
    if (!(error instanceof Failed)) console.error(error);
    const code = error instanceof Failed ? error.code : 'INTERNAL';
    answer = ['failed', { id: job.id, code, message: String(error.message), retryable: error.retryable }];
  }
  jobs.delete(job.id);
  await send(...answer);
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

// The service is gone.
requests.on('end', () => process.exit(0));
send('ready', { protocol: 1, kinds: Object.keys(KINDS), name: 'thumbnail' });

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
