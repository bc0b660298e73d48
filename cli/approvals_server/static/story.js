// A run's story: a line for each thing that has happened.

import { say } from "./page.js";
import { showText } from "./text.js";

/**
 * Tell a story.
 *
 * @param {Element} place an `ol`
 * @param {{at: string, step: string | null, text: string}[]} lines
 */
export function tellStory(place, lines) {
  const items = lines.map(({ at, step, text }) => {
    const [item, time, what] = ["li", "time", "span"].map((name) => document.createElement(name));
    time.textContent = at;
    showText(what, [step, text].filter(Boolean).join("  "));
    item.append(time, "  ", what);
    return item;
  });
  const nothing = document.createElement("li");
  nothing.textContent = say("empty_story");
  place.replaceChildren(...(items.length ? items : [nothing]));
}
