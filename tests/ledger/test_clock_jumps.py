"""G5: a database clock that is set back keeps no dead attempt's lease alive."""

from __future__ import annotations

from datetime import timedelta

import pytest

from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import outcomes, reconcile
from surehand.activities.ledger.steps.entries import Claimed, Doubtful, Held
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.rows import change
from tests.ledger.scene import LEASE, LEASE_OVER, SETTLE, TIMEOUT, Scene

pytestmark = pytest.mark.guarantee("G5")

#: As a row has it whose writer's clock was an hour ahead.
HOUR_MS = 3_600_000


def set_back(scene: Scene, column: str) -> None:
    """Let a row's time lie an hour further ahead than it can by the clock of now."""
    before = (scene.row(effects))[column]
    change(scene, effects, **{column: before + HOUR_MS})


def test_a_dead_attempts_lease_is_waited_for_no_longer_than_a_lease_lasts(
    scene: Scene,
) -> None:
    scene.claimed(scene.call(holder="dead"))
    set_back(scene, "lease_until_ms")
    other = scene.call(holder="other", activity_key="other")

    held = scene.claim(other)

    assert isinstance(held, Held) and held.wait <= LEASE
    assert isinstance(scene.claim(other, LEASE_OVER), Doubtful)
    [event] = scene.events(type_="clock.set_back")
    assert event["body"]["evidence"] == "lease_until_ms"


def test_a_live_attempt_keeps_its_claim_by_renewing_it(scene: Scene) -> None:
    request = scene.call(holder="alive")
    entry = scene.claimed(request)
    set_back(scene, "lease_until_ms")
    scene.claim(scene.call(holder="other", activity_key="other"))

    with scene.tx() as tx:
        assert outcomes.renew(tx, entry)
    assert scene.commit(request, entry)


def test_an_undo_waits_no_longer_than_a_lease_lasts(scene: Scene) -> None:
    scene.claimed(scene.call(holder="dead"))
    set_back(scene, "lease_until_ms")

    held = scene.begin_undo()

    assert isinstance(held, Held) and held.wait <= timedelta(seconds=10)
    assert isinstance(scene.begin_undo(after=timedelta(seconds=11)), Doubtful)


def test_a_not_found_is_believed_after_what_a_call_can_last(scene: Scene) -> None:
    request = scene.call(recovery=Recovery.LOOKUP)
    scene.in_doubt(request)
    set_back(scene, "deadline_ms")
    doubtful = scene.claim(scene.call(attempt=2))
    assert isinstance(doubtful, Doubtful)

    with scene.tx() as tx:
        held = reconcile.after_not_found(tx, request, doubtful.entry, forward=True)
    assert isinstance(held, Held) and held.wait <= TIMEOUT + SETTLE

    later = scene.claim(scene.call(attempt=3))
    assert isinstance(later, Doubtful)
    with scene.tx(TIMEOUT + SETTLE + timedelta(seconds=1)) as tx:
        again = reconcile.after_not_found(tx, request, later.entry, forward=True)
    assert isinstance(again, Claimed)
