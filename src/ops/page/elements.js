// Makes elements, and brings the document up to date without touching what has not changed.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "rect", "circle", "line", "title", "pattern", "defs"]);

/** Makes an element. Texts are only ever text: nothing that the server says is read as HTML. */
export function element(tag, attributes, ...children) {
  const made = SHAPES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...shown(children));
  return made;
}

/** The children that there are. */
export const shown = (children) => children.flat(9).filter((child) => child != null && child !== false);

const HANDLERS = ["onclick", "onchange", "onsubmit"];

/** Makes `old` like `fresh`. Focus, selection, scroll and open details survive. */
export function update(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // Rows that are far from the screen, or that the reader has asked for, stay as they are.
  if (fresh.dataset.keep && fresh.dataset.keep === old.dataset.keep) return;
  updateAttributes(old, fresh);
  const [there, wanted] = [[...old.childNodes], [...fresh.childNodes]];
  wanted.forEach((child, index) => (there[index] ? update(there[index], child) : old.append(child)));
  there.slice(wanted.length).forEach((child) => child.remove());
}

function updateAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const handler of HANDLERS) old[handler] = fresh[handler];
  if (old.matches("input[type=checkbox]")) old.checked = fresh.checked;
  else if (old.matches("input, select") && old !== document.activeElement) old.value = fresh.value;
}

export const link = (href, ...children) => element("a", { href }, ...children);
export const span = (kind, ...children) => element("span", { class: kind }, ...children);
export const paragraph = (kind, ...children) => element("p", { class: kind }, ...children);

/** The heading of a view, and what stands beside it. */
export const heading = (title, ...beside) => element("div", { class: "head" }, element("h1", null, title), ...beside);
export const section = (title, beside, ...children) =>
  element("section", null, element("div", { class: "head" }, element("h2", null, title), beside), ...children);
export const empty = (...children) => paragraph("card empty", ...children);

/** A view of something that is not there. */
export const nothing = (text, href, label) => [heading("Nothing here"), empty(text, " ", link(href, label))];

/** A table. A name that ends in `#` is that of a column of figures. */
export function table(names, rows) {
  const head = names.map((name) => {
    return element("th", { scope: "col", class: name.endsWith("#") ? "n" : null }, name.replace("#", ""));
  });
  const parts = [element("thead", null, element("tr", null, head)), element("tbody", null, rows)];
  return element("div", { class: "scroll" }, element("table", { class: "stack" }, ...parts));
}
export const row = (name, ...cells) => element("tr", null, element("th", { scope: "row" }, name), ...cells);
/** A cell, with the label that stands above it on a phone. */
export const cell = (label, value, kind = "n") => element("td", { class: kind || null, "data-label": label }, value);
export const fact = (name, value) =>
  value == null || value === "" ? null : element("div", null, element("dt", null, name), element("dd", null, value));

/** Shapes of states. Each differs without its colour, and stands beside its word. */
const stroke = (width, d) => element("path", { d, fill: "none", stroke: "currentColor", "stroke-width": width });
const ring = (radius, width) =>
  element("circle", { cx: 6, cy: 6, r: radius, fill: "none", stroke: "currentColor", "stroke-width": width });
const GLYPHS = {
  run: () => element("circle", { cx: 6, cy: 6, r: 4.6, fill: "currentColor" }),
  wait: () => ring(4, 1.7),
  done: () => stroke(1.8, "M1.8 6.4 4.8 9.4 10.4 2.8"),
  fail: () => stroke(2, "M2.2 2.2 9.8 9.8M9.8 2.2 2.2 9.8"),
  late: () => stroke(1.5, "M2 1.5h8L2 10.5h8z"),
  cut: () => stroke(2.2, "M1.5 6h9"),
  warn: () => element("path", { d: "M6 1 11.4 11H.6z", fill: "currentColor" }),
  pause: () => stroke(2.3, "M3.8 2v8M8.2 2v8"),
  later: () => [ring(4.4, 1.5), stroke(1.4, "M6 3.4V6l1.9 1.3")],
  held: () => stroke(1.4, "M2.2 5.2h7.6v5.3H2.2zM4 5.2V3.6a2 2 0 0 1 4 0v1.6"),
  stop: () => stroke(1.5, "M6 1.2v6.6M2.9 5.2 6 8.3l3.1-3.1M1.8 10.8h8.4"),
};
export const glyph = (name, kind = "") =>
  element("svg", { class: `g ${kind}`, viewBox: "0 0 12 12", "aria-hidden": "true" }, GLYPHS[name]());
export const state = ([shape, word], kind = "") => span(`nowrap ${kind}`, glyph(shape), word);

const TONES = { fail: "bad", late: "warn", done: "mute", cut: "mute" };
/** The colour of a shape. */
export const tone = (shape) => TONES[shape] ?? "";
