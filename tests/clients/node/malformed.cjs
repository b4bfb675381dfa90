// A worker that attaches with four slots: `node malformed.cjs ADDRESS FOLDER`.
//
// It answers the jobs of the kind `echo`, and each job of the kind `do` by the messages in the file of the folder that the
// payload names, as they are. tests/it/malformed/attached.rs writes these files.

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { setTimeout } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const [address, folder] = process.argv.slice(2);
const includeDirs = [join(__dirname, "../../../proto")];
const { Attach } = loadSync("waterwheel/v1/worker_service.proto", { includeDirs, defaults: true })[
  "waterwheel.v1.WorkerService"
];
const encode = Attach.requestSerialize;
const Client = grpc.makeGenericClientConstructor({ Attach: { ...Attach, requestSerialize: (bytes) => bytes } });

// The field of an id, and an unknown one, so that both take as many bytes as the field of a placeholder.
function field(id) {
  const rest = 6 - id.length;
  return `\n${String.fromCharCode(id.length)}${id}z${String.fromCharCode(rest)}${"\0".repeat(rest)}`;
}

// The messages of a case. In Latin-1, each byte is one character.
function* messages(name, job, answered) {
  let data = readFileSync(join(folder, name)).toString("latin1");
  data = data.replaceAll("\n\x08IIIIIIII", field(job)).replaceAll("\n\x08OOOOOOOO", field(answered));
  for (let rest = Buffer.from(data, "latin1"); rest.length; ) {
    const end = 4 + rest.readUInt32BE();
    yield rest.subarray(4, end);
    rest = rest.subarray(end);
  }
}

async function attach(client) {
  const call = client.Attach();
  let answered = "1";
  call.write(encode({ hello: { kinds: ["do", "echo"], concurrency: 4 } }));
  try {
    for await (const { run } of call) {
      if (run?.kind === "echo") {
        answered = run.id;
        call.write(encode({ done: { id: run.id, data: run.payload } }));
      } else if (run) {
        for (const message of messages(run.payload.toString(), run.id, answered)) call.write(message);
      }
    }
  } catch {
    // The end of the call is what some cases are about.
  }
}

async function main() {
  const options = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
  const client = new Client(address, grpc.credentials.createInsecure(), options);
  for (;;) {
    await attach(client);
    await setTimeout(10);
  }
}

main();
