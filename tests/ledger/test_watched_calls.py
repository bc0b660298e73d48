"""Whatever of a tool is called is watched: a call that cannot be stopped ends its worker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pytest
from temporalio.exceptions import ApplicationError

from surehand import READ, WRITE, Found, OutcomeUnknown, ToolContext, tool
from surehand.activities.approvals.gate import ApprovalActivities
from surehand.activities.effects.prepare import prepare, to_call_with
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.effects.write import EffectCall
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.tools.failures import DependencyDown
from surehand.activities.tools.tool import Tool
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.watchdog import Watchdog
from surehand.workflows.contracts.tools import ToolCall
from tests.ledger.attempts import Payment, request_for
from tests.ledger.scene import LEASE, RUN, Scene

SECOND: Final = timedelta(seconds=1)
READ_NAME: Final = "orders.read"
WRITE_NAME: Final = "payments.refund"


@dataclass
class Watched:
    """A tool's functions, which note what the watchdog would say if they did not end."""

    watchdog: Watchdog = field(default_factory=Watchdog)
    said: list[str | None] = field(default_factory=list)
    fails: list[Exception] = field(default_factory=list)
    """What the calls end with, one after the other."""

    async def _noted(self, *_: Any) -> Any:
        self.said.append(self.watchdog.overdue(math.inf))
        return True

    async def call(self, params: Payment, ctx: ToolContext) -> Any:
        """Do it."""
        await self._noted()
        if self.fails:
            raise self.fails.pop(0)
        return {}

    async def look(self, params: Payment, ctx: ToolContext) -> Any:
        """Look for it."""
        return Found(await self._noted())

    def read(self) -> Tool:
        return tool(READ_NAME, effect=READ, health=self._noted)(self.call)

    def write(self, **options: Any) -> Tool:
        values = {"lookup": self.look, "settle": SECOND, "irreversible": True, **options}
        return tool(WRITE_NAME, effect=WRITE, health=self._noted, **values)(self.call)

    def worker(self, scene: Scene, loaded: Tool) -> WorkerContext:
        given = (scene.ledger, Toolbox([loaded]), scene.artifacts, Crash(), LEASE, SECOND)
        return WorkerContext(*given, watchdog=self.watchdog)


def call_of(scene: Scene, loaded: Tool) -> ToolCall:
    named = {"tenant": scene.tenant, "run_id": RUN, "step_id": "step", "user": "ada"}
    return ToolCall(**named, plan_version=1, tool=loaded.spec(), params={})


async def test_a_read_and_the_health_check_before_its_next_attempt_are_watched(
    scene: Scene,
) -> None:
    watched = Watched(fails=[DependencyDown("no route")])
    loaded = watched.read()
    tools, call = ToolActivities(watched.worker(scene, loaded)), call_of(scene, loaded)

    with pytest.raises(ApplicationError, match="no route"):
        await tools.call_tool(call, Attempt(1, "call", "call:1"))
    await tools.call_tool(call, Attempt(2, "call", "call:2"))

    read = f"{READ_NAME} of run {RUN}"
    assert watched.said == [read, f"the health check of {READ_NAME}", read]


@pytest.mark.parametrize("by", ["key", "state"])
async def test_a_lookup_is_watched_before_a_call_and_after_it(scene: Scene, by: Any) -> None:
    watched = Watched(fails=[OutcomeUnknown("no answer")])
    loaded = watched.write(lookup_by=by)

    for number in (1, 2):
        request = request_for(scene, loaded, attempt=number, observes=by == "state")
        effect = EffectCall(watched.worker(scene, loaded), loaded, Payment(), request)
        if number == 1:
            with pytest.raises(ApplicationError, match="no answer"):
                await effect.run()
        else:
            await effect.run()

    look, call = f"the lookup of {WRITE_NAME} of run {RUN}", f"{WRITE_NAME} of run {RUN}"
    assert watched.said == {"key": [call, look], "state": [look, call]}[by]


async def test_what_a_tool_has_for_preparing_a_call_is_watched(scene: Scene) -> None:
    watched = Watched()

    def key(params: Payment) -> str:
        watched.said.append(watched.watchdog.overdue(math.inf))
        return "one"

    loaded = watched.write(key=key)
    await ToolActivities(watched.worker(scene, loaded)).call_tool(
        call_of(scene, loaded), Attempt(1, "call", "call:1")
    )

    assert watched.said[0] == f"the params of {WRITE_NAME} of run {RUN}"


async def test_what_a_tool_has_for_an_edit_is_watched(scene: Scene) -> None:
    watched = Watched()

    def key(params: Payment) -> str:
        watched.said.append(watched.watchdog.overdue(math.inf))
        return "one"

    loaded = watched.write(key=key)
    row = {"tool": WRITE_NAME, "tool_version": loaded.version, "run_id": RUN, "step_id": "step"}
    edited = ApprovalActivities(watched.worker(scene, loaded))._edited(row, {})

    assert isinstance(edited, Edited)
    assert watched.said == [f"the params of {WRITE_NAME} of run {RUN}"]


async def test_a_precondition_is_watched(scene: Scene) -> None:
    watched = Watched()
    loaded = watched.write(precondition=watched._noted)
    worker = watched.worker(scene, loaded)
    request = request_for(scene, loaded, gated=True)

    await to_call_with(
        worker.watchdog, request, prepare(worker.toolbox, worker.hashes, call_of(scene, loaded))
    )

    assert watched.said == [f"the precondition of {WRITE_NAME} of run {RUN}"]
