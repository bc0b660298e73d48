"""How long failures are tried again: counted by the ledger, limited by the settings."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools.failures import RateLimited, Retries
from surehand.activities.tools.tool import Tool
from surehand.workflows.errors import ErrorType
from tests.ledger.attempts import Provider, effect_call, request_for
from tests.ledger.scene import Scene

LIMIT = timedelta(seconds=30)


def busy(pause: timedelta) -> Tool:
    """A tool whose provider wants to be left alone for a while."""
    return Provider([RateLimited("later", pause)]).tool(recovery="human")


def attempt(scene: Scene, tool: Tool, request: ClaimRequest, retries: Retries) -> EffectCall:
    effect = effect_call(scene, tool, request)
    return replace(effect, worker=replace(effect.worker, retries=retries))


@pytest.mark.parametrize(
    ("pause", "type_"),
    [
        (LIMIT - timedelta(seconds=5), ErrorType.RATE_LIMITED),
        (LIMIT + timedelta(seconds=5), ErrorType.TOOL_FAILED),
    ],
)
async def test_no_retry_of_an_undo_begins_after_the_limit(
    scene: Scene, pause: timedelta, type_: ErrorType
) -> None:
    tool = busy(pause)
    committed = scene.committed(scene.call())
    undo = request_for(scene, tool, key=f"undo:{committed.entry_id}", undoes=committed.entry_id)
    retries = Retries(compensation_limit=LIMIT, uniform=lambda low, high: low)

    with pytest.raises(ApplicationError) as ended:
        await attempt(scene, tool, undo, retries).run()

    assert ended.value.type == type_
    [failed] = scene.events(type_="effect.failed")
    assert ("retry_ms" in failed["body"]) is (type_ is ErrorType.RATE_LIMITED)


async def test_the_limit_of_undoing_holds_for_no_forward_call(scene: Scene) -> None:
    tool, pause = busy(2 * LIMIT), 2 * LIMIT
    retries = Retries(compensation_limit=LIMIT, uniform=lambda low, high: low)

    with pytest.raises(ApplicationError) as ended:
        await attempt(scene, tool, request_for(scene, tool), retries).run()

    assert (ended.value.type, ended.value.next_retry_delay) == (ErrorType.RATE_LIMITED, pause)
