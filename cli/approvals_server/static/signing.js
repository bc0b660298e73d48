// Signs decisions on calls, and messages to runs.
//
// A decision is made as `surehand approve`, `reject` and `edit` make it, a message as `surehand
// answer` and `resolve` do.

import { base64url, canonical, digest, paramsHash, randomBytes } from "./canonical.js";
import { ownKey, signByPasskey } from "./keys.js";
import { send, words } from "./page.js";

/** @typedef {{key?: any, passkeys?: any[]}} Signer with what is signed: one of these, or nothing */

/** Proofs that only a passkey is good enough for. */
const BY_PASSKEY = ["passkey", "device_passkey"];
/** Seconds from signing to expiry: it is sent at once. */
const LASTS = 300;
/** Bytes of a nonce: nobody meets another one's by chance. */
const NONCE = 24;
const DEFAULT_TENANT = "default";
const LOST = "No answer came. Look at this page again before you decide once more.";

/**
 * Return with what decisions on requests are signed here.
 *
 * @param {any[]} requests one or several of one person's, as the server tells them
 * @returns {Promise<{signer: Signer | null, why?: string, made?: boolean}>} `null`: there is not
 *   what it takes; `why` says so, or says what is to be known; `made`: a key is, and not registered
 */
export async function signerFor(requests) {
  const [{ tenant, principal, keys, passkeys }] = requests;
  const proofs = requests.map(({ proof }) => proof);
  const bound = proofs.includes("device_passkey");
  const fitting = passkeys.filter((one) => isHere(one) && (one.device_bound || !bound));
  const byPasskey = fitting.length ? { signer: { passkeys: fitting } } : null;
  if (proofs.some((proof) => BY_PASSKEY.includes(proof))) {
    const why = "This needs a passkey of yours that is registered for this page.";
    return byPasskey ?? { signer: null, why };
  }
  let key = null;
  let why = "This browser has no key of yours yet.";
  const waits = "Your key waits for an administrator to register it.";
  try {
    key = await ownKey(tenant, principal);
  } catch (error) {
    // Some private windows keep nothing: what needs no signature is said there all the same.
    why = `This browser cannot sign (no Ed25519): ${words(error)}`;
  }
  if (key !== null && keys.includes(key.kid)) {
    return { signer: { key } };
  }
  if (byPasskey) {
    return byPasskey;
  }
  if (proofs.every((proof) => proof === "open")) {
    // A key that nobody knows proves nothing, and would have the decision refused.
    const unsigned = "Your decision will not be signed, and is marked so.";
    return { signer: {}, made: key !== null, why: key === null ? unsigned : `${unsigned} ${waits}` };
  }
  return { signer: null, made: key !== null, why: key === null ? why : waits };
}

/** Return decisions as they are sent; several by passkey take one gesture. */
export async function signed(signer, asked) {
  const all = await Promise.all(asked.map(prepared));
  const made = await signatures(signer, "decision", all.map(({ claims }) => claims));
  return all.map(({ decision }, at) => ({ ...decision, signature: made[at] }));
}

/**
 * Return a decision and its claims, once they are known to be those of what is shown.
 *
 * Whatever fails the check of params may be rejected all the same: then no call is made.
 *
 * @param {any} decided `request`: as it is shown, for a rejection without its call; `outcome`:
 *   `approve`, `reject` or `edit`; `params`: of an edit, all that are asked for instead
 */
export async function prepared({ request, outcome, reason = "", params }) {
  const { tenant, principal, approval_id, params_hash } = request;
  if (outcome !== "reject") {
    await refuseOtherParams(request);
  }
  const run_id = request.halt ? approval_id : runOf(approval_id, tenant);
  const decision = { approval_id, params_hash, outcome, approver: principal, reason };
  const fresh = freshClaims(tenant, principal);
  const claims = { ...fresh, approval_id, run_id, params_hash, outcome };
  if (reason) {
    claims.reason = await digest(reason);
  }
  if (outcome === "edit") {
    if (params === undefined || canonical(params) === canonical(request.params)) {
      throw new Error("Nothing is changed.");
    }
    claims.edited = await digest(params);
    decision.params = params;
  }
  return { claims, decision };
}

/**
 * Return a message to a run: what is empty is left out, as the worker leaves it out of the digest.
 * With the id of an earlier one it is that one again, and counts once.
 */
export function message(actor, values, id = base64url(randomBytes(NONCE))) {
  const given = Object.entries(values).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return { actor, id, ...Object.fromEntries(given) };
}

/** Return a message to a run with its signature. */
export async function signedMessage(signer, { tenant, run, verb, message }) {
  const content = await digest(message);
  const claims = { ...freshClaims(tenant, message.actor), run_id: run, verb, content };
  const [signature] = await signatures(signer, "steering", [claims]);
  return { ...message, signature };
}

/**
 * Send a decision or a message, and return what has come of it: `accepted`, `refused` by the run,
 * `left` for a worker that is back later, `not_taken`, `failed` (nothing was sent), or `lost`.
 */
export async function deliver(path, sent, accepted) {
  let status, answer;
  try {
    ({ status, answer } = await send(path, sent));
  } catch (error) {
    // It may have arrived. One request takes one yes of a person, so asking again doubles nothing.
    return { how: "lost", said: `${LOST} (${words(error)})` };
  }
  const why = answer.verdict?.message ?? answer.message ?? answer.error;
  if (status === 200) {
    return { how: "accepted", said: accepted(why) };
  }
  if (status === 202) {
    return { how: "left", said: `It was sent, and counts as soon as a worker is back: ${why}` };
  }
  if (status === 409) {
    return answer.verdict
      ? { how: "refused", said: `Your decision does not count: ${why}.` }
      : { how: "not_taken", said: `It does not count: ${why}` };
  }
  return status === 503 || (status >= 400 && status < 500)
    ? { how: "failed", said: `Nothing was sent: ${why}` }
    : { how: "lost", said: `${LOST} (${why})` };
}

/** Refuse a request whose hash is not that of its call, or of the halt that it lifts. */
export async function refuseOtherParams(request) {
  const { halt, approval_id } = request;
  const found = await (halt ? digest(halt) : paramsHash(request));
  if (found !== request.params_hash || (halt && halt[0] !== approval_id)) {
    throw new Error(
      "What is shown is not what the server asks you to sign.",
    );
  }
}

/** Return signatures in the order of the claims; without a signer, none. */
async function signatures({ key, passkeys }, what, claimsList) {
  if (key) {
    return Promise.all(claimsList.map((claims) => key.sign(claims, `surehand-${what}+jws`)));
  }
  if (!passkeys) {
    return [];
  }
  const rpId = passkeys[0].rp_id;
  const keys = passkeys.filter((one) => one.rp_id === rpId);
  return signByPasskey({ claimsList, keys, rpId, typ: `surehand-${what}+webauthn` });
}

/** Return what all claims begin with, and a nonce that was never used. */
function freshClaims(tenant, principal) {
  const now = Math.floor(Date.now() / 1000);
  return {
    aud: `surehand:${tenant}`,
    sub: principal,
    iat: now,
    exp: now + LASTS,
    jti: base64url(randomBytes(NONCE)),
  };
}

/** Return whether a passkey is one of this site. */
export function isHere({ rp_id }) {
  return location.hostname === rp_id || location.hostname.endsWith(`.${rp_id}`);
}

/** Return the run that an approval belongs to, by the approval's id: `run/step/number`. */
function runOf(approvalId, tenant) {
  const run = /^(.+)\/[^/]+\/[0-9]+$/s.exec(approvalId)?.[1];
  if (run === undefined) {
    throw new Error("This is not the id of an approval.");
  }
  const slash = run.indexOf("/");
  if ((slash < 0 ? DEFAULT_TENANT : run.slice(0, slash)) !== tenant) {
    throw new Error("This approval belongs to another tenant.");
  }
  return run;
}
