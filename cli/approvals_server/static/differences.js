// Two JSON values side by side: what was added, removed and changed, and where.

import { canonical } from "./canonical.js";
import { made } from "./elements.js";
import { isObject } from "./schemas.js";
import { shown } from "./text.js";
import { WORDING } from "./wording.js";

/** @typedef {import("./canonical.js").Json} Json */

/**
 * @typedef {object} Difference
 * @property {"added" | "removed" | "changed"} kind
 * @property {string} path such as `lines[0].sku`; empty: the whole value
 * @property {string} [before] as canonical JSON, so that `1` and `"1"` are two things
 * @property {string} [after] likewise
 */

/**
 * Return how two JSON values differ, in the order of the first one.
 *
 * @param {Json} before
 * @param {Json} after
 * @returns {Difference[]} empty: they are one value
 */
export function differences(before, after) {
  return Array.from(between(before, after, ""));
}

/**
 * Show differences as a list, with the word for each: colour alone tells nothing.
 *
 * @param {Difference[]} found
 * @param {Element} element
 */
export function showDifferences(found, element) {
  if (found.length === 0) {
    element.replaceChildren(WORDING.differences.none);
    return;
  }
  const lines = found.map(({ kind, path, before, after }) => {
    const where = made("code", {}, shown(path || WORDING.differences.whole));
    const line = made("li", { className: kind }, `${WORDING.differences[kind]} `, where);
    for (const [name, text] of Object.entries({ del: before, ins: after })) {
      line.append(...(text === undefined ? [] : [" ", made(name, {}, shown(text))]));
    }
    return line;
  });
  element.replaceChildren(made("ul", { className: "differences" }, ...lines));
}

function* between(before, after, path) {
  if (Array.isArray(before) && Array.isArray(after)) {
    yield* betweenLists(before, after, path);
  } else if (isObject(before) && isObject(after)) {
    const names = new Set([...Object.keys(before), ...Object.keys(after)]);
    for (const name of names) {
      const inside = `${path}${member(name, path)}`;
      if (!Object.hasOwn(after, name)) {
        yield { kind: "removed", path: inside, before: canonical(before[name]) };
      } else if (!Object.hasOwn(before, name)) {
        yield { kind: "added", path: inside, after: canonical(after[name]) };
      } else {
        yield* between(before[name], after[name], inside);
      }
    }
  } else {
    const [old, now] = [canonical(before), canonical(after)];
    if (old !== now) {
      yield { kind: "changed", path, before: old, after: now };
    }
  }
}

/**
 * Lists are compared between what they begin and end with alike: one item less is one line.
 *
 * @param {Json[]} before
 * @param {Json[]} after
 * @param {string} path
 * @returns {Generator<Difference>}
 */
function* betweenLists(before, after, path) {
  const [old, now] = [before.map(canonical), after.map(canonical)];
  let start = 0;
  while (start < Math.min(old.length, now.length) && old[start] === now[start]) {
    start += 1;
  }
  let same = 0;
  while (
    same < Math.min(old.length, now.length) - start &&
    old[old.length - 1 - same] === now[now.length - 1 - same]
  ) {
    same += 1;
  }
  const [lastOld, lastNow] = [old.length - same, now.length - same];
  for (let at = start; at < Math.max(lastOld, lastNow); at += 1) {
    const inside = `${path}[${at}]`;
    if (at >= lastNow) {
      yield { kind: "removed", path: inside, before: old[at] };
    } else if (at >= lastOld) {
      yield { kind: "added", path: inside, after: now[at] };
    } else {
      yield* between(before[at], after[at], inside);
    }
  }
}

/**
 * @param {string} name
 * @param {string} path what stands before it
 */
function member(name, path) {
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) {
    return `[${JSON.stringify(name)}]`;
  }
  return path === "" ? name : `.${name}`;
}
