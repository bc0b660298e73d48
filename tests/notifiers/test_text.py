"""What people read: all they need to decide, and nothing that a stranger wrote can steer it."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.outbox.notification import Kind
from surehand.workflows.plain_text import plain_line
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


def test_where_a_passkey_has_to_sign_nobody_is_told_of_a_command_that_cannot() -> None:
    told = approval(signed=True, passkey=True)

    assert told.commands == ("python starter.py show refund-1/refund/1",)
    assert "  decisions have to be signed by a passkey\n" in told.text


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
    assert plain_line("x" * 100_000).endswith("…")


@pytest.mark.parametrize(
    ("changes", "page"),
    [
        ({}, "/approval?id=refund-1%2Frefund%2F1"),
        ({"kind": Kind.REMINDER}, "/approval?id=refund-1%2Frefund%2F1"),
        ({"kind": Kind.INTERVENTION, "subject": "iv-1-1"}, "/run?id=refund-1"),
        ({"kind": Kind.QUESTION}, "/run?id=refund-1"),
        ({"kind": Kind.STOPPED}, None),
        ({"subject": "refund-1/x&y#z/1"}, "/approval?id=refund-1%2Fx%26y%23z%2F1"),
    ],
)
def test_what_waits_has_a_link_to_the_tenant_s_page_that_says_nothing_else(
    changes: dict[str, object], page: str | None
) -> None:
    told = approval(tenant="acme", **changes)
    there = told.linked("https://{tenant}.approvals.example.com")

    link = None if page is None else f"https://acme.approvals.example.com{page}"
    assert (there.page, told.page) == (link, None)
    assert link is None or f"  page      {link}\n" in there.text
    assert told.linked("") == told
