"""Text from models and strangers, shown to an approver as the plain text it is."""

from __future__ import annotations

import ast
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from surehand.activities.mcp.connection import LARGEST_MESSAGE
from surehand.activities.tools.output_json import clean_text
from surehand.workflows import plain_text
from surehand.workflows.plain_text import LONGEST_TEXT, markdown, plain, plain_line

REPOSITORY: Final = Path(__file__).parents[2]
PRODUCT: Final = [
    *(
        file
        for room in ("activities", "cli", "client", "drill", "process", "surehand", "workflows")
        for file in sorted((REPOSITORY / room).rglob("*.py"))
    ),
    *(REPOSITORY / f"{program}.py" for program in ("worker", "starter", "devserver")),
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


def test_ordinary_text_is_not_looked_at_by_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
