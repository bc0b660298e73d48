"""JSON values for the property tests."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

#: Texts that canonical JSON can carry: no lone surrogates.
texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts

json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)


#: What anybody can start a run for, and what no tenant is called.
ODD_TENANTS: Final = (
    *("", ".", "..", "...", ".hidden", "-x", "/", "a/b", "a\\b", "~", "a~b", "a%2Fb", "..%2f.."),
    *("a'b", 'a"b', "a b", "a\nb", "a\n", "a\x00b", "a:b", "C:", "acme;--", "\u00e4", "\u0661"),
    *("t" * 40, "x" * 5000),
)


def same_json(left: Any, right: Any) -> bool:
    """Whether two values are one JSON value: ``1`` is ``1.0``, and ``true`` is neither."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return (type(left) in (int, float) and type(right) in (int, float) and left == right) or (
        type(left) is type(right) and left == right
    )
