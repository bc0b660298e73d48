// A flat form for a JSON value: a field for each text, number, yes or no, and choice. Whatever is
// not flat is one text area of JSON. What nobody touches comes back as it was; the worker validates.

import { hides, isObject, labelOf } from "./call.js";
import { canonical, NotExact, parseExact } from "./canonical.js";
import { jsonText, made, plain, shown } from "./page.js";

/** @typedef {{element: HTMLElement, value: () => any, check: () => string}} Field */

const KINDS = ["string", "integer", "number", "boolean", "null"];
const WHOLE = /^-?(?:0|[1-9][0-9]*)$/;
const NUMBER = /^-?(?:0|[1-9])[0-9.eE+-]*$/;
/** Choices of a question that are buttons; more are a list to choose from. */
const MOST_BUTTONS = 6;
const WORDS = { true: "yes", false: "no", null: "nothing" };
let ids = 0;

/**
 * Make a form in the place of what an element has. `value`: what it begins with; `undefined`: with
 * nothing. `label`: of a form that is one field. What it returns throws while something is wrong.
 */
export function makeForm(schema, value, place, label = "Params as JSON") {
  const flat = flatFields(schema, value);
  const fields = flat ?? [["", loneField(schema, value, label)]];
  place.replaceChildren(...fields.map(([, { element }]) => element));
  // Each is looked at, so that each says what is wrong with it.
  const wrong = () => fields.map(([, field]) => field.check()).filter(Boolean);
  return {
    isWrong: () => wrong().length > 0,
    value() {
      const [first] = wrong();
      if (first !== undefined) {
        throw new NotExact(first);
      }
      const given = fields.map(([name, field]) => [name, field.value()]);
      return flat ? Object.fromEntries(given.filter(([, one]) => one !== undefined)) : given[0][1];
    },
  };
}

/** Return what a schema offers as buttons; `undefined`: nothing, or too much for buttons. */
export function choicesOf(schema) {
  const [found] = [schema, ...(schema.anyOf ?? [])]
    .map((one) => (one.type === "boolean" ? [true, false] : one.enum))
    .filter(Boolean);
  return found?.length <= MOST_BUTTONS ? found : undefined;
}

/** Return a field for each member; `undefined`: the value, or what it may be, is not flat. */
function flatFields(schema, value) {
  const known = isObject(schema) ? (schema.properties ?? {}) : {};
  const names = [...new Set([...Object.keys(known), ...Object.keys(isObject(value) ? value : {})])];
  if (!names.length || (value !== undefined && !isObject(value))) {
    return undefined;
  }
  const required = Array.isArray(schema?.required) ? schema.required : [];
  const fields = names.map((name) => {
    const own = value !== undefined && Object.hasOwn(value, name) ? value[name] : undefined;
    const about = Object.hasOwn(known, name) ? known[name] : {};
    // What a value lacks, an edit need not add.
    const needed = required.includes(name) && (value === undefined || own !== undefined);
    const label = labelOf(name, names);
    const text = typeof label === "string" ? label : name;
    const field = simpleField(text, about, own, needed);
    return field && [name, field];
  });
  return fields.includes(undefined) ? undefined : fields;
}

/** Return the one field of a value that is not flat: a text where a text will do, else JSON. */
function loneField(schema, value, label) {
  const anything = value === undefined && isObject(schema) && !Object.keys(schema).length;
  const about = anything ? { type: "string" } : schema;
  const field = simpleField(label, about, value, true, value !== undefined);
  if (field) {
    return field;
  }
  const begins = value === undefined ? "" : jsonText(value);
  const input = made("textarea", { className: "json", rows: 8, spellcheck: false, value: begins });
  return control(input, label, {}, () => parseExact(input.value));
}

/**
 * Return a field for one simple thing; `undefined`: it is none, or nobody would see all of it.
 * `blank`: whether a text may be; the worker refuses it as a whole answer.
 *
 * @returns {Field | undefined}
 */
function simpleField(name, schema, value, needed, blank = true) {
  const about = isObject(schema) ? schema : {};
  const branches = [about, ...(about.anyOf ?? about.oneOf ?? [])].filter(isObject);
  const listed = branches.flatMap((one) => one.enum ?? ("const" in one ? [one.const] : []));
  const types = branches.flatMap(({ type }) => type ?? []);
  const kinds = types.length || listed.length || value === undefined ? types : [typeof value];
  const known = kinds.length + listed.length > 0 && kinds.every((one) => KINDS.includes(one));
  const shows = value === null || typeof value !== "object";
  if (!known || !shows || hides(value) || branches.some((one) => "$ref" in one)) {
    return undefined;
  }
  if (listed.length || kinds.every((one) => one === "boolean" || one === "null")) {
    const both = listed.length ? listed : [true, false];
    return choiceField(name, about, kinds.includes("null") ? [...both, null] : both, value, needed);
  }
  const begins = value === undefined ? "" : typeof value === "string" ? value : jsonText(value);
  const input = made(/\n|^.{60}/s.test(begins) ? "textarea" : "input", { value: begins });
  const isText = kinds.includes("string") && typeof value !== "number";
  return control(input, name, about, () => {
    const typed = input.value;
    if (typed === begins && (value !== undefined || !needed)) {
      return value;
    }
    if (!typed.trim() && (!isText || !needed)) {
      return !needed ? undefined : kinds.includes("null") ? null : refuse("This is needed.");
    }
    if (!typed.trim() && !blank && !("minLength" in about)) {
      return refuse("This is needed.");
    }
    return isText ? exactText(typed) : readNumber(typed.trim(), !kinds.includes("number"));
  });
}

function exactText(typed) {
  canonical(typed);
  return typed;
}

/** A number is text until it is read: `4000` stays whole, and no digit is lost. */
function readNumber(typed, whole) {
  if (!(whole ? WHOLE : NUMBER).test(typed)) {
    refuse(whole ? "Write a whole number, such as 12." : "Write a number, such as 12 or 12.5.");
  }
  return parseExact(typed);
}

function refuse(why) {
  throw new NotExact(why);
}

function choiceField(name, schema, choices, value, needed) {
  const options = needed ? choices : [undefined, ...choices];
  const texts = options.map((one) =>
    one === undefined ? "left out" : typeof one === "string" ? one : (WORDS[one] ?? jsonText(one)),
  );
  const select = made("select", {}, ...texts.map((text) => new Option(plain(text))));
  const same = (one) => one !== undefined && value !== undefined && jsonText(one) === jsonText(value);
  const begins = value === undefined && !needed ? 0 : options.findIndex(same);
  select.selectedIndex = begins;
  return control(select, name, schema, () => {
    if (select.selectedIndex === begins && (value !== undefined || !needed)) {
      return value;
    }
    return select.selectedIndex < 0 ? refuse("Choose one.") : options[select.selectedIndex];
  });
}

/** Return a control with its label, what it is for, and what is wrong with it. */
function control(input, name, schema, value) {
  ids += 1;
  input.id = `field-${ids}`;
  const about = typeof schema.description === "string" ? schema.description : "";
  const hint = made("p", { className: "hint", id: `${input.id}-hint` }, about && shown(about));
  const problem = made("p", { className: "problem", id: `${input.id}-problem` });
  input.setAttribute("aria-describedby", `${hint.id} ${problem.id}`);
  const check = () => {
    let wrong = "";
    try {
      value();
    } catch (error) {
      if (!(error instanceof NotExact)) {
        throw error;
      }
      wrong = error.message;
    }
    problem.textContent = plain(wrong);
    input.setAttribute("aria-invalid", String(wrong !== ""));
    return wrong && `${plain(name)}: ${wrong}`;
  };
  input.addEventListener("change", check);
  const label = made("label", { htmlFor: input.id }, shown(name));
  return { element: made("div", { className: "field" }, label, hint, input, problem), value, check };
}
