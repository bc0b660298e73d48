// One request: draws the call, signs what was drawn, and sends it.
//
// The server is not believed. What is shown is drawn from the same values that are hashed, and the
// hash is what is signed. Approving is off while anything of the call is missing, or is not what
// the server asks to sign. Rejecting is on before the call is drawn: one that is not made harms
// nobody. So all that it takes to reject is in the page itself, without the call.

import { doubt, drawCall } from "./call.js";
import { parseExact } from "./canonical.js";
import { differences, showDifferences } from "./differences.js";
import { makeForm } from "./forms.js";
import { at, fetchText, follow, part, say, words } from "./page.js";
import { deliver, signed, signerFor } from "./signing.js";
import { tellStory } from "./story.js";
import { showText } from "./text.js";

const id = part("call").dataset.id;
const query = `?id=${encodeURIComponent(id)}`;
/** What it takes to reject. */
const asked = JSON.parse(part("asked").textContent);
/** @type {any} What was drawn; `null`: it could not be had. */
let shown = null;
/** Whether a decision can still count. */
let waiting = asked.waits;
/** Whether all of it was drawn, and is what the server asks to sign. */
let whole = false;
/** @type {import("./signing.js").Signer | null} `null`: there is not what it takes. */
let signer = null;
/** @type {ReturnType<typeof makeForm> | null} The form to edit the params by. */
let form = null;
/** Whether a decision is on its way. */
let sending = false;
/** Whether one of this page's counts. */
let counted = false;

part("approve")?.addEventListener("click", () => decide("approve"));
part("reject")?.addEventListener("click", () => decide("reject"));
part("edit")?.addEventListener("click", edit);
part("ask-anew")?.addEventListener("click", askAnew);
await findSigner();
await draw();
follow(`/follow/approval${query}`, changed);
await tell();

/** Draw the call; approving is on once nothing speaks against it. */
async function draw() {
  try {
    shown = parseExact(await fetchText(`/approval.json${query}`));
    whole = await drawCall(shown, id, {
      tool: part("tool"),
      params: part("params"),
      hash: part("short-hash"),
      answers: part("answers"),
      answersPart: [part("answers-title"), part("answers-part")],
      check: part("check"),
    });
  } catch (error) {
    doubt(part("check"), say("not_exact", words(error)));
  }
  if (part("approve") !== null) {
    release();
  }
}

/** Find out with what a decision is signed here: from then on, one can reject. */
async function findSigner() {
  if (part("approve") === null) {
    return;
  }
  const found = await signerFor([asked]);
  signer = found.signer;
  if (found.why) {
    hinder(say(found.why, found.detail));
  }
  release();
  at(performance.now() + asked.left_ms, over);
}

/**
 * Follow what others do meanwhile.
 *
 * @param {{state: string, waits: boolean, votes: string[]}} told
 */
function changed({ state, waits, votes }) {
  showText(part("state"), state);
  if (votes.length) {
    showText(part("votes"), votes.join(", "));
  }
  if (!waits && waiting) {
    waiting = false;
    for (const gone of ["left", "expiry-title", "expiry-part"]) {
      part(gone)?.remove();
    }
    if (part("approve") !== null) {
      release();
      hinder(say("waits_no_more"));
    }
    tell();
  }
}

function mayApprove() {
  return whole && waiting && signer !== null;
}

/** Whether the form is open: it shows other params than a yes is for. */
function editing() {
  return !part("editing").hidden;
}

/** Let the buttons be as they may be. */
function release() {
  part("reject").disabled = sending || !waiting;
  part("edit").disabled = sending || !mayApprove();
  part("approve").disabled = part("edit").disabled || editing();
}

function over() {
  if (!sending) {
    waiting = false;
    release();
    hinder(say("expired"));
  }
}

/**
 * @param {"approve" | "reject" | "edit"} outcome
 * @param {any} [params] of an edit
 */
async function decide(outcome, params) {
  const said = part("said");
  const reason = part("reason").value.trim();
  if (sending || (outcome !== "reject" && !mayApprove()) || (outcome === "approve" && editing())) {
    return;
  }
  if (outcome === "reject" && !reason) {
    said.textContent = say("reason_wanted");
    part("reason").focus();
    return;
  }
  sending = true;
  part("approve").disabled = part("reject").disabled = part("edit").disabled = true;
  await decideOn({ request: outcome === "reject" ? asked : shown, outcome, reason, params });
  said.focus(); // the button that had it is off, or was
}

/**
 * Sign a decision, send it, and say what has come of it.
 *
 * @param {Parameters<typeof signed>[1][number]} decided
 */
async function decideOn(decided) {
  const said = part("said");
  let sent;
  try {
    said.textContent = say("signing");
    [sent] = await signed(signer ?? {}, [decided]);
  } catch (error) {
    said.textContent = say("failed", words(error));
    return again();
  }
  said.textContent = say("sending");
  const come = await deliver(sent);
  counted = come.how === "accepted";
  said.className = counted ? "good" : "alarm";
  showText(said, come.said);
  if (counted) {
    part("hindrance").hidden = true;
    part("others").hidden = false;
  }
  if (counted || come.how === "refused") {
    await tell();
  }
  return counted || come.how === "left" ? undefined : again();
}

function again() {
  sending = false;
  release();
}

function edit() {
  const opened = !editing();
  part("editing").hidden = !opened;
  part("edit").setAttribute("aria-expanded", String(opened));
  release();
  if (opened && form === null) {
    form = makeForm(JSON.parse(shown.schema), shown.params, part("form"));
    for (const happens of ["input", "change", "click"]) {
      part("form").addEventListener(happens, compare);
    }
    compare();
  }
}

/** Show what an edit would change, once all that was filled in is right. */
function compare() {
  if (form?.problems().length) {
    part("edited").replaceChildren();
  } else {
    showDifferences(differences(shown.params, form?.value()), part("edited"));
  }
}

function askAnew() {
  compare();
  const [problem] = form?.problems() ?? [];
  if (problem) {
    showText(part("said"), `${problem.path} ${problem.message}`);
    return;
  }
  decide("edit", form?.value());
}

/** Tell the run's story, as far as the run answers. */
async function tell() {
  const story = part("story");
  try {
    const run = encodeURIComponent(part("run").textContent);
    const { state, lines } = JSON.parse(await fetchText(`/story.json?run=${run}`));
    showText(part("run-state"), say("run_is", state));
    tellStory(story, lines);
  } catch (error) {
    showText(story, say("no_story", words(error)));
  }
}

/**
 * Say what stands in the way, or is to be known, above the buttons.
 *
 * @param {string} what
 */
function hinder(what) {
  part("hindrance").hidden = counted;
  showText(part("hindrance"), what);
}
