// The halts that stand, above the list. Each is drawn from what is signed of it, and a yes to lifting
// it is a decision as any other.

import { fetchText, made, part, plain, shown, showText, timeOf, words } from "./page.js";
import { deliver, refuseOtherParams, signed, signerFor } from "./signing.js";

try {
  const told = JSON.parse(await fetchText("/halts.json"));
  part("halts").replaceChildren(...(await Promise.all(told.map(drawn))));
} catch (error) {
  showText(part("halts"), `Whether calls are halted cannot be shown: ${words(error)}`);
}

async function drawn(one) {
  await refuseOtherParams(one);
  const [, tool, run, undoToo, reason, by, since] = one.halt;
  const calls = tool === null ? "all calls" : `calls of ${tool}`;
  const scope = run === null ? calls : `${calls} of run ${run}`;
  const title = made("b", {}, "Halted: ", shown(scope));
  const undo = `What undoes effects ${undoToo ? "waits, too" : "goes on"}.`;
  const section = made("section", { className: "flag danger" }, title, made("p", {}, shown(reason)));
  const when = timeOf(new Date(since).toISOString());
  section.append(made("p", { className: "note" }, "By ", shown(by), ", ", when, `. ${undo}`));
  if (one.under_way.length) {
    const lines = one.under_way.map((line) => made("li", {}, shown(line)));
    const summary = made("summary", {}, `Had begun, and has no outcome yet: ${lines.length}`);
    section.append(made("details", {}, summary, made("ul", {}, ...lines)));
  }
  if (one.lacking === null) {
    const asks = one.votes.length ? "All who are asked have said yes." : "No page lifts it.";
    section.append(made("p", {}, `${asks} Whoever owns the ledger runs `, made("code", {}, one.command)));
    return section;
  }
  const said = made("p", { tabIndex: -1 });
  said.setAttribute("role", "status");
  const { signer, why } = await signerFor([one]);
  const lift = made("button", { type: "button", disabled: signer === null }, "Lift it");
  lift.ariaLabel = plain(`Lift it: ${scope}`);
  lift.addEventListener("click", async () => {
    lift.disabled = true;
    try {
      const [decision] = await signed(signer, [{ request: one, outcome: "approve" }]);
      const come = await deliver("/lift", decision, (told) => `Your yes counts: ${told}.`);
      lift.disabled = come.how === "accepted";
      showText(said, come.said);
    } catch (error) {
      lift.disabled = false;
      showText(said, `Nothing was sent: ${words(error)}`);
    }
    said.focus();
  });
  const votes = one.votes.length ? ` Said yes: ${one.votes.join(", ")}.` : "";
  section.append(made("p", {}, shown(`To lift it: so far ${one.lacking}.${votes} ${why ?? ""}`)), said, lift);
  return section;
}
