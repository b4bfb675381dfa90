// One job, by any of its ids: in a sentence, where its time went, and its attempts.
import { budget, timeline } from "./charts.js";
import { element, empty, fact, glyph, heading, link, nothing, paragraph, section, span, tone } from "./elements.js";
import {
  bytes, call, epoch, firstLine, list, many, moment, number, seconds, sentence, time,
} from "./figures.js";
import { tenantName, usualRuns } from "./overview.js";
import { BINDINGS, RUNGS, STAGES, STATES, ended } from "./words.js";

export const job = {
  async ask({ id }) {
    try {
      return { found: await call("AdminService/Explain", { id }) };
    } catch (error) {
      if (error.code !== "not_found") throw error;
      return { found: { error: error.message } };
    }
  },
  draw({ stats, found, id, page }) {
    if (!found) return [heading("Job"), empty("Asking …")];
    if (found.error) return nothing(`${sentence(found.error)}.`, "/jobs", "All jobs");
    const { detached, held, running, ended: end } = found;
    const kind = found.kind ?? detached.job.kind;
    const usual = usualRuns(list(stats.pools))[kind];
    const [shape, word] = stateOf(found);
    const isOpen = detached ? !detached.endTime : !end;
    return [
      heading([kind, " ", span(`state ${tone(shape)}`, glyph(shape), word)],
        paragraph("id", found.detachedJobId || detached?.jobId || found.jobId || id),
        element("div", { class: "acts" },
          isOpen ? page.act("cancel", { id }) : null,
          detached && !isOpen ? [page.act("retry", detached), page.act("remove", detached)] : null)),
      element("div", { class: "card" },
        detached && !running && !held ? storedState(found, detached) : null,
        held ? heldState(held) : null,
        running ? runningState(running, usual, detached) : null,
        end && !detached ? endedState(end, shape, usual) : null,
        facts(found, detached, usual)),
      end?.rung && !detached ? ladder(end.rung) : null,
      running?.stopping ? ladder(running.stuck ? "stuck" : "asked", running.stop) : null,
      end?.program?.stderr ? standardError(end.program.stderr) : null,
      detached ? attemptList(detached) : null,
    ];
  },
};

const standardError = (text) => section("The end of its standard error", null, element("pre", null, text));

function stateOf({ detached, held, running, ended: end }) {
  if (detached && !held && !running) return STATES[detached.state] ?? ["wait", "unknown"];
  if (running) return STAGES.JOB_STAGE_RUNNING;
  return held ? STAGES.JOB_STAGE_QUEUED : ended(end.outcome);
}

const say = (...children) => paragraph("say", ...children);
const bold = (text, kind) => element("b", { class: kind }, text);

function heldState({ ahead, position, expectedStart, left, age, boundBy, blocker }) {
  const start = seconds(expectedStart);
  const isLate = start > seconds(left);
  const first = number(ahead ?? position) === 0
    ? "It waits, and is next in line. "
    : `It waits behind ${many(ahead ?? position, "job")}. `;
  const expected = start < 0.02 ? "at once" : `in about ${time(start)}`;
  const when = start == null ? "" : ["It should start ", bold(expected), isLate ? ", too late for its deadline." : "."];
  const isJob = boundBy === "BINDING_ORDERING_KEY";
  const named = blocker ? [": ", isJob ? link(`/job/${encodeURIComponent(blocker)}`, blocker) : blocker] : "";
  return [
    say(first, when), say("Why: ", bold(BINDINGS[boundBy] ?? boundBy), named, "."),
    budget({ queue: seconds(age), left: seconds(left), words: ["waits"] }),
  ];
}

/** Beyond this, a time limit says nothing. */
const DAY = 86400;

function runningState({ run, queue, left, stopping, stuck, stop }, usual, detached) {
  const [runs, rest] = [seconds(run), seconds(left)];
  const times = usual ? runs / usual : 0;
  let words = ["It has run for ", bold(time(runs)), usual ? `; this kind usually takes ${time(usual)}.` : "."];
  if (times > 2) {
    words = ["It has run for ", bold(time(runs)), ", ",
      bold(`${times.toFixed(times < 10 ? 1 : 0)} times as long as usual`, "warn"), ` (${time(usual)}).`];
  }
  const grace = stop?.graceLeft ? `, and is forced in ${time(seconds(stop.graceLeft))}` : "";
  if (stopping) words = `It was asked to stop${grace}.`;
  if (stuck) words = "It ignored the request to stop, and its worker was replaced.";
  const limit = rest < DAY ? ` It is stopped in ${time(rest)}.` : ` It may run for ${time(rest)} more.`;
  return [
    say(words, stopping ? "" : limit),
    detached?.progress ? progressOf(detached.progress) : null,
    rest < DAY ? budget({ queue: seconds(queue), run: runs, left: rest, words: ["queued", "runs"] }) : null,
  ];
}

function progressOf({ fraction, message, time: when }) {
  const said = when ? span("mute", `, said at ${moment(when)}`) : "";
  return [
    paragraph("", bold(`${Math.round(number(fraction) * 100)} % done`), message ? `: ${message}` : "", said),
    element("progress", { max: 1, value: number(fraction), "aria-label": "Progress" }),
  ];
}

function endedState({ message, outcome, since, waterfall = {} }, shape, usual) {
  const [queue, run, left] = ["queue", "run", "left"].map((name) => number(waterfall[`${name}Seconds`]));
  const words = sentence(message || ended(outcome)[1]);
  const slow = usual && run > 3 * usual ? `, after ${(run / usual).toFixed(0)} times its usual run.` : ".";
  const failed = shape === "fail" || shape === "late";
  return [
    say(words, /[.!]$/.test(words) ? " " : ". ", span("mute", `It ended ${time(seconds(since))} ago`, slow)),
    budget({ queue, run, left, failed }),
  ];
}

/** What a detached job does that no pool of this server has. */
function storedState({ stored }, detached) {
  const { state, dueTime, purgeTime, outputBytes, retry } = detached;
  const attempts = list(detached.attempts);
  const due = bold(`in ${time(Math.max(0, epoch(dueTime) - Date.now() / 1000))}`);
  const most = number(retry?.maxAttempts);
  const next = attempts.length
    ? ["It failed, and is tried again ", due, `: attempt ${attempts.length + 1}${most ? ` of ${most}` : ""}.`]
    : dueTime ? ["It starts ", due, "."] : "It waits for the jobs of its group.";
  const why = bold(firstLine(attempts.at(-1)?.message));
  const words = {
    JOB_STATE_SCHEDULED: next,
    JOB_STATE_READY: "It waits for a worker. Callers who wait go first.",
    JOB_STATE_BLOCKED: ["It waits for an earlier job with the ordering key ", bold(detached.job?.orderingKey), "."],
    JOB_STATE_RUNNING: "A server runs it.",
    JOB_STATE_SUCCEEDED: `Done. Its result of ${bytes(outputBytes)} is kept until ${moment(purgeTime)}.`,
    JOB_STATE_FAILED: [`It failed ${many(attempts.length, "time")} and is not tried again: `, why,
      ". When the cause is gone, run it again."],
    JOB_STATE_CANCELLED: "It was cancelled.",
    JOB_STATE_EXPIRED: "It expired before it succeeded.",
  };
  const blocker = stored?.blocker ? [" ", link(`/job/${encodeURIComponent(stored.blocker)}`, "See that job")] : "";
  return [
    say(words[state] ?? state), stored?.detail ? say("Why: ", bold(stored.detail), blocker) : null,
    attempts.length ? timeline(detached, attempts) : null,
  ];
}

function facts(found, detached, usual) {
  const { pool, ended: end, runner, principal, traceId } = found;
  const { exitCode, signal } = end?.program ?? {};
  const work = detached?.job ?? {};
  const labels = Object.entries(work.labels ?? {}).map(([name, value]) => `${name}=${value}`).join("  ");
  const arrived = found.arriveTime ?? detached?.createTime;
  const code = (text) => (text ? span("id", text) : null);
  const group = detached ? work.labels?.group : null;
  const members = `/jobs?in=store&label=${encodeURIComponent(`group=${group}`)}`;
  return element("dl", { class: "facts" },
    fact("Pool", pool ? link(`/pool/${encodeURIComponent(pool)}`, pool) : null),
    fact("Tenant", tenantName(found.tenant ?? work.tenant)),
    fact("Request id", code(found.requestId || detached?.requestId)),
    fact("Id in its pool", detached ? code(found.jobId) : null),
    fact("Runs in", runner), fact("Caller", principal), fact("Exit code", exitCode), fact("Signal", signal),
    fact("Payload", detached ? `${bytes(detached.payloadBytes)} ${work.contentType ?? ""}` : null),
    fact("Ordering key", work.orderingKey), fact("Labels", labels),
    fact("Group", group ? link(members, group) : null),
    fact("Arrived", arrived ? moment(arrived) : null),
    fact("Kept until", detached?.purgeTime ? moment(detached.purgeTime) : null),
    fact("Trace", code(traceId)),
    fact("This kind usually takes", usual ? time(usual) : null));
}

function ladder(rung, stop) {
  const step = ([name, title, text], index) => {
    const isReached = name === "asked" || name === rung;
    const isHard = index > 1;
    const kind = isReached ? (isHard ? "ko" : "on") : null;
    const mark = isReached ? glyph(isHard ? "stop" : "done") : null;
    const words = span("small", isReached ? text : "not needed");
    return element("li", { class: kind }, element("b", null, mark, title), words);
  };
  const why = stop?.reason ? paragraph("small", `because of: ${stop.reason.toLowerCase().replaceAll("_", " ")}`) : null;
  return section("How it was stopped", why, element("ol", { class: "steps" }, RUNGS.map(step)));
}

function attemptList(detached) {
  const attempts = list(detached.attempts);
  if (!attempts.length) return null;
  const item = (attempt, index) => {
    const { startTime, endTime, outcome, message, worker, runner } = attempt;
    const [shape, word] = outcome ? ended(outcome) : ["run", endTime ? "server lost" : "running"];
    const next = attempts[index + 1];
    const wait = next && endTime ? time(epoch(next.startTime) - epoch(endTime)) : "";
    const where = runner || worker;
    return [
      element("li", null, span(tone(shape), glyph(shape), word),
        element("time", { datetime: startTime }, moment(startTime)),
        span("n", endTime ? time(epoch(endTime) - epoch(startTime)) : ""),
        span("what", message ? element("code", null, message.trim()) : null, " ",
          where ? span("mute small", `on ${where}`) : null)),
      wait ? element("li", { class: "gap" }, `waited ${wait}`) : null,
    ];
  };
  const most = number(detached.retry?.maxAttempts);
  const count = paragraph("small", most ? `${attempts.length} of at most ${most}` : `${attempts.length}`);
  return section("Attempts", count, element("ol", { class: "card tries" }, attempts.map(item)));
}
