"""G2: the outside system is asked before a human is, whoever settles what is in doubt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.effects.reaper import settle_stale
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.tools.tool import Found, No, NotFound, ToolContext
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import Compensate
from tests.ledger.attempts import Payment, Provider
from tests.ledger.scene import AT_ONCE, LEASE, NOW, RUN, STEP, Scene

#: What a lookup says, and what becomes of the effect.
ANSWERS = [(Found("r-1"), "committed"), (NotFound(), "failed"), (No("closed"), "failed")]


class Asked(Provider):
    """An outside system that is asked what has happened."""

    def __init__(self, said: Any) -> None:
        super().__init__([AssertionError("nothing is called")])
        self.said = said
        self.lookups = 0

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Say what has happened."""
        self.lookups += 1
        return self.said

    def context(self, scene: Scene) -> WorkerContext:
        """What a worker has that loads its tool."""
        tools = Toolbox([self.tool(lookup=self.look, settle=AT_ONCE)])
        return WorkerContext(scene.ledger, tools, scene.artifacts, Crash(), LEASE, LEASE / 3)


async def ended(run_id: str) -> bool:
    return False


@pytest.mark.parametrize(("said", "state"), ANSWERS)
async def test_a_round_asks_the_lookup_and_no_human(scene: Scene, said: Any, state: str) -> None:
    provider, quiet = Asked(said), -timedelta(seconds=1)
    scene.in_doubt(scene.call(timeout=NOW, settle=AT_ONCE))

    done = await settle_stale(provider.context(scene), scene.tenant, ended, quiet=quiet, limit=10)

    assert (done.looked_at, done.asked, provider.lookups) == (1, 0, 1)
    assert (scene.row(effects))["state"] == state
    assert scene.rows(interventions) == []


@pytest.mark.parametrize(("said", "state"), ANSWERS)
async def test_an_undoing_asks_the_lookup_and_no_human(scene: Scene, said: Any, state: str) -> None:
    provider = Asked(said)
    entry = scene.in_doubt(scene.call(timeout=NOW, settle=AT_ONCE))
    asked = Compensate(
        tenant=scene.tenant, run_id=RUN, step_id=STEP, entry_id=entry.entry_id, user="ada"
    )
    activities = CompensationActivities(provider.context(scene))

    await activities._compensate(asked, Attempt(1, "undo", "undo:1"))

    assert provider.lookups == 1
    assert (scene.row(effects))["state"] == state
    assert scene.rows(interventions) == []
