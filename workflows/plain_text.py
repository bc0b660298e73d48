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


def plain(value: object) -> str:
    r"""Return ``value`` as one line of text with unseen characters written as ``\u001b``.

    An approver must see what will run: params that came from a model or a customer could
    otherwise move the cursor, hide a digit or reverse an account number on the screen.
    """
    return "".join(
        f"\\u{ord(char):04x}"
        if (unicodedata.category(char) in _UNSEEN and char != " ") or _IGNORABLE.match(char)
        else char
        for char in str(value)
    )


def markdown(value: object) -> str:
    """Return ``value`` as one line of Markdown that shows as the plain text it is."""
    return _MARKUP.sub(r"\\\1", plain(" ".join(str(value).split())))
