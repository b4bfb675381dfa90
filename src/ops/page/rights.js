// What the reader may do: by the rules for their credentials, and by the mode of the page.
import { call, list } from "./figures.js";

const mode = document.querySelector('meta[name="waterwheel-page"]').content;
let rights = new Set();

export async function loadRights() {
  // Without the right to ask, the views show what they can, and there are no buttons.
  const { rpcs } = await call("AdminService/WhoAmI").catch(() => ({}));
  rights = new Set(list(rpcs));
}

/** Whether an RPC may be called, by its name in rules. */
export const may = (rpc) => rights.has(rpc);
/** Whether the page shows a button for an RPC. */
export const mayAct = (rpc) => mode === "act" && may(rpc);
