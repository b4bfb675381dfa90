// What is behind each address. A view has a title, `ask`, which calls what it needs beside `Stats`, and `draw`.
import { backlog, tenants } from "./backlog.js";
import { dead } from "./dead.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { overview } from "./overview.js";
import { kind, pool } from "./pools.js";
import { workers } from "./workers.js";

const VIEWS = { "": overview, jobs, job, dead, workers, pool, kind, tenants, backlog };

/** The tabs: address and name. */
export const TABS = [
  ["/", "Overview"], ["/jobs", "Jobs"], ["/dead", "Dead letters"], ["/workers", "Workers"], ["/tenants", "Tenants"],
  ["/backlog", "Backlog"],
];
/** The tab that a view without one belongs to. */
export const TAB_OF = { pool: "/", kind: "/", job: "/jobs" };

/** The first part of an address, and the rest of it, which names what the view is about. */
export function partsOf(address) {
  const [, first = "", ...rest] = address.pathname.split("/");
  const id = rest.join("/");
  try {
    return [first, decodeURIComponent(id)];
  } catch {
    // Someone has typed it.
    return [first, id];
  }
}

export function viewOf(address) {
  const [name, id] = partsOf(address);
  const view = VIEWS[name];
  return {
    ...view,
    title: view.title ?? id,
    ask: view.ask && ((data) => view.ask({ ...data, id }, address)),
    draw: (context) => view.draw({ ...context, id }),
  };
}
