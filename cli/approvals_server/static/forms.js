// A flat form for a JSON value, made from its schema; and what an edit changes.
//
// A text, a number, a yes or no and an enumeration gets a control of its own, also as a member of
// an object. Everything else is written as JSON, and so is a value that does not fit its schema:
// what nobody touches comes back as it was. The worker validates.

import { canonical, NotExact, parseExact } from "./canonical.js";
import { jsonText, made, plain, shown } from "./page.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {{[name: string]: any}} Schema */
/** @typedef {{path: string, message: string}} Problem */

/**
 * A part of a form.
 *
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {() => any} value `undefined`: it is left out; throws `NotExact` while it is wrong
 * @property {() => Problem[]} problems shows them as well
 */

/** Characters from which a text gets more than one line. */
const LONG = 100;
const WHOLE = /^-?(?:0|[1-9][0-9]*)$/;
const NUMBER = /^-?(?:0|[1-9])[0-9.eE+-]*$/;
let ids = 0;

/**
 * Make a form in the place of what an element has.
 *
 * @param {Json} schema
 * @param {Json | undefined} value what the form begins with; `undefined`: with nothing
 * @param {Element} element
 * @param {string} [name] what the label of the whole says
 * @returns {{value: () => any, problems: () => Problem[]}} `value` throws while there are problems
 */
export function makeForm(schema, value, element, name = "") {
  const whole = { name, path: "", needed: true };
  const root = resolved(schema, schema);
  const flat = isObject(root.properties) && (value === undefined || isObject(value));
  /** @type {Field} */
  let form = flat
    ? objectField(root, schema, value, whole)
    : field(root, schema, value, whole);
  element.replaceChildren(form.element);
  if (flat) {
    const toJson = made("button", { type: "button" }, "All of it as JSON");
    toJson.addEventListener("click", () => {
      form = jsonField({}, form.problems().length ? value : form.value(), whole);
      element.replaceChildren(form.element);
      element.querySelector("textarea")?.focus();
    });
    element.append(toJson);
  }
  return {
    problems: () => form.problems(),
    value() {
      const [first] = form.problems();
      if (first !== undefined) {
        throw new Error(first.path === "" ? first.message : `${first.path}: ${first.message}`);
      }
      return form.value();
    },
  };
}

/** Return a field for each member of an object, and one for members of no schema. */
function objectField(schema, root, given, { name }) {
  const value = given ?? {};
  const members = Object.entries(schema.properties);
  const known = new Set(members.map(([name]) => name));
  const required = Array.isArray(schema.required) ? schema.required : [];
  const fields = members.map(([name, one]) => {
    const own = Object.hasOwn(value, name) ? value[name] : undefined;
    // What a value lacks, an edit need not add.
    const needed = required.includes(name) && (given === undefined || own !== undefined);
    const place = { name, path: name, needed };
    return { name, part: field(one, root, own, place) };
  });
  const rest = Object.entries(value).filter(([name]) => !known.has(name));
  const further = "further members";
  const takes = (found) => isObject(found) && Object.keys(found).every((name) => !known.has(name));
  const place = { name: further, path: further, needed: true };
  const open = schema.additionalProperties === true || isObject(schema.additionalProperties);
  const others = () => [jsonField({}, Object.fromEntries(rest), place, takes)];
  const more = rest.length > 0 || open ? others() : [];
  const parts = [...fields.map(({ part }) => part), ...more];
  const text = typeof schema.description === "string" ? [hint(schema.description)] : [];
  const inside = [made("legend", {}, plain(name)), ...text, ...parts.map(({ element }) => element)];
  return {
    element: made("fieldset", {}, ...inside),
    value() {
      const own = fields.map(({ name, part }) => [name, part.value()]);
      const further = more.flatMap((part) => Object.entries(part.value()));
      return Object.fromEntries([...own.filter(([, one]) => one !== undefined), ...further]);
    },
    problems: () => parts.flatMap((part) => part.problems()),
  };
}

/**
 * @param {Json} given schema
 * @param {Json} root
 * @param {Json | undefined} value
 * @param {{name: string, path: string, needed: boolean}} place
 * @returns {Field}
 */
function field(given, root, value, place) {
  const schema = resolved(given, root);
  const kind = kindOf(schema, root, value, place.needed);
  switch (kind?.type) {
    case "boolean":
      return checkbox(schema, value === true, place);
    case "enum":
      return enumField(schema, kind.choices, value, place);
    case "string":
      return textField({ ...schema, ...kind }, value, place);
    case "integer":
    case "number":
      return numberField(schema, kind.type, value, place);
    default:
      return jsonField(schema, value, place);
  }
}

/** Return the kind of control that a value gets; `undefined`: it is written as JSON. */
function kindOf(schema, root, value, needed) {
  const choices = schema.anyOf ?? schema.oneOf ?? [schema];
  const kinds = (Array.isArray(choices) ? choices : []).flatMap((one) => {
    const { enum: listed, const: only, type, ...more } = resolved(one, root);
    if (Array.isArray(listed) || only !== undefined) {
      return [{ type: "enum", choices: listed ?? [only] }];
    }
    return [type].flat().map((name) => ({ ...more, type: String(name) }));
  });
  if (value !== undefined) {
    return kinds.find((kind) => fits(kind, value));
  }
  // A decimal may be a text or a number: a text keeps each digit.
  const [first, ...others] = kinds
    .filter(({ type }) => needed || type !== "null")
    .filter(({ type }, _, all) => type !== "number" || all.every((one) => one.type !== "string"));
  if (others.length > 0) {
    return undefined;
  }
  const optional = first?.type === "boolean" && !needed; // one more than yes and no: left out
  return optional ? { type: "enum", choices: [true, false] } : first;
}

function fits({ type, choices }, value) {
  switch (type) {
    case "enum":
      return choices.some((one) => jsonText(one) === jsonText(value));
    case "integer":
      return Number.isSafeInteger(value);
    default:
      return typeof value === type;
  }
}

function checkbox(schema, checked, place) {
  const input = made("input", { type: "checkbox", checked });
  return control(input, schema, place, () => input.checked);
}

function enumField(schema, listed, value, place) {
  const choices = place.needed ? listed : [undefined, ...listed];
  const texts = choices.map((one) =>
    one === undefined ? "left out" : typeof one === "string" ? plain(one) : jsonText(one),
  );
  const select = made("select", {}, ...texts.map((text) => made("option", {}, text)));
  const text = (one) => one !== undefined && jsonText(one);
  select.selectedIndex = choices.findIndex((one) => text(one) === text(value));
  return control(select, schema, place, () => {
    if (select.selectedIndex < 0) {
      throw new NotExact("Choose one.");
    }
    return choices[select.selectedIndex];
  });
}

function textField(schema, value, place) {
  const text = value ?? "";
  const seen = text.replaceAll("\n", "");
  if (plain(seen) !== seen) {
    // In a text field nobody would see it, and the browser would change the ends of lines.
    return jsonField(schema, text, place, (found) => typeof found === "string");
  }
  const oneLine = schema.pattern !== undefined || schema.format !== undefined;
  const lines = text.includes("\n") || text.length > LONG || !oneLine;
  const input = made(lines ? "textarea" : "input", { value: text });
  return control(input, schema, place, () => {
    canonical(input.value);
    // What was empty from the beginning stays so.
    return input.value === "" && !place.needed && value !== "" ? undefined : input.value;
  });
}

/** A number is text until it is read: `4000` stays whole, and no digit is lost. */
function numberField(schema, type, value, place) {
  const whole = type === "integer";
  const text = value === undefined ? "" : JSON.stringify(value);
  const input = made("input", { inputMode: whole ? "numeric" : "decimal", value: text });
  return control(input, schema, place, () => {
    const typed = input.value.trim();
    if (typed === "" && !place.needed) {
      return undefined;
    }
    if (!(whole ? WHOLE : NUMBER).test(typed)) {
      const digits = "Write a whole number, with digits only.";
      throw new NotExact(whole ? digits : "Write a number such as 12 or 12.5.");
    }
    return parseExact(typed);
  });
}

function jsonField(schema, value, place, takes = (_) => true) {
  const text = value === undefined ? "" : jsonText(value);
  const input = made("textarea", { className: "json", spellcheck: false, value: text });
  const described = [schema.description, "Written as JSON."];
  const description = described.filter((one) => typeof one === "string").join(" ");
  return control(input, { description }, place, () => {
    if (input.value.trim() === "" && !place.needed) {
      return undefined;
    }
    const found = parseExact(input.value);
    if (!takes(found)) {
      throw new NotExact("This is JSON of another kind than is asked for.");
    }
    return found;
  });
}

/**
 * Return a control with its label, what it is for, and what is wrong with it.
 *
 * @param {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} input
 * @param {Schema} schema
 * @param {{name: string, path: string}} place
 * @param {() => any} read
 * @returns {Field}
 */
function control(input, schema, { name, path }, read) {
  input.id = newId();
  const label = made("label", { htmlFor: input.id }, plain(name));
  const text = typeof schema.description === "string" ? [hint(schema.description)] : [];
  const problem = made("p", { className: "problem", id: newId() });
  input.setAttribute("aria-describedby", [...text, problem].map(({ id }) => id).join(" "));

  const problems = () => {
    let message = "";
    try {
      read();
    } catch (error) {
      if (!(error instanceof NotExact)) {
        throw error;
      }
      message = error.message;
    }
    problem.textContent = plain(message);
    input.setAttribute("aria-invalid", String(message !== ""));
    return message === "" ? [] : [{ path, message }];
  };
  input.addEventListener("change", problems);
  const element = made("div", { className: "field" }, label, ...text, input, problem);
  return { element, value: read, problems };
}

/** Return a schema without its reference; what is not understood allows any JSON. */
function resolved(schema, root) {
  const name = isObject(schema) && /^#\/\$defs\/([^/~]+)$/.exec(String(schema.$ref))?.[1];
  const definitions = isObject(root) && isObject(root.$defs) ? root.$defs : {};
  if (name) {
    const found = Object.hasOwn(definitions, name) ? definitions[name] : {};
    const { $ref, ...beside } = schema;
    return isObject(found) && found.$ref === undefined ? { ...found, ...beside } : {};
  }
  return isObject(schema) ? schema : {};
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function hint(text) {
  return made("p", { className: "hint", id: newId() }, plain(text));
}

function newId() {
  ids += 1;
  return `form-${ids}`;
}

/**
 * @typedef {object} Difference
 * @property {"added" | "removed" | "changed"} kind
 * @property {string} path such as `lines[0].sku`; empty: the whole value
 * @property {string} [before] as canonical JSON, so that `1` and `"1"` are two things
 * @property {string} [after] likewise
 */

/**
 * Return how two JSON values differ, in the order of the first one; nothing: they are one value.
 *
 * @param {any} before
 * @param {any} after
 * @returns {Difference[]}
 */
export function differences(before, after, path = "") {
  const lists = Array.isArray(before) && Array.isArray(after);
  if (!lists && !(isObject(before) && isObject(after))) {
    const [old, now] = [canonical(before), canonical(after)];
    return old === now ? [] : [{ kind: "changed", path, before: old, after: now }];
  }
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...names].flatMap((name) => {
    const inside = `${path}${lists ? `[${name}]` : member(name, path)}`;
    if (!Object.hasOwn(after, name)) {
      return [{ kind: "removed", path: inside, before: canonical(before[name]) }];
    }
    if (!Object.hasOwn(before, name)) {
      return [{ kind: "added", path: inside, after: canonical(after[name]) }];
    }
    return differences(before[name], after[name], inside);
  });
}

function member(name, path) {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
    return `[${JSON.stringify(name)}]`;
  }
  return path === "" ? name : `.${name}`;
}

/** Show differences as a list, with the word for each: colour alone tells nothing. */
export function showDifferences(found, element) {
  if (found.length === 0) {
    element.replaceChildren("No difference.");
    return;
  }
  const lines = found.map(({ kind, path, before, after }) => {
    const where = made("code", {}, shown(path || "all of it"));
    const line = made("li", { className: kind }, `${kind} `, where);
    for (const [name, text] of Object.entries({ del: before, ins: after })) {
      line.append(...(text === undefined ? [] : [" ", made(name, {}, shown(text))]));
    }
    return line;
  });
  element.replaceChildren(made("ul", { className: "differences" }, ...lines));
}
