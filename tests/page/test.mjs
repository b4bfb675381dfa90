// The page in a browser, against a real server: `node test.mjs BINARY CHROMIUM PICTURES`.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { call, load, serve, until } from "./server.mjs";

const [binary, executablePath, pictures] = process.argv.slice(2);
const require = createRequire(`${process.env.PAGE_MODULES}/`);
const { chromium } = require("playwright-core");
const AXE = require.resolve("axe-core/axe.min.js");
const WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

const server = await serve(binary);
const jobs = await load(server);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const origin = `http://${server.ops}`;

/** A page of the browser that fails the test on errors, reports and requests to other hosts. */
async function open(options, faults) {
  // The accessibility checker is put into the page past its policy, which has a test of its own.
  const context = await browser.newContext({ ...options, bypassCSP: true });
  const page = await context.newPage();
  page.on("console", (message) => {
    const isOfNoJob = page.url().endsWith(NO_JOB) && message.text().includes("404 (Not Found)");
    if (message.type() === "error" && !isOfNoJob) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(`${origin}/`)) faults.push(`a request to ${request.url()}`);
  });
  page.setDefaultTimeout(20_000);
  return page;
}

const NO_JOB = "/job/none";
const VIEWS = {
  overview: ["/", "Longest running"],
  jobs: ["/jobs", "jobs."],
  stored: ["/jobs?in=store", "jobs."],
  filtered: ["/jobs?state=running&pool=images", "jobs."],
  running: [`/job/${jobs.running}`, "It has run for"],
  queued: [`/job/${jobs.queued}`, "Why:"],
  ended: [`/job/${jobs.ended}`, "standard error"],
  detached: ["/job/mail-3", "Attempts"],
  scheduled: ["/job/later", "It starts"],
  grouped: ["/job/group%2Fnight", "It waits for the jobs of its group."],
  nothing: [NO_JOB, "Nothing here"],
  dead: ["/dead", "failed for good, by 1 error"],
  workers: ["/workers", "are busy"],
  pool: ["/pool/payments", "Kinds"],
  kind: ["/kind/charge", "runs in"],
  tenants: ["/tenants", "sent most jobs"],
  backlog: ["/backlog", "Backlog and schedules"],
};

/** Each view fits its window, is free of what axe finds, and says what it should. */
async function views() {
  const looks = Object.keys(SIZES).flatMap((size) => [[size, "light"], [size, "dark"]]);
  await Promise.all(looks.map(([size, colorScheme]) => look(size, colorScheme)));
}

async function isAccessible(page, at) {
  await page.addScriptTag({ path: AXE });
  const { violations } = await page.evaluate((values) => axe.run({ runOnly: { type: "tag", values } }), WCAG);
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => node.html).join(" ")}`);
  assert.deepEqual(found, [], at);
}

async function look(size, colorScheme) {
  const faults = [];
  const page = await open({ viewport: SIZES[size], colorScheme }, faults);
  for (const [name, [path, text]] of Object.entries(VIEWS)) {
    const at = `${name} ${size} ${colorScheme}`;
    await page.goto(origin + path);
    await page.getByText(text).first().waitFor().catch(() => assert.fail(`${at}: "${text}" does not appear`));
    const [scroll, width] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(scroll <= width, `${at}: it is ${scroll} wide`);
    await isAccessible(page, at);
    await page.screenshot({ path: `${pictures}/${name}-${size}-${colorScheme}.png` });
  }
  assert.deepEqual(faults, [], `${size} ${colorScheme}`);
  await page.context().close();
}

/** Its policy lets in nothing inline and nothing of others, and names are text. */
async function policy() {
  const context = await browser.newContext();
  const page = await context.newPage();
  const reports = [];
  page.on("console", (message) => reports.push(message.text()));
  const answer = await page.goto(`${origin}/jobs?in=store&state=failed`);
  assert.match(answer.headers()["content-security-policy"], /^default-src 'none'; script-src 'self'/);
  assert.equal(answer.headers()["x-content-type-options"], "nosniff");
  await page.getByText("<script>document.title=1</script>").first().waitFor();
  assert.ok(!["1", "2"].includes(await page.title()));
  assert.deepEqual(reports, []);
  await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "document.title = 'inline'";
    document.body.append(script);
  });
  assert.notEqual(await page.title(), "inline");
  await context.close();
}

/** An address that is no valid one has a view, too. */
async function strayAddress() {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${origin}/job/%`);
  await page.getByText("Nothing here").waitFor();
  await context.close();
}

/** Without a script, the document has the pools. */
async function withoutScript() {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(`${origin}/workers`);
  assert.match(await page.innerText("table"), /images\s+serving\s+[1-4] \/ [2-4]/);
  await page.screenshot({ path: `${pictures}/without-script.png` });
  await context.close();
}

/** The keyboard alone reaches an act, and a reason is required. */
async function keyboard() {
  const faults = [];
  const page = await open({ viewport: SIZES.desk }, faults);
  await page.goto(`${origin}/pool/images`);
  const pause = page.getByRole("button", { name: "Pause …" });
  await pause.waitFor();
  await reach(page, "Pause …");
  await page.keyboard.press("Enter");
  assert.equal(await focused(page), "reason");
  await isAccessible(page, "dialog");
  await page.screenshot({ path: `${pictures}/dialog.png` });
  await page.keyboard.press("Escape");
  assert.equal(await page.getByRole("dialog").count(), 0);
  await reach(page, "Pause …");
  await page.keyboard.press("Enter");
  await page.keyboard.type("for a test");
  await reach(page, "Pause");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Resume …" }).waitFor();
  await call(server.ops, "AdminService/Resume", { pool: "images" });
  await pause.waitFor();
  // A slash goes to the search, whose Enter shows the job.
  await page.keyboard.press("/");
  await page.keyboard.type("mail-5");
  await page.keyboard.press("Enter");
  await page.getByText("Attempts").first().waitFor();
  await page.goBack();
  await pause.waitFor();
  assert.deepEqual(faults, []);
  await page.context().close();
}

const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
/** Presses Tab until a text has the focus. */
async function reach(page, text) {
  for (let presses = 0; presses < 60; presses++) {
    if ((await focused(page)) === text) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`Tab does not reach "${text}"`);
}

/** Cancels a job by the page. The server keeps the reason, and the job says how it ended. */
async function cancels() {
  const page = await open({ viewport: SIZES.desk }, []);
  await page.goto(`${origin}/job/${jobs.queued}`);
  await page.getByRole("button", { name: "Cancel …" }).click();
  await page.getByLabel("Why?").fill("it is not wanted");
  await page.getByRole("button", { name: "Cancel the job" }).click();
  await page.getByText("cancelled here").waitFor();
  await page.context().close();
}

/** Resizes, drains and resumes a pool by the page. An act that is refused is not done, and says why. */
async function operates() {
  const page = await open({ viewport: SIZES.desk }, []);
  await page.goto(`${origin}/pool/payments`);
  const act = async (button, yes) => {
    await page.getByRole("button", { name: button }).click();
    await page.getByLabel("Why?").fill("for a test");
    await page.getByRole("button", { name: yes, exact: true }).click();
  };
  await act("Resize …", "Resize");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Resize …" }).click();
  await page.getByLabel("Workers at least").fill("9");
  await page.getByLabel("Why?").fill("for a test");
  await page.getByRole("button", { name: "Resize", exact: true }).click();
  await page.getByText("It was not done: ").waitFor();
  await page.keyboard.press("Escape");
  await act("Drain …", "Drain the pool");
  await page.getByText("draining").first().waitFor();
  await act("Resume …", "Resume");
  await page.getByText("serving").first().waitFor();
  await page.context().close();
}

/** Runs all dead letters of one error again, by two clicks and a reason. */
async function retriesGroup() {
  const page = await open({ viewport: SIZES.desk }, []);
  await page.goto(`${origin}/dead?kind=mail`);
  await page.getByRole("button", { name: "Run 12 again …" }).click();
  await page.getByLabel("Why?").fill("the mail server is back");
  await page.getByRole("button", { name: "Run 12 again", exact: true }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  const job = async () => (await call(server.ops, "JobService/GetJob", { jobId: "mail-3" })).body.job;
  await until("the job was tried again", async () => (await job()).attempts.length > 2);
  await page.context().close();
}

/** From the job that waits for a group to its members. */
async function group() {
  const page = await open({ viewport: SIZES.desk }, []);
  await page.goto(`${origin}/job/group%2Fnight`);
  await page.getByText("Why: ").first().waitFor();
  await page.getByRole("link", { name: "night", exact: true }).click();
  await page.getByText("3 jobs.").waitFor();
  await page.getByText("waits for its group").waitFor();
  await page.getByRole("row").filter({ hasText: "night-1" }).getByRole("link").click();
  await page.getByText("It starts").waitFor();
  await page.context().close();
}

/** A page that only reads has no button, and the server refuses what it would send. Another site can do nothing. */
async function readOnly() {
  const other = await serve(binary, { mode: "read" });
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`http://${other.ops}/pool/images`);
  await page.getByText("Kinds").first().waitFor();
  assert.equal(await page.getByRole("button").count(), 0);
  const statusOf = (address, from) => fetch(`http://${address}/waterwheel.v1.AdminService/Pause`, {
    method: "POST", headers: { "content-type": "application/json", ...from }, body: '{"pool": "images"}',
  }).then(({ status }) => status);
  assert.equal(await statusOf(other.ops, { origin: `http://${other.ops}` }), 403);
  assert.equal(await statusOf(server.ops, { origin: "http://other.example" }), 403);
  assert.equal(await statusOf(other.ops, {}), 200);
  other.child.kill("SIGKILL");
  await other.ended;
  await context.close();
}

/** A hidden page asks nothing, and one whose server is away says so, and goes on when it is back. */
async function awayAndBack() {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${origin}/workers`);
  await page.getByText("are busy").waitFor();
  server.child.kill("SIGKILL");
  await server.ended;
  await page.getByText("has not answered since").waitFor();
  await page.screenshot({ path: `${pictures}/away.png` });
  const restart = () => serve(binary, server).then(({ child }) => (server.child = child), () => false);
  await until("the server is back", restart);
  await page.getByText("has not answered since").waitFor({ state: "detached" });
  await page.getByText("0 of 5 are busy").waitFor();
  await context.close();
}

/** Ten thousand jobs in a list: only the rows near the screen are in the document. */
async function manyJobs() {
  const other = await serve(binary);
  const create = (jobId) => call(other.grpc, "JobService/CreateJob", {
    jobId, job: { kind: "thumbnail" }, options: { delay: "86400s" },
  });
  for (let made = 0; made < 10_000; made += 100) {
    await Promise.all(Array.from({ length: 100 }, (_, at) => create(`later-${made + at}`)));
  }
  const page = await open({ viewport: SIZES.desk }, []);
  await page.goto(`http://${other.ops}/jobs?in=store`);
  for (let shown = 1000; shown < 10_000; shown += 1000) {
    await page.getByText(`${shown.toLocaleString("en")} jobs.`, { exact: true }).waitFor();
    await page.getByRole("button", { name: "Show 1,000 older" }).click();
  }
  await page.getByText("10,000 jobs.", { exact: true }).waitFor();
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable");
  const script = async () => {
    const { metrics } = await devtools.send("Performance.getMetrics");
    return 1000 * metrics.find(({ name }) => name === "ScriptDuration").value;
  };
  const before = await script();
  for (let draws = 0; draws < 10; draws++) {
    await page.evaluate((at) => new Promise((resolve) => {
      scrollTo(0, at);
      requestAnimationFrame(() => requestAnimationFrame(resolve));
    }), 30_000 * draws);
  }
  const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
  console.log(`10,000 jobs: ${nodes} elements, ${((await script() - before) / 10).toFixed(1)} ms of script a draw`);
  assert.ok(nodes <= 30_000, `${nodes} elements`);
  assert.equal(await page.getByRole("table", { name: "Jobs" }).getAttribute("aria-rowcount"), "10001");
  await page.context().close();
  other.child.kill("SIGKILL");
  await other.ended;
}

/** A hidden page asks nothing, for however long, and asks at once when it is seen again. */
async function hidden() {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.clock.install();
  await page.goto(`${origin}/workers`);
  await page.getByText("are busy").waitFor();
  let calls = 0;
  page.on("request", () => calls++);
  const turn = (isHidden) => page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { value, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
  await turn(true);
  // An answer may be under way.
  await page.waitForLoadState("networkidle");
  calls = 0;
  await page.clock.runFor(60_000);
  assert.equal(calls, 0);
  await turn(false);
  await until("the page asks again", () => calls > 0);
  await context.close();
}

/** The drain of a server: what is left and for how long, until the server is gone. */
async function drains() {
  const other = await serve(binary, { finish: "5s" });
  fetch(`http://${other.grpc}/waterwheel.v1.WorkerPoolService/Submit`, {
    method: "POST", headers: { "content-type": "application/json", "connect-timeout-ms": "600000" },
    body: JSON.stringify({ job: { kind: "thumbnail", payload: btoa('{"ms": 500000}') } }),
  }).catch(() => {});
  const faults = [];
  const page = await open({ viewport: SIZES.desk }, faults);
  await page.goto(`http://${other.ops}/`);
  await page.getByText("Runs for").waitFor();
  other.child.kill("SIGTERM");
  await page.getByText("This server drains").waitFor();
  await page.screenshot({ path: `${pictures}/drain.png` });
  await other.ended;
  await page.getByText("has not answered since").waitFor();
  await page.context().close();
}

const TESTS = [
  views, policy, strayAddress, withoutScript, keyboard, cancels, group, retriesGroup, operates, readOnly, manyJobs, hidden,
  drains, awayAndBack,
];

try {
  for (const test of TESTS) {
    const started = Date.now();
    await test();
    console.log(`ok ${test.name} (${((Date.now() - started) / 1000).toFixed(1)} s)`);
  }
} finally {
  await browser.close();
  server.child.kill("SIGKILL");
}
