// Canonical JSON (RFC 8785), the hashes over it as the worker computes them, and bytes.
//
// The page computes the hash of what it shows, and signs no other one. It refuses a number that
// JSON's readers may have rounded.

/** @typedef {null | boolean | number | string | Json[] | {[name: string]: Json}} Json */

/** First number from which a double cannot tell whole numbers apart. */
const UNSAFE = 2 ** 53;
/** Lists and objects inside one another: more than the worker takes, fewer than the stack holds. */
const DEEPEST = 200;

/** A value or a text has no exact form; the message is one line for people. */
export class NotExact extends Error {
  name = "NotExact";
}

/**
 * Return the RFC 8785 form of a JSON value.
 *
 * @param {Json} value
 * @returns {string}
 * @throws {NotExact} It has half of a character, a number that may have lost digits, or is no JSON.
 */
export function canonical(value) {
  return written(value, 0);
}

/**
 * Return the digest of a value's canonical form, as `identity.digest` does: `sha256:` and hex.
 *
 * @param {Json} value
 * @returns {Promise<string>}
 */
export async function digest(value) {
  const bytes = await sha256(utf8(canonical(value)));
  return `sha256:${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Return the hash that an approval is bound to, as `identity.params_hash` does.
 *
 * @param {{tool: string, version: string, params: Json, answers?: Json[], salt?: string | null}}
 *   call `answers`: what humans have answered to the tool's own questions; `salt`: of a sealed run
 * @returns {Promise<string>}
 */
export async function paramsHash({ tool, version, params, answers = [], salt = null }) {
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
 * Parse JSON text into a value that has a canonical form.
 *
 * @param {string} text
 * @returns {Json}
 * @throws {NotExact} It is not JSON, or has no canonical form.
 */
export function parseExact(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new NotExact(`this is not JSON: ${error.message}`);
  }
  canonical(value);
  return value;
}

function written(value, depth) {
  if (depth > DEEPEST) {
    throw notExact("lists and objects are nested too deeply");
  }
  if (value === null || typeof value === "boolean") {
    return String(value);
  }
  if (typeof value === "string") {
    return quoted(value);
  }
  if (typeof value === "number") {
    if (!(Math.abs(value) < UNSAFE)) {
      throw notExact("numbers from 2^53 lose digits; write them in quotes");
    }
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
  throw notExact(String(value));
}

function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

function quoted(text) {
  if (!text.isWellFormed()) {
    throw notExact("a text has half of a character");
  }
  return JSON.stringify(text);
}

function notExact(why) {
  return new NotExact(`this value has no exact JSON form: ${why}`);
}

/**
 * Return the browser's cryptography.
 *
 * @returns {SubtleCrypto}
 * @throws {Error} The page was not loaded by https or from localhost.
 */
export function subtle() {
  const found = globalThis.crypto?.subtle;
  if (found === undefined) {
    throw new Error("This page cannot sign here: open it by https, or on localhost.");
  }
  return found;
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
export async function sha256(bytes) {
  return new Uint8Array(await subtle().digest("SHA-256", bytes));
}

/** @param {string} text */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/**
 * @param {ArrayBuffer | Uint8Array} bytes
 * @returns {string} base64url without padding (RFC 4648)
 */
export function base64url(bytes) {
  const text = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** @param {string} text base64url without padding */
export function fromBase64url(text) {
  const decoded = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(decoded, (character) => character.charCodeAt(0));
}

/** @param {number} count */
export function randomBytes(count) {
  return crypto.getRandomValues(new Uint8Array(count));
}
