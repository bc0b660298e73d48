"""Text for people: nothing that a tool, a model or a plan wrote can change how the rest looks."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: Unicode categories that change how text looks without being seen: control characters (escape
#: sequences), format characters (right-to-left overrides, zero width), lone surrogates, the
#: separators that break a line, and spaces that are none (``U+0020`` alone is a space): what does
#: not break draws the indent of a line that is not there.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
#: Others that nobody sees, although their category does not say so: Unicode's default ignorable
#: code points (variation selectors, fillers, joiners) and the empty Braille pattern.
_IGNORABLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
#: What Markdown or HTML would take for something else than text.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>~|&])")
#: Characters of a line that a tool, a model or a stranger wrote: more would bury the rest.
LONGEST_LINE: Final = 500
#: The same of a text that people decide by.
LONGEST_TEXT: Final = 4000
#: So many times what a line shows is looked at: white space is left out of it.
_LOOKED_AT: Final = 4


def plain(value: object, longest: int | None = None) -> str:
    r"""Return ``value`` as one line of text with unseen characters written as ``\u001b``.

    An approver must see what will run: params that came from a model or a customer could
    otherwise move the cursor, hide a digit or reverse an account number on the screen.

    Args:
        value: What somebody else has written.
        longest: Characters that are shown. It is cut before it is looked at: a stranger may have
            written megabytes, and event loops show it. ``None``: all of it, which its caller
            bounds or shows to whoever has asked for it.
    """
    text = str(value)[:longest]
    if text.isprintable() and _IGNORABLE.search(text) is None:
        return text
    return "".join(
        f"\\u{ord(char):04x}"
        if (unicodedata.category(char) in _UNSEEN and char != " ") or _IGNORABLE.match(char)
        else char
        for char in text
    )[:longest]


def plain_line(value: object, longest: int = LONGEST_LINE) -> str:
    """Return ``value`` as one plain line with single spaces, whose end says if it was cut.

    Args:
        value: What somebody else has written.
        longest: Characters that it has at most.
    """
    text = str(value)
    line = plain(" ".join(text[: _LOOKED_AT * longest].split()), longest + 1)
    whole = len(line) <= longest and len(text) <= _LOOKED_AT * longest
    return line if whole else f"{line[: longest - 1]}…"


def markdown(value: object, longest: int = LONGEST_TEXT) -> str:
    """Return ``value`` as one line of Markdown that shows as the plain text it is."""
    return _MARKUP.sub(r"\\\1", plain_line(value, longest))
