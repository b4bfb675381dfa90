// Small pictures: use of places, fifteen minutes, the budget of a job, its attempts. Each has a text for those who
// cannot see it.
import { element, span } from "./elements.js";
import { epoch, list, many, moment, number, rate, time, whole } from "./figures.js";

/** A picture that is stretched to its place. */
const picture = (kind, width, height, label, ...children) => {
  const box = { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" };
  return element("svg", { ...box, role: "img", "aria-label": label }, ...children);
};

/** How many of the places are taken. It is amber from four fifths on if that is a reason to look. */
export function places(used, all, what, warns = false) {
  const share = all ? Math.min(1, used / all) : 0;
  const kind = `meter${warns && share >= 0.8 ? " full" : ""}`;
  const bar = element("rect", { height: 8, width: (share * 56).toFixed(1) });
  const label = `${whole(used)} of ${whole(all)} ${what}`;
  return [whole(used), span("mute", ` / ${whole(all)}`), picture(kind, 56, 8, label, bar)];
}

/** The key of `bars`. */
export const barsKey = (words) =>
  element("div", { class: "key" }, words, [["ended", "ok"], ["failed", "fail"], ["refused", "ref"]].map(swatch));
const swatch = ([word, kind]) => {
  const square = element("rect", { class: kind, width: 10, height: 10, rx: 1 });
  return span("", element("svg", { class: "spark", viewBox: "0 0 10 10", "aria-hidden": "true" }, square), word);
};

/** The last fifteen minutes: jobs that ended below, failed and refused ones above. The newest are at the right. */
export function bars(history, step, width, height) {
  const columns = [list(history.completed), add(list(history.failed), list(history.expired)), list(history.refused)];
  const points = 90;
  const missing = points - Math.max(...columns.map((column) => column.length));
  const totals = add(add(columns[0], columns[1]), columns[2]);
  const top = Math.max(1, ...totals);
  const paths = ["", "", ""];
  for (let point = 0; point < totals.length; point++) {
    const left = ((point + missing) * width) / points;
    let y = height;
    columns.forEach((column, index) => {
      if (!column[point]) return;
      const size = Math.max(0.8, (column[point] / top) * (height - 1));
      y -= size;
      const wide = width / points - 0.6;
      paths[index] += `M${left.toFixed(1)} ${y.toFixed(1)}h${wide.toFixed(2)}v${size.toFixed(1)}h-${wide.toFixed(2)}z`;
    });
  }
  const label = `Jobs a second in the last 15 minutes, at most ${rate(top / step)}`;
  const base = element("line", { class: "base", x1: 0, x2: width, y1: height, y2: height });
  const kinds = ["ok", "fail", "ref"];
  const bodies = kinds.map((kind, index) => element("path", { class: kind, d: paths[index] }));
  const size = height > 40 ? "wide tall" : "wide";
  return picture(`spark ${size}`, width, height, label, base, ...bodies);
}
const add = (one, other) =>
  Array.from({ length: Math.max(one.length, other.length) }, (_, at) => number(one[at]) + number(other[at]));

const square = (kind) =>
  element("svg", { class: "budget", viewBox: "0 0 11 11", "aria-hidden": "true" },
    element("rect", { class: kind, width: 11, height: 11 }));

/** Where the time of a job went, from its arrival to its deadline: queue, run, and what is left. */
export function budget({ queue = 0, run = 0, left = 0, words = ["queued", "ran"], failed = false }) {
  const all = Math.max(queue + run + Math.max(0, left), 1e-6);
  const width = (part) => (part > 0 ? Math.max(4, (part / all) * 1000) : 0);
  const runs = `r${failed ? " ko" : ""}`;
  const lines = { width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  const hatch = element("pattern", { id: "hatch", ...lines },
    element("rect", { width: 7, height: 7 }), element("path", { d: "M1 0v7" }));
  const label = `Of ${time(all)}: ${time(queue)} queued, ${time(run)} running, ${time(left)} left`;
  const part = (mark, word, value) => span("", square(mark), `${word} `, element("b", null, time(value)));
  return element("figure", null,
    picture("budget", 1000, 26, label, element("defs", null, hatch),
      element("rect", { class: "q", width: width(queue), height: 26 }),
      element("rect", { class: runs, x: width(queue), width: width(run), height: 26 })),
    element("figcaption", { class: "legend" }, span("mute", "Budget ", element("b", null, time(all))),
      part("q", words[0], queue), words[1] ? part(runs, words[1], run) : null, part("l", "left", left)));
}

/** A detached job from its creation to now: each attempt is a block, each wait a dotted line. */
export function timeline(job, attempts) {
  const begin = epoch(job.createTime);
  const next = job.state === "JOB_STATE_SCHEDULED" ? epoch(job.dueTime) : 0;
  const end = Math.max(job.endTime ? epoch(job.endTime) : Date.now() / 1000, next, begin + 0.05);
  const place = (when) => ((when - begin) / (end - begin)) * 1000;
  const block = ({ startTime, endTime, outcome }) => {
    const [from, to] = [place(epoch(startTime)), place(endTime ? epoch(endTime) : Date.now() / 1000)];
    const kind = `r${outcome && outcome !== "COMPLETED" ? " ko" : ""}`;
    const size = { width: Math.max(6, to - from), y: 3, height: 20, rx: 1 };
    return element("rect", { class: kind, x: Math.min(from, 994), ...size });
  };
  let last = "now";
  if (job.endTime) last = `ended ${moment(job.endTime)}, after ${time(end - begin)}`;
  else if (next) last = `next try ${moment(job.dueTime)}`;
  return element("figure", null,
    picture("budget line", 1000, 26, `${many(attempts.length, "attempt")} in ${time(end - begin)}`,
      element("path", { class: "wait", d: "M0 13H1000" }), attempts.map(block),
      next ? element("rect", { class: "next", x: 993, y: 3, width: 5, height: 20 }) : null),
    element("figcaption", { class: "legend mute" },
      span("", `created ${moment(job.createTime)}`), span("end", last)));
}
