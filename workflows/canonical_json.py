"""Canonical JSON and its digest: two values are the same if their bytes are.

It is RFC 8785 (JSON Canonicalization Scheme) as the library ``rfc8785`` implements it. Digests are
golden-tested: if one changed, nobody would recognise recorded approvals and ledger entries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import rfc8785

#: First integer that RFC 8785 cannot carry exactly (2^53): an IEEE 754 double rounds from here.
UNSAFE_INTEGER: Final = 2**53

#: What whoever has written such a number is told.
LOST_DIGITS: Final = "numbers from 2^53 lose digits in JSON; write them as text, in quotes"


def loses_digits(value: Any) -> bool:
    """Return whether a value is one of the numbers that JSON's readers may have rounded."""
    return isinstance(value, int | float) and UNSAFE_INTEGER <= abs(value) < math.inf


#: Lists and mappings inside one another. What reads messages gives up at 200, and a value is inside
#: others on its way: of a report, a result, a list, a child run.
DEEPEST: Final = 100


def walk_levels(value: Any) -> Iterator[list[Any]]:
    """Yield the parts of a JSON value by level, keys of mappings among them; first the value."""
    level = [value]
    while level:
        yield level
        inside = list[Any]()
        for part in level:
            if isinstance(part, dict):
                inside += [*part.keys(), *part.values()]
            elif isinstance(part, list | tuple):
                inside += part
        level = inside


def is_too_deep(value: Any) -> bool:
    """Return whether a JSON value is nested too deeply to be handed on."""
    return next(islice(walk_levels(value), DEEPEST + 1, None), None) is not None


def has_lost_digits(value: Any) -> bool:
    """Return whether a JSON value has such a number in it, whole or with a fraction."""
    return any(loses_digits(part) for level in walk_levels(value) for part in level)


class NotCanonical(ValueError):
    """A value has no exact RFC 8785 form.

    Integers of 2^53 and beyond, NaN, infinity, lone surrogates. Send such an amount as a string.
    """


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 form of a JSON value; ``NotCanonical``: it has no exact one."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeError) as error:
        raise NotCanonical(f"value has no canonical JSON form: {error}") from error


def digest(value: Any) -> str:
    """Return ``sha256:<hex>`` over the canonical JSON of ``value``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()
