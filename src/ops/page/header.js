// What stands above every view: the tabs, which server it is, whether it answers, and a drain.
import { TABS, TAB_OF, partsOf } from "./addresses.js";
import { element, glyph, link, paragraph, span } from "./elements.js";
import { list, many, moment, number, seconds, sum, time, whole } from "./figures.js";

export function header({ stats, failure, answered, address, page }) {
  return [
    element("header", null, bar(stats, address, page), stats ? where(stats, failure, answered) : null),
    failure ? away(failure, stats) : null,
    stats ? drain(stats) : null,
  ];
}

const WHEEL =
  "M9 .8v4M9 13.2v4M.8 9h4M13.2 9h4M3.2 3.2 6 6M12 12l2.8 2.8M14.8 3.2 12 6M6 12l-2.8 2.8M2.8 9a6.2 6.2 0 1 0 12.4 0 " +
  "6.2 6.2 0 1 0-12.4 0";

function bar(stats, address, page) {
  const [name] = partsOf(address);
  const here = TAB_OF[name] ?? `/${name}`;
  const counts = {
    "/": list(stats?.problems).length,
    "/dead": sum(list(stats?.pools).flatMap((pool) => list(pool.kinds)), (kind) => kind.detached?.dead),
  };
  const tab = ([to, word]) => {
    const count = counts[to] ? element("b", null, whole(counts[to])) : null;
    return element("li", null, element("a", { href: to, "aria-current": to === here ? "page" : null }, word, count));
  };
  const onsubmit = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) page.go(`/job/${encodeURIComponent(id)}`);
  };
  const box = { viewBox: "0 0 18 18", "aria-hidden": "true" };
  const wheel = { d: WHEEL, fill: "none", stroke: "currentColor", "stroke-width": 1.6 };
  return element("div", { class: "bar" },
    element("a", { class: "brand", href: "/" }, element("svg", box, element("path", wheel)), "waterwheel"),
    element("nav", { "aria-label": "Views" }, element("ul", null, TABS.map(tab))),
    element("form", { class: "find", role: "search", onsubmit }, element("input", {
      type: "search", name: "id", "aria-label": "Find a job by its id or request id", autocomplete: "off",
      placeholder: "Job or request id  ( / )", spellcheck: "false",
    })));
}

function where(stats, failure, answered) {
  const { host, version } = stats.server ?? {};
  return element("div", { class: "where" }, element("p", null,
    span("soft", host ?? location.host), span("", `up ${time(seconds(stats.uptime))}`),
    version ? span("big", `version ${version}`) : null,
    stats.store ? span("big", `store ${stats.store.kind}`) : null,
    span("live", failure ? "not live" : [glyph("run"), "live"], ` · ${moment(answered)}`)));
}

/** What it says while the server does not answer, or answers an error. */
function away({ since, error }, stats) {
  if (error.code === "unauthenticated") return null;
  const old = stats ? " What you see is from then." : "";
  const words = error.code
    ? `The server refuses ${error.method}: ${error.message}.${old}`
    : `The server has not answered since ${moment(since)}.${old} It is asked again every 3 seconds.`;
  return element("div", { class: "stale", role: "status" }, paragraph("", glyph("warn"), words));
}

const STEPS = [
  ["Notice and finish", "accepted jobs end; new ones are refused after the notice", "PHASE_DRAINING"],
  ["Stop", "what still runs is asked, then forced", "PHASE_STOPPING"],
  ["Ended", "the receipt names what was lost", "PHASE_STOPPED"],
];

function drain({ drain: progress, phase }) {
  if (!progress) return null;
  const left = number(progress.queued) + number(progress.running);
  const all = number(progress.finished) + left + number(progress.lost);
  const isOver = phase === "PHASE_STOPPED";
  const elapsed = time(seconds(progress.elapsed));
  const title = isOver
    ? `Drained in ${elapsed}: ${many(progress.finished, "job")} ended, ${whole(progress.lost)} lost`
    : `Draining for ${elapsed}: ${left ? `${many(left, "job")} left` : "no job left"}`;
  const rest = left ? `The rest should take about ${time(seconds(progress.expected))}. ` : "";
  const stop = left && progress.hardStop ? `What runs in ${time(seconds(progress.hardStop))} is stopped. ` : "";
  const cut = number(progress.likelyLost) ? `${many(progress.likelyLost, "job")} will probably be stopped. ` : "";
  const lost = list(progress.lostJobIds);
  const step = ([name, text, at]) => {
    const isNow = at === phase;
    const marks = { class: isNow ? "now" : null, "aria-current": isNow ? "step" : null };
    return element("li", marks, element("b", null, name), text);
  };
  return element("div", { class: "drain", role: "status" }, element("div", null,
    element("h2", null, title),
    element("progress", { max: Math.max(1, all), value: all ? number(progress.finished) : 1, "aria-label": "Ended" }),
    paragraph("", `${whole(progress.finished)} of ${whole(all)} ended. `, rest, stop, cut,
      left ? link("/jobs?state=running&first=oldest", "See what still runs") : null),
    progress.reason ? paragraph("small soft", `“${progress.reason}” ${progress.principal ?? ""}`) : null,
    lost.length ? paragraph("small id", "Lost: ", lost.join(" ")) : null,
    element("ol", { class: "phases" }, STEPS.map(step))));
}
