// What all pages share: their texts, what is sent to the server, and signing out.

/** The texts of the scripts, as the server has them in one file. */
export const SAY = JSON.parse(document.getElementById("say").textContent);

/**
 * Return a text with something in the place of its gap.
 *
 * @param {string} name
 * @param {string} [filling]
 * @returns {string}
 */
export function say(name, filling = "") {
  return SAY[name].replace("{}", () => filling);
}

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
 * Send something to the server as JSON.
 *
 * @param {string} path
 * @param {unknown} body
 * @returns {Promise<{status: number, answer: any}>}
 */
export async function send(path, body) {
  const found = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    redirect: "error",
  });
  return { status: found.status, answer: await found.json() };
}

/**
 * Return the text that the server has under a path.
 *
 * @param {string} path
 * @returns {Promise<string>}
 * @throws {Error} It has none; the message is the server's one line.
 */
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
 * Have something done each time that the server says what a page shows is another thing now. A page
 * that nobody sees does not follow: a browser has six connections to a server, and all its pages
 * share them.
 *
 * @param {string} path
 * @param {(told: any) => void} follow is told first how it is when the page is opened, or seen again
 */
export function follow(path, follow) {
  /** @type {EventSource | null} */
  let source = null;
  const listen = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(path);
      source.addEventListener("message", (event) => follow(JSON.parse(event.data)));
    }
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}

/** Milliseconds that a browser's timer waits at most: a longer one is over at once. */
const LONGEST_TIMER = 2 ** 31 - 1;

/**
 * Have something done at a time of this page's own clock, however far off it is.
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
