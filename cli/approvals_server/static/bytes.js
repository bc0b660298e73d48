// Bytes as signatures have them: base64url without padding (RFC 4648), UTF-8, SHA-256.

import { WORDING } from "./wording.js";

/**
 * The browser's cryptography.
 *
 * @returns {SubtleCrypto}
 * @throws {Error} The page was not loaded by https or from localhost.
 */
export function subtle() {
  const found = globalThis.crypto?.subtle;
  if (found === undefined) {
    throw new Error(WORDING.notSecure);
  }
  return found;
}

/**
 * @param {ArrayBuffer | Uint8Array} bytes
 * @returns {string} base64url without padding
 */
export function base64url(bytes) {
  let text = "";
  for (const byte of new Uint8Array(bytes)) {
    text += String.fromCharCode(byte);
  }
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/**
 * @param {string} text base64url without padding
 * @returns {Uint8Array<ArrayBuffer>}
 * @throws {DOMException} It is none.
 */
export function fromBase64url(text) {
  const decoded = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(decoded, (character) => character.charCodeAt(0));
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/**
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function sha256(bytes) {
  return new Uint8Array(await subtle().digest("SHA-256", bytes));
}

/**
 * @param {number} count
 * @returns {Uint8Array<ArrayBuffer>} bytes that nobody can guess
 */
export function randomBytes(count) {
  return crypto.getRandomValues(new Uint8Array(count));
}
