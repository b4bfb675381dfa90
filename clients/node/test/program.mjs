// A worker whose handlers do what the payload says.

import { setTimeout as sleep } from "node:timers/promises";
import { current } from "../connection.js";
import { Failed, Later, Output, Worker } from "../index.js";

export function program() {
  const worker = new Worker();
  const evil = { get message() { throw new Error("evil"); } };
  const cycle = {};
  cycle.itself = cycle;
  worker.kind("do", async (job) => {
    switch (job.text) {
      case "throw": throw new Error("a bug");
      case "null": throw null;
      case "evil": throw evil;
      case "long": throw new Failed("NOT_FOUND\ud800", "ü\ud800\0".repeat(10_000));
      case "code": throw new Failed(evil, "no code");
      case "number": return 7;
      case "date": return new Date();
      case "cycle": return cycle;
      case "type": return new Output("x", "ü".repeat(1000));
      case "large": return Buffer.alloc(3 << 20);
      case "nothing": return;
      case "json": return { a: [1] };
      case "pieces": return (function* () { yield "a"; yield "b"; })();
      case "halfway": return (async function* () { yield "a"; throw new Failed("NOT_FOUND", "no b"); })();
      case "late":
        setTimeout(() => {
          job.progress(1, "after the answer");
          job.output("after the answer");
          job.fail(new Error("after the answer"));
        });
        break;
      case "nan": job.progress(NaN); break;
      case "time": throw new Later("30");
      case "past": throw new Later(-1);
      case "scope": throw new Later(1, "", { scope: "all" });
      case "timeless": throw new Later(null, "", { scope: "kind" });
      case "counts": throw new Later(1, "", { counts: 0 });
      case "hold": throw new Later(600_000, "429", { scope: job.labels.scope });
      case "again":
        if (job.attempt === 1) throw new Later(10, "", { counts: false });
        return `attempt ${job.attempt}`;
      case "ids": return [job.requestId, current.getStore() === job, job.labels.size ?? ""];
      case "wait": await sleep(60_000, null, { signal: job.signal });
    }
    return job.text;
  });
  worker.batch("batch", { max: 4 }, async (jobs) => {
    const results = jobs.map(() => String(jobs.length));
    for (const [number, { text, signal }] of jobs.entries()) {
      if (text === "fail") results[number] = new Failed("NOT_FOUND", "no such picture");
      if (text === "number") results[number] = 7;
      if (text === "wait") {
        await sleep(60_000, null, { signal }).catch(() => {});
        await sleep(100);
      }
      if (text === "crash") process.exit(3);
      if (text === "throw") throw new Error("a bug");
      if (text === "few") return results.slice(1);
    }
    return results;
  });
  return worker;
}

if (process.argv[1]?.endsWith("program.mjs")) await program().run({ name: "test", slots: 2 });
