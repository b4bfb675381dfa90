// The picture of the README: seven minutes of usual load, then a slow bank and a mail server that refuses.
// `PAGE_MODULES=… node tests/page/picture.mjs BINARY CHROMIUM FILE`, where run.sh puts the modules.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { call, serve } from "./server.mjs";

const [binary, executablePath, file] = process.argv.slice(2);
const { chromium } = createRequire(`${process.env.PAGE_MODULES}/`)("playwright-core");
const config = `${tmpdir()}/picture.toml`;
writeFileSync(config, `
store.memory = true
server.json = true
pool.images = { workers = { min = 2, max = 8 }, queue = { jobs = 256 } }
pool.payments = { workers = 8, queue = { jobs = 64 } }
kind.thumbnail = { pool = "images", builtin = "sleep" }
kind.charge = { pool = "payments", builtin = "sleep" }
[kind.mail]
pool = "images"
exec = ["/bin/sh", "-c", "echo 'SMTP 451 greylisted, try again later' >&2; exit 1"]
retry = { max_attempts = 1 }
[schedule.nightly]
cron = "0 2 * * *"
kind = "thumbnail"
payload = '{"ms": 10}'
`);
const server = await serve(binary, { config });
const [began, now] = [Date.now(), () => (Date.now() - began) / 1000];
const send = (kind, ms, tenant) => call(server.grpc, "WorkerPoolService/Submit", {
  job: { kind, tenant, payload: btoa(JSON.stringify({ ms: Math.round(ms * (0.6 + 0.8 * Math.random())) })) },
}).catch(() => {});
const timers = [
  setInterval(() => send("thumbnail", 220 + 100 * Math.sin(now() / 60), Math.random() < 0.7 ? "acme" : "lido"), 60),
  setInterval(() => send("charge", now() < 430 ? 39 : 550, Math.random() < 0.5 ? "acme" : "lido"), 70),
];
await new Promise((resolve) => setTimeout(resolve, 450_000));
for (let at = 0; at < 14; at++) {
  await call(server.grpc, "JobService/CreateJob", { jobId: `order-${4700 + at}`, job: { kind: "mail" } });
}
await call(server.grpc, "JobService/CreateJob", { job: { kind: "thumbnail" }, options: { delay: "3600s" } });
await new Promise((resolve) => setTimeout(resolve, 14_000));
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
await page.goto(`http://${server.ops}/`);
await page.getByText("Longest running").waitFor();
await page.getByText("need").first().waitFor();
await page.screenshot({ path: file });
timers.forEach(clearInterval);
await browser.close();
server.child.kill("SIGKILL");
