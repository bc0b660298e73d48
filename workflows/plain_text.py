"""Text for people: what strangers wrote is shown as it is, and what pydantic found wrong in words.

Nothing that a tool, a model or a plan wrote can change how the rest looks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel, ValidationError

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

    An approver must see what will run: params that came from a model or a customer could otherwise
    move the cursor, hide a digit or reverse an account number on the screen. It is cut to
    ``longest`` characters before it is looked at: a stranger may have written megabytes, and event
    loops show it.
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
    """Return ``value`` as one plain line with single spaces, whose end says if it was cut."""
    text = str(value)
    line = plain(" ".join(text[: _LOOKED_AT * longest].split()), longest + 1)
    whole = len(line) <= longest and len(text) <= _LOOKED_AT * longest
    return line if whole else f"{line[: longest - 1]}…"


def markdown(value: object, longest: int = LONGEST_TEXT) -> str:
    """Return ``value`` as one line of Markdown that shows as the plain text it is."""
    return _MARKUP.sub(r"\\\1", plain_line(value, longest))


def _describe_form(pattern: str) -> str:
    # Plans load the SDK, and whoever asks a verb for its help need not wait for that.
    from surehand.workflows.contracts.base import MONEY_FORM
    from surehand.workflows.plan.plan import ID_FORM, NAME_FORM, OBJECT_FORM, STEP_FORM

    forms = {
        ID_FORM: "1 to 64 letters, digits, '_' or '-'",
        STEP_FORM: "1 to 64 letters, digits, '_' or '-'",
        NAME_FORM: "1 to 64 letters, digits, '_', '.' or '-'",
        OBJECT_FORM: "module:name",
        MONEY_FORM: 'a number such as "12.50", not negative',
    }
    return forms.get(pattern, f"of the form {pattern}")


#: Pydantic's types of errors that are told alike, with what is told.
_TOLD_ALIKE: Final = (
    ("is missing", "missing"),
    ("unknown field", "extra_forbidden"),
    (
        "must be a mapping of names to values",
        "model_type model_attributes_type dataclass_type dict_type mapping_type",
    ),
    ("must be a list", "list_type tuple_type set_type frozen_set_type"),
    ("must be text", "string_type"),
    ("must be true or false", "bool_type bool_parsing"),
    ("must be a whole number", "int_type int_parsing int_from_float"),
    ("must be a number such as 12.5", "float_type float_parsing"),
    ('must be a number such as "12.50"', "decimal_type decimal_parsing finite_number"),
    ("must be null", "none_required"),
    ("must be a date such as 2026-12-31", "date_type date_parsing date_from_datetime_parsing"),
    (
        "must be a time such as 2026-12-31T12:30:00Z",
        "datetime_type datetime_parsing datetime_from_date_parsing",
    ),
)
_REASONS: Final = {type_: text for text, types in _TOLD_ALIKE for type_ in types.split()}
#: As pydantic writes a duration in whole seconds.
_TIME: Final = re.compile(r"datetime\.timedelta\((?:seconds=)?(\d+)\)")
_COUNTED: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "too_short": lambda c: f"must have at least {counted(c['min_length'], 'entry', 'entries')}",
    "too_long": lambda c: f"must have at most {counted(c['max_length'], 'entry', 'entries')}",
    "string_too_short": lambda c: f"must have at least {counted(c['min_length'], 'character')}",
    "string_too_long": lambda c: f"must have at most {counted(c['max_length'], 'character')}",
    "string_pattern_mismatch": lambda c: f"must be {_describe_form(c['pattern'])}",
    "decimal_max_places": lambda c: (
        f"must have at most {counted(c['decimal_places'], 'decimal place')}"
    ),
    "greater_than_equal": lambda c: _TIME.sub(r"\1 s", f"must be at least {c['ge']}"),
    "literal_error": lambda c: f"must be {c['expected']}",
    "enum": lambda c: f"must be {c['expected']}",
    "value_error": lambda c: str(c["error"]),
    "assertion_error": lambda c: str(c["error"]) or "is not allowed",
}


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: ``1 case``, ``2 cases``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def reason_of(item: Mapping[str, Any]) -> str:
    """Return why one value is refused, to be read after its place: ``must be a list``."""
    type_ = item["type"]
    if type_ in ("too_short", "too_long") and isinstance(item["input"], str):
        type_ = f"string_{type_}"
    if type_.startswith("time_delta"):
        return "must be a duration such as 90s, 15m, 24h or 7d"
    if type_ in _REASONS:
        return _REASONS[type_]
    say = _COUNTED.get(type_)
    context = item.get("ctx", {})
    try:
        text = say(context) if say else item["msg"]
    except KeyError:  # an error of the tool author's own, under a name of pydantic's
        text = item["msg"]
    return text.removeprefix("Value error, ").replace("Input should", "must", 1)


def unknown_tool(name: str, loaded: Iterable[str]) -> str:
    known = sorted(loaded)
    return f"unknown tool {name!r}{suggest_name(name, known)}; loaded are: {', '.join(known)}"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return, as a clause, which known name was meant; nothing if none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def reasons(error: ValidationError, whole: str, *models: type[BaseModel]) -> Iterator[str]:
    """Yield ``place: reason`` for each error; ``whole``: all of it, ``models``: with the fields."""
    fields = [name for model in models for name in model.model_fields]
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"]) or whole
        near = fields if item["type"] == "extra_forbidden" else ()
        yield f"{where}: {reason_of(item)}{suggest_name(where.rpartition('.')[2], near)}"


def clean_text(text: str, longest: int | None = None) -> str:
    """Return text that both databases and UTF-8 can carry, cut if it is longer."""
    kept = text[:longest].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return kept.encode("utf-8", "replace").decode()
