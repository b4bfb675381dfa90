// Tenants, and the backlog of detached jobs with its schedules.
import { cell, element, empty, heading, link, paragraph, row, section, span, table } from "./elements.js";
import { call, epoch, list, many, moment, number, rate, sum, time, whole } from "./figures.js";
import { backlogTable, quiet, tenantName } from "./overview.js";
import { may } from "./rights.js";

export const tenants = {
  title: "Tenants",
  ask: async () => ({ found: await call("AdminService/ListJobs", { limit: 1 }) }),
  draw({ found }) {
    const all = list(found?.tenants);
    const total = sum(all, (tenant) => tenant.asks) || 1;
    const line = ({ tenant, asks, refusals }) => {
      const [sent, not] = [number(asks), number(refusals)];
      const share = `${Math.round((not / Math.max(sent, 0.01)) * 100)} %`;
      return row(link(`/jobs?tenant=${encodeURIComponent(tenant ?? "")}`, tenantName(tenant)),
        cell("Asks /s", quiet(rate(sent))),
        cell("Share of all", `${Math.round((sent / total) * 100)} %`),
        cell("Refused /s", quiet(rate(not), "warn strong")),
        cell("Refused", rate(not) === "0" ? span("zero", "none") : share));
    };
    const names = ["Tenant", "Asks /s#", "Share of all#", "Refused /s#", "Refused#"];
    return [
      heading("Tenants", paragraph("", "Those that sent most jobs in the last ten seconds.")),
      all.length ? table(names, all.map(line)) : empty(found ? "No tenant has sent a job lately." : "Asking …"),
      paragraph("mute small note", "Without authentication a tenant is whatever name the caller sends."),
    ];
  },
};

export const backlog = {
  title: "Backlog",
  ask: async () => ({ found: may("ListSchedules") ? await call("AdminService/ListSchedules") : {} }),
  every: 5,
  draw({ stats, found }) {
    const kinds = list(stats.pools).flatMap((pool) => list(pool.kinds));
    const ready = sum(kinds, (kind) => number(kind.detached?.ready) + number(kind.detached?.blocked));
    const words = ready
      ? `${many(ready, "detached job")} could start and ${ready === 1 ? "waits" : "wait"} for a worker. Callers who ` +
        "wait go first."
      : "No detached job waits for a worker.";
    const isKnown = kinds.some((kind) => kind.detached);
    return [
      heading("Backlog and schedules", isKnown ? paragraph("", words) : null),
      backlogTable(stats, false),
      found?.schedules ? section("Schedules", null, scheduleTable(found.schedules)) : null,
    ];
  },
};

function scheduleTable(schedules) {
  const line = ({ name, cron, timezone, kind, nextTimes }) => {
    const [next] = list(nextTimes);
    return row(name,
      cell("When", [element("code", null, cron), span("mute", ` ${timezone}`)], ""),
      cell("Kind", link(`/kind/${encodeURIComponent(kind)}`, kind), ""),
      cell("Next", next ? `in ${time(Math.max(0, epoch(next) - Date.now() / 1000))}` : "never"),
      cell("At", list(nextTimes).map(moment).join(", "), ""),
      cell("Jobs", link(`/jobs?in=store&label=${encodeURIComponent(`schedule=${name}`)}`, "Its jobs"), ""));
  };
  return table(["Schedule", "When", "Kind", "Next#", "At", "Jobs"], schedules.map(line));
}
