// Writes the case of cases.json that a payload names, and answers the jobs of the kind `echo`.
import { readFileSync, readSync, writeSync } from 'node:fs';

const cases = new Map(JSON.parse(readFileSync(process.argv[2])).map(({ name, writes }) => [name, writes]));
let buffer = Buffer.alloc(0);
let answered = '1';

function say(data) {
  for (let at = 0; at < data.length; at += writeSync(4, data, at));
}

function more() {
  const piece = Buffer.alloc(65536);
  const size = readSync(3, piece);
  if (size === 0) process.exit(0);
  buffer = Buffer.concat([buffer, piece.subarray(0, size)]);
}

function take(size) {
  while (buffer.length < size) more();
  const taken = buffer.subarray(0, size);
  buffer = buffer.subarray(size);
  return taken;
}

say(Buffer.from('{"ready":{"protocol":1}}\n'));
for (;;) {
  while (!buffer.includes('\n')) more();
  const { run, cancel, bytes } = JSON.parse(take(buffer.indexOf('\n') + 1).toString());
  const payload = take(bytes ?? 0);
  if (run?.kind === 'echo') {
    answered = run.id;
    say(Buffer.concat([Buffer.from(`${JSON.stringify({ done: { id: answered }, bytes: payload.length })}\n`), payload]));
  } else if (run) {
    let data = cases.get(payload.toString());
    const values = { $ID: run.id, $OLD: answered, $NEW: '999999', $LONG: 'x'.repeat(1 << 20) };
    for (const [name, value] of Object.entries(values)) data = data.replaceAll(name, value);
    say(Buffer.from(data, 'latin1'));
  } else if (cancel) {
    say(Buffer.from(`${JSON.stringify({ failed: { id: cancel.id, code: 'CANCELLED' } })}\n`));
  }
}
