// Lists of jobs: those of the pools, and those of the store. The filters are in the address.
import { cell, element, glyph, heading, link, paragraph, span, tone } from "./elements.js";
import { call, epoch, firstLine, list, number, seconds, time, whole } from "./figures.js";
import { tenantName, usualRuns } from "./overview.js";
import { STAGES, STATES, ended } from "./words.js";

/** Names of states in an address. */
const LIVE = {
  waiting: "JOB_STAGE_WAITING", queued: "JOB_STAGE_QUEUED", running: "JOB_STAGE_RUNNING", done: "JOB_STAGE_COMPLETED",
  failed: "JOB_STAGE_FAILED",
};
const STORED = {
  scheduled: "JOB_STATE_SCHEDULED", ready: "JOB_STATE_READY", blocked: "JOB_STATE_BLOCKED",
  running: "JOB_STATE_RUNNING", done: "JOB_STATE_SUCCEEDED", failed: "JOB_STATE_FAILED",
  cancelled: "JOB_STATE_CANCELLED", expired: "JOB_STATE_EXPIRED",
};
/** Jobs of one call, and rows that are left out together where they are far from the screen. */
const [PAGE, CHUNK] = [1000, 100];

export const jobs = {
  title: "Jobs",
  every: 2,
  async ask({ found }, address) {
    // The list holds still while somebody reads it.
    const isRead = scrollY > 60 || document.querySelector(".list:hover, .list :focus-visible");
    return found && (found.isPaged || isRead) ? {} : { found: await fetchJobs(filterOf(address)) };
  },
  draw({ stats, found, address, page }) {
    const filter = filterOf(address);
    const isStored = filter.in === "store";
    const kinds = list(stats.pools).flatMap(({ kinds: all }) => list(all).map(({ name }) => name)).sort();
    const usual = usualRuns(list(stats.pools));
    const rows = list(found?.jobs).map((job) => () => (isStored ? storedRow(job) : liveRow(job, usual[job.kind])));
    const change = (name) => (event) => page.go(addressOf({ ...filter, [name]: event.target.value }));
    return [
      heading("Jobs", element("div", { class: "tabs", role: "group", "aria-label": "Place" },
        tab("In the pools", {}, !isStored), tab("Detached", { in: "store" }, isStored))),
      element("div", { class: "filters" }, element("div", { class: "tabs", role: "group", "aria-label": "State" },
        ["", ...Object.keys(isStored ? STORED : LIVE)].map((state) => {
          return tab(state || "all", { ...filter, state }, (filter.state ?? "") === state);
        }))),
      element("div", { class: "filters" },
        isStored ? null : choice("Pool", list(stats.pools).map(({ name }) => name), filter.pool, change("pool")),
        choice("Kind", kinds, filter.kind, change("kind")),
        entry("Tenant", "any", filter.tenant, change("tenant")),
        isStored ? entry("Label", "name=value", filter.label, change("label")) : null,
        isStored ? null : choice("Older than", ["1s", "10s", "60s"], filter.older, change("older")),
        isStored ? null : choice("Order", ["oldest"], filter.first, change("first"), "newest"),
        isFiltered(filter) ? link(addressOf({ in: filter.in }), "Clear") : null),
      listOf(rows, found, isStored),
      count(found, () => more(found, filter, page)),
    ];
  },
};

const filterOf = (address) => Object.fromEntries(address.searchParams);
const isFiltered = (filter) => Object.keys(filter).some((name) => name !== "in");
const addressOf = (filter) => {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
  return `/jobs${query.size ? `?${query}` : ""}`;
};

const tab = (word, filter, isHere) =>
  element("a", { href: addressOf(filter), "aria-current": isHere ? "true" : null }, word);
const choice = (label, values, value, onchange, any = "any") =>
  element("label", null, label, element("select", { onchange }, element("option", { value: "" }, any),
    values.map((one) => element("option", { value: one, selected: one === value }, one))));
const entry = (label, placeholder, value, onchange) =>
  element("label", null, label, element("input", { type: "text", placeholder, value: value ?? "", onchange }));

/** The jobs of a filter: those of the pools, or a page of the store. */
async function fetchJobs(filter, pageToken = "") {
  const { state, kind = "", tenant, pool = "", older, first, label = "" } = filter;
  const some = { kind, ...(tenant == null ? {} : { tenant }) };
  if (filter.in !== "store") {
    const stages = LIVE[state] ? [LIVE[state]] : [];
    const order = first === "oldest" ? "JOB_ORDER_OLDEST" : "JOB_ORDER_NEWEST";
    const answer = await call("AdminService/ListJobs",
      { ...some, stages, pool, order, limit: PAGE, ...(older ? { older } : {}) });
    return { jobs: list(answer.jobs), all: number(answer.all) };
  }
  const [labelKey, labelValue] = label.split("=");
  const states = STORED[state] ? [STORED[state]] : [];
  const stored = { ...some, states, ...(labelValue ? { labelKey, labelValue } : {}) };
  const answer = await call("JobService/ListJobs", { filter: stored, pageSize: PAGE, pageToken });
  return { jobs: list(answer.jobs), all: number(answer.count), next: answer.nextPageToken };
}

async function more(found, filter, page) {
  const { jobs: older, next } = await fetchJobs(filter, found.next);
  Object.assign(found, { jobs: found.jobs.concat(older), next, isPaged: true });
  page.draw();
}

const HEADS = {
  live: ["State", "Kind", "Tenant", "Age#", "Ran#", "Usually#", "Request id", "Job"],
  kept: ["State", "Kind", "Tenant", "Tries#", "Age#", "Ran#", "Id", "Labels, next start or last error"],
};

/** A list with roles of a table: of many rows, only those near the screen are in the document. */
function listOf(rows, found, isStored) {
  const kind = isStored ? "kept" : "live";
  const names = HEADS[kind].map((name) => {
    return element("span", { role: "columnheader", class: name.endsWith("#") ? "n" : null }, name.replace("#", ""));
  });
  const chunks = [];
  for (let first = 0; first < rows.length; first += CHUNK) chunks.push(rows.slice(first, first + CHUNK));
  const chunk = (some, index) => {
    const isAway = chunks.length > 5 && some.length === CHUNK && isFar(index);
    const marks = { class: `chunk${isAway ? " away" : ""}`, role: "rowgroup", "data-keep": isAway ? `${index}` : null };
    return element("div", marks, isAway ? null : some.map((row) => row()));
  };
  const marks = { class: `list ${kind}`, role: "table", "aria-label": "Jobs", "aria-rowcount": rows.length + 1 };
  const top = element("div", { role: "rowgroup" }, element("div", { class: "row top", role: "row" }, names));
  const text = found ? "No job matches." : "Asking …";
  return rows.length ? element("div", marks, top, chunks.map(chunk)) : paragraph("card empty", text);
}

/** The height of a chunk, as in the style sheet. */
const CHUNK_HEIGHT = 3200;
function isFar(index) {
  if (innerWidth <= 860) return false;
  const top = document.querySelector(".list")?.offsetTop ?? 300;
  const middle = top + (index + 0.5) * CHUNK_HEIGHT - scrollY;
  return Math.abs(middle - innerHeight / 2) > 2400 + innerHeight;
}

function count(found, onclick) {
  if (!list(found?.jobs).length) return null;
  const { jobs: rows, all, next } = found;
  const of = all > rows.length ? ` of ${whole(all)}` : "";
  return element("div", { class: "more" }, paragraph("", `${whole(rows.length)}${of} jobs.`),
    next ? element("button", { type: "button", onclick }, `Show ${whole(PAGE)} older`) : null);
}

const part = (kind, ...children) => element("span", { role: "cell", class: kind || null }, ...children);
const line = (...cells) => element("div", { class: "row", role: "row" }, ...cells);
const first = (id, [shape, word]) => part(tone(shape), link(`/job/${encodeURIComponent(id)}`, glyph(shape), word));

function liveRow(job, usual) {
  const state = job.outcome ? ended(job.outcome) : (STAGES[job.stage] ?? ["wait", "–"]);
  const run = seconds(job.run);
  const isSlow = usual && run > 3 * usual;
  return line(first(job.jobId, state), part("strong", job.kind), part("", tenantName(job.tenant)),
    part("n big", time(seconds(job.age))), part(`n${isSlow ? " warn strong" : ""}`, time(run)),
    part("n mute big", time(usual)), part(job.message ? "mute p2" : "id p2", job.message || job.requestId),
    part("id mute big", job.jobId));
}

function storedRow(job) {
  const { jobId, state, createTime, dueTime, job: work = {} } = job;
  const attempts = list(job.attempts);
  const last = attempts.at(-1);
  const run = last?.endTime ? epoch(last.endTime) - epoch(last.startTime) : undefined;
  let tail = Object.entries(work.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const now = Date.now() / 1000;
  if (state === "JOB_STATE_SCHEDULED") {
    tail = dueTime ? `starts in ${time(Math.max(0, epoch(dueTime) - now))}` : "waits for its group";
  } else if (last?.message) tail = firstLine(last.message);
  return line(first(jobId, STATES[state] ?? ["wait", "–"]), part("strong", work.kind),
    part("", tenantName(work.tenant)), part("n big", attempts.length || "–"),
    part("n big", time(Math.max(0, now - epoch(createTime)))), part("n big", time(run)), part("id big", jobId),
    part("mute p2", tail));
}
