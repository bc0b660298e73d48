"""Text for people: nothing that a tool, a model or a plan wrote can change how the rest looks."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

#: Unicode categories that change how text looks without being seen: control characters (escape
#: sequences), format characters (right-to-left overrides, zero width), lone surrogates, and the
#: separators that break a line.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: What Markdown or HTML would take for something else than text.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>~|&])")


def plain(value: object) -> str:
    r"""Return ``value`` as one line of text with unseen characters written as ``\u001b``.

    An approver must see what will run: params that came from a model or a customer could
    otherwise move the cursor, hide a digit or reverse an account number on the screen.
    """
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in _UNSEEN else char
        for char in str(value)
    )


def markdown(value: object) -> str:
    """Return ``value`` as one line of Markdown that shows as the plain text it is."""
    return _MARKUP.sub(r"\\\1", plain(" ".join(str(value).split())))
