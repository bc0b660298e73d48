// With what decisions are signed on these pages: a key of this browser's, or passkeys.

import { preparedDecision, signedDecision } from "./decisions.js";
import { ownKey } from "./keys.js";
import { say, send, words } from "./page.js";
import { signByPasskey } from "./passkeys.js";

const BY_PASSKEY = ["passkey", "device_passkey"];

/**
 * With what a decision is signed: a key, passkeys, or nothing.
 *
 * @typedef {{key?: import("./keys.js").OwnKey, passkeys?: any[]}} Signer
 */

/**
 * Return with what decisions on requests are signed here.
 *
 * @param {any[]} requests one or several of one person's, as the server tells them
 * @returns {Promise<{signer: Signer | null, why?: string, detail?: string}>} `null`: there is not
 *   what it takes; `why` names the text that says so, or what is to be known
 */
export async function signerFor(requests) {
  const [{ tenant, principal, keys }] = requests;
  const { key, detail } = await keyHere(tenant, principal);
  const passkeys = requests[0].passkeys.filter((one) => fits(one, requests));
  if (requests.some(({ proof }) => BY_PASSKEY.includes(proof))) {
    return passkeys.length ? { signer: { passkeys } } : { signer: null, why: "no_passkey" };
  }
  if (key !== null && keys.includes(key.kid)) {
    return { signer: { key } };
  }
  if (passkeys.length) {
    return { signer: { passkeys } };
  }
  if (requests.every(({ proof }) => proof === "open")) {
    // A key that nobody knows proves nothing, and would have the decision refused.
    return { signer: {}, why: "unsigned" };
  }
  const missing = key === null ? "no_key" : "not_registered";
  return { signer: null, why: detail === undefined ? missing : "no_ed25519", detail };
}

/**
 * Return the key of a principal in this browser. One that keeps nothing, such as in some private
 * windows, has none: what needs no signature is said there all the same.
 *
 * @param {string} tenant
 * @param {string} principal
 * @returns {Promise<{key: import("./keys.js").OwnKey | null, detail?: string}>} `detail`: why the
 *   browser cannot say
 */
export async function keyHere(tenant, principal) {
  try {
    return { key: await ownKey(tenant, principal) };
  } catch (error) {
    return { key: null, detail: words(error) };
  }
}

/**
 * Return decisions as they are sent; several by passkey take one gesture.
 *
 * @param {Signer} signer
 * @param {{request: any, outcome: "approve" | "reject" | "edit", reason: string, params?: any}[]} asked
 * @returns {Promise<import("./decisions.js").Decision[]>} in their order
 * @throws {Error} Something else was shown than is asked for, or the person has refused.
 */
export async function signed(signer, asked) {
  const whole = asked.map((one) => {
    const { tenant, principal } = one.request;
    return { tenant, principal, ...one };
  });
  const { key, passkeys } = signer;
  if (key) {
    return Promise.all(whole.map((one) => signedDecision({ ...one, key })));
  }
  const prepared = await Promise.all(whole.map(preparedDecision));
  if (!passkeys) {
    return prepared.map(({ decision }) => decision);
  }
  const rpId = passkeys[0].rp_id;
  const signatures = await signByPasskey({
    claimsList: prepared.map(({ claims }) => claims),
    keys: passkeys.filter((one) => one.rp_id === rpId),
    rpId,
  });
  return prepared.map(({ decision }, at) => ({ ...decision, signature: signatures[at] }));
}

/**
 * Send a decision, and return what has come of it.
 *
 * @param {import("./decisions.js").Decision} sent
 * @returns {Promise<{how: string, said: string}>} `how`: `accepted`, `refused` by the run, `left` for
 *   a worker that is back later, `not_taken`, `failed`, or `lost`: nobody knows
 */
export async function deliver(sent) {
  try {
    const { status, answer } = await send("/decide", sent);
    const taken = answer.verdict ? "refused" : "not_taken";
    const how = { 200: "accepted", 202: "left", 409: taken }[status] ?? unsent(status);
    return { how, said: say(how, answer.verdict?.message ?? answer.error) };
  } catch (error) {
    // It may have arrived. One request takes one yes of a person, so asking again doubles nothing.
    return { how: "lost", said: say("lost", words(error)) };
  }
}

/**
 * Return what is true of something that the server has not answered for with its run's word.
 *
 * @param {number} status
 * @returns {string} `failed`: nothing was sent; `lost`: nobody knows
 */
export function unsent(status) {
  return status === 503 || (status >= 400 && status < 500) ? "failed" : "lost";
}

/**
 * Return whether a passkey is one of this site.
 *
 * @param {{rp_id: string}} passkey
 */
export function isHere({ rp_id }) {
  return location.hostname === rp_id || location.hostname.endsWith(`.${rp_id}`);
}

/**
 * Return whether a passkey is one of this site, and proves as much as all requests ask for.
 *
 * @param {any} passkey
 * @param {any[]} requests
 */
function fits({ rp_id, device_bound }, requests) {
  return isHere({ rp_id }) && (device_bound || requests.every(({ proof }) => proof !== "device_passkey"));
}
