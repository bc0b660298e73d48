// The limits that a JSON Schema sets, looked at to help people; the worker validates.

import { plain } from "./text.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {import("./schemas.js").Schema} Schema */

const WORDS = WORDING.form.problem;
/** @type {{[limit: string]: (value: number, limit: number) => boolean}} */
const KEPT = {
  minimum: (value, limit) => value >= limit,
  maximum: (value, limit) => value <= limit,
  exclusiveMinimum: (value, limit) => value > limit,
  exclusiveMaximum: (value, limit) => value < limit,
  minLength: (value, limit) => value >= limit,
  maxLength: (value, limit) => value <= limit,
  minItems: (value, limit) => value >= limit,
  maxItems: (value, limit) => value <= limit,
};

/**
 * Return which limit a number or a text does not keep.
 *
 * @param {Schema} schema
 * @param {Json} value
 * @returns {string | undefined} one sentence; `undefined`: it keeps them
 */
export function valueProblem(schema, value) {
  if (typeof value === "number") {
    const limits = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    return firstBroken(schema, value, limits);
  }
  if (typeof value === "string") {
    const length = Array.from(value).length; // characters, as JSON Schema counts
    return firstBroken(schema, length, ["minLength", "maxLength"]) ?? notMatching(schema, value);
  }
  return undefined;
}

/**
 * Return which limit a list does not keep.
 *
 * @param {Schema} schema
 * @param {number} count of its items
 * @returns {string | undefined} one sentence; `undefined`: it keeps them
 */
export function countProblem(schema, count) {
  return firstBroken(schema, count, ["minItems", "maxItems"]);
}

/**
 * @param {Schema} schema
 * @param {number} value
 * @param {string[]} limits
 * @returns {string | undefined}
 */
function firstBroken(schema, value, limits) {
  for (const name of limits) {
    const limit = schema[name];
    if (typeof limit === "number" && !KEPT[name]?.(value, limit)) {
      return WORDS.limits[name]?.(limit);
    }
  }
  return undefined;
}

/**
 * @param {Schema} schema
 * @param {string} value
 * @returns {string | undefined}
 */
function notMatching(schema, value) {
  if (typeof schema.pattern !== "string") {
    return undefined;
  }
  let pattern;
  try {
    pattern = new RegExp(schema.pattern, "u");
  } catch {
    return undefined; // another language's pattern: the worker looks at it
  }
  return pattern.test(value) ? undefined : WORDS.pattern(plain(schema.pattern));
}
