"""A recovery explains itself: where it began, which branches it took, and that all holds again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.tables import (
    effects,
    interventions,
)
from surehand.activities.ledger.steps.entries import Asked
from surehand.activities.tools.tool import Dedupes, Found, Tool
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from tests.ledger.attempts import Payment, Provider, effect_call, last_of, request_for
from tests.ledger.rows import change
from tests.ledger.scene import SETTLE, WINDOW, Scene

LOST = httpx.ReadTimeout("the answer was lost")
RECEIPT = {"id": "r-1"}


async def found(params: Payment, ctx: Any) -> Found:
    return Found(RECEIPT)


def dedupes() -> Tool:
    return Provider([RECEIPT]).tool(dedupes=Dedupes(window=WINDOW))


def lookup() -> Tool:
    return Provider([LOST]).tool(lookup=found, settle=SETTLE)


def verified(scene: Scene) -> dict[str, Any]:
    [event] = scene.events(type_="recovery.verified")
    body: dict[str, Any] = event["body"]
    return body


def left_by_a_dead_attempt(scene: Scene, loaded: Tool) -> None:
    scene.claimed(request_for(scene, loaded, holder="dead"))
    change(scene, effects, lease_until_ms=1)


@pytest.mark.parametrize("make", [dedupes, lookup])
async def test_the_end_of_a_recovery_is_recorded_with_what_was_checked(
    scene: Scene, make: Callable[[], Tool]
) -> None:
    loaded = make()
    left_by_a_dead_attempt(scene, loaded)

    result = await last_of(scene, loaded)

    assert isinstance(result, Done)
    body = verified(scene)
    assert (body["outcome"], body["action"]) == ("committed", "resume")
    assert body["took_ms"] >= 0
    assert body["calls"] == scene.row(effects)["calls"]
    assert "broken" not in body
    assert (scene.row(effects))["recovering_ms"] is None


async def test_each_branch_names_its_rule_its_evidence_and_what_it_does(scene: Scene) -> None:
    loaded = dedupes()
    left_by_a_dead_attempt(scene, loaded)
    await last_of(scene, loaded)

    [branch] = scene.events(type_="effect.reconciled")

    assert branch["body"]["rule"] == "dedupes"
    assert branch["body"]["evidence"] == "no outcome was recorded under fencing token 1"
    assert branch["body"]["action"] == "call_again"


async def test_a_call_that_nothing_disturbed_recovers_from_nothing(scene: Scene) -> None:
    await last_of(scene, dedupes())

    assert scene.events(type_="recovery.verified") == []


def settled_by_hand(scene: Scene) -> None:
    """A human says what happened."""
    [question] = scene.rows(interventions)
    answer = Resolution(
        intervention_id=question["intervention_id"],
        outcome=ResolutionOutcome.NOT_HAPPENED,
        actor="ann",
    )
    assert (scene.settle(answer))[0]


@pytest.mark.parametrize("make", [dedupes, lookup])
async def test_a_recovery_longer_than_its_limit_becomes_a_humans_business(
    scene: Scene, make: Callable[[], Tool]
) -> None:
    loaded = make()
    left_by_a_dead_attempt(scene, loaded)
    change(scene, effects, recovering_ms=1)

    result = await last_of(scene, loaded)

    assert isinstance(result, Asked)
    assert "its recovery has taken longer than 300 s" in result.question
    settled_by_hand(scene)
    assert (verified(scene))["action"] == "human"


async def test_what_does_not_hold_any_more_is_named(scene: Scene) -> None:
    loaded = dedupes()
    approved = scene.approved(request_for(scene, loaded, holder="dead"))
    scene.claimed(approved)
    change(scene, effects, lease_until_ms=1)
    again = request_for(scene, loaded, attempt=2, gated=True, approval_id=approved.approval_id)
    call = effect_call(scene, loaded, again)
    claimed = await call._claim()
    change(scene, effects, params_hash="sha256:another")

    assert isinstance(await call._go_on(claimed), Done)

    assert (verified(scene))["broken"] == ["runs_what_was_approved"]
