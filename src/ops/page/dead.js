// Dead letters: detached jobs that failed for good, by what went wrong.
import { element, empty, heading, link, paragraph, span } from "./elements.js";
import { call, list, many, moment, number, sum, whole } from "./figures.js";
import { ended } from "./words.js";

/** The groups that are ticked, by what names them. */
const picked = new Set();
const keyOf = ({ kind, outcome, message }) => JSON.stringify([kind, outcome, message]);

export const dead = {
  title: "Dead letters",
  every: 3,
  async ask(_, address) {
    const kind = address.searchParams.get("kind") ?? "";
    const before = new Date().toISOString();
    const answer = await call("JobService/GroupJobs", { filter: { states: ["JOB_STATE_FAILED"], kind } });
    return { found: { ...answer, groups: list(answer.groups).map((group) => ({ ...group, before })) } };
  },
  draw({ found, page }) {
    const groups = list(found?.groups);
    const all = sum(groups, (group) => group.count) + number(found?.others);
    const chosen = groups.filter((group) => picked.has(keyOf(group)));
    const cut = found?.isCut ? " Older ones were not counted." : "";
    const words = `${many(all, "detached job")} failed for good, by ${many(groups.length, "error")}.${cut}`;
    return [
      heading("Dead letters", paragraph("", found && all ? words : "")),
      found && all ? null : empty(found ? "No detached job has failed for good." : "Asking …"),
      groups.map((group) => groupOf(group, page)),
      number(found?.others) ? paragraph("mute", `${whole(found.others)} have other errors.`) : null,
      chosen.length ? selection(chosen, all, page) : null,
    ];
  },
};

function groupOf(group, page) {
  const { kind, outcome, message, count, firstEndTime, lastEndTime, tenants, tenantCount, newestJobId } = group;
  const key = keyOf(group);
  const onchange = ({ target }) => {
    if (target.checked) picked.add(key);
    else picked.delete(key);
    page.draw();
  };
  const [, word] = outcome ? ended(outcome) : ["fail", "lost its server"];
  const from = number(count) > 1 ? ` between ${moment(firstEndTime)} and` : " at";
  const when = `${from} ${moment(lastEndTime)}`;
  const more = number(tenantCount) - list(tenants).length;
  const some = list(tenants).map((name) => name || "default").join(", ") || "default";
  const names = more > 0 ? `${some} and ${whole(more)} more` : some;
  const label = `${whole(count)} of ${kind}: ${(message ?? "").slice(0, 80)}`;
  const failed = `/jobs?in=store&state=failed&kind=${encodeURIComponent(kind)}`;
  return element("div", { class: `group${picked.has(key) ? " on" : ""}` }, element("div", { class: "t" },
    element("input", { type: "checkbox", checked: picked.has(key), "aria-label": label, onchange }),
    span("count", whole(count)),
    element("div", null,
      paragraph("", element("b", null, kind), " ", span("mute", `${word}${when}, tenants ${names}`)),
      paragraph("err", message),
      paragraph("small links", link(`/job/${encodeURIComponent(newestJobId)}`, "The newest"), " · ",
        link(failed, "All of this kind"))),
    element("div", { class: "acts" }, page.act("retryGroups", { groups: [group] }))));
}

function selection(groups, all, page) {
  const count = sum(groups, (group) => group.count);
  const words = ` of ${whole(all)} dead letters are chosen, by ${many(groups.length, "error")}.`;
  return element("div", { class: "select" }, paragraph("", element("b", null, whole(count)), words),
    page.act("removeGroups", { groups }), page.act("retryGroups", { groups, isMain: true }));
}
