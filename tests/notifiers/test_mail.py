"""The notifier ``smtp`` against a real SMTP server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from surehand.activities.ledger.outbox.notification import (
    ANSWER_LIMIT,
    MaybeDelivered,
    NotDelivered,
)
from surehand.activities.notifiers import Mail, MailServer, mail_server
from tests.notifiers.mailbox import Mailbox, mailbox
from tests.notifiers.samples import approval
from tests.notifiers.test_text import HOSTILE

#: An address that leads to this machine, and is not one of its own by the look of it.
ELSEWHERE = "0.0.0.0"
TO = ("ops@example.com", "finance@example.com")


#: Over before a server that says nothing goes on.
SHORT = timedelta(milliseconds=300)


def mail(
    box: Mailbox,
    *,
    host: str = "127.0.0.1",
    login: str = "",
    limit: timedelta = ANSWER_LIMIT,
) -> Mail:
    server = mail_server(f"smtp://{login}{host}:{box.port}")
    return Mail(server, "surehand@example.com", TO, limit)


async def test_a_mail_arrives_with_all_that_people_need_and_an_id_that_stays(
    tmp_path: Path,
) -> None:
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
async def test_nothing_that_a_stranger_wrote_becomes_a_header_or_a_recipient(
    tmp_path: Path, line: str
) -> None:
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


async def test_off_this_machine_a_certificate_that_nobody_vouches_for_is_not_trusted(
    tmp_path: Path,
) -> None:
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


async def test_a_mail_that_was_given_up_before_it_was_handed_in_never_arrives(
    tmp_path: Path,
) -> None:
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
async def test_a_mail_that_was_handed_in_and_not_answered_may_have_arrived(
    tmp_path: Path, ending: str
) -> None:
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
    assert MailServer(host, 25, False).loopback is here
