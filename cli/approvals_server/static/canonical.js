// Canonical JSON (RFC 8785) and the hashes over it, as the worker computes them.
//
// The page computes the hash of what it shows, and signs for no other one. So a value that the
// browser cannot hold exactly is refused, and never rounded.

import { sha256, utf8 } from "./bytes.js";
import { WORDING } from "./wording.js";

/** @typedef {null | boolean | number | string | Json[] | {[name: string]: Json}} Json */

/** First number from which a double cannot tell whole numbers apart. */
const UNSAFE = 2 ** 53;
/** Lists and objects inside one another: more than the worker takes, fewer than the stack holds. */
const DEEPEST = 200;
/** Characters of one number; a double's own text has 24 at most. */
const LONGEST_NUMBER = 100;

/** A value or a text has no exact form; the message is one line for people. */
export class NotExact extends Error {
  name = "NotExact";
}

/**
 * Return the RFC 8785 form of a JSON value.
 *
 * @param {Json} value
 * @returns {string}
 * @throws {NotExact} It has half of a character, a number that is none, or is no JSON value.
 */
export function canonical(value) {
  return written(value, 0);
}

/**
 * Return the digest of a value's canonical form, as `identity.digest` does.
 *
 * @param {Json} value
 * @returns {Promise<string>} `sha256:` and hex
 * @throws {NotExact} It has no canonical form.
 */
export async function digest(value) {
  return `sha256:${(await sha256(utf8(canonical(value)))).reduce(withHex, "")}`;
}

/**
 * Return the hash that an approval is bound to, as `identity.params_hash` does.
 *
 * @param {object} call
 * @param {string} call.tool
 * @param {string} call.version
 * @param {{[name: string]: Json}} call.params
 * @param {Json[]} [call.answers] what humans have answered to the tool's own questions
 * @param {string | null} [call.salt] of a run that is sealed
 * @returns {Promise<string>} `sha256:` and hex
 * @throws {NotExact} A number in it may have lost digits.
 */
export async function paramsHash({ tool, version, params, answers = [], salt = null }) {
  refuseLostDigits([params, answers]);
  const material = { tool, version, params };
  if (answers.length > 0) {
    material.answers = answers;
  }
  if (salt !== null) {
    material.salt = salt;
  }
  return digest(material);
}

/**
 * Refuse a value with a number that JSON's readers may have rounded.
 *
 * @param {Json} value
 * @throws {NotExact}
 */
export function refuseLostDigits(value) {
  const waiting = [value];
  while (waiting.length > 0) {
    const part = waiting.pop();
    if (typeof part === "number" && Math.abs(part) >= UNSAFE) {
      throw new NotExact(WORDING.notCanonical(WORDING.lostDigits));
    }
    if (typeof part === "object" && part !== null) {
      for (const one of Object.values(part)) {
        waiting.push(one);
      }
    }
  }
}

/**
 * Parse JSON text into exactly what stands there.
 *
 * @param {string} text
 * @returns {Json}
 * @throws {NotExact} It is not JSON, a number would lose digits, a name stands twice in an object,
 *   or a text has half of a character.
 */
export function parseExact(text) {
  try {
    const value = JSON.parse(text);
    refuseInexact(text);
    return value;
  } catch (error) {
    // Also of what is too long to be looked through.
    throw error instanceof NotExact ? error : new NotExact(WORDING.notJson(error.message));
  }
}

function withHex(hex, byte) {
  return hex + byte.toString(16).padStart(2, "0");
}

function written(value, depth) {
  if (depth > DEEPEST) {
    throw new NotExact(WORDING.notCanonical(WORDING.tooDeep));
  }
  if (value === null || typeof value === "boolean") {
    return String(value);
  }
  if (typeof value === "string") {
    return quoted(value);
  }
  if (typeof value === "number" && Number.isFinite(value)) {
    return JSON.stringify(value); // ECMAScript's own form of numbers is RFC 8785's
  }
  if (Array.isArray(value)) {
    // Not `map`, which passes over holes.
    return `[${Array.from(value, (one) => written(one, depth + 1)).join(",")}]`;
  }
  if (typeof value === "object" && isPlain(value)) {
    const names = Object.keys(value).sort(); // by UTF-16 units, as RFC 8785 has it
    const members = names.map((name) => `${quoted(name)}:${written(value[name], depth + 1)}`);
    return `{${members.join(",")}}`;
  }
  throw new NotExact(WORDING.notCanonical(String(value)));
}

function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

function quoted(text) {
  if (!text.isWellFormed()) {
    throw new NotExact(WORDING.notCanonical(WORDING.half));
  }
  return JSON.stringify(text);
}

/** Brackets, texts (with what makes them names) and numbers: all of JSON that may not be exact. */
const TOKENS = /([[{])|[\]}]|("(?:[^"\\]+|\\.)*")(?:[ \t\n\r]*(:))?|(-?[0-9][0-9.eE+-]*)/g;

/**
 * Refuse what the browser's parser passes over in silence.
 *
 * @param {string} text which that parser has taken
 * @throws {NotExact}
 */
function refuseInexact(text) {
  const names = []; // so far in each list and object that is open
  for (const [, opens, string, colon, number] of text.matchAll(TOKENS)) {
    if (opens) {
      names.push(new Set());
      refuseIf(names.length > DEEPEST, WORDING.tooDeep);
    } else if (string) {
      const value = JSON.parse(string);
      refuseIf(!value.isWellFormed(), WORDING.half);
      if (colon) {
        refuseIf(names.at(-1).has(value), WORDING.twice(value));
        names.at(-1).add(value);
      }
    } else if (number) {
      refuseIf(losesDigits(number), WORDING.lostDigits);
    } else {
      names.pop();
    }
  }
}

function refuseIf(inexact, why) {
  if (inexact) {
    throw new NotExact(why);
  }
}

/** Whether a double is another number than stands there. */
function losesDigits(number) {
  const value = Number(number);
  return (
    number.length > LONGEST_NUMBER ||
    Math.abs(value) >= UNSAFE ||
    significant(number) !== significant(String(value))
  );
}

/**
 * Return a number's digits without zeros around them, and its exponent: one text for each number.
 *
 * @param {string} text
 */
function significant(text) {
  const [, whole, fraction = "", exponent = "0"] =
    /^-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$/.exec(text) ?? ["", ""];
  const digits = `${whole}${fraction}`;
  const short = digits.replace(/0+$/, "");
  const power = Number(exponent) - fraction.length + digits.length - short.length;
  return short === "" ? "0" : `${short.replace(/^0+/, "")}e${power}`;
}
