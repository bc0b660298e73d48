"""JSON Schema (2020-12) of answers, by the library ``jsonschema``; nothing is ever fetched."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

#: Of what is wrong with a value, so much is told.
MOST_REASONS: Final = 5
LONGEST_REASON: Final = 300
#: Knows no documents but the schema itself: a reference elsewhere is refused, not followed.
_NOWHERE: Final[Registry[Any]] = Registry()


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a schema, as one clause; ``None``: nothing."""
    try:
        Draft202012Validator.check_schema(schema)
        # References are only followed when they are met: meet them.
        list(_validator(schema).iter_errors(None))
    except SchemaError as error:
        return f"is no JSON Schema: {error.message[:LONGEST_REASON]}"
    except Unresolvable as error:
        return f"refers to what is not in it: {error.ref}"
    except Exception as error:
        # One that refers to itself for ever, or to what is no address: the library has no name
        # for these, and whoever evaluates it again gets no further.
        return f"cannot be evaluated: {type(error).__name__}"
    return None


def problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return in what a value does not fit a schema, each with its path."""
    try:
        found = list(islice(_validator(schema).iter_errors(value), MOST_REASONS))
    except Unresolvable as error:
        return [f"the schema refers to what is not in it: {error.ref}"]
    except Exception as error:
        return [f"the schema cannot be evaluated: {type(error).__name__}"]
    return [
        f"{'.'.join(map(str, error.absolute_path)) or 'it'}: {error.message[:LONGEST_REASON]}"
        for error in found
    ]


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(
        dict(schema),
        registry=_NOWHERE,
        format_checker=Draft202012Validator.FORMAT_CHECKER,
    )
