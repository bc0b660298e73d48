// One run: where it stands, its steps, what it asks, its story; and what people say to it.

import { drawCall, jsonNodes } from "./call.js";
import { parseExact } from "./canonical.js";
import { choicesOf, makeForm } from "./forms.js";
import {
  askRun,
  at,
  fetchText,
  follow,
  jsonText,
  made,
  part,
  plain,
  shown,
  showText,
  tellStory,
  timeOf,
  words,
} from "./page.js";
import { deliver, message, signedMessage, signerFor } from "./signing.js";

/** What a doubt's outcomes mean. */
const OUTCOMES = {
  happened: "It happened",
  not_happened: "It did not happen: do it now",
  call_off: "It did not happen: leave it",
  compensated: "It happened, and somebody has undone it",
  undo: "It happened: undo it",
  give_up: "Nobody can tell: list it among what was not taken back",
};
const JUMPS = { on_no: "a no", on_failure: "a failure", on_reject: "a rejection" };
/** What the usual answers are called on their buttons. */
const ANSWERS = { true: "Yes", false: "No", accept: "Go ahead", reject: "Stop it" };
const id = part("run").dataset.id;
const query = `?id=${encodeURIComponent(id)}`;
let told = null;
/** @type {Map<string, HTMLElement>} What waits on this page, by all that is told of it. */
const drawn = new Map();
let labels = 0;
/** A time of the server's. */
const TIME = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$/;
/** How often the run was asked: an answer that a newer one has overtaken is dropped. */
let asked = 0;
/** Milliseconds until a run that has not answered is asked again: it may write no event. */
const AGAIN = 5000;
/** @type {Map<string, string>} Ids of messages by what they say: the same one again counts once. */
const ids = new Map();

part("undo").addEventListener("toggle", previewUndo);
previewUndo(); // it may have been opened before
follow(`/follow/run${query}`, draw);
// Also where too many follow already.
await draw();

/** Say what `unwind --dry-run` says now; it is asked each time that it is opened. */
async function previewUndo() {
  if (!part("undo").open) {
    return;
  }
  showText(part("undone"), "Asking a worker…");
  try {
    const found = JSON.parse(await fetchText(`/undo.json${query}`));
    part("undone").replaceChildren();
    const undone = found.undone.map((step) => made("li", {}, shown(step)));
    const left = found.left.map(({ step_id: step, reason }) =>
      made("li", {}, made("b", {}, shown(step)), ": ", shown(reason)),
    );
    listUnder("Would be undone, in this order", undone, found.more_undone);
    listUnder("Would not be undone", left, found.more_left);
  } catch (error) {
    showText(part("undone"), `This cannot be said: ${words(error)}`);
  }
}

function listUnder(title, lines, more) {
  const rest = more ? [`and ${more} more`] : lines.length ? [] : ["nothing"];
  const all = [...lines, ...rest.map((text) => made("li", {}, text))];
  part("undone").append(made("h3", {}, title), made("ol", {}, ...all));
}

async function draw() {
  asked += 1;
  const mine = asked;
  try {
    const found = parseExact(await askRun(`/run.json${query}`));
    if (mine !== asked) {
      return;
    }
    told = found;
  } catch (error) {
    if (mine === asked) {
      showText(part("state"), words(error));
      setTimeout(() => mine === asked && draw(), AGAIN);
    }
    return;
  }
  showText(part("run"), told.title);
  document.title = `${plain(told.title)} · Surehand`;
  const state = made("b", { className: told.kind === "danger" ? "alarm" : "" }, shown(told.state));
  part("state").replaceChildren(state, " ", shown(told.started));
  part("steps").replaceChildren(...told.steps.map(step));
  tellStory(part("story"), told.story);
  drawWaiting([
    ...told.approvals.map((one) => ({ one, make: approval })),
    ...told.questions.map((one) => ({ one, make: question })),
    ...told.pauses.map((one) => ({ one, make: pause })),
    ...told.doubts.map(({ evidence, part, later, call, ...one }) => ({
      one,
      make: () => doubt(one, later),
      renew: (section) => {
        showCall(section.querySelector(".called"), call);
        showEvidence(section, evidence, part);
      },
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
    // Not even moved where it is in its place: what is moved loses the focus.
    if (place.children[at] !== element) {
      place.insertBefore(element, place.children[at] ?? null);
    }
    renew?.(element); // in its place: a call is read back from where it is seen
    at += 1;
  }
}

function approval(one) {
  return sectionOf("Waiting for an approval", link("/approval?id=", one.id, one.text));
}

function pause({ text, remedy, command }) {
  const section = sectionOf("It does not go on", shown(text));
  section.append(made("p", {}, remedy), made("pre", { tabIndex: 0 }, shown(command)));
  return section;
}

function question(one) {
  const schema = JSON.parse(one.answer_schema);
  const kind = one.kind === "before" ? "Before this step" : "It asks";
  const section = sectionOf(kind, shown(one.question));
  if (one.value !== null) {
    section.append(made("pre", { tabIndex: 0 }, ...wholeNodes(one.value)));
  }
  const say = (value) =>
    tell("answer", { answers: { [one.interrupt_id]: value } }, "Your answer counts");
  const choices = choicesOf(schema);
  if (choices) {
    const buttons = choices.map((value) => {
      const text = typeof value === "string" ? value : jsonText(value);
      return button(ANSWERS[text] ?? plain(text), () => say(value), "");
    });
    section.append(made("p", { className: "buttons" }, ...buttons));
  }
  if (!choices || schema.anyOf) {
    const place = made("div", {});
    const form = makeForm(choices ? true : schema, undefined, place, "Your answer");
    const answer = button("Answer", () => form.isWrong() || say(form.value()));
    const parts = [place, made("p", {}, answer)];
    const more = made("details", {}, made("summary", {}, "Answer something else"), ...parts);
    section.append(...(choices ? [more] : parts));
  }
  return section;
}

/** Draw a doubt; `later`: what cannot be said yet, and for how long. */
function doubt(one, later) {
  const section = sectionOf("Nobody knows whether this happened", shown(one.text));
  section.append(made("div", { className: "called" }));
  const known = made("details", {}, made("summary", {}, "What is on record"));
  known.append(made("div", { className: "known" }));
  if (one.elsewhere !== null) {
    const own = link("/run?id=", one.elsewhere, one.elsewhere);
    section.append(made("p", {}, "Say so on the page of its own run: ", own), known);
    return section;
  }
  if (!one.outcomes.length) {
    section.append(made("p", {}, "This is settled."), known);
    return section;
  }
  const options = one.outcomes.map((name) => new Option(OUTCOMES[name], name));
  const outcome = made("select", {}, ...options);
  outcome.selectedIndex = -1; // nobody settles a doubt by leaving it as it is
  const [evidence, receipt] = [made("textarea", {}), made("textarea", {})];
  if (later !== null) {
    section.append(notYet(outcome, later));
  }
  section.append(labelled("What happened", outcome), labelled("How you know", evidence));
  if (one.outcomes.includes("happened")) {
    const what = "What it returned, as JSON (only if it happened)";
    section.append(labelled(what, receipt));
  }
  section.append(known);
  const settle = button("Settle it", async () => {
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
    await tell("resolve", values, "It is settled");
  });
  section.append(made("p", {}, settle));
  return section;
}

/** Show the call of a doubt as its approval does; `json`: `null` if it is secret or sealed. */
function showCall(place, json) {
  try {
    if (json !== null) drawCall(parseExact(json), null, place);
  } catch {
    place.replaceChildren(made("pre", { tabIndex: 0 }, shown(json)));
  }
}

/** Show what is on record of a doubt; `done`: what happened of it in part, as JSON. */
function showEvidence(section, evidence, done) {
  const told = (text) => (TIME.test(text) ? timeOf(text) : shown(text));
  const texts = evidence.map(([name, text]) => [told(name), told(text)]);
  const parts = done === null ? [] : [["Done so far", made("pre", {}, ...wholeNodes(done))]];
  const lines = [...texts, ...parts].map(([name, inside]) =>
    made("div", {}, made("dt", {}, name), made("dd", {}, inside)),
  );
  section.querySelector(".known").replaceChildren(made("dl", { className: "fields" }, ...lines));
}

/** Return a value that nothing is signed for, letter by letter if it is not exact here. */
function wholeNodes(json) {
  try {
    return jsonNodes(parseExact(json));
  } catch {
    return [shown(json)];
  }
}

/** Turn off what cannot be said yet, until it can be; return the line that says so. */
function notYet(outcome, later) {
  const off = [...outcome.options].filter(({ value }) => later.outcomes.includes(value));
  const end = new Date(Date.now() + later.left_ms);
  const line = made(
    "p",
    { className: "note" },
    "The call may still arrive. You can rule it out from ",
    timeOf(end.toISOString()),
    " on.",
  );
  off.forEach((option) => (option.disabled = true));
  at(performance.now() + later.left_ms, () => {
    off.forEach((option) => (option.disabled = false));
    line.remove();
  });
  return line;
}

/** Tell the run something, signed if there is a key or a passkey that is registered. */
async function tell(verb, values, done) {
  const { tenant, principal, run_id: run } = told;
  const content = JSON.stringify([verb, values]);
  const unsigned = message(principal, values, ids.get(content));
  ids.set(content, unsigned.id);
  const { signer } = await signerFor([{ ...told, proof: "open" }]);
  const sent = await signedMessage(signer ?? {}, { tenant, run, verb, message: unsigned });
  const come = await deliver("/steer", { run, verb, message: sent }, () => `${done}.`);
  showText(part("said"), come.said);
  part("said").focus(); // the form that had it goes once it is answered
  await draw();
}

function link(path, id, text) {
  return made("a", { href: path + encodeURIComponent(id) }, shown(text));
}

function sectionOf(kind, ...inside) {
  const about = made("p", { className: "note" }, kind);
  return made("section", { className: "card" }, about, made("h2", {}, ...inside));
}

function labelled(text, field) {
  labels += 1;
  field.id = `field-${labels}`;
  return made("div", { className: "field" }, made("label", { htmlFor: field.id }, text), field);
}

function button(text, press, className = "main") {
  const pressed = made("button", { type: "button", className }, text);
  pressed.addEventListener("click", async () => {
    pressed.disabled = true;
    try {
      await press();
    } catch (error) {
      showText(part("said"), `Nothing was sent: ${words(error)}`);
    }
    pressed.disabled = false;
  });
  return pressed;
}

function step(one) {
  const tag = made("span", { className: `tag ${one.kind}` }, one.words);
  const item = made("li", {}, made("b", {}, shown(one.id)), " ", shown(one.does), tag);
  Object.assign(item.dataset, { step: one.id, state: one.state });
  const notes = [
    ...(one.after.length ? [`After ${one.after.join(", ")}.`] : []),
    ...(one.when === null ? [] : [`Only if ${one.when}.`]),
    ...one.jumps.map(({ to, on }) => `After ${on.map((end) => JUMPS[end]).join(" or ")}: ${to}.`),
    ...one.notes,
  ];
  item.append(...notes.map((note) => made("p", {}, shown(note))));
  if (one.child !== null) {
    item.append(made("p", {}, "Its own run: ", link("/run?id=", one.child, one.child)));
  }
  return item;
}
