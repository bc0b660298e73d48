// What all pages share: elements, texts of strangers, what is asked of the server, signing out.
//
// Nothing that a tool, a model or a plan wrote changes how the rest looks. As
// `workflows/plain_text.py`: control and format characters (right-to-left overrides, zero width),
// lone surrogates, the separators that break a line, all spaces but U+0020, and whatever else
// nobody sees (variation selectors, fillers), are written as `\u202e`.

/** @typedef {import("./canonical.js").Json} Json */

const UNSEEN =
  /(?! )[\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/**
 * Return an element of the page.
 *
 * @param {string} id
 * @returns {any}
 */
export function part(id) {
  return document.getElementById(id);
}

/**
 * Return a new element.
 *
 * @param {string} name
 * @param {{[property: string]: any}} properties of the element
 * @param {...(string | Node)} inside texts are ours; a stranger's is a node that `shown` makes
 */
export function made(name, properties, ...inside) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inside);
  return element;
}

/** Return text as one line in which all of it is seen. */
export function plain(text) {
  return text.replace(UNSEEN, named);
}

/** Show text in an element, as `shown` has it. */
export function showText(element, text) {
  element.replaceChildren(shown(text));
}

/**
 * Return text to show; what would not be seen is set apart, so nobody can write it by hand.
 *
 * @param {string} text
 * @returns {HTMLElement}
 */
export function shown(text) {
  // `bdi`: text that runs from right to left ends with the element.
  const around = made("bdi", {});
  let done = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const unseen = made("span", { className: "unseen" }, named(found[0]));
    around.append(text.slice(done, found.index), unseen);
    done = found.index + found[0].length;
  }
  around.append(text.slice(done));
  return around;
}

/** Return JSON text to read and edit: it parses to the same value, and all is seen. */
export function jsonText(value) {
  return Array.from(tokens(value, "\n"), ([text]) => text).join("");
}

/**
 * Show a JSON value in an element (`pre`), each text isolated: none moves what stands beside it.
 *
 * @param {Element} element
 * @param {Json} value
 */
export function showJson(element, value) {
  element.replaceChildren();
  for (const [text, strange] of tokens(value, "\n")) {
    element.append(strange ? shown(text) : text);
  }
}

function named(character) {
  return `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`;
}

/**
 * Yield pieces of JSON text, each with whether a stranger wrote it.
 *
 * @param {Json} value
 * @param {string} line what a new line begins with
 * @returns {Generator<[string, boolean]>}
 */
function* tokens(value, line) {
  if (typeof value === "string") {
    yield [quoted(value), true];
    return;
  }
  if (typeof value !== "object" || value === null || Object.keys(value).length === 0) {
    yield [JSON.stringify(value), false];
    return;
  }
  const [opening, closing] = Array.isArray(value) ? "[]" : "{}";
  let before = opening;
  for (const [name, one] of Object.entries(value)) {
    yield [`${before}${line}  `, false];
    if (!Array.isArray(value)) {
      yield [quoted(name), true];
      yield [": ", false];
    }
    yield* tokens(one, `${line}  `);
    before = ",";
  }
  yield [`${line}${closing}`, false];
}

function quoted(text) {
  // By UTF-16 units, as JSON escapes them: what is shown is also what is read back.
  return JSON.stringify(text).replace(UNSEEN, (character) =>
    Array.from({ length: character.length }, (_, at) => named(character.charAt(at))).join(""),
  );
}

/** Tell a run's story in an `ol`: a line for each thing that has happened. */
export function tellStory(place, lines) {
  const items = lines.map(({ at, step, text }) => {
    const what = [step, text].filter(Boolean).join("  ");
    return made("li", {}, made("time", {}, at), "  ", shown(what));
  });
  place.replaceChildren(...(items.length ? items : [made("li", {}, "Nothing yet.")]));
}

/** Send something to the server as JSON, and return its status and answer. */
export async function send(path, body) {
  const found = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    redirect: "error",
  });
  return { status: found.status, answer: await found.json() };
}

/** Return the server's text under a path; an error has the server's one line. */
export async function fetchText(path) {
  const found = await fetch(path, { redirect: "error" });
  const text = await found.text();
  if (!found.ok) {
    let reason = found.statusText;
    try {
      reason = JSON.parse(text).error ?? reason;
    } catch {
      // A proxy's page: its status says enough.
    }
    throw new Error(reason);
  }
  return text;
}

/**
 * Call something each time that the server says that what a page shows has changed. A page that
 * nobody sees does not follow: a browser has six connections to a server for all its pages.
 *
 * @param {string} path
 * @param {(told: any) => void} changed is told first how it is when the page is opened or seen
 */
export function follow(path, changed) {
  /** @type {EventSource | null} */
  let source = null;
  const listen = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(path);
      source.addEventListener("message", (event) => changed(JSON.parse(event.data)));
    }
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}

/** Milliseconds that a browser's timer waits at most: a longer one is over at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/**
 * Call something at a time of this page's own clock, however far off it is.
 *
 * @param {number} end as `performance.now()` tells it
 * @param {() => void} over
 */
export function at(end, over) {
  const left = end - performance.now();
  if (left > 0) {
    setTimeout(() => at(end, over), Math.min(left, LONGEST_TIMER));
  } else {
    over();
  }
}

/** @param {unknown} error whose message is told */
export function words(error) {
  return error instanceof Error ? error.message : String(error);
}

const signOut = part("sign-out");
signOut?.addEventListener("click", async () => {
  await send("/sign-out", {});
  location.assign("/sign-in");
});
// Each page has its buttons off: what is pressed before there is somebody to hear it is lost.
signOut?.removeAttribute("disabled");

// The list says when it is another one than it was. It does not change under its reader's hands.
const list = part("changed");
if (list !== null) {
  let first = null;
  follow(list.dataset.follow, (told) => {
    const now = JSON.stringify(told);
    first ??= now;
    list.hidden = now === first;
  });
}
