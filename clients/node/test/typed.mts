// Compiled, and not run: each line is as a user writes it, and the marked ones are faults.
import { Client, Failed, Later, Lost, Missed, Output, Refused, worker, type Job } from "../index.js";

export async function call(): Promise<string> {
  const pool = new Client("127.0.0.1:7070", { token: async () => "t" });
  try {
    const result = await pool.submit("thumb", Buffer.from("x"), { timeout: 2000, labels: { size: "128" }, whenFull: "wait" });
    for await (const piece of pool.stream("gzip", "text")) piece.subarray(1);
    const jobs: Job[] = [{ kind: "thumb", payload: { a: 1 } }];
    for await (const { job, result, error } of pool.submitMany(jobs)) {
      if (error) console.error(job.kind, error.message);
      else console.log(result.text);
    }
    const job = await pool.create("report", null, { id: "order-4711", retry: { attempts: 3 } });
    await job.wait({ timeout: 60_000 });
    // @ts-expect-error
    await pool.submit("thumb", "", { whenFull: "sometimes" });
    // @ts-expect-error
    await pool.submit("thumb", 7);
    return result.contentType;
  } catch (error) {
    if (error instanceof Refused) return `again after ${error.retryAfter ?? 0} ms`;
    if (error instanceof Failed) return error.stderr;
    if (error instanceof Lost || error instanceof Missed) return String(error.started);
    throw error;
  }
}

worker.kind("thumb", (job) => new Output(job.payload, "image/jpeg"));
worker.kind("json", async (job) => ({ size: job.payload.length }));
worker.kind("pieces", async function* (job) {
  for (let number = 0; !job.cancelled; number++) yield `${number}\n`;
});
worker.batch("embed", { max: 32 }, (jobs) => jobs.map(({ text }) => (text ? [1, 2] : new Failed("NOT_FOUND", "empty"))));
worker.kind("busy", () => {
  throw new Later(30_000, "429", { scope: "limit-key", counts: false });
});
// @ts-expect-error
new Later("30");
// @ts-expect-error
new Later(30, "429", { scope: "all" });
// @ts-expect-error
worker.kind("wrong", () => 7);
await worker.run({ name: "thumbs 1.4", slots: 8 });
