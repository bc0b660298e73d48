"""Text from models and strangers, shown to an approver as the plain text it is."""

from __future__ import annotations

import pytest

from surehand.workflows.plain_text import markdown, plain


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
