// Signs in with the token of a link, once its reader wants that.

import { part, say, send } from "./page.js";

let token = "";
take();
// A link that is opened where this page is open already loads nothing anew.
addEventListener("hashchange", take);
part("sign-in").addEventListener("click", signIn);

function take() {
  const given = location.hash.slice(1);
  if (given) {
    token = given;
    // It stands in no history and in no bookmark from now on.
    history.replaceState(null, "", location.pathname);
    part("without-link").hidden = true;
    part("with-link").hidden = false;
    part("sign-in").disabled = false;
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
