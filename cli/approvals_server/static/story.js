// A run's story: a line for each thing that has happened.

import { made } from "./elements.js";
import { say } from "./page.js";
import { shown } from "./text.js";

/**
 * Tell a story.
 *
 * @param {Element} place an `ol`
 * @param {{at: string, step: string | null, text: string}[]} lines
 */
export function tellStory(place, lines) {
  const items = lines.map(({ at, step, text }) => {
    const what = [step, text].filter(Boolean).join("  ");
    return made("li", {}, made("time", {}, at), "  ", shown(what));
  });
  place.replaceChildren(...(items.length ? items : [made("li", {}, say("empty_story"))]));
}
