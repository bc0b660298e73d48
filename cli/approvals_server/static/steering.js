// What steers a run, signed: as `surehand answer` and `surehand resolve` make it.

import { base64url, randomBytes } from "./bytes.js";
import { digest } from "./canonical.js";

/** What such a signature is called in its header. */
const STEERING = "surehand-steering+jws";
/** Seconds from signing to expiry: it is sent at once. */
const LASTS = 300;
const NONCE = 24;

/**
 * Return a message to a run: what is empty is left out, as the worker leaves it out of the digest.
 *
 * @param {string} actor
 * @param {{[name: string]: any}} values
 * @returns {{[name: string]: any}}
 */
export function message(actor, values) {
  const given = Object.entries(values).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  // Its own id makes it one message, however often it is sent.
  return { actor, id: base64url(randomBytes(NONCE)), ...Object.fromEntries(given) };
}

/**
 * Return a message with its signature.
 *
 * @param {object} sent
 * @param {string} sent.tenant
 * @param {string} sent.run the run's full id
 * @param {string} sent.verb
 * @param {{[name: string]: any}} sent.message
 * @param {import("./keys.js").OwnKey} sent.key
 * @returns {Promise<{[name: string]: any}>}
 */
export async function signedMessage({ tenant, run, verb, message, key }) {
  const now = Math.floor(Date.now() / 1000);
  const claims = {
    aud: `surehand:${tenant}`,
    sub: message.actor,
    iat: now,
    exp: now + LASTS,
    jti: base64url(randomBytes(NONCE)),
    run_id: run,
    verb,
    content: await digest(message),
  };
  return { ...message, signature: await key.sign(claims, STEERING) };
}
