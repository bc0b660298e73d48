// What steers a run, signed: as `surehand answer` and `surehand resolve` make it.

import { base64url, randomBytes } from "./bytes.js";
import { digest } from "./canonical.js";
import { freshClaims } from "./decisions.js";
import { signByPasskey, STEERING } from "./passkeys.js";

/** What such a signature is called in its header. */
const SIGNED = "surehand-steering+jws";
const NONCE = 24;

/**
 * Return a message to a run: what is empty is left out, as the worker leaves it out of the digest.
 *
 * @param {string} actor
 * @param {{[name: string]: any}} values
 * @param {string} [id] of the message if it is sent again
 * @returns {{[name: string]: any}}
 */
export function message(actor, values, id = base64url(randomBytes(NONCE))) {
  const given = Object.entries(values).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  // Its own id makes it one message, however often it is sent.
  return { actor, id, ...Object.fromEntries(given) };
}

/**
 * What a message is signed for.
 *
 * @typedef {object} Sent
 * @property {string} tenant
 * @property {string} run the run's full id
 * @property {string} verb
 * @property {{[name: string]: any}} message
 */

/**
 * Return a message with its signature.
 *
 * @param {Sent & {key: import("./keys.js").OwnKey}} sent
 * @returns {Promise<{[name: string]: any}>}
 */
export async function signedMessage({ key, ...sent }) {
  return { ...sent.message, signature: await key.sign(await claimsOf(sent), SIGNED) };
}

/**
 * Return a message with the proof of a passkey's gesture.
 *
 * @param {Sent & {passkeys: any[]}} sent the person's passkeys of this site
 * @returns {Promise<{[name: string]: any}>}
 * @throws {Error} The person has refused, or the browser cannot.
 */
export async function gesturedMessage({ passkeys, ...sent }) {
  const rpId = passkeys[0].rp_id;
  const [signature] = await signByPasskey({
    claimsList: [await claimsOf(sent)],
    keys: passkeys.filter((one) => one.rp_id === rpId),
    rpId,
    typ: STEERING,
  });
  return { ...sent.message, signature };
}

async function claimsOf({ tenant, run, verb, message }) {
  const content = await digest(message);
  return { ...freshClaims(tenant, message.actor), run_id: run, verb, content };
}
