// Signs in with the token of a link, once its reader wants that.

import { fromBase64url } from "./bytes.js";
import { part, say, send, words } from "./page.js";
import { showText } from "./text.js";

const WANTED = "wanted-page";
const WANTED_FOR_MS = 10 * 60 * 1000;

let token = "";
if (location.pathname !== "/sign-in") {
  // The link is likely opened in another tab: what tabs share remembers the page.
  const wanted = { page: location.pathname + location.search, until: Date.now() + WANTED_FOR_MS };
  localStorage.setItem(WANTED, JSON.stringify(wanted));
}
take();
// A link that is opened where this page is open already loads nothing anew.
addEventListener("hashchange", take);
part("sign-in").addEventListener("click", signIn);

function take() {
  const given = location.hash.slice(1);
  // A part of the page may be aimed at as well, such as its content.
  if (given.includes(".")) {
    token = given;
    showText(part("whom"), whom(token));
    // It stands in no history and in no bookmark from now on.
    history.replaceState(null, "", location.pathname + location.search);
    part("without-link").hidden = true;
    part("with-link").hidden = false;
    part("sign-in").disabled = false;
  }
}

/**
 * Whom a link signs in: it may have been forwarded, and is in somebody else's name then.
 *
 * @param {string} given
 * @returns {string}
 */
function whom(given) {
  try {
    const said = new TextDecoder().decode(fromBase64url(given.split(".")[0]));
    return String(JSON.parse(said).sub);
  } catch {
    return "?"; // the server says what is wrong with it
  }
}

/** The page that somebody wanted to see and had to sign in for; otherwise the list. */
function wantedPage() {
  const kept = localStorage.getItem(WANTED);
  localStorage.removeItem(WANTED);
  const { page, until } = JSON.parse(kept ?? '{"page": "/", "until": 0}');
  const url = new URL(page, location.origin);
  return until > Date.now() && url.origin === location.origin ? url.href : "/";
}

async function signIn() {
  part("sign-in").disabled = true;
  try {
    const { status, answer } = await send("/sign-in", { token });
    if (status === 200) {
      location.assign(wantedPage());
      return;
    }
    part("told").textContent = say("bad_link", answer.error);
  } catch (error) {
    part("told").textContent = say("failed", words(error));
    part("sign-in").disabled = false;
  }
}
