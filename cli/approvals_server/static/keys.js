// With what a person signs: a key of this browser, or passkeys.
//
// The key is Ed25519 by WebCrypto, not extractable, kept in IndexedDB. It makes the compact JWS
// that `surehand sign` makes. A passkey (WebAuthn) is a key of the device or of its vault, used by
// a gesture of its person; docs/guarantees/passkeys.md has its formats.

import {
  base64url,
  canonical,
  fromBase64url,
  randomBytes,
  sha256,
  subtle,
  utf8,
} from "./canonical.js";

const DATABASE = "surehand";
const STORE = "keys";
const ALGORITHM = "Ed25519";
/** What the proof of a decision is called in its header, and what its challenge begins with. */
const DECISION = "surehand-decision+webauthn";
const LIST = `${DECISION}-list`;
/** Decisions that one gesture signs. */
const MOST = 50;
/** COSE's numbers of what may sign, with WebCrypto's names. Windows Hello needs the last one. */
const ALGORITHMS = new Map([
  [-7, { name: "ECDSA", namedCurve: "P-256" }],
  [-8, { name: "Ed25519" }],
  [-257, { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" }],
]);
/** JOSE's names of their signatures, and the members of their public keys. */
const KINDS = {
  EC: { alg: "ES256", members: ["crv", "kty", "x", "y"] },
  OKP: { alg: "EdDSA", members: ["crv", "kty", "x"] },
  RSA: { alg: "RS256", members: ["e", "kty", "n"] },
};
/** Flag BE of the authenticator data: the passkey may come to be on other devices. */
const BACKUP_ELIGIBLE = 0x08;
const FLAGS = 32;
const CHALLENGE = 32;

/** Return the key of a principal in this browser; `null`: there is none. */
export async function ownKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  const pair = await inStore("readonly", (store) => store.get(name));
  return pair === undefined ? null : asOwnKey(pair);
}

/** Make a key for a principal; it never leaves this browser, and replaces no other one. */
export async function makeKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  const pair = await newPair();
  try {
    // `add`, not `put`: a key that is registered is not replaced, not even by another tab.
    await inStore("readwrite", (store) => store.add(pair, name));
  } catch (error) {
    if (error instanceof DOMException && error.name === "ConstraintError") {
      const there = "There is a key for this name in this browser already: forget it first.";
      throw new Error(there, { cause: error });
    }
    throw error;
  }
  return asOwnKey(pair);
}

/** Destroy a principal's key in this browser. A registered one has to be revoked, too. */
export async function forgetKey(tenant, principal) {
  const name = nameOf(tenant, principal);
  await inStore("readwrite", (store) => store.delete(name));
}

/** Return the RFC 7638 thumbprint of a public key. */
export async function thumbprint(jwk) {
  return base64url(await sha256(utf8(canonical(publicMembers(jwk)))));
}

function publicMembers(jwk) {
  return Object.fromEntries(KINDS[jwk.kty].members.map((member) => [member, jwk[member] ?? ""]));
}

/** Return claims as a compact JWS, letter by letter as `surehand sign` writes it. */
export async function compactJws(privateKey, kid, claims, typ) {
  const given = Object.entries(claims).filter(([, value]) => value !== undefined && value !== null);
  const parts = [{ alg: "EdDSA", kid, typ }, Object.fromEntries(given)];
  const signed = parts.map((part) => base64url(utf8(canonical(part)))).join(".");
  return `${signed}.${base64url(await subtle().sign(ALGORITHM, privateKey, utf8(signed)))}`;
}

async function newPair() {
  try {
    return await subtle().generateKey(ALGORITHM, false, ["sign", "verify"]);
  } catch (error) {
    if (error instanceof DOMException && error.name === "NotSupportedError") {
      throw new Error(
        "This browser cannot make Ed25519 keys: use Chrome 137, Firefox 129, Safari 17, or newer.",
        { cause: error },
      );
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
    throw new TypeError("a key needs the tenant and the name of its owner");
  }
  return JSON.stringify([tenant, principal]);
}

/** Do one thing in the store, and wait until it is kept. */
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

/**
 * Make a passkey, and return its public half as an administrator registers it; none beside one of
 * the credential ids that are `known`. `algorithms`: COSE's numbers, the preferred one first.
 */
export async function register({
  rpId,
  rpName,
  principal,
  known = [],
  algorithms = [...ALGORITHMS.keys()],
}) {
  const credential = await container().create({
    publicKey: {
      rp: { id: rpId, name: rpName },
      user: { id: randomBytes(CHALLENGE), name: principal, displayName: principal },
      challenge: randomBytes(CHALLENGE), // nobody checks it: an administrator registers the key
      pubKeyCredParams: algorithms.map((alg) => ({ type: "public-key", alg })),
      excludeCredentials: known.map(descriptor),
      authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
      attestation: "none",
    },
  });
  if (!(credential instanceof PublicKeyCredential)) {
    throw new Error("No passkey was chosen.");
  }
  const response = credential.response;
  const flags = new Uint8Array(response.getAuthenticatorData())[FLAGS] ?? 0;
  return {
    kind: "webauthn",
    credential_id: base64url(credential.rawId),
    rp_id: rpId,
    public_key: await publicJwk(response),
    device_bound: (flags & BACKUP_ELIGIBLE) === 0,
  };
}

/**
 * Sign the claims of 1 to 50 decisions with one gesture, or those of one message to a run, with one
 * of the person's passkeys on record. Returns a proof for each, in their order.
 */
export async function signByPasskey({ claimsList, keys, rpId, typ = DECISION }) {
  const payloads = claimsList.map((claims) => base64url(utf8(canonical({ ...claims }))));
  const most = typ === DECISION ? MOST : 1;
  if (payloads.length < 1 || payloads.length > most || new Set(payloads).size < payloads.length) {
    throw new Error(`One gesture signs 1 to ${most} decisions, each of them once.`);
  }
  if (keys.length === 0) {
    // The browser would offer any passkey that it has.
    throw new Error("No passkey of yours is registered.");
  }
  const digests = await Promise.all(
    payloads.map((payload) => sha256(utf8(`${typ}\n${payload}`))),
  );
  const list = digests.map(base64url);
  const single = digests.length === 1 ? digests[0] : undefined;
  const credential = await container().get({
    publicKey: {
      challenge: single ?? (await sha256(utf8(`${LIST}\n${list.join("\n")}`))),
      rpId,
      allowCredentials: keys.map((key) => descriptor(key.credential_id)),
      userVerification: "required",
    },
  });
  if (!(credential instanceof PublicKeyCredential)) {
    throw new Error("No passkey was chosen.");
  }
  const id = base64url(credential.rawId);
  const key = keys.find((one) => one.credential_id === id);
  if (key === undefined) {
    throw new Error("The browser has signed with a passkey that is not on record.");
  }
  const response = credential.response;
  const header = {
    alg: KINDS[key.public_key.kty].alg,
    kid: await thumbprint(key.public_key),
    typ,
    authenticator_data: base64url(response.authenticatorData),
    client_data: base64url(response.clientDataJSON),
    credential_id: id,
  };
  const protectedHeader = base64url(
    utf8(canonical(single === undefined ? { ...header, digests: list } : header)),
  );
  const signature = base64url(response.signature);
  return payloads.map((payload) => `${protectedHeader}.${payload}.${signature}`);
}

function container() {
  subtle(); // says so where the page is not secure
  if (globalThis.PublicKeyCredential === undefined) {
    throw new Error("This browser has no passkeys.");
  }
  return navigator.credentials;
}

function descriptor(id) {
  return { type: "public-key", id: fromBase64url(id) };
}

async function publicJwk(response) {
  const algorithm = ALGORITHMS.get(response.getPublicKeyAlgorithm());
  const spki = response.getPublicKey();
  if (algorithm === undefined || spki === null) {
    throw new Error(
      "This passkey is not ES256, EdDSA or RS256, or the browser does not show its key.",
    );
  }
  const key = await subtle().importKey("spki", spki, algorithm, true, ["verify"]);
  return publicMembers(await subtle().exportKey("jwk", key));
}
