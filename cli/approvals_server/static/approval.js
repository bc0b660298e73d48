// One request, or several at once: draws each call, signs what was drawn, and sends it.
//
// The server is not believed. What is shown is drawn from the same values that are hashed, and the
// hash is what is signed. Approving is off while anything of a call is missing, or is not what the
// server asks to sign. Rejecting is on before the call is drawn: one that is not made harms nobody.
// So all that it takes to reject is in the page itself, without the call.

import { parseExact } from "./canonical.js";
import { differences, makeForm, showDifferences } from "./forms.js";
import { at, fetchText, follow, part, showText, tellStory, words } from "./page.js";
import { deliver, doubt, drawCall, signed, signerFor } from "./signing.js";

await (part("call") === null ? several() : one());

async function one() {
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

  const deciding = part("approve") !== null;
  part("approve")?.addEventListener("click", () => decide("approve"));
  part("reject")?.addEventListener("click", () => decide("reject"));
  part("edit")?.addEventListener("click", edit);
  part("ask-anew")?.addEventListener("click", askAnew);
  if (deciding) {
    await findSigner();
  }
  await draw();
  follow(`/follow/approval${query}`, changed);
  await tell();

  /** Find out with what a decision is signed here: from then on, one can reject. */
  async function findSigner() {
    const found = await signerFor([asked]);
    signer = found.signer;
    if (found.why) {
      hinder(found.why);
    }
    release();
    at(performance.now() + asked.left_ms, over);
  }

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
      doubt(part("check"), notShown(error));
    }
    if (deciding) {
      release();
    }
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
      if (deciding) {
        release();
        hinder("It waits no more.");
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
      hinder("It has expired.");
    }
  }

  /**
   * Sign a decision, send it, and say what has come of it.
   *
   * @param {"approve" | "reject" | "edit"} outcome
   * @param {any} [params] of an edit
   */
  async function decide(outcome, params) {
    const said = part("said");
    const reason = part("reason").value.trim();
    const off = outcome === "approve" && editing();
    if (sending || off || (outcome !== "reject" && !mayApprove())) {
      return;
    }
    if (outcome === "reject" && !reason) {
      said.textContent = "Say why you reject it.";
      part("reason").focus();
      return;
    }
    sending = true;
    part("approve").disabled = part("reject").disabled = part("edit").disabled = true;
    const request = outcome === "reject" ? asked : shown;
    sending = await isOver({ request, outcome, reason, params });
    if (!sending) {
      release();
    }
    said.focus(); // the button that had it is off, or was
  }

  /** Return whether nothing more is decided here: it counts, or waits for a worker. */
  async function isOver(decided) {
    const said = part("said");
    let sent;
    try {
      said.textContent = "Signing…";
      [sent] = await signed(signer ?? {}, [decided]);
    } catch (error) {
      said.textContent = `Nothing was sent: ${words(error)}`;
      return false;
    }
    said.textContent = "Sending…";
    const come = await deliver("/decide", sent, (why) => `Your decision counts: ${why}.`);
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
    return counted || come.how === "left";
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

  /** Show what an edit would change, once all that was filled in can be read. */
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
    try {
      const run = encodeURIComponent(part("run").textContent);
      const { state, lines } = JSON.parse(await fetchText(`/story.json?run=${run}`));
      showText(part("run-state"), `State of the run: ${state}`);
      tellStory(part("story"), lines);
    } catch (error) {
      showText(part("story"), `The run does not answer: ${words(error)}`);
    }
  }

  /** Say what stands in the way, or is to be known, above the buttons. */
  function hinder(what) {
    part("hindrance").hidden = counted;
    showText(part("hindrance"), what);
  }
}

/**
 * Approve several requests: each is drawn whole and signed by itself; a passkey's one gesture signs
 * them all. One that cannot be shown whole keeps all of them from being approved here.
 */
async function several() {
  const calls = [];
  for (const place of document.querySelectorAll("[data-call]")) {
    calls.push(await drawn(place));
  }
  let signer = null;
  if (calls.length && calls.every(({ told }) => told !== null)) {
    const found = await signerFor(calls.map(({ told }) => told));
    signer = found.signer;
    if (found.why) {
      part("hindrance").hidden = false;
      showText(part("hindrance"), found.why);
    }
  }
  const off = signer === null || !calls.every(({ whole, told }) => whole && told.waits);
  part("approve").disabled = off;
  part("approve").addEventListener("click", approve);

  async function approve() {
    part("approve").disabled = true;
    const reason = part("reason").value.trim();
    let sent;
    try {
      part("said").textContent = "Signing…";
      const asked = calls.map(({ told }) => ({ request: told, outcome: "approve", reason }));
      sent = await signed(signer, asked);
    } catch (error) {
      showText(part("said"), `Nothing was sent: ${words(error)}`);
      part("approve").disabled = false;
      part("said").focus();
      return;
    }
    let counted = 0;
    for (const [at, decision] of sent.entries()) {
      const come = await deliver("/decide", decision, (why) => `Your decision counts: ${why}.`);
      const counts = come.how === "accepted";
      calls[at].check.className = counts ? "good" : "alarm";
      showText(calls[at].check, come.said);
      counted += counts ? 1 : 0;
    }
    part("said").textContent = `Decisions that count: ${counted} / ${sent.length}`;
    part("said").focus();
  }
}

async function drawn(place) {
  const id = place.dataset.call;
  const find = (name) => place.querySelector(`.${name}`);
  const call = { told: null, whole: false, check: find("check") };
  try {
    call.told = parseExact(await fetchText(`/approval.json?id=${encodeURIComponent(id)}`));
    call.whole = await drawCall(call.told, id, {
      tool: find("tool"),
      params: find("params"),
      hash: find("hash"),
      answers: find("answers"),
      answersPart: [find("answers")],
      check: call.check,
    });
    if (!call.told.waits) {
      doubt(call.check, "It waits no more.");
    }
  } catch (error) {
    doubt(call.check, notShown(error));
  }
  return call;
}

function notShown(error) {
  return `The params cannot be shown exactly (${words(error)}): approving is off.`;
}
