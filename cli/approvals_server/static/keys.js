// A person's own key in this browser: Ed25519 by WebCrypto, not extractable, kept in IndexedDB.
//
// It makes the compact JWS that `surehand sign` makes, and the worker verifies both alike.

import { base64url, sha256, subtle, utf8 } from "./bytes.js";
import { canonical } from "./canonical.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */

/**
 * @typedef {object} OwnKey
 * @property {string} kid the public key's RFC 7638 thumbprint
 * @property {{[name: string]: string}} jwk its public half, as `keygen` writes it
 * @property {(claims: {[name: string]: Json | undefined}, typ: string) => Promise<string>} sign
 *   makes a compact JWS
 */

const DATABASE = "surehand";
const STORE = "keys";
const ALGORITHM = "Ed25519";

/**
 * Return the key of a principal in this browser.
 *
 * @param {string} tenant
 * @param {string} principal
 * @returns {Promise<OwnKey | null>} `null`: there is none
 */
export async function ownKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  const pair = await inStore("readonly", (store) => store.get(name));
  return pair === undefined ? null : asOwnKey(pair);
}

/**
 * Make a key for a principal; it never leaves this browser.
 *
 * @param {string} tenant
 * @param {string} principal
 * @returns {Promise<OwnKey>}
 * @throws {Error} The browser cannot, or there is a key already; the message is for people.
 */
export async function makeKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  const pair = await newPair();
  try {
    // `add`, not `put`: a key that is registered is not replaced, not even by another tab.
    await inStore("readwrite", (store) => store.add(pair, name));
  } catch (error) {
    if (error instanceof DOMException && error.name === "ConstraintError") {
      throw new Error(WORDING.keyThere, { cause: error });
    }
    throw error;
  }
  return asOwnKey(pair);
}

/**
 * Destroy the key of a principal in this browser. What is registered has to be revoked as well.
 *
 * @param {string} tenant
 * @param {string} principal
 */
export async function forgetKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  await inStore("readwrite", (store) => store.delete(name));
}

/**
 * Return the RFC 7638 thumbprint of a public key.
 *
 * @param {{[name: string]: string}} jwk on Ed25519 or P-256
 * @returns {Promise<string>}
 */
export async function thumbprint(jwk) {
  const members = jwk.kty === "EC" ? ["crv", "kty", "x", "y"] : ["crv", "kty", "x"];
  const needed = Object.fromEntries(members.map((member) => [member, jwk[member] ?? ""]));
  return base64url(await sha256(utf8(canonical(needed))));
}

/**
 * Return claims as a compact JWS, letter by letter as `surehand sign` writes it.
 *
 * @param {CryptoKey} privateKey
 * @param {string} kid
 * @param {{[name: string]: Json | undefined}} claims those without a value are left out
 * @param {string} typ what it is a signature of
 * @returns {Promise<string>}
 */
export async function compactJws(privateKey, kid, claims, typ) {
  const given = Object.entries(claims).filter(([, value]) => value !== undefined && value !== null);
  const parts = [{ alg: "EdDSA", kid, typ }, Object.fromEntries(given)];
  const signed = parts
    .map((part) => base64url(utf8(canonical(part))))
    .join(".");
  return `${signed}.${base64url(await subtle().sign(ALGORITHM, privateKey, utf8(signed)))}`;
}

async function newPair() {
  try {
    return await subtle().generateKey(ALGORITHM, false, ["sign", "verify"]);
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError") {
      throw new Error(WORDING.noEd25519, { cause: error });
    }
    throw error;
  }
}

async function asOwnKey(pair) {
  const { crv = "", kty = "", x = "" } = await subtle().exportKey("jwk", pair.publicKey);
  const kid = await thumbprint({ crv, kty, x });
  return {
    kid,
    jwk: { alg: "EdDSA", crv, kid, kty, use: "sig", x },
    sign: (claims, typ) => compactJws(pair.privateKey, kid, claims, typ),
  };
}

function nameOf(tenant, principal) {
  if (!tenant || !principal) {
    throw new TypeError(WORDING.noOwner);
  }
  return JSON.stringify([tenant, principal]);
}

/**
 * Do one thing in the store, and wait until it is kept.
 *
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} ask
 * @returns {Promise<T>}
 */
async function inStore(mode, ask) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode, { durability: "strict" });
      const request = ask(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error ?? request.error);
    });
  } finally {
    database.close();
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
