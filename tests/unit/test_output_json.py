"""What a tool returned is recorded, however odd it is: its effect has happened."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from surehand.activities.tools.output_json import LARGEST, clean_text, make_json, to_json
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.tools import Succeeded, ToolReport
from surehand.workflows.identity import canonical_json


class Receipt(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    value: Any = None


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class ClosedCursor(Mapping[str, Any]):
    """What can be asked for nothing any more, not even its length."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("closed")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("closed")

    def __len__(self) -> int:
        raise RuntimeError("closed")


def storable(output: Any) -> Any:
    """Return the output as recorded, once it is sure that chain, databases and history take it."""
    recorded = to_json(output)
    canonical_json(recorded)
    text = json.dumps(recorded, allow_nan=False)
    assert "\\u0000" not in text
    assert json.loads(text) == recorded
    text.encode()
    return recorded


@pytest.mark.parametrize(
    ("output", "recorded"),
    [
        (None, None),
        ("r-1", "r-1"),
        ({"id": 1, "paid": True, "rate": 0.5}, {"id": 1, "paid": True, "rate": 0.5}),
        (Receipt(value=datetime.date(2026, 3, 1)), {"value": "2026-03-01"}),
        (Receipt(value=Receipt(value=1)), {"value": {"value": 1}}),
        (decimal.Decimal("120.00"), "120.00"),
        (datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC), "2026-03-01T00:00:00Z"),
        (datetime.timedelta(minutes=1), "PT1M"),
        (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        (Colour.RED, "red"),
        (Point(1), {"x": 1}),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (b"text", "text"),
        (2**53, "9007199254740992"),
        (-(2**53), "-9007199254740992"),
        (2**53 - 1, 2**53 - 1),
        (9007199254740993.0, "9007199254740992.0"),
        (1e20, "1e+20"),
        ([2**60], ["1152921504606846976"]),
        (math.inf, "Infinity"),
        (math.nan, "NaN"),
        ("a\x00b", "a\ufffdb"),
        ({"a\x00": 1}, {"a\ufffd": 1}),
        ("\ud800", "?"),
    ],
)
def test_an_output_is_recorded_as_json(output: Any, recorded: Any) -> None:
    assert storable(output) == recorded


def circle() -> Any:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def deep() -> Any:
    inner: list[Any] = []
    for _ in range(5_000):
        inner = [inner]
    return inner


ODD: dict[str, Any] = {
    "object": object(),
    "exception": ValueError("a"),
    "function": len,
    "set": {1, 2},
    "generator": (n for n in range(2)),
    "bytes": b"\xff\xfe",
    "bytes in a model": Receipt(value=b"\xff"),
    "object in a model": Receipt(value=object()),
    "infinity in a model": Receipt(value=math.inf),
    "infinity in a list": [math.inf, -math.inf, math.nan],
    "keys that are no text": {(1, 2): 3, None: 4, 1.5: 5},
    "keys of bytes": {b"\xff": 1},
    "keys that are surrogates": {"\ud800": 1},
    "unprintable": Unprintable(),
    "unprintable in a list": [Unprintable()],
    "circle": circle(),
    "deep": deep(),
    "number of 5000 digits": 10**5000,
    "huge number in a model": Receipt(value=10**400),
    "class": Receipt,
    "mapping that is closed": {"rows": ClosedCursor()},
    "model that was never made": Receipt.__new__(Receipt),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_output_is_recorded_in_some_form_and_never_an_error(name: str) -> None:
    storable(ODD[name])


@pytest.mark.parametrize("name", ODD)
async def test_nor_is_an_odd_output_one_where_it_is_asked_how_large_it_is(name: str) -> None:
    canonical_json(await make_json(ODD[name]))


_keys = st.text(max_size=5) | st.integers() | st.none() | st.binary(max_size=3)
_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.binary(max_size=4) | st.decimals() | st.complex_numbers() | st.dates() | st.timedeltas()
    | st.uuids() | st.builds(object) | st.builds(Point, st.integers())
)  # fmt: skip
outputs = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner, max_size=3)
        | st.builds(Receipt, value=inner)
    ),
    max_leaves=8,
)


@given(outputs)
def test_no_output_is_ever_an_error(output: Any) -> None:
    storable(output)


@given(outputs)
def test_what_is_recorded_is_recorded_the_same_when_it_is_read_back(output: Any) -> None:
    recorded = storable(output)
    assert to_json(recorded) == recorded


@pytest.mark.slow
def test_a_large_output_is_recorded_by_its_digest() -> None:
    recorded = storable({"text": "x" * LARGEST})

    assert recorded["too_large"]["bytes"] > LARGEST
    assert len(recorded["too_large"]["sha256"]) == 64
    assert storable("x" * (LARGEST - 2)) == "x" * (LARGEST - 2)


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_text_is_cleaned_of_what_no_database_takes_and_of_nothing_else(text: str) -> None:
    clean = clean_text(text)

    clean.encode()
    assert "\x00" not in clean
    if "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert clean == text


@pytest.mark.parametrize("depth", [50, 100, 101, 198, 250, 900, 5000])
def test_an_output_can_be_read_again_by_all_that_it_is_handed_on_to(depth: int) -> None:
    """A run that cannot read what an activity returns stands still, with its effects."""
    nested: Any = "x"
    for level in range(depth):
        nested = [nested] if level % 2 else {"a": nested}
    output = to_json(nested)

    report = ToolReport(outcome=Succeeded(output=output, attempts=1))
    assert ToolReport.model_validate_json(report.model_dump_json()) == report
    inside = output
    for _ in range(20):  # lists and child runs
        inside = {"child": [inside]}
    view = StepView(id="s", tool="a.b", state=StepState.SUCCEEDED, output=inside)
    assert StepView.model_validate_json(view.model_dump_json()) == view
    assert ("unserialisable" in output) is (depth > 100)
