"""The notifier ``webhook`` against a receiver that verifies with the protocol's own library."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from surehand.activities.ledger.outbox.notification import NotDelivered, ReceiverGone
from surehand.activities.notifiers import Webhook, secret_of, signature, url_of
from tests.notifiers.receiver import Receiver, receiving
from tests.notifiers.samples import approval


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as one:
        yield one


def webhook(receiver: Receiver, secret: str | None = None) -> Webhook:
    return Webhook(url_of(receiver.url), secret_of(secret or receiver.secret))


async def test_a_receiver_verifies_and_finds_all(receiver: Receiver) -> None:
    await webhook(receiver).send(approval(what="Refund 120 € for Zoë"))

    [got] = receiver.got
    assert (got["type"], got["timestamp"]) == ("approval.requested", "2026-11-21T09:00:00Z")
    data = got["data"]
    assert (data["subject"], data["tool"]) == ("refund-1/refund/1", "payments.refund")
    assert data["title"] == "Approval needed: Refund 120 € for Zoë"
    assert data["commands"][1].startswith("python starter.py approve refund-1/refund/1 ")
    assert receiver.ids == [data["delivery_id"]]


async def test_a_wrong_secret_is_noticed_by_the_receiver(receiver: Receiver) -> None:
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()

    with pytest.raises(NotDelivered, match="HTTP 400"):
        await webhook(receiver, other).send(approval())

    assert (receiver.got, receiver.unproven) == ([], 1)


def test_the_signature_is_that_of_the_protocols_own_example() -> None:
    # From the test of the reference library.
    secret = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'

    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("code", [200, 202, 204])
async def test_any_success_is_one(receiver: Receiver, code: int) -> None:
    receiver.answers = [(code, {})]

    await webhook(receiver).send(approval())


@pytest.mark.parametrize(
    ("code", "headers", "pause"),
    [
        (301, {"Location": "http://127.0.0.1:1/"}, timedelta(0)),
        (404, {"Retry-After": "60"}, timedelta(0)),
        (500, {}, timedelta(0)),
        (429, {"Retry-After": "120"}, timedelta(minutes=2)),
        (503, {"Retry-After": "9"}, timedelta(seconds=9)),
    ],
)
async def test_another_answer_is_tried_again_when_the_receiver_says(
    receiver: Receiver, code: int, headers: dict[str, str], pause: timedelta
) -> None:
    receiver.answers = [(code, headers)]

    with pytest.raises(NotDelivered, match=f"HTTP {code}") as refused:
        await webhook(receiver).send(approval())

    assert not isinstance(refused.value, ReceiverGone)
    assert refused.value.retry_after == pause


async def test_410_says_that_nothing_more_is_wanted(receiver: Receiver) -> None:
    receiver.answers = [(410, {})]

    with pytest.raises(ReceiverGone):
        await webhook(receiver).send(approval())


async def test_a_server_that_is_away_is_tried_again_and_the_url_is_not_told() -> None:
    away = Webhook(url_of("http://127.0.0.1:1/hooks/token"), b"x" * 32)

    with pytest.raises(NotDelivered) as refused:
        await away.send(approval())

    assert "ConnectError" in str(refused.value)
    assert "token" not in str(refused.value)
    assert away.where == "http://127.0.0.1:1"


def test_the_url_keeps_its_user_and_token_when_it_is_named() -> None:
    assert Webhook(url_of("https://u:p@h.example/t?k=v"), b"").where == "https://h.example"
    assert isinstance(url_of("https://h.example"), httpx.URL)
