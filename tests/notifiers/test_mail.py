"""The notifier `smtp` against a real SMTP server, and the text that people read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from surehand.activities.ledger.outbox.notification import (
    ANSWER_LIMIT,
    Kind,
    MaybeDelivered,
    NotDelivered,
)
from surehand.activities.notifiers import Mail, MailServer, mail_server
from surehand.process.settings import is_loopback
from surehand.workflows.plain_text import plain_line
from tests.notifiers.mailbox import Mailbox, mailbox
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
        "  asked by  ada\n"
        "  needs     2 approvals of finance, not by who asked for it\n"
        "  until     2026-11-22 09:00:00 UTC\n"
        "  undo      undone by payments.cancel_refund\n"
        f"  hash      sha256:{'4' * 64}\n"
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
        ({"kind": Kind.QUESTION, "subject": "refund-1/tone.1"}, "answer refund-1 tone.1=ANSWER"),
        ({"kind": Kind.PERMISSION}, "resume refund-1"),
        ({"kind": Kind.UNCOMPENSATED}, "effects refund-1"),
        ({"kind": Kind.STOPPED}, "unwind refund-1"),
        ({"tenant": "acme", "kind": Kind.PERMISSION}, "resume refund-1 --tenant acme"),
    ],
)  # fmt: skip
def test_each_kind_names_its_command(changes: dict[str, object], command: str) -> None:
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
def test_a_waiting_request_links_to_its_page(changes: dict[str, object], page: str | None) -> None:
    told = approval(tenant="acme", **changes)
    there = told.linked("https://{tenant}.approvals.example.com")

    link = None if page is None else f"https://acme.approvals.example.com{page}"
    assert (there.page, told.page) == (link, None)
    assert link is None or there.text.splitlines()[2] == link
    assert told.linked("") == told


#: An address that leads to this machine, and is not one of its own by the look of it.
ELSEWHERE = "0.0.0.0"
TO = ("ops@example.com", "finance@example.com")
#: Over before a server that says nothing goes on.
SHORT = timedelta(milliseconds=300)


def mail(
    box: Mailbox, *, host: str = "127.0.0.1", login: str = "", limit: timedelta = ANSWER_LIMIT
) -> Mail:
    server = mail_server(f"smtp://{login}{host}:{box.port}")
    return Mail(server, "surehand@example.com", TO, limit)


async def test_a_mail_has_all_that_people_need(tmp_path: Path) -> None:
    told = approval(what="Refund 120 € for Zoë")
    async with mailbox(tmp_path) as box:
        for _ in range(2):
            await mail(box).send(told)

    first, second = box.got
    assert first["Subject"] == "Approval needed: Refund 120 € for Zoë"
    assert first["Message-ID"] == second["Message-ID"] == f"<{told.delivery_id}@example.com>"
    assert (first["From"], first["To"]) == ("surehand@example.com", ", ".join(TO))
    assert first.get_content().splitlines() == told.text.splitlines()
    assert box.envelopes[0].rcpt_tos == list(TO)


@pytest.mark.parametrize("line", HOSTILE)
async def test_strangers_text_becomes_no_header_or_recipient(tmp_path: Path, line: str) -> None:
    hostile = approval(what=line, asked_by=(line,), step_id=line, subject=line)
    async with mailbox(tmp_path) as box:
        await mail(box).send(approval())
        await mail(box).send(hostile)

    plain, got = box.got
    # The same headers, each once; a text in another alphabet says so.
    assert sorted(got.keys()) == sorted(plain.keys())
    assert box.envelopes[1].rcpt_tos == list(TO)
    assert got.get_content().splitlines() == hostile.text.splitlines()


async def test_it_logs_in_with_what_the_url_says_and_not_before_tls(tmp_path: Path) -> None:
    async with mailbox(tmp_path, starttls=True, auth=True) as box:
        await mail(box, login="robot:p%40ss%3Aword@").send(approval())

    assert box.logins == [(b"robot", b"p@ss:word")]
    assert box.tls == [True]


async def test_off_this_machine_nothing_goes_in_clear(tmp_path: Path) -> None:
    async with mailbox(tmp_path) as box:
        off = mail(box, host=ELSEWHERE, login="robot:secret@")
        with pytest.raises(NotDelivered, match="no STARTTLS"):
            await off.send(approval())

    assert (box.got, box.logins) == ([], [])


async def test_off_this_machine_an_unknown_certificate_is_refused(tmp_path: Path) -> None:
    async with mailbox(tmp_path, starttls=True, auth=True) as box:
        off = mail(box, host=ELSEWHERE, login="robot:secret@")
        with pytest.raises(NotDelivered, match="certificate"):
            await off.send(approval())

    assert (box.got, box.logins) == ([], [])


async def test_a_mail_that_was_taken_is_sent_whatever_the_server_says_then(tmp_path: Path) -> None:
    async with mailbox(tmp_path) as box:
        box.bye = "421 too busy"
        await mail(box).send(approval())

    assert len(box.got) == 1


async def test_a_mail_given_up_early_never_arrives(tmp_path: Path) -> None:
    async with mailbox(tmp_path) as box:
        box.silent_at = "RCPT"
        # Whichever limit is noticed first: the conversation's, or the socket's in its thread.
        with pytest.raises(NotDelivered, match=r"took longer|timed out") as given_up:
            await mail(box, limit=SHORT).send(approval())
        box.goes_on.set()
        await box.left.wait()

    assert not isinstance(given_up.value, MaybeDelivered)
    assert box.got == []


@pytest.mark.parametrize("ending", ["silent", "cut off"])
async def test_an_unanswered_mail_may_have_arrived(tmp_path: Path, ending: str) -> None:
    async with mailbox(tmp_path) as box:
        box.silent_at, box.cuts = ("DATA", False) if ending == "silent" else ("", True)
        with pytest.raises(MaybeDelivered, match="handed in and not answered"):
            await mail(box, limit=SHORT).send(approval())
        box.goes_on.set()
        await box.left.wait()

    assert len(box.got) == 1


async def test_what_the_server_refuses_is_tried_again(tmp_path: Path) -> None:
    async with mailbox(tmp_path) as box:
        box.refuses = "451 later"
        with pytest.raises(NotDelivered, match="later") as refused:
            await mail(box).send(approval())

    assert not isinstance(refused.value, MaybeDelivered)


async def test_a_wrong_password_is_tried_again_and_not_told(tmp_path: Path) -> None:
    async with mailbox(tmp_path, auth=True) as box:
        wrong = mail(box, login="robot:geheim@")
        with pytest.raises(NotDelivered) as refused:
            await wrong.send(approval())

    assert "geheim" not in str(refused.value)
    assert box.got == []


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("smtp://mail.example", MailServer("mail.example", 587, False)),
        ("smtps://u:p%40@mail.example", MailServer("mail.example", 465, True, "u", "p@")),
        ("smtp://[::1]:25/", MailServer("::1", 25, False)),
    ],
)
def test_a_url_names_a_server(url: str, server: MailServer) -> None:
    assert mail_server(url) == server


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("10.0.0.1", False), ("mx", False)],
)
def test_only_this_machine_may_do_without_tls(host: str, here: bool) -> None:
    assert is_loopback(host) is here
