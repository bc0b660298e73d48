// A call as it would run: drawn from the same values that are hashed and signed.

import { refuseOtherParams } from "./decisions.js";
import { say } from "./page.js";
import { showJson, showText } from "./text.js";

/**
 * Draw the call that a request asks for.
 *
 * @param {any} told the request, as the server tells it
 * @param {string} id the request that was asked for
 * @param {{tool: Element, params: Element, hash: Element, answers: HTMLElement,
 *   answersPart: HTMLElement[], check: Element}} parts where it is drawn
 * @returns {Promise<boolean>} whether all of it is there, and is what the server asks to sign
 */
export async function drawCall(told, id, parts) {
  showText(parts.tool, `${told.tool} (version ${told.version})`);
  parts.hash.textContent = told.params_hash.replace("sha256:", "").slice(0, 12);
  for (const one of parts.answersPart) {
    one.hidden = told.answers.length === 0;
  }
  showJson(parts.answers, told.answers);
  if (told.params === null) {
    return doubt(parts.check, say("no_params"));
  }
  showJson(parts.params, told.params);
  try {
    await refuseOtherParams(told);
  } catch {
    return doubt(parts.check, say("mismatch"));
  }
  if (told.approval_id !== id) {
    return doubt(parts.check, say("mismatch"));
  }
  parts.check.className = "good";
  parts.check.textContent = say("whole");
  return true;
}

/**
 * Say why nobody approves a call.
 *
 * @param {Element} check
 * @param {string} why
 * @returns {false}
 */
export function doubt(check, why) {
  check.className = "alarm";
  showText(check, why);
  return false;
}
