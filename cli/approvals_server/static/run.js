// One run: where it stands, what it asks, its story; and what people say to it.

import { parseExact } from "./canonical.js";
import { makeForm } from "./forms.js";
import { drawSteps, listSteps } from "./graph.js";
import { fetchText, follow, part, say, send } from "./page.js";
import { isHere, keyHere } from "./signing.js";
import { gesturedMessage, message, signedMessage } from "./steering.js";
import { tellStory } from "./story.js";
import { showJson, showText } from "./text.js";

const id = part("run").dataset.id;
const query = `?id=${encodeURIComponent(id)}`;
/** @type {any} */
let told = null;
/** @type {Map<string, HTMLElement>} What waits on this page, by all that is told of it. */
const drawn = new Map();
let labels = 0;

follow(`/follow/run${query}`, draw);

async function draw() {
  try {
    told = parseExact(await fetchText(`/run.json${query}`));
  } catch (error) {
    showText(part("state"), say("no_story", words(error)));
    return;
  }
  showText(part("state"), say("run_is", told.error ? `${told.state}: ${told.error}` : told.state));
  listSteps(part("steps"), told.graph.steps);
  drawSteps(part("drawing"), told.graph.drawing);
  tellStory(part("story"), told.story);
  drawWaiting([
    ...told.approvals.map((/** @type {any} */ one) => ({ one, make: approval })),
    ...told.questions.map((/** @type {any} */ one) => ({ one, make: question })),
    ...told.doubts.map(({ evidence, part, later, ...one }) => ({
      one,
      make: () => doubt(one, later),
      renew: (/** @type {HTMLElement} */ section) => showEvidence(section, evidence, part),
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

/** @param {any} one */
function approval(one) {
  const link = document.createElement("a");
  link.href = `/approval?id=${encodeURIComponent(one.id)}`;
  showText(link, one.text);
  return paragraph(`${say("approval_waits")} `, link);
}

/** @param {any} one */
function question(one) {
  const { section, add } = sectionOf(say("question", one.step_id), one.question);
  if (one.value !== null) {
    const about = document.createElement("pre");
    showJson(about, one.value);
    add(document.createTextNode(say("question_about")), about);
  }
  const place = document.createElement("div");
  const form = makeForm(one.answer_schema, undefined, place, say("your_answer"));
  const answer = button(say("answer"), async () => {
    if (!form.problems().length) {
      await tell("answer", { answers: { [one.interrupt_id]: form.value() } }, "answered");
    }
  });
  add(place, answer);
  return section;
}

/**
 * @param {any} one
 * @param {{outcomes: string[], left_ms: number} | null} later what cannot be said yet
 */
function doubt(one, later) {
  const { section, add } = sectionOf(say("doubt", one.step), one.text);
  const known = document.createElement("div");
  known.className = "known";
  add(known);
  if (one.elsewhere !== null) {
    const link = document.createElement("a");
    link.href = `/run?id=${encodeURIComponent(one.elsewhere)}`;
    showText(link, one.elsewhere);
    add(paragraph(`${say("doubt_elsewhere")} `, link));
    return section;
  }
  if (!one.outcomes.length) {
    add(paragraph(say("doubt_closed")));
    return section;
  }
  const outcome = document.createElement("select");
  outcome.append(...one.outcomes.map((/** @type {string} */ name) => new Option(say(name), name)));
  outcome.selectedIndex = -1; // nobody settles a doubt by leaving it as it is
  const evidence = document.createElement("textarea");
  const receipt = document.createElement("textarea");
  if (later !== null) {
    add(notYet(outcome, later));
  }
  add(labelled(say("outcome"), outcome), labelled(say("evidence"), evidence));
  if (one.outcomes.includes("happened")) {
    add(labelled(say("receipt"), receipt));
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
  add(settle);
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
  const heading = document.createElement("h3");
  heading.textContent = say("doubt_known");
  const list = document.createElement("dl");
  for (const [name, text] of evidence) {
    list.append(term("dt", name), term("dd", text));
  }
  if (done !== null) {
    const value = document.createElement("pre");
    try {
      showJson(value, parseExact(done));
    } catch {
      showText(value, done);
    }
    const around = document.createElement("dd");
    around.append(value);
    list.append(term("dt", say("doubt_part")), around);
  }
  section.querySelector(".known")?.replaceChildren(...(evidence.length ? [heading, list] : []));
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
  const line = paragraph(say("doubt_later", end.toLocaleTimeString()));
  line.className = "note";
  off.forEach((option) => (option.disabled = true));
  setTimeout(() => {
    off.forEach((option) => (option.disabled = false));
    line.remove();
  }, later.left_ms);
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
  let sent = message(principal, values);
  const { key } = await keyHere(tenant, principal);
  if (key !== null && told.keys.includes(key.kid)) {
    sent = await signedMessage({ tenant, run, verb, message: sent, key });
  } else if (told.passkeys.some(isHere)) {
    const passkeys = told.passkeys.filter(isHere);
    sent = await gesturedMessage({ tenant, run, verb, message: sent, passkeys });
  }
  const { status, answer } = await send("/steer", { run, verb, message: sent });
  const said = { 200: done, 202: "left", 409: "not_taken" }[status] ?? "failed";
  showText(part("said"), say(said, answer.message ?? answer.error));
  part("said").focus(); // the form that had it goes once it is answered
  await draw();
}

/** @param {(string | Node)[]} content */
function paragraph(...content) {
  const made = document.createElement("p");
  made.append(...content);
  return made;
}

/**
 * @param {"dt" | "dd"} name
 * @param {string} text
 */
function term(name, text) {
  const made = document.createElement(name);
  showText(made, text);
  return made;
}

/**
 * @param {string} title
 * @param {string} text
 */
function sectionOf(title, text) {
  const section = document.createElement("section");
  const heading = document.createElement("h2");
  showText(heading, title);
  const asked = document.createElement("p");
  showText(asked, text);
  section.append(heading, asked);
  const add = (/** @type {Node[]} */ ...nodes) => section.append(...nodes);
  return { section, add };
}

/**
 * @param {string} text
 * @param {HTMLElement} field
 */
function labelled(text, field) {
  labels += 1;
  field.id = `field-${labels}`;
  const label = document.createElement("label");
  label.htmlFor = field.id;
  label.textContent = text;
  const around = document.createElement("p");
  around.append(label, document.createElement("br"), field);
  return around;
}

/**
 * @param {string} text
 * @param {() => Promise<void>} press
 */
function button(text, press) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "main";
  made.textContent = text;
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      await press();
    } catch (error) {
      showText(part("said"), say("failed", words(error)));
    }
    made.disabled = false;
  });
  return made;
}

/** @param {unknown} error */
function words(error) {
  return error instanceof Error ? error.message : String(error);
}
