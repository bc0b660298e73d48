// What all pages share: elements, texts of strangers, what is asked of the server, signing out.
//
// Nothing that a tool, a model or a plan wrote changes how the rest looks. As
// `workflows/plain_text.py`: control and format characters (right-to-left overrides, zero width),
// lone surrogates, the separators that break a line, all spaces but U+0020, and whatever else
// nobody sees (variation selectors, fillers), are written as `\u202e`.

const UNSEEN =
  /(?! )[\p{Cc}\p{Cf}\p{Cs}\p{Z}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/** Return an element of the page. */
export function part(id) {
  return document.getElementById(id);
}

/** Return a new element. Texts in it are ours; a stranger's is a node that `shown` makes. */
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
 * One character may be kept as it is: the end of a line.
 */
export function shown(text, kept) {
  // `bdi`: text that runs from right to left ends with the element.
  const around = made("bdi", {});
  let done = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found[0] === kept) {
      continue;
    }
    const unseen = made("span", { className: "unseen" }, named(found[0]));
    around.append(text.slice(done, found.index), unseen);
    done = found.index + found[0].length;
  }
  around.append(text.slice(done));
  return around;
}

/** Return JSON text to read and edit: it parses to the same value, and all is seen. */
export function jsonText(value) {
  // By UTF-16 units, as JSON escapes them. The ends of lines that are left are between the values.
  return JSON.stringify(value, null, 2).replace(UNSEEN, (found) =>
    found === "\n" ? found : found.split("").map(named).join(""),
  );
}

function named(character) {
  return `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`;
}

/** Tell a run's story in an `ol`: a line for each thing that has happened. */
export function tellStory(place, lines) {
  const items = lines.map(({ at, step, text }) => {
    const whose = step ? [made("b", {}, shown(step)), ": "] : [];
    return made("li", {}, timeOf(at), made("span", {}, ...whose, shown(text)));
  });
  place.replaceChildren(...(items.length ? items : [made("li", {}, "Nothing yet.")]));
}

/** Return a time of the server's as it is where its reader is. */
export function timeOf(utc) {
  const how = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false };
  const text = new Date(utc.replace(" ", "T")).toLocaleString(undefined, how);
  return made("time", { dateTime: utc, title: utc }, text);
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

/** Milliseconds that a run may take to tell its story. */
const LONGEST_ANSWER = 10_000;

/** Return what a run tells under a path; without an answer in time, say what to do. */
export async function askRun(path) {
  try {
    return await fetchText(path, AbortSignal.timeout(LONGEST_ANSWER));
  } catch (error) {
    const late = error instanceof DOMException && error.name === "TimeoutError";
    const why = late ? `it took longer than ${LONGEST_ANSWER / 1000} s` : words(error);
    const then = "What else is shown holds. Try again in a minute, or tell your administrator.";
    throw new Error(`The run does not answer (${why}). ${then}`, { cause: error });
  }
}

/** Return the server's text under a path; an error has the server's one line. */
export async function fetchText(path, signal) {
  const found = await fetch(path, { redirect: "error", signal });
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
 * It is told first how it is when the page is opened or seen.
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

/** Call something at a time of this page's own clock, however far off it is. */
export function at(end, over) {
  const left = end - performance.now();
  if (left > 0) {
    setTimeout(() => at(end, over), Math.min(left, LONGEST_TIMER));
  } else {
    over();
  }
}

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

for (const time of document.querySelectorAll("time.at")) {
  const local = timeOf(time.dateTime);
  Object.assign(time, { textContent: local.textContent, title: local.title });
}

// The list says when it is another one than it was: it does not move under its reader's hands. What
// has been decided meanwhile is crossed out, unless it may only have moved to the next page.
const list = part("changed");
if (list !== null) {
  let first = null;
  follow(list.dataset.follow, (told) => {
    const now = JSON.stringify(told);
    first ??= now;
    list.hidden = now === first;
    const [then, waiting] = [JSON.parse(first), told].map((all) => new Set(all.map(([id]) => id)));
    const whole = waiting.size < Number(list.dataset.most);
    for (const { dataset, classList } of document.querySelectorAll("[data-id]")) {
      classList.toggle("gone", whole && then.has(dataset.id) && !waiting.has(dataset.id));
    }
  });
}
