// One run: where it stands, what it asks, its story; and what people say to it.

import { parseExact } from "./canonical.js";
import { made } from "./elements.js";
import { makeForm } from "./forms.js";
import { drawSteps, listSteps } from "./graph.js";
import { at, fetchText, follow, part, say, send, words } from "./page.js";
import { isHere, keyHere, unsent } from "./signing.js";
import { gesturedMessage, message, signedMessage } from "./steering.js";
import { tellStory } from "./story.js";
import { showJson, shown, showText } from "./text.js";

const id = part("run").dataset.id;
const query = `?id=${encodeURIComponent(id)}`;
let told = null;
/** @type {Map<string, HTMLElement>} What waits on this page, by all that is told of it. */
const drawn = new Map();
let labels = 0;
/** How often it was asked what the run shows: an answer that a newer one has overtaken is dropped. */
let asked = 0;
/** Milliseconds until a run that has not answered is asked again: it may write no event meanwhile. */
const AGAIN = 5000;
/** @type {Map<string, string>} Ids of messages by what they say: the same one again counts once. */
const ids = new Map();

follow(`/follow/run${query}`, draw);
// Also where too many follow already.
await draw();

async function draw() {
  asked += 1;
  const mine = asked;
  try {
    const found = parseExact(await fetchText(`/run.json${query}`));
    if (mine !== asked) {
      return;
    }
    told = found;
  } catch (error) {
    if (mine === asked) {
      showText(part("state"), say("no_story", words(error)));
      setTimeout(() => mine === asked && draw(), AGAIN);
    }
    return;
  }
  showText(part("state"), say("run_is", told.error ? `${told.state}: ${told.error}` : told.state));
  listSteps(part("steps"), told.graph.steps);
  drawSteps(part("drawing"), told.graph.drawing);
  tellStory(part("story"), told.story);
  drawWaiting([
    ...told.approvals.map((one) => ({ one, make: approval })),
    ...told.questions.map((one) => ({ one, make: question })),
    ...told.doubts.map(({ evidence, part, later, ...one }) => ({
      one,
      make: () => doubt(one, later),
      renew: (section) => showEvidence(section, evidence, part),
    })),
  ]);
}

/**
 * Draw what is new, and take away what waits no more. What is there already is left as it is:
 * somebody may be filling it in.
 *
 * @param {{one: any, make: (one: any) => HTMLElement, renew?: (element: HTMLElement) => void}[]}
 *   waiting `renew`: draws what of it may change and nobody fills in
 */
function drawWaiting(waiting) {
  const wanted = new Map(waiting.map((each) => [JSON.stringify(each.one), each]));
  for (const [known, element] of drawn) {
    if (!wanted.has(known)) {
      element.remove();
      drawn.delete(known);
    }
  }
  const place = part("waits");
  let at = 0;
  for (const [known, { one, make, renew }] of wanted) {
    const element = drawn.get(known) ?? make(one);
    drawn.set(known, element);
    renew?.(element);
    // Not even moved where it is in its place: what is moved loses the focus.
    if (place.children[at] !== element) {
      place.insertBefore(element, place.children[at] ?? null);
    }
    at += 1;
  }
}

function approval(one) {
  return made("p", {}, `${say("approval_waits")} `, link("/approval?id=", one.id, one.text));
}

function question(one) {
  const section = sectionOf(say("question", one.step_id), one.question);
  if (one.value !== null) {
    const about = made("pre", {});
    showWhole(about, one.value);
    section.append(say("question_about"), about);
  }
  const place = made("div", {});
  const form = makeForm(JSON.parse(one.answer_schema), undefined, place, say("your_answer"));
  const answer = button(say("answer"), async () => {
    if (!form.problems().length) {
      await tell("answer", { answers: { [one.interrupt_id]: form.value() } }, "answered");
    }
  });
  section.append(place, answer);
  return section;
}

/**
 * @param {any} one
 * @param {{outcomes: string[], left_ms: number} | null} later what cannot be said yet
 */
function doubt(one, later) {
  const section = sectionOf(say("doubt", one.step), one.text);
  section.append(made("div", { className: "known" }));
  if (one.elsewhere !== null) {
    const own = link("/run?id=", one.elsewhere, one.elsewhere);
    section.append(made("p", {}, `${say("doubt_elsewhere")} `, own));
    return section;
  }
  if (!one.outcomes.length) {
    section.append(made("p", {}, say("doubt_closed")));
    return section;
  }
  const outcome = made("select", {}, ...one.outcomes.map((name) => new Option(say(name), name)));
  outcome.selectedIndex = -1; // nobody settles a doubt by leaving it as it is
  const [evidence, receipt] = [made("textarea", {}), made("textarea", {})];
  if (later !== null) {
    section.append(notYet(outcome, later));
  }
  section.append(labelled(say("outcome"), outcome), labelled(say("evidence"), evidence));
  if (one.outcomes.includes("happened")) {
    section.append(labelled(say("receipt"), receipt));
  }
  const settle = button(say("settle"), async () => {
    if (!outcome.value) {
      outcome.focus();
      return;
    }
    const written = receipt.value.trim();
    const values = {
      intervention_id: one.id,
      outcome: outcome.value,
      evidence: evidence.value.trim(),
      receipt: written ? parseExact(written) : undefined,
    };
    await tell("resolve", values, "settled");
  });
  section.append(settle);
  return section;
}

/**
 * Show what is on record of a doubt.
 *
 * @param {HTMLElement} section the doubt's
 * @param {[string, string][]} evidence each with what it is
 * @param {string | null} done what is recorded of an effect that happened in part, as JSON
 */
function showEvidence(section, evidence, done) {
  const list = made("dl", {});
  for (const [name, text] of evidence) {
    list.append(made("dt", {}, shown(name)), made("dd", {}, shown(text)));
  }
  if (done !== null) {
    const value = made("pre", {});
    showWhole(value, done);
    list.append(made("dt", {}, say("doubt_part")), made("dd", {}, value));
  }
  const heading = made("h3", {}, say("doubt_known"));
  section.querySelector(".known")?.replaceChildren(...(evidence.length ? [heading, list] : []));
}

/**
 * Show a value that nothing is signed for: letter by letter if the browser cannot hold it.
 *
 * @param {HTMLElement} place
 * @param {string} json
 */
function showWhole(place, json) {
  try {
    showJson(place, parseExact(json));
  } catch {
    showText(place, json);
  }
}

/**
 * Turn off what cannot be said yet, until it can be; returns the line that says so.
 *
 * @param {HTMLSelectElement} outcome
 * @param {{outcomes: string[], left_ms: number}} later
 */
function notYet(outcome, later) {
  const off = [...outcome.options].filter(({ value }) => later.outcomes.includes(value));
  const end = new Date(Date.now() + later.left_ms);
  const line = made("p", { className: "note" }, say("doubt_later", end.toLocaleString()));
  off.forEach((option) => (option.disabled = true));
  at(performance.now() + later.left_ms, () => {
    off.forEach((option) => (option.disabled = false));
    line.remove();
  });
  return line;
}

/**
 * Have the run told something, signed if there is a key or a passkey that is registered.
 *
 * @param {string} verb
 * @param {{[name: string]: any}} values
 * @param {string} done what is said once the run has taken it
 */
async function tell(verb, values, done) {
  const { tenant, principal, run_id: run } = told;
  const content = JSON.stringify([verb, values]);
  let sent = message(principal, values, ids.get(content));
  ids.set(content, sent.id);
  const { key } = await keyHere(tenant, principal);
  if (key !== null && told.keys.includes(key.kid)) {
    sent = await signedMessage({ tenant, run, verb, message: sent, key });
  } else if (told.passkeys.some(isHere)) {
    const passkeys = told.passkeys.filter(isHere);
    sent = await gesturedMessage({ tenant, run, verb, message: sent, passkeys });
  }
  try {
    const { status, answer } = await send("/steer", { run, verb, message: sent });
    const said = { 200: done, 202: "left", 409: "not_taken" }[status] ?? unsent(status);
    showText(part("said"), say(said, answer.message ?? answer.error));
  } catch (error) {
    showText(part("said"), say("lost", words(error)));
  }
  part("said").focus(); // the form that had it goes once it is answered
  await draw();
}

function link(path, id, text) {
  return made("a", { href: path + encodeURIComponent(id) }, shown(text));
}

function sectionOf(title, text) {
  return made("section", {}, made("h2", {}, shown(title)), made("p", {}, shown(text)));
}

function labelled(text, field) {
  labels += 1;
  field.id = `field-${labels}`;
  const label = made("label", { htmlFor: field.id }, text);
  return made("p", {}, label, made("br", {}), field);
}

function button(text, press) {
  const pressed = made("button", { type: "button", className: "main" }, text);
  pressed.addEventListener("click", async () => {
    pressed.disabled = true;
    try {
      await press();
    } catch (error) {
      showText(part("said"), say("failed", words(error)));
    }
    pressed.disabled = false;
  });
  return pressed;
}
