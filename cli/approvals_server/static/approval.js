// The page of one request, or of several at once: draws each call, signs what was drawn, and sends
// it.
//
// The server is not believed. What is shown is read back and hashed, and that hash is signed.
// Approving is off while anything of a call is missing, or is not what the server asks to sign, and
// until somebody has come to the end of the call. Rejecting is on before the call is drawn: one that
// is not made harms nobody. So all that it takes to reject is in the page itself, without the call.

import { differences, drawCall, hides, jsonNodes, showDifferences } from "./call.js";
import { parseExact } from "./canonical.js";
import { makeForm } from "./forms.js";
import { askRun, at, fetchText, follow, made, part, shown, showText, tellStory, words } from "./page.js";
import { deliver, refuseOtherParams, signed, signerFor } from "./signing.js";

const PROVEN = "You decide on exactly what is shown here.";
const WHOLE = "All of the call is shown here.";

await (part("call") === null ? several() : one());

async function one() {
  const { id, run } = part("call").dataset;
  const query = `?id=${encodeURIComponent(id)}`;
  const asked = JSON.parse(part("asked").textContent);
  let waiting = asked.waits; // a decision can still count
  let read = false; // the end of the call has been on the screen
  let signer = null; // `null`: there is not what it takes
  let form = null; // to edit the params by
  let sending = false; // a decision is on its way, or counts
  let call = null; // as it is shown; `null`: not all of it is, or it is another one

  const deciding = part("approve") !== null;
  part("approve")?.addEventListener("click", () => decide("approve"));
  part("onward")?.addEventListener("click", () => scrollTo(part("check")));
  part("reject")?.addEventListener("click", () => decide("reject"));
  part("edit")?.addEventListener("click", edit);
  part("send-edit")?.addEventListener("click", sendEdit);
  part("form")?.addEventListener("input", compare);
  if (deciding) {
    const found = await signerFor([asked]);
    signer = found.signer;
    hinder(found);
    release();
    if (asked.left_ms !== null) at(performance.now() + asked.left_ms, over);
  }
  call = await shownCall(id, document.body);
  if (call !== null) {
    part("json").replaceChildren(...jsonNodes(call.params));
    part("short-hash").textContent = call.params_hash.replace("sha256:", "").slice(0, 12);
  }
  if (deciding) {
    release();
    whenSeen(part("check"), () => {
      read = true;
      release();
    });
  }
  follow(`/follow/approval${query}`, changed);
  await tell();

  /** Follow what others do meanwhile. */
  function changed({ state, kind, waits, votes, progress, next }) {
    showText(part("state"), state);
    part("ended").className = `flag ${kind}`;
    part("votes").replaceChildren(
      ...votes.map((name) => made("span", { className: "chip" }, shown(name))),
    );
    part("progress").textContent = progress;
    if (next !== null) {
      part("next").hidden = false;
      part("next").href = `/approval?id=${encodeURIComponent(next)}`;
    }
    if (!waits && waiting) {
      end();
      tell();
    }
  }

  /** Let nothing stand there that speaks of a decision that is awaited. */
  function end() {
    waiting = false;
    part("left")?.remove();
    part("ended").hidden = false;
    putAway();
  }

  function putAway() {
    if (call !== null) {
      part("check").textContent = WHOLE; // nobody signs it any more
    }
    if (deciding) {
      for (const gone of ["deciding", "editing", "buttons", "hindrance"]) {
        part(gone).hidden = true;
      }
      part("others").hidden = false;
      release();
    }
  }

  function mayApprove() {
    return call !== null && waiting && signer !== null && !sending;
  }

  /** Let the buttons be as they may be. */
  function release() {
    part("reject").disabled = sending || !waiting;
    part("edit").disabled = !mayApprove();
    // While the form is open it shows other params than a yes is for.
    const shows = mayApprove() && part("editing").hidden;
    part("approve").disabled = !shows || !read;
    part("onward").hidden = !shows || read;
  }

  function over() {
    if (!sending && waiting) {
      showText(part("state"), "Expired: nobody decided in time.");
      end();
    }
  }

  /** Sign a decision, send it, and say what has come of it. */
  async function decide(outcome, params) {
    const said = part("said");
    const reason = part("reason").value.trim();
    const off = outcome === "approve" && (!read || !part("editing").hidden);
    if (sending || off || (outcome !== "reject" && !mayApprove())) {
      return;
    }
    said.className = "alarm";
    if (outcome === "reject" && !reason) {
      said.textContent = "Say why you reject it.";
      part("reason").focus();
      return;
    }
    sending = true;
    release();
    try {
      said.textContent = "Signing…";
      const request = outcome === "reject" ? asked : call;
      const [decision] = await signed(signer ?? {}, [{ request, outcome, reason, params }]);
      said.textContent = "Sending…";
      const come = await deliver("/decide", decision, (why) => `Your decision counts: ${why}.`);
      const counted = come.how === "accepted";
      sending = counted || come.how === "left";
      said.className = counted ? "good" : "alarm";
      showText(said, come.said);
      if (counted) {
        putAway();
      }
    } catch (error) {
      sending = false;
      said.textContent = `Nothing was sent: ${words(error)}`;
    }
    release();
    said.focus(); // the button that had it is off, or was
    await tell();
  }

  function edit() {
    const opens = part("editing").hidden;
    part("editing").hidden = !opens;
    part("edit").setAttribute("aria-expanded", String(opens));
    part("edit").textContent = opens ? "Cancel" : "Edit…";
    part("said").textContent = ""; // it was about another decision
    release();
    if (opens) {
      form = makeForm(JSON.parse(call.schema), call.params, part("form"));
      compare();
    }
    part("editing").scrollIntoView({ block: "nearest" });
  }

  /** Show what an edit would change, once all that was filled in can be read. */
  function compare() {
    if (form?.isWrong()) {
      part("edited").replaceChildren();
    } else {
      showDifferences(differences(call.params, form?.value()), part("edited"));
    }
  }

  function sendEdit() {
    compare();
    try {
      decide("edit", form?.value());
    } catch (error) {
      showText(part("said"), words(error));
    }
  }

  /** Tell the run's story, as far as the run answers. */
  async function tell() {
    try {
      const lines = JSON.parse(await askRun(`/story.json?run=${encodeURIComponent(run)}`));
      tellStory(part("story"), lines);
    } catch (error) {
      showText(part("story"), words(error));
    }
  }
}

/**
 * Approve several requests: each is drawn whole and signed by itself; a passkey's one gesture signs
 * them all. One that cannot be shown whole keeps all of them from being approved here.
 */
async function several() {
  const places = [...document.querySelectorAll("[data-call]")];
  const calls = await Promise.all(places.map((place) => shownCall(place.dataset.call, place)));
  const checks = places.map((place) => place.querySelector(".check"));
  for (const [at, call] of calls.entries()) {
    if (call !== null && !call.waits) {
      doubt(checks[at], "It no longer waits for a decision.");
    }
  }
  if (!calls.every((call) => call?.waits)) {
    return;
  }
  const { signer, ...found } = await signerFor(calls);
  const unread = new Set(checks);
  const button = part("approve");
  hinder(found);
  button.addEventListener("click", approve);
  part("onward").addEventListener("click", () => scrollTo([...unread][0]));
  release();
  for (const check of checks) {
    whenSeen(check, () => {
      unread.delete(check);
      release();
    });
  }

  function release() {
    button.disabled = signer === null || unread.size > 0;
    part("onward").hidden = signer === null || unread.size === 0;
  }

  async function approve() {
    button.disabled = true;
    const reason = part("reason").value.trim();
    const said = part("said");
    try {
      said.textContent = "Signing…";
      const asked = calls.map((request) => ({ request, outcome: "approve", reason }));
      const sent = await signed(signer, asked);
      let counted = 0;
      for (const [at, decision] of sent.entries()) {
        const come = await deliver("/decide", decision, (why) => `Your decision counts: ${why}.`);
        const counts = come.how === "accepted";
        checks[at].className = counts ? "sealed good check" : "sealed alarm check";
        showText(checks[at], come.said);
        counted += counts ? 1 : 0;
      }
      said.textContent = `${counted} of ${sent.length} decisions count.`;
      part("others").hidden = false;
    } catch (error) {
      showText(said, `Nothing was sent: ${words(error)}`);
      button.disabled = false;
    }
    said.focus();
  }
}

/** Draw a request's call, and return it as it is shown; `null`: nobody may approve it here. */
async function shownCall(id, place) {
  const check = place.querySelector("#check, .check");
  try {
    const told = parseExact(await fetchText(`/approval.json?id=${encodeURIComponent(id)}`));
    if (told.params === null) {
      return doubt(check, "The call is encrypted, and this server has no keys.");
    }
    const drawn = drawCall(told, JSON.parse(told.schema), place.querySelector("#params, .params"));
    const call = { ...told, ...drawn };
    if (hides(call.params)) {
      const text = " They are written out and marked below.";
      const flag = made("b", {}, "Contains characters that cannot be seen.");
      place.querySelector(".flags").append(made("li", { className: "flag" }, flag, text));
    }
    const before = JSON.parse(told.before);
    const changes = place.querySelector(".changes");
    if (changes && before) {
      showDifferences(differences(before, call.params), changes);
    }
    if (call.approval_id !== id) {
      throw new Error("the server tells of another request");
    }
    await refuseOtherParams(call);
    check.classList.add("good");
    check.textContent = told.waits ? PROVEN : WHOLE;
    return call;
  } catch (error) {
    return doubt(check, `This cannot be shown exactly: ${words(error)}.`);
  }
}

/** Say why nobody approves a call. */
function doubt(check, why) {
  check.classList.remove("good");
  check.classList.add("alarm");
  showText(check, `${why} You cannot approve it here.`);
  return null;
}

/** Say what stands in the way, or is to be known, above the buttons. */
function hinder({ why, made: hasKey }) {
  part("hindrance").hidden = !why;
  if (why) {
    const link = made("a", { href: "/keys" }, hasKey ? "Show the command" : "Set up my key");
    part("hindrance").replaceChildren(`${why} `, link);
  }
}

/** Go to an element; the focus goes with it, as the button that was pressed will be gone. */
function scrollTo(element) {
  element.tabIndex = -1;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "center", behavior: "smooth" });
}

/** Call something once an element has been on the screen, above the bar of buttons as it is now. */
function whenSeen(element, seen) {
  const bar = document.querySelector(".decide").offsetHeight;
  document.querySelector("main").style.paddingBottom = `${bar + 24}px`; // the end can come above it
  const watch = new IntersectionObserver(
    (entries) => {
      if (entries.some((one) => one.isIntersecting)) {
        watch.disconnect();
        seen();
      }
    },
    { rootMargin: `0px 0px -${bar}px 0px` },
  );
  watch.observe(element);
}
