// Canonical JSON (RFC 8785), the hashes over it as the worker computes them, and bytes.
//
// The page computes the hash of what it shows, and signs no other one. It refuses a number that
// JSON's readers may have rounded.

/** First number from which a double cannot tell whole numbers apart. */
const UNSAFE = 2 ** 53;
/** Lists and objects inside one another: more than the worker takes, fewer than the stack holds. */
const DEEPEST = 200;

/** A value or a text has no exact form; the message is one line for people. */
export class NotExact extends Error {
  name = "NotExact";
}

/** Return the RFC 8785 form of a JSON value. */
export function canonical(value) {
  return written(value, 0);
}

/** Return the digest of a value's canonical form, as `canonical_json.digest` does: `sha256:` and hex. */
export async function digest(value) {
  const bytes = await sha256(utf8(canonical(value)));
  return `sha256:${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Return the hash that an approval is bound to, as `identity.params_hash` does. `answers`: what
 * humans have answered to the tool's own questions; `salt`: of a sealed run.
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

/** Parse JSON text into a value that has a canonical form. */
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

/** Return the browser's cryptography. */
export function subtle() {
  const found = globalThis.crypto?.subtle;
  if (found === undefined) {
    throw new Error("This page cannot sign here: open it by https, or on localhost.");
  }
  return found;
}

export async function sha256(bytes) {
  return new Uint8Array(await subtle().digest("SHA-256", bytes));
}

export function utf8(text) {
  return new TextEncoder().encode(text);
}

/** Return bytes as base64url without padding (RFC 4648). */
export function base64url(bytes) {
  const text = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function fromBase64url(text) {
  const decoded = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(decoded, (character) => character.charCodeAt(0));
}

export function randomBytes(count) {
  return crypto.getRandomValues(new Uint8Array(count));
}
