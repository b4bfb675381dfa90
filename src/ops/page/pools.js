// One pool, and one kind.
import { bars, barsKey } from "./charts.js";
import {
  cell, element, fact, heading, link, nothing, paragraph, row, section, span, state, table,
} from "./elements.js";
import { bytes, list, moment, number, rate, seconds, time, whole } from "./figures.js";
import { askHistory, median, problemList, quiet, refused } from "./overview.js";
import { phase, reason } from "./words.js";
import { squares } from "./workers.js";

export const pool = {
  ask: askHistory,
  draw({ stats, history, id, now, page }) {
    const found = list(stats.pools).find(({ name }) => name === id);
    if (!found) return nothing(`There is no pool ${id}.`, "/", "All pools");
    const isHeld = found.paused != null || found.phase === "PHASE_DRAINING";
    const subject = { pool: id, size: found.size };
    const buttons = [isHeld ? "resume" : "pause", "resize", isHeld ? null : "drain"].filter(Boolean);
    const chart = history?.pools[id];
    return [
      heading(id, paragraph("", state(phase(found), isHeld ? "warn" : ""), pausedBy(found)),
        element("div", { class: "acts" }, buttons.map((name) => page.act(name, subject)))),
      problemsOf(stats, now, (problem) => problem.pool === id),
      element("div", { class: "card" },
        chart ? [bars(chart, history.step, 1160, 84), barsKey("Jobs a second, last 15 minutes:")] : null, facts(found)),
      section("Kinds", null, kindTable(list(found.kinds))),
      section("Workers", link("/workers", "All workers"), element("div", { class: "card" }, squares(found))),
    ];
  },
};

function pausedBy({ paused, pausedBy: who, pausedReason: why }) {
  if (paused == null) return "";
  return ` for ${time(seconds(paused))}${who ? ` by ${who}` : ""}${why ? `: “${why}”` : ""}`;
}

function facts({ inFlight, workers, size = {}, queue = {}, minute, jobs = {} }) {
  const isFixed = number(size.min) === number(size.max);
  const why = list(minute?.refused).slice(0, 2).map((one) => reason(one.reason)).join("; ");
  return element("dl", { class: "facts" },
    fact("Busy workers", `${number(inFlight)} of ${list(workers).length}`),
    fact("Size", `${number(size.workers)}${isFixed ? ", fixed" : ` of ${size.min} to ${size.max}`}`),
    fact("Queue", `${whole(queue.jobs)} of ${whole(queue.jobsCapacity)} jobs, ${bytes(queue.bytes)}`),
    fact("Callers that wait outside", `${whole(queue.waiting)} of ${whole(queue.waitingCapacity)}`),
    fact("Expected wait", time(seconds(queue.expectedWait))),
    fact("Oldest queued", number(queue.jobs) ? time(seconds(queue.oldestAge)) : "–"),
    minute ? fact("Refused in the last minute", why ? `${rate(refused(minute))} a second: ${why}` : "none") : null,
    fact("Done since the start", whole(jobs.completed)),
    fact("Failed since the start", whole(number(jobs.failed) + number(jobs.panicked))),
    size.heldBack ? fact("It does not grow", "its jobs have become slower") : null);
}

const problemsOf = ({ problems }, now, match) => {
  const mine = list(problems).filter(match);
  return mine.length ? problemList(mine, now) : null;
};

export const kind = {
  draw({ stats, id, now }) {
    const home = list(stats.pools).find(({ kinds }) => list(kinds).some(({ name }) => name === id));
    if (!home) return nothing(`No pool has the kind ${id}.`, "/", "All pools");
    const found = list(home.kinds).find(({ name }) => name === id);
    const name = encodeURIComponent(id);
    return [
      heading(id, paragraph("", "runs in ", link(`/pool/${encodeURIComponent(home.name)}`, home.name))),
      problemsOf(stats, now, (problem) => problem.subject === `kind/${id}`),
      kindTable([found]),
      found.lastFailure ? lastFailure(found.lastFailure) : null,
      element("section", null, paragraph("links",
        link(`/jobs?kind=${name}&state=failed`, "Its last failures"), " · ",
        link(`/jobs?kind=${name}&state=running&first=oldest`, "What runs"), " · ",
        link(`/jobs?in=store&kind=${name}`, "Its detached jobs"))),
    ];
  },
};

const lastFailure = ({ message, time: when, jobId }) =>
  section("Its last failure", link(`/job/${jobId}`, moment(when)), element("pre", null, message));

function kindTable(kinds) {
  const hasMinute = kinds.some((one) => one.recentRun);
  const names = hasMinute ? ["Runs, last minute#", "Usually#", "Change#", "Fail /s#"] : [];
  const line = (one) => {
    const runs = seconds(one.runTime?.p50);
    return row(link(`/kind/${encodeURIComponent(one.name)}`, one.name),
      hasMinute ? minuteCells(one) : null,
      cell("Slowest 1 %", number(one.runTime?.count) ? time(seconds(one.runTime.p99)) : "–"),
      cell("Median since start", number(one.runTime?.count) ? time(runs) : "–"),
      cell("Runs since start", whole(one.runTime?.count)),
      cell("Expected wait", time(seconds(one.expectedWait))),
      cell("Limit", limits(one.limit), "span"));
  };
  const always = ["Slowest 1 %#", "Median since start#", "Runs since start#", "Expected wait#", "Limit"];
  return table(["Kind", ...names, ...always], kinds.map(line));
}

function minuteCells({ recentRun, usualRun, failuresPerSecond }) {
  const [runs, usual] = [median(recentRun), median(usualRun)];
  const times = runs && usual ? runs / usual : null;
  const change = times > 2 ? span("bad strong", `× ${times.toFixed(times < 10 ? 1 : 0)}`) : span("zero", "none");
  return [
    cell("Runs, last minute", time(runs)), cell("Usually", time(usual)), cell("Change", times ? change : "–"),
    cell("Fail /s", quiet(rate(number(failuresPerSecond)), "bad")),
  ];
}

function limits(limit) {
  if (!limit) return "–";
  const { all, perKey, running, keys } = limit;
  return [
    all?.concurrency ? `${number(running)} of ${all.concurrency} at once` : "",
    all?.rate ? `${all.rate} starts a second` : "",
    perKey?.concurrency ? `${perKey.concurrency} at once for each of ${whole(keys)} keys` : "",
    perKey?.rate ? `${perKey.rate} starts a second for each key` : "",
  ].filter(Boolean).join(", ");
}
