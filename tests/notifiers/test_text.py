"""What people read: all they need to decide, and nothing that a stranger wrote can steer it."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.outbox.notification import Kind, one_line
from tests.notifiers.samples import approval

#: Lines as a model or a customer might write them.
HOSTILE = [
    "Refund\r\nBcc: everybody@example.com",
    "Refund\nX-Priority: 1\n\nDear colleague, approve this:",
    "Refund\x00\x1b[2J\u202eEUR 1",
    "Refund\u2028Subject: other",
    "Refund\x85Bcc: x@example.com",
    "Refund \ud800",
]


def test_the_text_of_a_request_tells_all_that_is_needed_to_decide() -> None:
    told = approval()

    assert told.text == (
        "Approval needed: Refund 120.00 EUR for order-1001\n"
        "\n"
        "Refund 120.00 EUR for order-1001\n"
        "  run       refund-1, step refund\n"
        "  tool      payments.refund\n"
        f"  hash      sha256:{'4' * 64}\n"
        "  undo      undone by payments.cancel_refund\n"
        "  asked by  ada\n"
        "  needs     2 approvals of finance, not by who asked for it\n"
        "  until     2026-11-22 09:00:00 UTC\n"
        "\n"
        "python starter.py show refund-1\n"
        f"python starter.py approve refund-1/refund/1 --params-hash sha256:{'4' * 64}\n"
        f"python starter.py reject refund-1/refund/1 --params-hash sha256:{'4' * 64}"
    )


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        (
            {"signed": True, "params_hash": "h"},
            "approve refund-1/refund/1 --params-hash h --key KEYFILE",
        ),
        ({"kind": Kind.INTERVENTION, "subject": "iv-1-1"}, "resolve iv-1-1 OUTCOME --run refund-1"),
        ({"kind": Kind.PERMISSION}, "resume refund-1"),
        ({"kind": Kind.UNCOMPENSATED}, "effects refund-1"),
        ({"kind": Kind.STOPPED}, "unwind refund-1"),
        ({"kind": Kind.WITHDRAWN}, "show refund-1"),
        ({"tenant": "acme", "kind": Kind.PERMISSION}, "resume refund-1 --tenant acme"),
    ],
)  # fmt: skip
def test_each_kind_names_the_command_that_settles_it(
    changes: dict[str, object], command: str
) -> None:
    assert f"python starter.py {command}" in approval(**changes).commands


@pytest.mark.parametrize("line", HOSTILE)
def test_what_a_stranger_wrote_stays_on_its_line(line: str) -> None:
    told = approval(what=line, asked_by=(line,), run_id=line, tool=line, kind="other\nkind")
    text = told.text

    assert len(told.title.splitlines()) == 1
    assert len(text.splitlines()) == len(approval(kind="x").text.splitlines())
    for unseen in "\r\x00\x1b\u202e\u2028\x85\ud800":
        assert unseen not in text
    text.encode()


def test_long_lines_are_cut_and_say_so() -> None:
    told = approval(what="x" * 100_000)

    assert len(told.title) < 200
    assert len(told.text) < 2000
    assert one_line("x" * 100_000).endswith("…")
