// The key that this browser signs with: made here, shown, forgotten.

import { forgetKey, makeKey, ownKey } from "./keys.js";
import { part, say, words } from "./page.js";
import { register } from "./passkeys.js";
import { showText } from "./text.js";

const told = JSON.parse(part("told").textContent);
let sure = false;

part("make").addEventListener("click", () => trying(() => makeKey(told.tenant, told.principal)));
part("forget").addEventListener("click", forget);
part("make-passkey").addEventListener("click", makePasskey);
part("make-passkey").disabled = false;
await trying(() => ownKey(told.tenant, told.principal));

async function trying(get) {
  try {
    show(await get());
  } catch (error) {
    showText(part("said"), say("no_ed25519", words(error)));
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
    part("registered").textContent = say(registered ? "key_registered" : "key_not_registered");
  }
}

/** Return the command that registers a public key; no JSON of one has a quote that a shell ends. */
function registering(key) {
  return `echo '${JSON.stringify(key)}' | ${told.command}`;
}

/** @param {MouseEvent} event a second click of a double click says nothing that was thought about */
async function forget(event) {
  if (!sure || event.detail > 1) {
    sure = true;
    part("said").textContent = say("forget_sure");
    return;
  }
  await forgetKey(told.tenant, told.principal);
  sure = false;
  part("said").textContent = "";
  show(null);
}

async function makePasskey() {
  const known = told.passkeys.map((one) => one.credential_id);
  const asked = { rpId: location.hostname, rpName: "Surehand", principal: told.principal, known };
  try {
    const made = await register(asked);
    part("passkey").textContent = JSON.stringify(made, null, 2);
    part("passkey-command").textContent = registering(made);
    part("new-passkey").hidden = false;
    part("said").textContent = say("passkey_made");
  } catch (error) {
    showText(part("said"), say("failed", words(error)));
  }
}
