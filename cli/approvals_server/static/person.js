// Who decides: signs in with the token of a link, and has the keys that this browser signs with.

import { fromBase64url } from "./canonical.js";
import { forgetKey, makeKey, ownKey, register } from "./keys.js";
import { part, send, showText, words } from "./page.js";
import { isHere } from "./signing.js";

const WANTED = "wanted-page";
const WANTED_FOR_MS = 10 * 60 * 1000;

await (part("sign-in") === null ? keys() : signingIn());

function signingIn() {
  let token = "";
  if (location.pathname !== "/sign-in") {
    // The link is likely opened in another tab: what tabs share remembers the page.
    const wanted = { page: location.pathname + location.search, until: Date.now() + WANTED_FOR_MS };
    localStorage.setItem(WANTED, JSON.stringify(wanted));
  }
  take();
  // A link that is opened while this page is open loads nothing again.
  addEventListener("hashchange", take);
  part("sign-in").addEventListener("click", signIn);

  function take() {
    const given = location.hash.slice(1);
    // The hash may also name a part of the page, such as its content.
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

  async function signIn() {
    part("sign-in").disabled = true;
    try {
      const { status, answer } = await send("/sign-in", { token });
      if (status === 200) {
        location.assign(wantedPage());
        return;
      }
      part("told").textContent = `The link cannot be used: ${answer.error}`;
    } catch (error) {
      part("told").textContent = `Nothing was sent: ${words(error)}`;
      part("sign-in").disabled = false;
    }
  }
}

/** Whom a link signs in: it may have been forwarded, and is in somebody else's name then. */
function whom(given) {
  try {
    const said = new TextDecoder().decode(fromBase64url(given.split(".")[1]));
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

async function keys() {
  const told = JSON.parse(part("told").textContent);
  // The public half of a passkey that is made and not registered yet: a reload has to show it again.
  const kept = `passkey ${JSON.stringify([told.tenant, told.principal])}`;
  let sure = false;

  part("make").addEventListener("click", () => trying(() => makeKey(told.tenant, told.principal)));
  part("forget").addEventListener("click", forget);
  part("make-passkey").addEventListener("click", makePasskey);
  part("make-passkey").disabled = false;
  for (const copy of document.querySelectorAll("[data-copies]")) {
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(part(copy.dataset.copies).textContent);
      copy.textContent = "Copied";
    });
  }
  if (told.passkeys.some(isHere)) {
    part("no-key").textContent = "You are ready to decide: your passkey is registered.";
    part("no-key").className = "good";
    part("make").className = "";
  }
  showPasskey(JSON.parse(localStorage.getItem(kept) ?? "null"));
  await trying(() => ownKey(told.tenant, told.principal));

  async function trying(get) {
    try {
      show(await get());
    } catch (error) {
      showText(part("said"), `This browser cannot sign (no Ed25519): ${words(error)}`);
    }
  }

  function show(key) {
    part("without-key").hidden = key !== null;
    part("with-key").hidden = key === null;
    if (key !== null) {
      part("public").textContent = JSON.stringify(key.jwk);
      part("command").textContent = registering(key.jwk);
      const registered = told.keys.includes(key.kid);
      part("to-register").hidden = registered;
      part("registered").className = registered ? "good" : "";
      part("registered").textContent = registered
        ? "This browser is ready: your key is registered."
        : "Your key is made, but not registered yet.";
    }
  }

  /** Return the command that registers a public key, whose JSON has no quote that a shell ends. */
  function registering(key) {
    return `echo '${JSON.stringify(key)}' | ${told.command}`;
  }

  /** @param {MouseEvent} event a double click's second click counts for nothing */
  async function forget(event) {
    if (!sure || event.detail > 1) {
      sure = true;
      part("said").textContent =
        "Without it this browser cannot sign for you. Press again to forget it.";
      return;
    }
    await forgetKey(told.tenant, told.principal);
    sure = false;
    part("said").textContent = "";
    show(null);
  }

  /** Show how a passkey is registered, unless it is; `null`: none was made here. */
  function showPasskey(made) {
    const ids = told.passkeys.map((one) => one.credential_id);
    if (ids.length || made !== null) {
      part("make-passkey").textContent = "Make another passkey";
    }
    part("has-passkey").hidden = !ids.length;
    if (made === null || ids.includes(made.credential_id)) {
      localStorage.removeItem(kept);
      return;
    }
    part("passkey").textContent = JSON.stringify(made, null, 2);
    part("passkey-command").textContent = registering(made);
    part("new-passkey").hidden = false;
  }

  async function makePasskey() {
    const known = told.passkeys.map((one) => one.credential_id);
    const asked = { rpId: location.hostname, rpName: "Surehand", principal: told.principal, known };
    try {
      const made = await register(asked);
      localStorage.setItem(kept, JSON.stringify(made));
      showPasskey(made);
      part("said").textContent = "Your passkey is made. It counts once it is registered.";
    } catch (error) {
      showText(part("said"), `Nothing was sent: ${words(error)}`);
    }
  }
}
