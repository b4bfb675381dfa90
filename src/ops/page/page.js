// The page: it asks the server once a second, and draws the view of its address.
import { viewOf } from "./addresses.js";
import { actions } from "./acts.js";
import { element, update } from "./elements.js";
import { call, list, useToken } from "./figures.js";
import { header } from "./header.js";
import { loadRights } from "./rights.js";

const main = document.getElementById("main");
const shell = document.getElementById("shell");
/** Time between two rounds, and between two while the server is away, in milliseconds. */
const [PERIOD, AWAY] = [1000, 3000];

let address = new URL(location);
/** The last answers, by name. `found` is that of the view. */
let data = {};
let failure = null;
let round = 0;
let timer = 0;
let drawn = "";

const page = {
  /** Goes to another address of the page. */
  go(to) {
    window.history.pushState(null, "", to);
    moved();
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  },
  /** Draws again, with what is there. */
  draw,
  /** Asks again at once, because something was changed. */
  changed() {
    delete data.found;
    ask();
  },
  act: (name, subject) => actions(name, subject, page),
};

/** One round: the figures, and what the view needs. Answers to an earlier address are not used. */
async function ask() {
  clearTimeout(timer);
  const mine = ++round;
  const view = viewOf(address);
  const started = performance.now();
  try {
    const isDue = view.ask && (!data.found || mine % (view.every ?? 1) === 0);
    const answers = await Promise.all([call("WorkerPoolService/Stats"), isDue ? view.ask(data, address) : {}]);
    if (mine !== round) return;
    data = { ...data, ...answers[0], ...answers[1], answered: Date.now() };
    failure = null;
  } catch (error) {
    if (mine !== round) return;
    failure = { since: failure?.since ?? data.answered ?? Date.now(), error };
  }
  draw();
  if (document.hidden) return;
  // It is busy for a quarter of the time at most.
  timer = setTimeout(ask, failure ? AWAY : Math.max(PERIOD, 4 * (performance.now() - started)));
}

function draw() {
  const needsToken = failure?.error.code === "unauthenticated";
  update(shell, element("div", { id: "shell" }, header({ ...data, failure, address, page })));
  if (needsToken) return void show(askForToken());
  if (!data.stats) return;
  const view = viewOf(address);
  const wrong = list(data.stats.problems).length;
  document.title = `${wrong ? `(${wrong}) ` : ""}${view.title} – ${data.stats.server?.host ?? location.host}`;
  const now = data.stats.now ? Date.parse(data.stats.now) / 1000 : Date.now() / 1000;
  show(view.draw({ ...data, now, address, page }));
}

/** Replaces a view by another, or brings the same one up to date. */
function show(children) {
  const fresh = element("main", { id: "main", tabindex: "-1" }, children);
  if (drawn === address.href) update(main, fresh);
  else main.replaceChildren(...fresh.childNodes);
  drawn = address.href;
}

function askForToken() {
  const onsubmit = (event) => {
    event.preventDefault();
    useToken(event.target.elements.token.value.trim());
    loadRights().then(ask);
  };
  return element("form", { class: "card", onsubmit },
    element("label", { for: "token" }, "This server asks who you are. Your token, which only this tab keeps:"), " ",
    element("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true }), " ",
    element("button", { type: "submit", class: "main" }, "Show the server"));
}

function moved() {
  if (address.href !== location.href) delete data.found;
  address = new URL(location);
  draw();
  ask();
}

addEventListener("popstate", moved);
addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const isPlain = !(event.metaKey || event.ctrlKey || event.shiftKey || event.button);
  if (!link || !isPlain || link.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  page.go(link.href);
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  document.querySelector(".find input")?.focus();
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) ask();
});
// A long list has only the rows near the screen.
let frame = 0;
addEventListener("scroll", () => {
  if (list(data.found?.jobs).length <= 500 || frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    draw();
  });
}, { passive: true });

loadRights().then(ask);
