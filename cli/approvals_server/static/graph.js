// A run's steps: a list of what each is, does and waits for; and the same as a drawing beside it.
//
// The list is for everybody. The drawing says nothing more, so it is hidden from who hears a page.

import { say } from "./page.js";
import { plain, showText } from "./text.js";

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

/** @param {any} one */
function step(one) {
  const item = document.createElement("li");
  item.dataset.step = one.id;
  item.dataset.state = one.state;
  const what = document.createElement("span");
  showText(what, [one.id, one.does, one.state].filter(Boolean).join(" \u00b7 "));
  item.append(what);
  if (one.child !== null) {
    const link = document.createElement("a");
    link.href = `/run?id=${encodeURIComponent(one.child)}`;
    showText(link, one.child);
    item.append(" \u00b7 ", link);
  }
  const notes = [];
  if (one.after !== null) {
    notes.push(one.after.length ? say("waits_for", one.after.join(", ")) : say("at_once"));
  }
  if (one.when !== null) {
    notes.push(say("only_when", one.when));
  }
  for (const { to, on } of one.jumps) {
    notes.push(say("goes_to", `${on.map((/** @type {string} */ end) => say(end)).join(", ")}: ${to}`));
  }
  for (const said of [one.error, one.undone]) {
    if (said !== null) {
      notes.push(said);
    }
  }
  for (const note of notes) {
    const line = document.createElement("p");
    line.className = "note";
    showText(line, note);
    item.append(line);
  }
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
  const picture = made("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  picture.append(...lines.map(line), ...boxes.map((/** @type {any} */ one) => drawn(one, box)));
  place.replaceChildren(picture);
}

/** @param {{from: number[], to: number[], jump: boolean}} one */
function line({ from: [x1, y1], to: [x2, y2], jump }) {
  const bend = Math.max(16, Math.abs(y2 - y1) / 2);
  const path = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
  const head = `M${x2 - 5} ${y2 - 7}L${x2} ${y2}L${x2 + 5} ${y2 - 7}`;
  return made("path", { d: path + head, class: jump ? "edge jump" : "edge" });
}

/**
 * @param {{id: string, state: string, x: number, y: number}} one
 * @param {{width: number, height: number}} box
 */
function drawn({ id, state, x, y }, { width, height }) {
  const group = made("g", { class: `step ${WAITS.test(state) ? "waits" : state}` });
  const middle = x + width / 2;
  const name = made("text", { x: middle, y: y + 20, class: "name" });
  name.textContent = short(id);
  const where = made("text", { x: middle, y: y + 38 });
  where.textContent = short(state);
  group.append(made("rect", { x, y, width, height, rx: 6 }), name, where);
  return group;
}

/** @param {string} text */
function short(text) {
  const shown = plain(text);
  return shown.length > FIT ? `${shown.slice(0, FIT - 1)}…` : shown;
}

/**
 * @param {string} name
 * @param {{[name: string]: string | number}} attributes
 */
function made(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) {
    element.setAttribute(attribute, String(value));
  }
  return element;
}
