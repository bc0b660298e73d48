// A form to edit the params of a call, made from its tool's JSON Schema.
//
// A value that nobody touches comes back as it was, whatever the schema says: what does not fit, or
// would not be seen in a text field, is edited as JSON. Limits are looked at to help people; the
// worker validates.

import { NotExact, parseExact } from "./canonical.js";
import { made } from "./elements.js";
import { problemOf } from "./limits.js";
import { alternatives, choicesOf, fits, isObject, isOfType, membersOf } from "./schemas.js";
import { jsonText, plain } from "./text.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */
/** @typedef {import("./schemas.js").Alternative} Alternative */
/** @typedef {import("./schemas.js").Kind} Kind */
/** @typedef {import("./schemas.js").Schema} Schema */

/** @typedef {{path: string, message: string}} Problem */
/** @typedef {typeof ABSENT} Absent */

/**
 * A place in a form.
 *
 * @typedef {object} Place
 * @property {string} name as its label says
 * @property {() => string} path where it is, at this moment: items of lists move
 * @property {boolean} optional whether its value may be left out
 * @property {Schema} root
 * @property {{last: number, prefix: string}} ids
 */

/**
 * A part of a form.
 *
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {(name: string) => void} rename
 * @property {() => Json | Absent} value of a field without problems
 * @property {() => Problem[]} problems shows them as well
 */

const WORDS = WORDING.form;
/** Stands for a value that is left out. */
const ABSENT = Symbol("absent");
/** Characters from which a text gets more than one line. */
const LONG = 100;
let forms = 0;

/**
 * Make a form in the place of what an element has.
 *
 * @param {Json} schema
 * @param {Json | undefined} value what the form begins with; `undefined`: with nothing
 * @param {Element} element
 * @param {string} [name] what the label of the whole says
 * @returns {{value: () => Json, problems: () => Problem[]}} `value` throws while there are problems
 */
export function makeForm(schema, value, element, name = "") {
  forms += 1;
  const root = isObject(schema) ? schema : {};
  const ids = { last: 0, prefix: `form-${forms}` };
  const place = { name, path: () => "", optional: false, root, ids };
  const field = anyField(schema, value === undefined ? ABSENT : value, place);
  element.replaceChildren(field.element);
  return {
    problems: field.problems,
    value() {
      const [first] = field.problems();
      if (first !== undefined) {
        throw new Error(first.path === "" ? first.message : `${first.path}: ${first.message}`);
      }
      return field.value(); // the whole is never left out
    },
  };
}

function anyField(schema, value, place) {
  const found = alternatives(schema, place.root);
  const deep = found.length > 1;
  let current = found.findIndex((one) => value !== ABSENT && fits(one, value, place.root, deep));
  if (value !== ABSENT && current < 0) {
    current = found.push({ kind: "json", schema: {} }) - 1;
  }
  const spelling = found[0]?.schema.spelling === true ? found[Math.max(current, 0)] : undefined;
  const choices = spelling === undefined ? found : [spelling];
  if (choices.length === 1 && !place.optional && choices[0] !== undefined) {
    return kindField(choices[0], value, place);
  }
  const chosen =
    spelling === undefined ? choices[current] : value === ABSENT ? undefined : spelling;
  return choiceField(choices, chosen, value, place, isObject(schema) ? schema.default : undefined);
}

/**
 * @param {Alternative} alternative
 * @param {Json | Absent} value `ABSENT`: nothing is filled in yet
 * @param {Place} place
 * @returns {Field}
 */
function kindField({ kind, schema }, value, place) {
  switch (kind) {
    case "null":
      return emptyField(null);
    case "boolean":
      return checkbox(schema, value === true, place);
    case "string":
      return stringField(schema, value, place);
    case "integer":
    case "number":
      return numberField(kind, schema, value, place);
    case "enum":
      return enumField(schema, value, place);
    case "array":
      return listField(schema, Array.isArray(value) ? value : [], place);
    case "object":
      return objectField(schema, value !== ABSENT && isObject(value) ? value : {}, place);
    default:
      return jsonField(schema, value, place, (found) => isOfType(found, schema.type));
  }
}

/**
 * Let people choose what a value is: left out, nothing, or one of its kinds.
 *
 * @param {Alternative[]} choices
 * @param {Alternative | undefined} chosen `undefined`: the value is left out
 * @param {Json | Absent} value
 * @param {Place} place
 * @param {Json | undefined} usual what stands for a value that is left out
 * @returns {Field}
 */
function choiceField(choices, chosen, value, place, usual) {
  const options = place.optional || chosen === undefined ? [undefined, ...choices] : choices;
  const titles = options.map((one) => option(one === undefined ? WORDS.absent : titleOf(one)));
  const select = made("select", {}, ...titles);
  select.selectedIndex = options.indexOf(chosen);
  const label = labelOf(select, WORDS.choice(plain(place.name)), place);
  const element = made("div", { className: "choice" }, label, select);
  const inside = { ...place, optional: false };

  const fieldOf = (at) => {
    const one = options[at];
    if (one === undefined) {
      return emptyField(ABSENT, place.optional ? undefined : inside);
    }
    const default_ = usual !== undefined && fits(one, usual, place.root, true) ? usual : ABSENT;
    return kindField(one, one === chosen ? value : default_, inside);
  };
  let field = fieldOf(select.selectedIndex);
  element.append(field.element);
  select.addEventListener("change", () => {
    field.element.remove();
    field = fieldOf(select.selectedIndex);
    field.rename(inside.name);
    element.append(field.element);
  });
  return {
    element,
    rename(name) {
      inside.name = name;
      label.textContent = WORDS.choice(plain(name));
      field.rename(name);
    },
    value: () => field.value(),
    problems: () => field.problems(),
  };
}

/**
 * @param {null | Absent} value
 * @param {Place} [needed] where something has to be chosen instead
 * @returns {Field}
 */
function emptyField(value, needed) {
  return {
    element: made("div", { className: "empty" }),
    rename() {},
    value: () => value,
    problems: () => (needed ? [{ path: needed.path(), message: WORDS.problem.choose }] : []),
  };
}

function checkbox(schema, value, place) {
  const input = made("input", { type: "checkbox", checked: value });
  return controlField(input, schema, place, () => input.checked);
}

function stringField(schema, value, place) {
  const text = typeof value === "string" ? value : "";
  if (plain(text.replaceAll("\n", "")) !== text.replaceAll("\n", "")) {
    // In a text field nobody would see it, and the browser would change the ends of lines.
    return jsonField(schema, text, place, (found) => typeof found === "string");
  }
  const oneLine = schema.pattern !== undefined || schema.format !== undefined || schema.spelling;
  const lines = text.includes("\n") || text.length > LONG || !oneLine;
  const input = made(lines ? "textarea" : "input", { value: text });
  return controlField(input, schema, place, () => {
    if (!input.value.isWellFormed()) {
      throw new NotExact(WORDS.problem.half);
    }
    return input.value;
  });
}

/**
 * A number is text until it is read: `4000` stays whole, and no digit is lost.
 *
 * @param {"integer" | "number"} kind
 * @param {Schema} schema
 * @param {Json | Absent} value
 * @param {Place} place
 * @returns {Field}
 */
function numberField(kind, schema, value, place) {
  const input = made("input", {
    inputMode: kind === "integer" ? "numeric" : "decimal",
    value: typeof value === "number" ? JSON.stringify(value) : "",
  });
  const form = kind === "integer" ? /^-?(?:0|[1-9][0-9]*)$/ : /^-?(?:0|[1-9])[0-9.eE+-]*$/;
  return controlField(input, schema, place, () => {
    const text = input.value.trim();
    if (!form.test(text)) {
      throw new NotExact(WORDS.problem[kind]);
    }
    return parseExact(text);
  });
}

function enumField(schema, value, place) {
  const choices = choicesOf(schema);
  const texts = choices.map((one) => option(typeof one === "string" ? one : jsonText(one)));
  const select = made("select", {}, ...texts);
  const known = (one) => value !== ABSENT && jsonText(one) === jsonText(value);
  select.selectedIndex = choices.findIndex(known);
  return controlField(select, schema, place, () => {
    const chosen = choices[select.selectedIndex];
    if (chosen === undefined) {
      throw new NotExact(WORDS.problem.choose);
    }
    return chosen;
  });
}

function jsonField(schema, value, place, takes) {
  const text = value === ABSENT ? "" : jsonText(value);
  const input = made("textarea", { className: "json", spellcheck: false, value: text });
  const read = () => {
    const found = parseExact(input.value);
    if (!takes(found)) {
      throw new NotExact(WORDS.problem.otherType);
    }
    return found;
  };
  return controlField(input, schema, place, read, WORDS.asJson);
}

function listField(schema, values, place) {
  const items = [];
  const { element, legend, hint } = group(schema, place);
  const problem = paragraph("problem", "", place);
  element.setAttribute("aria-describedby", [...hint, problem].map(({ id }) => id).join(" "));
  const list = made("ol", {});
  const add = button(WORDS.add(plain(place.name)));
  let name = place.name;

  const number = () => {
    items.forEach((item, at) => {
      item.field.rename(`${name}[${at}]`);
      item.remove.textContent = WORDS.remove(plain(`${name}[${at}]`));
    });
  };
  const append = (value) => {
    const line = made("li", {});
    const item = { line, remove: button(""), field: emptyField(null) };
    item.field = anyField(schema.items, value, {
      ...place,
      optional: false,
      path: () => `${place.path()}[${items.indexOf(item)}]`,
    });
    item.remove.addEventListener("click", () => {
      items.splice(items.indexOf(item), 1);
      line.remove();
      number();
      add.focus();
      check();
    });
    line.append(item.field.element, item.remove);
    list.append(line);
    items.push(item);
    return line;
  };
  const check = () => {
    const message = problemOf(schema, items);
    problem.textContent = plain(message ?? "");
    return message === undefined ? [] : [{ path: place.path(), message }];
  };
  values.forEach(append);
  number();
  add.addEventListener("click", () => {
    const line = append(ABSENT);
    number();
    check();
    const first = line.querySelector("input, textarea, select, button");
    first?.focus();
  });
  element.append(...hint, list, add, problem);
  return {
    element,
    rename(to) {
      name = to;
      legend.textContent = plain(to);
      add.textContent = WORDS.add(plain(to));
      number();
    },
    value: () => items.map((item) => item.field.value()),
    problems: () => [...check(), ...items.flatMap((item) => item.field.problems())],
  };
}

function objectField(schema, value, place) {
  const { element, legend, hint } = group(schema, place);
  const members = membersOf(schema);
  const known = new Set(members.map(([name]) => name));
  const pathOf = (name) => () => (place.path() === "" ? name : `${place.path()}.${name}`);
  const fields = members.map(([name, one, needed]) => {
    const path = pathOf(name);
    const own = Object.hasOwn(value, name) ? (value[name] ?? null) : ABSENT;
    return { name, field: anyField(one, own, { ...place, name, path, optional: !needed }) };
  });
  const further = Object.entries(value).filter(([name]) => !known.has(name));
  const open = schema.additionalProperties === true || isObject(schema.additionalProperties);
  const rest = [];
  if (open || further.length > 0) {
    const [name, path] = [WORDS.further, pathOf(WORDS.further)];
    const own = { ...place, name, path, optional: false };
    const takes = (found) =>
      isObject(found) && Object.keys(found).every((name) => !known.has(name));
    rest.push(jsonField({}, Object.fromEntries(further), own, takes));
  }
  const all = [...fields.map(({ field }) => field), ...rest];
  element.append(...hint, ...all.map((field) => field.element));
  return {
    element,
    rename(name) {
      legend.textContent = plain(name);
    },
    value() {
      const given = fields.map(({ name, field }) => [name, field.value()]);
      const more = rest.flatMap((field) => Object.entries(field.value()));
      return Object.fromEntries([...given.filter(([, one]) => one !== ABSENT), ...more]);
    },
    problems: () => all.flatMap((field) => field.problems()),
  };
}

/**
 * A label, a control, what it is for, and what is wrong with it.
 *
 * @param {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} control
 * @param {Schema} schema
 * @param {Place} place
 * @param {() => Json} read
 * @param {string} [more] what else is to be said
 * @returns {Field}
 */
function controlField(control, schema, place, read, more) {
  const label = labelOf(control, plain(place.name), place);
  const described = [schema.description, more].filter((one) => typeof one === "string");
  const hint = described.length > 0 ? [paragraph("hint", plain(described.join(" ")), place)] : [];
  const problem = paragraph("problem", "", place);
  control.setAttribute("aria-describedby", [...hint, problem].map(({ id }) => id).join(" "));

  const check = () => {
    const message = broken(schema, read);
    problem.textContent = plain(message ?? "");
    control.setAttribute("aria-invalid", String(message !== undefined));
    return message === undefined ? [] : [{ path: place.path(), message }];
  };
  control.addEventListener("change", check);
  return {
    element: made("div", { className: "field" }, label, ...hint, control, problem),
    rename(name) {
      label.textContent = plain(name);
    },
    value: read,
    problems: check,
  };
}

/**
 * @param {Schema} schema
 * @param {() => Json} read
 * @returns {string | undefined} what is wrong with what stands there
 */
function broken(schema, read) {
  try {
    return problemOf(schema, read());
  } catch (error) {
    if (error instanceof NotExact) {
      return error.message;
    }
    throw error;
  }
}

function titleOf({ kind, schema }) {
  const title = schema.title;
  return kind === "object" && typeof title === "string" ? title : WORDS[kind];
}

function group(schema, place) {
  const legend = made("legend", {}, plain(place.name));
  const text = schema.description;
  const hint = typeof text === "string" ? [paragraph("hint", plain(text), place)] : [];
  const element = made("fieldset", {}, legend);
  if (hint.length > 0) {
    element.setAttribute("aria-describedby", hint[0].id);
  }
  return { element, legend, hint };
}

function labelOf(control, text, place) {
  control.id = newId(place);
  return made("label", { htmlFor: control.id }, text);
}

function paragraph(className, text, place) {
  return made("p", { className, id: newId(place) }, text);
}

function newId({ ids }) {
  ids.last += 1;
  return `${ids.prefix}-${ids.last}`;
}

function option(text) {
  return made("option", {}, plain(text));
}

function button(text) {
  return made("button", { type: "button" }, text);
}
