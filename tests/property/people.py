"""The people around a random run: they decide, answer and cancel, each at their own moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.identity import approval_id, params_hash
from tests.e2e.executions import reset_to
from tests.e2e.runs import PATIENCE_S, until
from tests.property.model_ledger import Question, World, decision, settle
from tests.property.scenarios import Reset


class People:
    """Those who have something to say about one run."""

    def __init__(self) -> None:
        self._handle: WorkflowHandle[Any, Any] | None = None
        self._started = asyncio.Event()
        self._busy: list[asyncio.Task[None]] = []
        self._world: World | None = None

    def watch(self, world: World) -> list[dict[str, str]]:
        """Take a run's side; returns the decisions that are made before anybody asks."""
        self._world = world
        early = []
        for step in world.scenario.steps:
            if step.gated and step.approver == "have approved before it was asked":
                name = approval_id(world.run_id, step.id, 1)
                hash_ = params_hash(step.tool, "1", {"key": step.key})
                early.append(
                    {"approval_id": name, "params_hash": hash_, "outcome": "approve"}
                    | {"approver": "ann"}
                )
        return early

    def started(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Learn how the run can be reached."""
        self._handle = handle
        self._started.set()

    async def at(self, moment: int) -> None:
        """Cancel or reset the run, if this is the moment."""
        assert self._world is not None
        reset = self._world.scenario.reset
        # One that is about to end is not reset here.
        ends = self._world.log[-1][0] == "close_run"
        if reset is not None and reset.at == moment and not ends:
            self._world.reset_at = len(self._world.log)
            await self._reset(reset)
        cancellation = self._world.scenario.cancellation
        if cancellation is None or cancellation.at != moment:
            return
        handle = await self._reach()
        if cancellation.how == "temporal":
            await handle.cancel()
        else:
            await handle.signal("cancel", {"mode": cancellation.how, "actor": "oscar"})

    async def _reset(self, reset: Reset) -> None:
        handle, tasks = await self._reach(), []
        async for event in handle.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                tasks.append(event.event_id)
        client, place = handle._client, 0 if reset.to == "its first task" else len(tasks) // 2
        await reset_to(client, handle.id, tasks[place])

    def decide(self, world: World, request: ApprovalRequest) -> None:
        """Decide about a request in the manner of its step's approver."""
        self._do(self._decide(world, request))

    async def _decide(self, world: World, request: ApprovalRequest) -> None:
        handle = await self._reach()
        manner = world.scenario.step(request.step_id).approver
        first = request.approval_id.endswith("/1")
        sends: list[Any] = [decision(request)]
        match manner:
            case "let it expire":
                return
            case "have approved before it was asked" if first:
                return
            case "reject":
                sends = [decision(request, "reject")]
            case "look, then approve":
                await self._shown(
                    world, lambda view: request.approval_id in {r.approval_id for r in view.pending}
                )
            case "approve twice":
                sends *= 2
            case "approve other params first":
                sends.insert(0, decision(request, params_hash="sha256:" + "0" * 64))
            case "send nonsense first":
                sends[:0] = [{"approve": "all of it"}, "yes", decision(request, approval_id="x/1")]
            case "approve, then reject":
                sends.append(decision(request, "reject"))
        for sent in sends:
            await handle.signal("decide", sent)

    async def intervene(self, world: World, question: Question) -> None:
        """Settle an intervention; returns at once, or when it is settled, as its human likes it."""
        human = world.scenario.step(question.entry.step.id).human
        if question.outcome is None and human == "tell before it is reported":
            await self._tell(world, question)
            # The report of the question is on its way for longer than the answer.
            waits = [question.settled.wait(), self._closed(world)]
            tasks = [asyncio.create_task(one) for one in waits]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=1)
            for task in tasks:
                task.cancel()
            return
        self._do(self._settle(world, question, human))

    async def _closed(self, world: World) -> None:
        while world.closed is None:
            await asyncio.sleep(0.05)

    async def _settle(self, world: World, question: Question, human: str) -> None:
        await self._shown(
            world,
            lambda view: (
                question.id in {w.id for w in view.result.waiting_for}
                or question.outcome is not None
            ),
        )
        await self._tell(world, question)
        if human == "tell twice":
            await self._tell(world, question)

    async def _tell(self, world: World, question: Question) -> None:
        entry = question.entry
        human = world.scenario.step(entry.step.id).human
        there = world.applied[entry.id] > 0
        said = "happened" if there else "not_happened"
        if entry.state == "compensating" or (there and human == "undo"):
            said = "compensated"
        if human == "give up":
            said = "give_up"
        resolution = Resolution(
            intervention_id=question.id,
            outcome=ResolutionOutcome(said),
            actor="oscar",
            evidence="looked",
        )
        if human == "tell what is settled already":
            settle(world, resolution)
        handle = await self._reach()
        await handle.signal("resolve", resolution)

    async def _shown(self, world: World, reached: Callable[[RunView], bool]) -> None:
        """Wait until the run shows what it waits for, or does not wait any more."""
        handle = await self._reach()

        async def look() -> RunView:
            view: RunView = await handle.query("view", result_type=RunView)
            return view

        ending = (RunState.COMPENSATING, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
        await until(look, lambda view: reached(view) or view.result.state in ending, PATIENCE_S)

    async def _reach(self) -> WorkflowHandle[Any, Any]:
        await self._started.wait()
        assert self._handle is not None
        return self._handle

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._busy.append(asyncio.create_task(work))

    async def go_home(self) -> None:
        """Let everybody finish; a run that has ended cannot be told anything any more."""
        for one in await asyncio.gather(*self._busy, return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, RPCError):
                raise one
