// Text of strangers: nothing that a tool, a model or a plan wrote changes how the rest looks.
//
// As `workflows/plain_text.py`: control and format characters (right-to-left overrides, zero
// width), lone surrogates, the separators that break a line, all spaces but U+0020, and whatever
// else nobody sees (variation selectors, fillers), are written as `\u202e`.

import { made } from "./elements.js";

/** @typedef {import("./canonical.js").Json} Json */

const UNSEEN =
  /(?! )[\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/**
 * Return text as one line in which all of it is seen.
 *
 * @param {string} text
 * @returns {string}
 */
export function plain(text) {
  return text.replace(UNSEEN, named);
}

/**
 * Show text in an element, as `shown` has it.
 *
 * @param {Element} element
 * @param {string} text
 */
export function showText(element, text) {
  element.replaceChildren(shown(text));
}

/**
 * Return text to show; what would not be seen is set apart, so nobody can write it by hand.
 *
 * @param {string} text
 * @returns {HTMLElement}
 */
export function shown(text) {
  // `bdi`: text that runs from right to left ends with the element.
  const around = made("bdi", {});
  let done = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const unseen = made("span", { className: "unseen" }, named(found[0]));
    around.append(text.slice(done, found.index), unseen);
    done = found.index + found[0].length;
  }
  around.append(text.slice(done));
  return around;
}

/**
 * Return JSON text to read and to edit: it parses to the same value, and all of it is seen.
 *
 * @param {Json} value
 * @returns {string}
 */
export function jsonText(value) {
  return Array.from(tokens(value, "\n"), ([text]) => text).join("");
}

/**
 * Show a JSON value in an element (`pre`), each text isolated: none moves what stands beside it.
 *
 * @param {Element} element
 * @param {Json} value
 */
export function showJson(element, value) {
  element.replaceChildren();
  for (const [text, strange] of tokens(value, "\n")) {
    element.append(strange ? shown(text) : text);
  }
}

function named(character) {
  return `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`;
}

/**
 * @param {Json} value
 * @param {string} line what a new line begins with
 * @returns {Generator<[string, boolean]>} a piece of JSON text, and whether a stranger wrote it
 */
function* tokens(value, line) {
  if (typeof value === "string") {
    yield [quoted(value), true];
    return;
  }
  if (typeof value !== "object" || value === null || Object.keys(value).length === 0) {
    yield [JSON.stringify(value), false];
    return;
  }
  const [opening, closing] = Array.isArray(value) ? "[]" : "{}";
  let before = opening;
  for (const [name, one] of Object.entries(value)) {
    yield [`${before}${line}  `, false];
    if (!Array.isArray(value)) {
      yield [quoted(name), true];
      yield [": ", false];
    }
    yield* tokens(one, `${line}  `);
    before = ",";
  }
  yield [`${line}${closing}`, false];
}

function quoted(text) {
  // By UTF-16 units, as JSON escapes them: what is shown is also what is read back.
  return JSON.stringify(text).replace(UNSEEN, (character) =>
    Array.from({ length: character.length }, (_, at) => named(character.charAt(at))).join(""),
  );
}
