// Several requests at once: each is drawn whole, each is signed by itself; a passkey's one gesture
// signs them all. What cannot be shown whole keeps all of them from being approved here.

import { doubt, drawCall } from "./call.js";
import { parseExact } from "./canonical.js";
import { fetchText, part, say, words } from "./page.js";
import { deliver, signed, signerFor } from "./signing.js";
import { showText } from "./text.js";

const calls = [];
let signer = null;

for (const place of document.querySelectorAll("[data-call]")) {
  await draw(place);
}
if (calls.length && calls.every(({ told }) => told !== null)) {
  const found = await signerFor(calls.map(({ told }) => told));
  signer = found.signer;
  if (found.why) {
    part("hindrance").hidden = false;
    part("hindrance").textContent = say(found.why, found.detail);
  }
}
part("approve").disabled = signer === null || !calls.every(({ whole, told }) => whole && told.waits);
part("approve").addEventListener("click", approve);

async function draw(place) {
  const id = place.dataset.call;
  const find = (name) => place.querySelector(`.${name}`);
  const call = { told: null, whole: false, check: find("check") };
  calls.push(call);
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
      doubt(call.check, say("waits_no_more"));
    }
  } catch (error) {
    doubt(call.check, say("not_exact", words(error)));
  }
}

async function approve() {
  part("approve").disabled = true;
  const reason = part("reason").value.trim();
  let sent;
  try {
    part("said").textContent = say("signing");
    const asked = calls.map(({ told }) => ({ request: told, outcome: "approve", reason }));
    sent = await signed(signer, asked);
  } catch (error) {
    showText(part("said"), say("failed", words(error)));
    part("approve").disabled = false;
    part("said").focus();
    return;
  }
  let counted = 0;
  for (const [at, decision] of sent.entries()) {
    counted += (await decided(decision, calls[at].check)) ? 1 : 0;
  }
  part("said").textContent = say("counted", `${counted} / ${sent.length}`);
  part("said").focus();
}

/** Send one decision, and say beside its call what has come of it. */
async function decided(decision, check) {
  const { how, said } = await deliver(decision);
  check.className = how === "accepted" ? "good" : "alarm";
  showText(check, said);
  return how === "accepted";
}
