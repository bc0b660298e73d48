// A call as labelled fields, and the proof that all of it is there: what is drawn is read back from
// the page, and the hash of what was read is what is signed. And what an edit changes in it.

import { canonical, NotExact, parseExact } from "./canonical.js";
import { jsonText, made, plain, shown } from "./page.js";

/** Values that no text has, as they are drawn and read back. */
const WORDS = new Map([
  ["yes", true],
  ["no", false],
  ["nothing", null],
  ["empty", ""],
  ["none", []],
  ["no params", {}],
]);
const WORD_OF = new Map([...WORDS].map(([word, value]) => [JSON.stringify(value), word]));
/** Members, items and texts that are drawn as fields; more are drawn as JSON. */
const MOST = 500;
/** Lists and objects inside one another that are drawn as fields. */
const DEEPEST = 3;
/** Words times words that are compared with one another. */
const MOST_COMPARED = 250_000;
/** Characters that surely stay on one line. */
const ONE_LINE = 60;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
const DATE = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?$/;

/**
 * Draw a call in the place of what an element has, and return it as it is read back from there. A
 * schema's titles and descriptions are shown beside the names of params.
 */
export function drawCall({ tool, version, params, answers }, schema, place) {
  const known = schema?.properties ?? {};
  const list = made("dl", { className: "fields" });
  if (isObject(params) && Object.keys(params).length && sizeOf(params) <= MOST) {
    list.append(...members(params, ["params"], known));
  } else {
    list.append(field("Params", drawn(params, ["params"])));
  }
  if (answers.length) {
    list.append(field("Answers from people", drawn(answers, ["answers"])));
  }
  const by = made("dd", {}, drawn(tool, ["tool"]), ", version ", drawn(version, ["version"]));
  by.className = "also";
  list.append(made("div", {}, made("dt", {}, "Tool"), by));
  place.replaceChildren(list);
  const read = readBack(place);
  if (canonical({ answers: [], ...read }) !== canonical({ tool, version, params, answers })) {
    throw new NotExact("not all of the call could be drawn");
  }
  return { answers: [], ...read };
}

/** Return the value that an element shows, from its texts as they stand there. */
export function readBack(place) {
  const root = Object.create(null);
  for (const leaf of place.querySelectorAll("[data-path]")) {
    if (!leaf.checkVisibility()) {
      throw new NotExact("a part of the call cannot be seen");
    }
    const path = JSON.parse(leaf.dataset.path);
    const last = path.pop();
    let inside = root;
    path.forEach((name, at) => {
      const next = path[at + 1] ?? last;
      inside[name] ??= typeof next === "number" ? [] : Object.create(null);
      inside = inside[name];
    });
    if (Object.hasOwn(inside, last)) {
      throw new NotExact("a part of the call is there twice");
    }
    inside[last] = valueOf(leaf);
  }
  return root;
}

function valueOf(leaf) {
  const text = leaf.textContent;
  switch (leaf.dataset.kind) {
    case "word":
      return WORDS.get(text);
    case "json":
      return parseExact(text);
    default:
      return Array.from(leaf.querySelector("bdi").childNodes, (node) =>
        node.nodeType === Node.TEXT_NODE ? node.data : written(node.textContent),
      ).join("");
  }
}

/** Return the character that is written as `\u202e`. */
function written(escaped) {
  return String.fromCodePoint(Number.parseInt(escaped.slice(2), 16));
}

function* members(value, path, known) {
  const names = Object.keys(value);
  const labels = names.map((name) => labelOf(name, names));
  const isMoney = names.includes("currency") && names.includes("amount");
  for (const [at, name] of names.entries()) {
    const about = Object.hasOwn(known, name) && isObject(known[name]) ? known[name] : {};
    const inside = drawn(value[name], [...path, name]);
    if (isMoney && name === "amount") {
      const currency = drawn(value.currency, [...path, "currency"]);
      const money = made("span", { className: "big" }, inside, " ", currency);
      yield field(labels[at], money, about, name);
    } else if (!isMoney || name !== "currency") {
      yield field(labels[at], inside, about, name);
    }
  }
}

/** Return a member's name as words, or as it is where it is no plain name or not the only one. */
export function labelOf(name, names) {
  const words = (one) => one.replaceAll("_", " ").trim().toLowerCase();
  const label = words(name);
  const alone = names.filter((one) => words(one) === label).length === 1;
  return NAME.test(name) && alone
    ? label.charAt(0).toUpperCase() + label.slice(1)
    : made("code", {}, shown(name));
}

/** Return a labelled line; what a schema calls it never takes the place of its name. */
function field(label, inside, about = {}, name = "") {
  const dt = made("dt", {}, label);
  const letters = (text) => text.toLowerCase().replaceAll(/[^a-z0-9]/g, "");
  for (const text of [about.title, about.description]) {
    if (typeof text === "string" && text && letters(text) !== letters(name)) {
      dt.append(" ", made("small", {}, shown(text)));
    }
  }
  const wide = inside.matches("pre, .text");
  return made("div", { className: wide ? "wide" : "" }, dt, made("dd", {}, inside));
}

/** Return an element that shows a value. */
function drawn(value, path) {
  const word = WORD_OF.get(JSON.stringify(value));
  if (word !== undefined) {
    return leaf("span", { className: "word" }, path, "word", word);
  }
  if (typeof value === "string") {
    return drawnText(value, path);
  }
  if (typeof value !== "object") {
    return leaf("span", {}, path, "json", JSON.stringify(value));
  }
  if (path.length > DEEPEST || sizeOf(value) > MOST) {
    return leaf("pre", { tabIndex: 0 }, path, "json", ...jsonNodes(value));
  }
  if (Array.isArray(value)) {
    const items = value.map((one, at) => made("li", {}, drawn(one, [...path, at])));
    return made("ol", {}, ...items);
  }
  return made("dl", { className: "fields" }, ...members(value, path, {}));
}

function drawnText(value, path) {
  const long = value.length > ONE_LINE || value.includes("\n") || value.includes("  ");
  const text = leaf("span", { className: long ? "text" : "" }, path, "text", shown(value, "\n"));
  const time = DATE.test(value) ? new Date(value) : null;
  if (time === null || Number.isNaN(time.valueOf())) {
    return text;
  }
  const clock = value.length > 10 ? { timeStyle: "short" } : { timeZone: "UTC" };
  const how = { dateStyle: "full", ...clock };
  const beside = made("span", { className: "also" }, ` (${time.toLocaleString(undefined, how)})`);
  return made("span", {}, text, beside);
}

function leaf(name, properties, path, kind, ...inside) {
  const element = made(name, properties, ...inside);
  Object.assign(element.dataset, { path: JSON.stringify(path), kind });
  return element;
}

function sizeOf(value) {
  return typeof value === "object" && value !== null
    ? Object.values(value).reduce((size, one) => size + sizeOf(one), 1)
    : 1;
}

/** Return a JSON value as nodes of a `pre`; no text in it moves or imitates what is beside it. */
export function jsonNodes(value) {
  // A text that has two spaces together could draw the indent of another line: it gets an edge.
  return jsonText(value)
    .split(/("(?:[^"\\]|\\.)*")/)
    .filter(Boolean)
    .map((part) =>
      part.startsWith('"')
        ? made("bdi", { className: part.includes("  ") ? "long" : "" }, part)
        : part,
    );
}

/** Return whether a text of a value has characters that nobody would see. */
export function hides(value) {
  return typeof value === "string"
    ? plain(value.replaceAll("\n", "")) !== value.replaceAll("\n", "")
    : isObject(value) || Array.isArray(value)
      ? Object.entries(value).some(([name, one]) => hides(name) || hides(one))
      : false;
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return how two JSON values differ, each place by its path, such as `lines[0].sku`. */
export function differences(before, after, path = "") {
  const lists = Array.isArray(before) && Array.isArray(after);
  if (!lists && !(isObject(before) && isObject(after))) {
    return canonical(before) === canonical(after) ? [] : [{ path, before, after }];
  }
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...names].flatMap((name) => {
    const inside = `${path}${lists ? `[${name}]` : member(name, path)}`;
    if (!Object.hasOwn(after, name)) {
      return [{ path: inside, before: before[name] }];
    }
    if (!Object.hasOwn(before, name)) {
      return [{ path: inside, after: after[name] }];
    }
    return differences(before[name], after[name], inside);
  });
}

function member(name, path) {
  if (!NAME.test(name)) {
    return `[${JSON.stringify(name)}]`;
  }
  return path === "" ? name : `.${name}`;
}

/** Show differences as a list: of a text, the words that have gone and come. */
export function showDifferences(found, element) {
  if (found.length === 0) {
    element.replaceChildren("Nothing is changed.");
    return;
  }
  const lines = found.map(({ path, before, after }) => {
    const texts = typeof before === "string" && typeof after === "string";
    const whole = [["del", before], ["ins", after]].filter(([, value]) => value !== undefined);
    const parts = texts
      ? wordDifferences(before, after)
      : whole.map(([how, value]) => [how, jsonText(value)]);
    const nodes = parts.flatMap(([how, text], at) => [
      texts || at === 0 ? "" : " ",
      how === "same" ? shown(shortened(text), "\n") : made(how, {}, changed(text)),
    ]);
    return made("li", {}, made("b", {}, shown(path || "All of it")), ": ", ...nodes);
  });
  element.replaceChildren(made("ul", {}, ...lines));
}

/** Return what has come or gone; white space alone is written out, or nobody would see it. */
function changed(text) {
  return text.trim() ? shown(text, "\n") : shown(jsonText(text));
}

/** Return what is the same on both sides of a change, without its middle if it is long. */
function shortened(text) {
  return text.length > 90 ? `${text.slice(0, 40)} … ${text.slice(-40)}` : text;
}

/** Return a text's words, each stretch with what became of it: `same`, `del` or `ins`. */
export function wordDifferences(before, after) {
  const [old, now] = [before, after].map((text) => text.split(/(\s+)/).filter(Boolean));
  if (old.length * now.length > MOST_COMPARED || !before.trim() || !after.trim()) {
    return [["del", before || "(empty)"], ["same", " "], ["ins", after || "(empty)"]];
  }
  // The longest common subsequence: `common[i][j]` is its length from these words on.
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const [down, right] = [common[i + 1][j], common[i][j + 1]];
      common[i][j] = old[i] === now[j] ? common[i + 1][j + 1] + 1 : Math.max(down, right);
    }
  }
  const parts = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    const gone = i < old.length && (j === now.length || common[i + 1][j] >= common[i][j + 1]);
    const same = i < old.length && j < now.length && old[i] === now[j];
    const [how, word] = same ? ["same", old[i]] : gone ? ["del", old[i]] : ["ins", now[j]];
    if (parts.at(-1)?.[0] === how) {
      parts.at(-1)[1] += word;
    } else {
      parts.push([how, word]);
    }
    i += how === "ins" ? 0 : 1;
    j += how === "del" ? 0 : 1;
  }
  return parts;
}
