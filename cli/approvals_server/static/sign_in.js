// Signs in with the token of a link, once its reader wants that.

import { fromBase64url } from "./bytes.js";
import { part, say, send } from "./page.js";
import { showText } from "./text.js";

let token = "";
take();
// A link that is opened where this page is open already loads nothing anew.
addEventListener("hashchange", take);
part("sign-in").addEventListener("click", signIn);

function take() {
  const given = location.hash.slice(1);
  if (given) {
    token = given;
    showText(part("whom"), whom(token));
    // It stands in no history and in no bookmark from now on.
    history.replaceState(null, "", location.pathname);
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

async function signIn() {
  part("sign-in").disabled = true;
  try {
    const { status, answer } = await send("/sign-in", { token });
    if (status === 200) {
      location.assign("/");
      return;
    }
    part("told").textContent = say("bad_link", answer.error);
  } catch (error) {
    part("told").textContent = say("failed", /** @type {Error} */ (error).message);
    part("sign-in").disabled = false;
  }
}
