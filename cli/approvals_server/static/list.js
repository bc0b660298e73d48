// The list: says when it is another one than it was. It does not change under its reader's hands.

import { follow, part } from "./page.js";

let first = null;
follow(part("changed").dataset.follow, (told) => {
  const now = JSON.stringify(told);
  first ??= now;
  part("changed").hidden = now === first;
});
