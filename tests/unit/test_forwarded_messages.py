"""What somebody else says is sent to a run as they have made it, and counts once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from surehand.client import run as client_run
from surehand.client.run import Run
from surehand.workflows.contracts.base import Acknowledged


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
