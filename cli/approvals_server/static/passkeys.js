// Passkeys (WebAuthn): a key of the device or of its vault, used by a gesture of its person.
//
// The format of what is registered and of the proof: docs/guarantees/passkeys.md.

import { base64url, fromBase64url, randomBytes, sha256, subtle, utf8 } from "./bytes.js";
import { canonical } from "./canonical.js";
import { thumbprint } from "./keys.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./decisions.js").Claims} Claims */

/**
 * A passkey's public half, as an administrator registers it.
 *
 * @typedef {object} Registration
 * @property {"webauthn"} kind
 * @property {string} credential_id
 * @property {string} rp_id
 * @property {{[name: string]: string}} public_key a JWK
 * @property {boolean} device_bound
 */

/** What a proof is called in its header, and what its challenge begins with: of what steers a run. */
export const STEERING = "surehand-steering+webauthn";
/** The same of a decision. */
export const DECISION = "surehand-decision+webauthn";
const LIST = `${DECISION}-list`;
/** Decisions that one gesture signs. */
export const MOST = 50;

/** COSE's numbers of what may sign, with WebCrypto's and JOSE's names. */
const ALGORITHMS = new Map([
  [-7, { name: "ECDSA", namedCurve: "P-256" }],
  [-8, { name: "Ed25519" }],
]);
/** Flag BE of the authenticator data: the passkey may come to be on other devices. */
const BACKUP_ELIGIBLE = 0x08;
const FLAGS = 32;
const CHALLENGE = 32;

/**
 * Make a passkey, and return its public half.
 *
 * @param {object} asked
 * @param {string} asked.rpId the page's domain name
 * @param {string} asked.rpName shown by the browser
 * @param {string} asked.principal whose it is, shown by the browser
 * @param {string[]} [asked.known] credential ids that are there already: no second one beside them
 * @param {number[]} [asked.algorithms] COSE's numbers, the preferred one first
 * @returns {Promise<Registration>}
 * @throws {Error} The person has refused, or the browser cannot.
 */
export async function register({ rpId, rpName, principal, known = [], algorithms = [-7, -8] }) {
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
    throw new Error(WORDING.noPasskeyChosen);
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
 * Sign decisions with one gesture, or what steers a run with its own.
 *
 * @param {object} asked
 * @param {object[]} asked.claimsList of 1 to 50 decisions; `decisionClaims` makes them; or of one
 *   message to a run
 * @param {Pick<Registration, "credential_id" | "public_key">[]} asked.keys the person's passkeys
 *   on record: the browser signs with one of them
 * @param {string} asked.rpId the page's domain name
 * @param {string} [asked.typ] what the proofs are of
 * @returns {Promise<string[]>} a proof for each decision, in their order
 * @throws {Error} The person has refused, has no passkey on record, or the browser cannot.
 */
export async function signByPasskey({ claimsList, keys, rpId, typ = DECISION }) {
  const payloads = claimsList.map((claims) => base64url(utf8(canonical({ ...claims }))));
  const most = typ === DECISION ? MOST : 1;
  if (payloads.length < 1 || payloads.length > most || new Set(payloads).size < payloads.length) {
    throw new Error(WORDING.listLength(most));
  }
  if (keys.length === 0) {
    throw new Error(WORDING.noPasskeyKnown); // the browser would offer any that it has
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
    throw new Error(WORDING.noPasskeyChosen);
  }
  const id = base64url(credential.rawId);
  const key = keys.find((one) => one.credential_id === id);
  if (key === undefined) {
    throw new Error(WORDING.otherPasskey);
  }
  const response = credential.response;
  const header = {
    alg: key.public_key.kty === "EC" ? "ES256" : "EdDSA",
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
    throw new Error(WORDING.noPasskeys);
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
    throw new Error(WORDING.passkeyKind);
  }
  const key = await subtle().importKey("spki", spki, algorithm, true, ["verify"]);
  const { kty = "", crv = "", x = "", y } = await subtle().exportKey("jwk", key);
  return y === undefined ? { kty, crv, x } : { kty, crv, x, y };
}
