// A run's steps: a list of what each is, does and waits for; and the same as a drawing beside it.
//
// The list is for everybody. The drawing says nothing more, so it is hidden from who hears a page.

import { made } from "./elements.js";
import { say } from "./page.js";
import { plain, shown } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
/** Characters of a name that fit into a box. */
const FIT = 19;
const WAITS = /^(waiting|paused|needs)_/;

/**
 * List a run's steps.
 *
 * @param {Element} place an `ol`
 * @param {any[]} steps
 */
export function listSteps(place, steps) {
  place.replaceChildren(...steps.map(step));
}

function step(one) {
  const what = [one.id, one.does, one.state].filter(Boolean).join(" \u00b7 ");
  const item = made("li", {}, made("span", {}, shown(what)));
  Object.assign(item.dataset, { step: one.id, state: one.state });
  if (one.child !== null) {
    const href = `/run?id=${encodeURIComponent(one.child)}`;
    item.append(" \u00b7 ", made("a", { href }, shown(one.child)));
  }
  const notes = [];
  if (one.after !== null) {
    notes.push(one.after.length ? say("waits_for", one.after.join(", ")) : say("at_once"));
  }
  if (one.when !== null) {
    notes.push(say("only_when", one.when));
  }
  for (const { to, on } of one.jumps) {
    notes.push(say("goes_to", `${on.map((end) => say(end)).join(", ")}: ${to}`));
  }
  notes.push(...[one.error, one.undone].filter((said) => said !== null));
  item.append(...notes.map((note) => made("p", { className: "note" }, shown(note))));
  return item;
}

/**
 * Draw a run's steps.
 *
 * @param {HTMLElement} place
 * @param {any} drawing `null`: there is nothing to draw
 */
export function drawSteps(place, drawing) {
  place.hidden = drawing === null;
  if (drawing === null) {
    place.replaceChildren();
    return;
  }
  const { width, height, box, boxes, lines } = drawing;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  picture.append(...lines.map(line), ...boxes.map((one) => drawn(one, box)));
  place.replaceChildren(picture);
}

function line({ from: [x1, y1], to: [x2, y2], jump }) {
  const bend = Math.max(16, Math.abs(y2 - y1) / 2);
  const path = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  const head = `M${x2 - 5} ${y2 - 7}L${x2} ${y2}L${x2 + 5} ${y2 - 7}`;
  return svg("path", { d: path + head, class: jump ? "edge jump" : "edge" });
}

function drawn({ id, state, x, y }, { width, height }) {
  const group = svg("g", { class: `step ${WAITS.test(state) ? "waits" : state}` });
  const middle = x + width / 2;
  const name = svg("text", { x: middle, y: y + 20, class: "name" });
  name.textContent = short(id);
  const where = svg("text", { x: middle, y: y + 38 });
  where.textContent = short(state);
  group.append(svg("rect", { x, y, width, height, rx: 6 }), name, where);
  return group;
}

function short(text) {
  const shown = plain(text);
  return shown.length > FIT ? `${shown.slice(0, FIT - 1)}…` : shown;
}

function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) {
    element.setAttribute(attribute, String(value));
  }
  return element;
}
