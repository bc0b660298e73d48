// What an approver signs, and what is sent: as `surehand approve`, `reject` and `edit` make it.

import { base64url, randomBytes } from "./bytes.js";
import { canonical, digest, paramsHash, refuseLostDigits } from "./canonical.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {{[name: string]: Json}} Params */

/**
 * An approval request as it is shown.
 *
 * @typedef {object} Request
 * @property {string} approval_id
 * @property {string} params_hash
 * @property {string} tool
 * @property {string} version
 * @property {Params} params all of them, as they are shown
 * @property {Json[]} [answers] what humans have answered to the tool's own questions
 * @property {string | null} [salt]
 */

/** @typedef {"approve" | "reject" | "edit"} Outcome */
/** @typedef {{[name: string]: any}} Claims as `workflows/contracts/signing.py` has them */
/** @typedef {{[name: string]: any}} Decision as `workflows/contracts/approvals.py` has it */

/** What a signature of a decision is called in its header. */
export const DECISION = "surehand-decision+jws";
/** Seconds from signing to expiry: it is sent at once. */
const LASTS = 300;
/** Bytes of a nonce: nobody meets another one's by chance. */
const NONCE = 24;
const DEFAULT_TENANT = "default";

/**
 * Refuse a request that shows other params than it asks for.
 *
 * Nobody approves or edits what fails this. It may be rejected all the same: no call is made.
 *
 * @param {Request} request
 * @throws {Error} The hash of what is shown is another one.
 */
export async function refuseOtherParams(request) {
  if ((await paramsHash(request)) !== request.params_hash) {
    throw new Error(WORDING.otherParams);
  }
}

/**
 * Return what all claims begin with, and a nonce that was never used.
 *
 * @param {string} tenant
 * @param {string} principal who signs
 * @param {number} [now] whole seconds since 1970
 * @returns {Claims}
 */
export function freshClaims(tenant, principal, now = Math.floor(Date.now() / 1000)) {
  return {
    aud: `surehand:${tenant}`,
    sub: principal,
    iat: now,
    exp: now + LASTS,
    jti: base64url(randomBytes(NONCE)),
  };
}

/**
 * Return what is to be signed for a decision.
 *
 * @param {object} decided
 * @param {string} decided.tenant
 * @param {string} decided.principal who signs
 * @param {Pick<Request, "approval_id" | "params_hash">} decided.request
 * @param {Outcome} decided.outcome
 * @param {string} [decided.edited] of an edit: the digest of the new params
 * @param {string} [decided.reason] its digest, if there is one
 * @param {number} [decided.now] whole seconds since 1970
 * @returns {Claims}
 * @throws {Error} The approval is another tenant's.
 */
export function decisionClaims({ tenant, principal, request, outcome, edited, reason, now }) {
  const { approval_id, params_hash } = request;
  const run_id = runOf(approval_id, tenant);
  const digests = { ...(edited && { edited }), ...(reason && { reason }) };
  const claims = { approval_id, run_id, params_hash, outcome, ...digests };
  return { ...freshClaims(tenant, principal, now), ...claims };
}

/**
 * Return a decision and its claims, once they are known to be those of what is shown.
 *
 * @param {object} decided
 * @param {string} decided.tenant
 * @param {string} decided.principal who decides and signs
 * @param {Request} decided.request as it is shown
 * @param {Outcome} decided.outcome
 * @param {string} [decided.reason]
 * @param {Params} [decided.params] of an edit: all params to ask for instead
 * @param {number} [decided.now] whole seconds since 1970
 * @returns {Promise<{claims: Claims, decision: Decision}>}
 * @throws {Error} Other params are shown than are asked for, an edit changes nothing, or the
 *   approval is another tenant's.
 */
export async function preparedDecision(decided) {
  const { principal, request, outcome, reason = "", params } = decided;
  if (outcome !== "reject") {
    await refuseOtherParams(request);
  }
  const { approval_id, params_hash } = request;
  const decision = { approval_id, params_hash, outcome, approver: principal, reason };
  const digests = { reason: reason && (await digest(reason)) };
  if (outcome !== "edit") {
    return { claims: decisionClaims({ ...decided, ...digests }), decision };
  }
  const edited = await editedDigest(request, params);
  const claims = decisionClaims({ ...decided, ...digests, edited });
  return { claims, decision: { ...decision, params } };
}

/**
 * Return a decision with its signature, once it is known to be one of what is shown.
 *
 * @param {Parameters<typeof preparedDecision>[0] & {key: import("./keys.js").OwnKey}} decided
 * @returns {Promise<Decision>}
 * @throws {Error} As `preparedDecision`.
 */
export async function signedDecision({ key, ...decided }) {
  const { claims, decision: unsigned } = await preparedDecision(decided);
  return { ...unsigned, signature: await key.sign({ ...claims }, DECISION) };
}

async function editedDigest(request, params) {
  if (params === undefined || canonical(params) === canonical(request.params)) {
    throw new Error(WORDING.unchanged);
  }
  refuseLostDigits(params);
  return digest(params);
}

/**
 * Return the run that an approval belongs to, by the approval's id: `run/step/number`.
 *
 * @param {string} approvalId
 * @param {string} tenant
 */
function runOf(approvalId, tenant) {
  const run = /^(.+)\/[^/]+\/[0-9]+$/s.exec(approvalId)?.[1];
  if (run === undefined) {
    throw new Error(WORDING.noApprovalId);
  }
  const slash = run.indexOf("/");
  if ((slash < 0 ? DEFAULT_TENANT : run.slice(0, slash)) !== tenant) {
    throw new Error(WORDING.otherTenant);
  }
  return run;
}
