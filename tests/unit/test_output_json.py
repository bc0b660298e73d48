"""What tools and strangers say is recorded, shown and sent on as what it is."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import decimal
import enum
import json
import math
import time
import unicodedata
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from surehand.activities.mcp.connection import LARGEST_MESSAGE
from surehand.activities.tools.call_reports import LARGEST_ARTIFACT, make_json, to_json
from surehand.client import run as client_run
from surehand.client.run import Run
from surehand.workflows import plain_text
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import Acknowledged, StepState
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.tools import Succeeded, ToolReport
from surehand.workflows.plain_text import LONGEST_TEXT, clean_text, markdown, plain, plain_line


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
    recorded = storable({"text": "x" * LARGEST_ARTIFACT})

    assert recorded["too_large"]["bytes"] > LARGEST_ARTIFACT
    assert len(recorded["too_large"]["sha256"]) == 64
    assert storable("x" * (LARGEST_ARTIFACT - 2)) == "x" * (LARGEST_ARTIFACT - 2)


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


REPOSITORY: Final = Path(__file__).parents[2]
PRODUCT: Final = [
    *(
        file
        for room in ("activities", "cli", "client", "drill", "process", "surehand", "workflows")
        for file in sorted((REPOSITORY / room).rglob("*.py"))
    ),
    *(REPOSITORY / f"{program}.py" for program in ("worker", "starter")),
]
#: What makes text of strangers fit to be shown or kept.
MENDED_BY: Final = {"plain", "plain_line", "markdown", "clean_text"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Refund 120.00 EUR for order-1", "Refund 120.00 EUR for order-1"),
        ("~~1~~200 of _all_ `it`", r"\~\~1\~\~200 of \_all\_ \`it\`"),
        ("<b>paid</b> [here](x)", r"\<b\>paid\</b\> \[here\](x)"),
        (r"C:\*", r"C:\\\*"),
    ],
)
def test_markup_is_written_so_that_it_shows(text: str, shown: str) -> None:
    assert markdown(text) == shown


def test_a_text_stays_one_line_and_cannot_begin_a_block_of_its_own() -> None:
    assert markdown("Refund 1 EUR\n\n### Approved\n```\n") == r"Refund 1 EUR ### Approved \`\`\`"


def test_what_is_not_seen_is_written_out() -> None:
    assert markdown("12\u202e34\x1b[2J") == r"12\\u202e34\\u001b\[2J"


@pytest.mark.parametrize("unseen", ["\u034f", "\u2800", "\u3164", "\ufe0f", "\uffa0", "\U000e0100"])
def test_what_unicode_has_everybody_leave_out_is_written_out(unseen: str) -> None:
    assert plain(f"bob{unseen}@corp.com") == f"bob\\u{ord(unseen):04x}@corp.com"


@pytest.mark.parametrize("space", ["\u00a0", "\u1680", "\u2003", "\u202f", "\u205f", "\u3000"])
def test_only_the_space_of_the_keyboard_is_a_space(space: str) -> None:
    assert plain(f"a b{space}c") == f"a b\\u{ord(space):04x}c"


@pytest.mark.parametrize("space", ["\n", "\u2028", "\t"])
def test_a_line_that_is_cut_says_so_and_one_that_is_not_is_whole(space: str) -> None:
    assert plain_line(f"{space}a{space * 8}b{space}", 3) == "a b"
    assert plain_line("abcd", 3) == "ab…"
    assert plain_line(f"a{space * 1000}b", 3).endswith("…")


@pytest.mark.parametrize(
    "kind", ["x", "\x1b", "\u202e", "\U000e0001", "é", "\ufe0f", "\ud800", " \n"]
)
@pytest.mark.parametrize("show", [plain, plain_line, markdown, clean_text])
def test_no_text_of_the_largest_message_holds_up_an_event_loop(
    monkeypatch: pytest.MonkeyPatch, kind: str, show: type[str]
) -> None:
    asked = list[str]()

    class Counted:
        @staticmethod
        def category(char: str) -> str:
            asked.append(char)
            return unicodedata.category(char)

    monkeypatch.setattr(plain_text, "unicodedata", Counted)
    text = kind * (LARGEST_MESSAGE // len(kind))
    began = time.thread_time()
    shown = show(text, 500)  # type: ignore[call-arg]
    # What is looked at does not grow with the text. Counted are characters; the processor's time of
    # this thread, which no other process lengthens, also shows what is counted nowhere.
    spent = time.thread_time() - began
    assert len(asked) <= 4 * 500
    assert 0 < len(shown) <= 2 * 500  # Markdown doubles what it would take for markup.
    assert spent < 0.05


def test_ordinary_text_is_not_looked_at_by_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_text, "unicodedata", None)
    text = "Erstattung von 20,00 € für Bestellung 7 (顧客) " * 20
    assert plain(text) == text and plain_line(text, LONGEST_TEXT) == text.strip()


def _cut_afterwards(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
            continue
        for part in ast.walk(node.value):
            if (
                isinstance(part, ast.Call)
                and isinstance(part.func, ast.Name)
                and part.func.id in MENDED_BY
            ):
                yield node.lineno


def test_text_is_cut_before_it_is_mended_and_never_after() -> None:
    found = [
        f"{file.relative_to(REPOSITORY)}:{line}"
        for file in PRODUCT
        for line in _cut_afterwards(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is delivered; no run is there."""
    delivered: list[Any] = []

    async def deliver(
        _connection: Any, _run: str, _verb: str, made: Any, *_: Any, **__: Any
    ) -> Any:
        delivered.append(made)
        return Acknowledged(message="added")

    monkeypatch.setattr(client_run, "deliver", deliver)
    return delivered


@pytest.mark.parametrize("id_", [None, "mine"])
async def test_an_unanswered_message_has_an_id(sent: list[Any], id_: str | None) -> None:
    message = {"actor": "uma", "tokens": 5} | ({} if id_ is None else {"id": id_})
    for _ in range(2):
        await Run(cast(Any, None), "r").forward_steering("top_up", message)

    ids = [one.id for one in sent]
    assert all(ids)
    assert len(set(ids)) == (2 if id_ is None else 1)


async def test_a_signed_message_is_sent_as_it_was_signed(sent: list[Any]) -> None:
    message = {"actor": "uma", "tokens": 5, "signature": "a.b.c"}
    await Run(cast(Any, None), "r").forward_steering("top_up", message)

    assert sent[0].model_dump(exclude_defaults=True) == message
