// The limits that a JSON Schema sets, looked at to help people; the worker validates.

import { plain } from "./text.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {import("./schemas.js").Schema} Schema */

const WORDS = WORDING.form.problem;
/** What of a value each limit is for, and whether it is kept. */
const LIMITS = {
  minimum: ["number", (value, limit) => value >= limit],
  maximum: ["number", (value, limit) => value <= limit],
  exclusiveMinimum: ["number", (value, limit) => value > limit],
  exclusiveMaximum: ["number", (value, limit) => value < limit],
  minLength: ["string", (text, limit) => characters(text) >= limit],
  maxLength: ["string", (text, limit) => characters(text) <= limit],
  minItems: ["array", (items, limit) => items.length >= limit],
  maxItems: ["array", (items, limit) => items.length <= limit],
};

/**
 * Return which limit a number, a text or a list does not keep.
 *
 * @param {Schema} schema
 * @param {Json} value
 * @returns {string | undefined} one sentence; `undefined`: it keeps them
 */
export function problemOf(schema, value) {
  const kind = Array.isArray(value) ? "array" : typeof value;
  for (const [name, [type, keeps]] of Object.entries(LIMITS)) {
    const limit = schema[name];
    if (typeof limit === "number" && kind === type && !keeps(value, limit)) {
      return WORDS.limits[name](limit);
    }
  }
  return typeof value === "string" && typeof schema.pattern === "string"
    ? notMatching(schema.pattern, value)
    : undefined;
}

function characters(text) {
  return Array.from(text).length; // as JSON Schema counts
}

function notMatching(form, text) {
  try {
    return new RegExp(form, "u").test(text) ? undefined : WORDS.pattern(plain(form));
  } catch {
    return undefined; // another language's pattern: the worker looks at it
  }
}
