// Workers: a square for each, the processes of programs, and what is attached from elsewhere.
import { places } from "./charts.js";
import { cell, element, glyph, heading, link, paragraph, row, span, state, table } from "./elements.js";
import { bytes, list, many, moment, number, seconds, sum, time, whole } from "./figures.js";
import { PROCESSES } from "./words.js";

export const workers = {
  title: "Workers",
  draw({ stats }) {
    const pools = list(stats.pools);
    const [busy, all] = [sum(pools, (pool) => pool.inFlight), sum(pools, (pool) => list(pool.workers).length)];
    const words = `${whole(busy)} of ${whole(all)} are busy. A filled square is a busy worker; it leads to its job.`;
    return [heading("Workers", paragraph("", words)), pools.map(poolOf)];
  },
};

function poolOf(pool) {
  const { name, inFlight, size = {} } = pool;
  const isFixed = number(size.min) === number(size.max);
  const bounds = isFixed ? "" : `, ${size.min} to ${size.max} by load`;
  const words = `${number(inFlight)} of ${list(pool.workers).length} busy${bounds}`;
  return element("section", { class: "pool" },
    element("div", { class: "head" },
      element("h2", null, link(`/pool/${encodeURIComponent(name)}`, name)), squares(pool),
      paragraph("small", words, size.heldBack ? span("warn", ". It does not grow: its jobs have become slower") : "")),
    list(pool.programs).map(program),
    list(pool.attached).length ? attachedTable(pool.attached) : null);
}

const WORDS = { WORKER_STATE_BUSY: "busy", WORKER_STATE_STUCK: "stuck", WORKER_STATE_DRAINING: "busy" };

/** The workers of a pool. */
export function squares({ workers: all }) {
  const square = ({ id, state: now, jobId, jobAge, kind }) => {
    const word = WORDS[now] ?? "idle";
    const job = jobId ? ` for ${time(seconds(jobAge))}${kind ? ` with ${kind}` : ""}` : "";
    const label = `worker ${number(id)}: ${word}${job}`;
    const shape = word === "stuck"
      ? element("path", { class: word, d: "M1 1h13v13H1zM4 6.6v1.8h7V6.6z", "fill-rule": "evenodd" })
      : element("rect", { class: word, x: 1, y: 1, width: 13, height: 13, rx: 2 });
    const box = { viewBox: "0 0 15 15", role: "img", "aria-label": label };
    const picture = element("svg", box, element("title", null, label), shape);
    return jobId ? link(`/job/${jobId}`, picture) : picture;
  };
  // A pool may have 65,536 workers.
  const [some, more] = [list(all).slice(0, 512), list(all).length - 512];
  return element("div", { class: "slots" }, some.map(square), more > 0 ? span("mute", `and ${whole(more)} more`) : null,
    some.length ? null : span("mute", "No worker is here."));
}

function program({ name, processes, starts, failures, failuresMinute, lastFailure }) {
  const line = (process, index) => {
    const known = PROCESSES[process.state] ?? ["wait", "–"];
    return row(`${name} ${index + 1}`,
      cell("State", state(known, known[0] === "fail" ? "bad" : ""), ""),
      cell("Process", process.pid || "–"),
      cell("Runs", number(process.running)),
      cell("Jobs ended", whole(process.jobs)),
      cell("Memory", number(process.memoryBytes) ? bytes(process.memoryBytes) : "–"));
  };
  const minute = number(failuresMinute) ? `, ${whole(failuresMinute)} in the last minute` : "";
  const failed = number(failures)
    ? element("tr", null, element("td", { colspan: 6, class: "span" },
        paragraph("", glyph("fail", minute ? "bad" : ""),
          span(minute ? "bad strong" : "strong", `${many(failures, "unexpected end")} in ${many(starts, "start")}`),
          `${minute}. The last one:`),
        element("pre", null, lastFailure)))
    : null;
  const names = [`Program ${name}`, "State", "Process#", "Runs#", "Jobs ended#", "Memory#"];
  return table(names, [list(processes).map(line), failed].flat().filter(Boolean));
}

function attachedTable(all) {
  const line = (worker) => {
    const labels = Object.entries(worker.labels ?? {}).map(([name, value]) => `${name}=${value}`).join("  ");
    const { attachedTime } = worker;
    return row(worker.name,
      cell("State", worker.leaving ? state(["stop", "leaving"]) : state(["run", "attached"]), ""),
      cell("Address", span("id", worker.peer), ""),
      cell("Labels", labels, ""),
      cell("Slots used", places(number(worker.running), number(worker.concurrency), "slots used")),
      cell("Jobs ended", whole(worker.jobs)),
      cell("Given up", span(worker.abandoned ? "bad strong" : "zero", whole(worker.abandoned))),
      cell("Since", attachedTime ? moment(attachedTime) : "–"));
  };
  const figures = ["Slots used#", "Jobs ended#", "Given up#", "Since#"];
  return table(["Attached worker", "State", "Address", "Labels", ...figures], all.map(line));
}
