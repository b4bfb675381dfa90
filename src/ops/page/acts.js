// What an operator may do. Each act is one dialog that says what happens, and asks why.
import { element, paragraph, shown } from "./elements.js";
import { call, callStream, firstLine, many, number, sum, whole } from "./figures.js";
import { mayAct } from "./rights.js";

/** The RPC of each act, by its name in rules, and its dialog. */
const ACTS = {
  cancel: ["CancelJob", ({ id }) => ({
    button: "Cancel …", isHarsh: true, title: "Cancel this job?", yes: "Cancel the job",
    text: "A queued job ends at once. A running one is asked to stop, and forced after its grace. Its caller hears " +
      "that an operator cancelled it.",
    run: (reason) => call("AdminService/CancelJob", { id, reason }),
  })],
  retry: ["RetryJob", ({ jobId }) => ({
    button: "Run again …", title: "Run this job again?", yes: "Run it again",
    text: "It starts when a worker is free, and goes behind callers who wait. Its attempts count from one.",
    run: (reason) => call("JobService/RetryJob", { jobId, reason }),
  })],
  remove: ["DeleteJob", ({ jobId }) => ({
    button: "Remove …", isHarsh: true, title: "Remove this job?", yes: "Remove it",
    text: "Its payload, result and attempts are gone for good.",
    run: (reason) => call("JobService/DeleteJob", { jobId, reason }),
  })],
  retryGroups: ["RetryJobs", ({ groups, isMain }) => ({
    button: `Run ${whole(countOf(groups))} again …`, isMain, title: `Run ${many(countOf(groups), "job")} again?`,
    yes: `Run ${whole(countOf(groups))} again`, quote: groups.map(nameOf).join("\n"),
    text: "All that failed with what is named here, also those that are not shown. They go behind callers who wait, " +
      "and their attempts count from one.",
    run: (reason) => eachPage("RetryJobs", groups, reason),
  })],
  removeGroups: ["PurgeJobs", ({ groups }) => ({
    button: "Remove …", isHarsh: true, title: `Remove ${many(countOf(groups), "dead letter")}?`,
    yes: `Remove ${whole(countOf(groups))}`, quote: groups.map(nameOf).join("\n"),
    text: "Their payloads and attempts are gone for good.",
    run: (reason) => eachPage("PurgeJobs", groups, reason),
  })],
  pause: ["Pause", ({ pool }) => ({
    button: "Pause …", title: `Pause ${pool}?`, yes: "Pause",
    text: "None of its jobs starts until you resume it. New jobs still queue, and expire at their deadlines.",
    run: (reason) => call("AdminService/Pause", { pool, reason }),
  })],
  resume: ["Resume", ({ pool }) => ({
    button: "Resume …", title: `Resume ${pool}?`, yes: "Resume", text: "Its jobs start again at once.",
    run: (reason) => call("AdminService/Resume", { pool, reason }),
  })],
  resize: ["Resize", ({ pool, size }) => ({
    button: "Resize …", title: `Workers of ${pool}`, yes: "Resize", size,
    text: "It holds until the next start, or a reload that changes the pool.",
    run: (reason, { least, most }) => {
      const bounds = { minWorkers: Number(least.value), maxWorkers: Number(most.value) };
      return call("AdminService/Resize", { pool, ...bounds, reason });
    },
  })],
  drain: ["Drain", ({ pool }) => ({
    button: "Drain …", isHarsh: true, title: `Drain ${pool}?`, yes: "Drain the pool",
    text: "Its new jobs are refused, and those that it has are finished. Resume ends the drain.",
    run: (reason) => callStream("AdminService/Drain", { pool, reason }),
  })],
};

const countOf = (groups) => sum(groups, (group) => group.count);
const nameOf = ({ kind, message, outcome }) => `${kind}: ${firstLine(message) || outcome}`;

/** Acts on all jobs of the groups, a page at a time, but on none that failed since they were shown. */
async function eachPage(method, groups, reason) {
  for (const { kind, outcome = "", message = "", count, before } of groups) {
    const filter = { states: ["JOB_STATE_FAILED"], kind, outcome, message, endedBefore: before };
    let [pageToken, expected] = ["", number(count)];
    do {
      const answer = await call(`JobService/${method}`, { filter, reason, pageToken, expected });
      [pageToken, expected] = [answer.nextPageToken, 0];
    } while (pageToken);
  }
}

/** The button of an act, if the reader may do it. */
export function actions(name, subject, page) {
  const [rpc, dialog] = ACTS[name];
  if (!mayAct(rpc)) return null;
  const act = dialog(subject);
  const kind = `${act.isHarsh ? "danger" : ""}${act.isMain ? " main" : ""}`;
  return element("button", { type: "button", class: kind, onclick: () => ask(act, page) }, act.button);
}

/** Shows the dialog. Nothing is repeated by itself after an error. */
function ask(act, page) {
  const error = element("p", { class: "bad", role: "alert" });
  const dialog = element("dialog", { "aria-labelledby": "question" });
  const onsubmit = async (event) => {
    event.preventDefault();
    const { elements } = event.target;
    elements.yes.disabled = true;
    try {
      await act.run(elements.reason.value, elements);
      dialog.close();
      page.changed();
    } catch (fault) {
      error.textContent = `It was not done: ${fault.message}`;
      elements.yes.disabled = false;
    }
  };
  const bound = (name, label, value) => [
    element("label", { for: name }, label),
    element("input", { id: name, name, type: "text", inputmode: "numeric", required: true, value: number(value) }),
  ];
  const kind = `main${act.isHarsh ? " danger" : ""}`;
  dialog.append(element("form", { method: "dialog", onsubmit }, ...shown([
    element("h2", { id: "question" }, act.title), paragraph("", act.text),
    act.quote ? element("pre", null, act.quote) : null,
    act.size ? bound("least", "Workers at least", act.size.min) : null,
    act.size ? bound("most", "Workers at most", act.size.max) : null,
    element("label", { for: "reason" }, "Why? The log keeps it, with who you are."),
    element("textarea", { id: "reason", name: "reason", required: true, maxlength: 250 }), error,
    element("div", { class: "acts" },
      element("button", { type: "button", onclick: () => dialog.close() }, "Leave it"),
      element("button", { type: "submit", name: "yes", class: kind }, act.yes)),
  ])));
  dialog.addEventListener("close", () => dialog.remove());
  document.getElementById("dialogs").append(dialog);
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}
