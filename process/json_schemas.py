"""JSON Schema (2020-12) of answers, by the library ``jsonschema``; nothing is ever fetched.

Whoever writes a plan writes schemas, and they are looked at between the heartbeats of all calls. So
patterns are RE2's, which take time in proportion to the text, and an evaluation has an end.

``jsonschema-rs`` bounds patterns, too, but no evaluation: it takes 2.6 s for 25 definitions that
each refer twice to the next one, twice as long for 26, and holds Python's lock to the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final

import re2  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from surehand.process import clock

#: Of what is wrong with a value, so much is told.
MOST_REASONS: Final = 5
LONGEST_REASON: Final = 300
#: Seconds of the processor for one evaluation: schemas of people need a hundredth.
LONGEST: Final = 0.5
#: Knows no documents but the schema itself: a reference elsewhere is refused, not followed.
_NOWHERE: Final[Registry[Any]] = Registry()
#: 1 MiB is room for thousands of characters of pattern, and bounds the time a character takes.
_RE2: Final = re2.Options()
_RE2.max_mem = 1024 * 1024
_RE2.log_errors = False
#: Characters of a schema, as JSON: whether it is one takes the processor time for each part of it.
LARGEST_SCHEMA: Final = 64 * 1024
#: The same of one that is looked at in a few milliseconds.
_SHORT: Final = 1000
_ends_at: Final[ContextVar[float]] = ContextVar("ends_at")


class _Unbounded(Exception):
    """An evaluation has used up its time, or could not be held to it."""


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a schema, as one clause; ``None``: nothing."""
    if len(json.dumps(schema, default=str)) > LARGEST_SCHEMA:
        return f"has more than {LARGEST_SCHEMA:,} characters of JSON"
    try:
        Draft202012Validator.check_schema(schema, format_checker=_FORMATS)
        # References are only followed when they are met: meet them.
        with _limit_time():
            list(_make_validator(schema).iter_errors(None))
    except SchemaError as error:
        if isinstance(error.cause, _Unbounded):
            return str(error.cause)
        return f"is no JSON Schema: {error.message[:LONGEST_REASON]}"
    except _Unbounded as error:
        return str(error)
    except Unresolvable as error:
        return f"refers to what is not in it: {error.ref}"
    except Exception as error:
        # One that refers to itself for ever, or to what is no address: the library has no name
        # for these, and whoever evaluates it again gets no further.
        return f"cannot be evaluated: {type(error).__name__}"
    return None


async def find_schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return the same, found by a thread if the schema is none of people's: it may take seconds."""
    if len(json.dumps(schema, default=str)) <= _SHORT:
        return schema_problem(schema)
    return await asyncio.to_thread(schema_problem, schema)


def problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return in what a value does not fit a schema, each with its path inside the value."""
    try:
        with _limit_time():
            found = list(islice(_make_validator(schema).iter_errors(value), MOST_REASONS))
    except _Unbounded as error:
        return [f"the schema {error}"]
    except Unresolvable as error:
        return [f"the schema refers to what is not in it: {error.ref}"]
    except Exception as error:
        return [f"the schema cannot be evaluated: {type(error).__name__}"]
    places = [".".join(map(str, error.absolute_path)) for error in found]
    return [
        f"{f'{place}: ' if place else ''}{_reason_of(error)[:LONGEST_REASON]}"
        for place, error in zip(places, found, strict=True)
    ]


def _reason_of(error: ValidationError) -> str:
    """Return what an error says; of a choice, why the value is none of them."""
    if error.validator == "type" and error.validator_value == "boolean":
        return f"must be true or false, not {error.instance!r}"
    return ", and ".join(inner.message for inner in error.context or ()) or error.message


def _make_validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    # By what it names, the library would take its own validator instead of this one.
    bare = {keyword: part for keyword, part in schema.items() if keyword != "$schema"}
    named = set(_names_in(bare))
    if "$schema" in named:
        raise _Unbounded("has another $schema inside it")
    if {"patternProperties", "unevaluatedProperties"} <= named:
        raise _Unbounded("has patternProperties and unevaluatedProperties: take one of them")
    validator: Draft202012Validator = _Validator(bare, registry=_NOWHERE, format_checker=_FORMATS)
    return validator


def _names_in(part: Any) -> Iterator[str]:
    """Yield the names in a schema, at any depth."""
    if isinstance(part, Mapping):
        yield from part
    if isinstance(part, Mapping | list):
        for inner in part.values() if isinstance(part, Mapping) else part:
            yield from _names_in(inner)


@contextmanager
def _limit_time() -> Iterator[None]:
    # The thread's own time: one that was stopped for a while has not taken long.
    token = _ends_at.set(clock.processor_time() + LONGEST)
    try:
        yield
    finally:
        _ends_at.reset(token)


def _end_in_time(check: Any) -> Any:
    """Return the check of a keyword that looks at the time first: references can multiply.

    An error has the whole value in its message, and a choice keeps those of all its parts.
    """

    def ending(*given: Any) -> Iterator[ValidationError]:
        if clock.processor_time() > _ends_at.get():
            raise _Unbounded("takes too long to evaluate")
        for error in check(*given) or ():
            error.message = error.message[:LONGEST_REASON]
            error.args = (error.message,)
            yield error

    return ending


def _matches_pattern(pattern: str, text: str) -> bool:
    return _compile_pattern(pattern).search(text) is not None


def _compile_pattern(pattern: str) -> Any:
    try:
        return re2.compile(pattern, options=_RE2)
    except re2.error as error:
        why = error.args[0].decode()
        told = f"has a pattern that RE2 does not take: {pattern!r}"[:LONGEST_REASON]
        raise _Unbounded(f"{told}: {why[:LONGEST_REASON]}") from error


def _check_pattern(_: Any, pattern: str, text: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(text, str) and not _matches_pattern(pattern, text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, _: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, schema in patterns.items():
            for name in value:
                if _matches_pattern(pattern, name):
                    yield from validator.descend(
                        value[name], schema, path=name, schema_path=pattern
                    )


def _check_additional_properties(
    validator: Any, allowed: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Leave to the library what no pattern matches: it would match by ``re``."""
    patterns = schema.get("patternProperties", {})
    if isinstance(value, dict):
        value = {
            k: v for k, v in value.items() if not any(_matches_pattern(p, k) for p in patterns)
        }
    bare = {keyword: part for keyword, part in schema.items() if keyword != "patternProperties"}
    yield from _KEYWORDS["additionalProperties"](validator, allowed, value, bare) or ()


def _check_unique_items(_: Any, unique: Any, value: Any, __: Any) -> Iterator[ValidationError]:
    """Compare each item with all others at once: the library takes one after another."""
    if unique and isinstance(value, list) and len({_text_of(item) for item in value}) < len(value):
        yield ValidationError(f"{value!r} has items that are the same")


def _text_of(value: Any) -> str:
    """Return a JSON value as text: the same for what JSON Schema takes for the same, as 1 and 1.0.

    Nobody can choose texts that fall on one place in a set, as numbers can be chosen.
    """
    if isinstance(value, Mapping):
        pairs = sorted((json.dumps(name), _text_of(part)) for name, part in value.items())
        return "{" + ",".join(f"{name}:{part}" for name, part in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text_of, value)) + "]"
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value)


_FORMATS: Final = FormatChecker()


@_FORMATS.checks("regex", raises=_Unbounded)
def _is_pattern(text: Any) -> bool:
    return not isinstance(text, str) or _compile_pattern(text) is not None


_KEYWORDS: Final = dict(Draft202012Validator.VALIDATORS)
_BOUNDED: Final = {
    "pattern": _check_pattern,
    "patternProperties": _check_pattern_properties,
    "additionalProperties": _check_additional_properties,
    "uniqueItems": _check_unique_items,
}
_Validator: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {keyword: _end_in_time(check) for keyword, check in (_KEYWORDS | _BOUNDED).items()},
)
