// The first view: whether something is wrong, and each pool in one line.
import { bars, barsKey, places } from "./charts.js";
import { cell, element, empty, glyph, heading, link, paragraph, row, section, span, state, table } from "./elements.js";
import { call, epoch, list, number, rate, seconds, sentence, sum, time, whole } from "./figures.js";
import { may } from "./rights.js";
import { phase, reason } from "./words.js";

/** How long a judgement of the server holds, in seconds. */
const FRESH = 5;
const RUNNING = { stages: ["JOB_STAGE_RUNNING"], order: "JOB_ORDER_OLDEST", limit: 6 };

export const overview = {
  title: "Overview",
  every: 2,
  async ask(data) {
    const [history, oldest] = await Promise.all([askHistory(data), call("AdminService/ListJobs", RUNNING)]);
    return { ...history, found: oldest };
  },
  draw({ stats, history, found, now }) {
    const pools = list(stats.pools);
    const problems = list(stats.problems);
    return [
      heading(headline(stats, now), paragraph("", lastMinute(pools))),
      problems.length ? problemList(problems, now) : null,
      section("Pools", history ? barsKey("15 minutes, jobs a second:") : null, poolTable(pools, history)),
      element("div", { class: "two" },
        section("Longest running", link("/jobs?state=running&first=oldest", "All that run"), longest(found, pools)),
        section("Detached jobs", link("/backlog", "Backlog and schedules"), backlogTable(stats, true))),
    ];
  },
};

/** The history, if that of the page is ten seconds old. */
export async function askHistory({ historyAt }) {
  if (!may("StatsHistory") || Date.now() - (historyAt ?? 0) < 9500) return {};
  const { step, pools } = await call("AdminService/StatsHistory");
  const byName = Object.fromEntries(list(pools).map((pool) => [pool.name, pool]));
  return { history: { step: seconds(step), pools: byName }, historyAt: Date.now() };
}

const COUNTS = ["", "One thing needs", "Two things need", "Three things need", "Four things need", "Five things need"];

/** The answer to "is something wrong?". The server judges; the page only counts. */
function headline({ phase: now, problems, judgeTime }, clock) {
  if (now === "PHASE_DRAINING" || now === "PHASE_STOPPING" || now === "PHASE_STOPPED") return "This server drains";
  if (!judgeTime) return "Pools and jobs";
  if (clock - epoch(judgeTime) > FRESH) return `Not judged for ${time(clock - epoch(judgeTime))}`;
  const count = list(problems).length;
  if (!count) return "All pools keep up";
  return `${COUNTS[count] ?? `${whole(count)} things need`} attention`;
}

const perSecond = (window, count) => (window?.seconds ? number(window[count]) / window.seconds : 0);
export const failing = (window) => perSecond(window, "failed") + perSecond(window, "expired");
export const refused = (window) => sum(list(window?.refused), (one) => one.perSecond);

function lastMinute(pools) {
  if (!pools.some((pool) => pool.minute)) return "";
  const arrive = sum(pools, (pool) => perSecond(pool.minute, "arrivals"));
  const [refuse, fail] = [sum(pools, (pool) => refused(pool.minute)), sum(pools, (pool) => failing(pool.minute))];
  const of = (value, words) => (rate(value) === "0" ? `none was ${words}` : `${rate(value)} a second were ${words}`);
  const failed = rate(fail) === "0" ? "none failed" : `${rate(fail)} a second failed`;
  return `In the last minute ${rate(arrive)} jobs a second arrived: ${of(refuse, "refused")}, ${failed}.`;
}

/** What is wrong, in the words of the server. */
export function problemList(problems, now, hasLinks = true) {
  const item = ({ key, level, title, detail, todo, subject, since }) => {
    const isBad = level === "PROBLEM_LEVEL_ERROR";
    const age = now - epoch(since);
    const [to, name] = hasLinks ? linkOf(subject, key) : [];
    return element("li", { class: isBad ? "bad" : "warn" },
      span("", glyph(isBad ? "fail" : "warn")),
      paragraph("", element("b", null, title, ". "), sentence(detail)), paragraph("todo", withCode(sentence(todo))),
      span("see", span("", age < 5 ? "just now" : `for ${time(age)}`), to ? link(to, `See ${name}`) : null));
  };
  return element("div", { role: "status" }, element("ul", { class: "problems" }, problems.map(item)));
}

/** A text whose commands stand in backticks. */
const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? element("code", null, part) : part));

/** The view of what a problem is about. */
function linkOf(subject, key) {
  const [sort, name] = (subject ?? "").split("/");
  if (key === "dead_letters") return [`/dead?kind=${encodeURIComponent(name)}`, "the dead letters"];
  if (sort === "program") return ["/workers", "its processes"];
  if (sort === "store") return ["/backlog", "the backlog"];
  if (sort === "tenant") return ["/tenants", "tenants"];
  return name ? [`/${sort}/${encodeURIComponent(name)}`, name] : [];
}

/** A figure that is grey if it is nothing. */
export const quiet = (text, kind = "") => span(text === "0" ? "zero" : kind, text);

function poolTable(pools, history) {
  const hasRates = pools.some((pool) => pool.recent);
  const rates = hasRates ? ["Arrive /s#", "End /s#", "Fail /s#", "Refuse /s#"] : [];
  const names = ["Pool", "State", "Busy workers#", "Queued#", ...rates, "Expected wait#"];
  const line = (pool) => {
    const { name, recent, queue = {} } = pool;
    const wait = seconds(queue.expectedWait);
    const chart = history?.pools[name];
    return row(link(`/pool/${encodeURIComponent(name)}`, name),
      cell("State", state(phase(pool), pool.paused == null ? "" : "warn"), ""),
      cell("Busy workers", places(number(pool.inFlight), list(pool.workers).length, "workers busy")),
      cell("Queued", places(number(queue.jobs), number(queue.jobsCapacity), "places of the queue taken", true)),
      hasRates ? rateCells(recent) : null,
      cell("Expected wait", span(wait > 1 ? "warn strong" : "", time(wait))),
      history ? cell("Last 15 minutes", chart ? bars(chart, history.step, 230, 26) : "–", "span") : null);
  };
  return table(history ? [...names, "Last 15 minutes"] : names, pools.map(line));
}

function rateCells(recent) {
  const [fail, refuse] = [failing(recent), refused(recent)];
  const arrive = perSecond(recent, "arrivals");
  const main = list(recent?.refused)[0];
  const why = main ? element("div", { class: "small mute why" }, reason(main.reason)) : null;
  return [
    cell("Arrive /s", quiet(rate(arrive))),
    cell("End /s", quiet(rate(perSecond(recent, "completed")))),
    cell("Fail /s", quiet(rate(fail), fail > 0.01 * arrive ? "bad strong" : "bad")),
    cell("Refuse /s", [quiet(rate(refuse), "warn strong"), why]),
  ];
}

/** The usual run of each kind, in seconds. */
export const usualRuns = (pools) =>
  Object.fromEntries(pools.flatMap((pool) => list(pool.kinds)).map(({ name, usualRun }) => [name, median(usualRun)]));
export const median = (distribution) => (number(distribution?.count) ? seconds(distribution.p50) : undefined);

function longest(found, pools) {
  const jobs = list(found?.jobs);
  if (!jobs.length) return empty(found ? "No job runs now." : "Asking …");
  const usual = usualRuns(pools);
  const line = ({ jobId, kind, tenant, run }) => {
    const [runs, usually] = [seconds(run), usual[kind]];
    return row(link(`/job/${jobId}`, kind),
      cell("Tenant", tenantName(tenant), ""),
      cell("Runs for", span(usually && runs > 3 * usually ? "warn strong" : "", time(runs))),
      cell("Usually", span("mute", time(usually))));
  };
  return table(["Kind", "Tenant", "Runs for#", "Usually#"], jobs.map(line));
}

export const tenantName = (name) => name || span("mute", "default");

/** Jobs of the store by kind and state. */
export function backlogTable({ pools, store }, isBrief) {
  const kinds = list(pools).flatMap((pool) => list(pool.kinds)).filter((kind) => kind.detached);
  const counts = ["scheduled", "ready", "blocked", "running", "dead"];
  const busy = kinds.filter(({ detached }) => counts.some((name) => number(detached[name])));
  if (store && !kinds.length) return empty(`The store does not say what it holds. ${store.message ?? ""}`);
  if (!kinds.length) return empty("This server keeps no detached jobs.");
  if (!busy.length) return empty("The store has no jobs that wait, run or failed.");
  const count = (label, name, value, to) => {
    const address = to ?? `/jobs?in=store&state=${label}&kind=${encodeURIComponent(name)}`;
    return number(value) ? link(address, whole(value)) : span("zero", "0");
  };
  const line = ({ name, detached }) =>
    row(link(`/kind/${encodeURIComponent(name)}`, name),
      cell("Later", count("scheduled", name, detached.scheduled)),
      cell("Ready", count("ready", name, detached.ready)),
      isBrief ? null : cell("Behind a key", count("blocked", name, detached.blocked)),
      cell("Running", count("running", name, detached.running)),
      cell("Failed for good", count("failed", name, detached.dead, `/dead?kind=${encodeURIComponent(name)}`)),
      cell("Oldest ready", time(seconds(detached.oldestReadyAge))));
  const early = isBrief ? ["Later#", "Ready#"] : ["Later#", "Ready#", "Behind a key#"];
  return table(["Kind", ...early, "Running#", "Failed for good#", "Oldest ready#"], busy.map(line));
}
