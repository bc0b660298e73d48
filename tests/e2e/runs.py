"""One run as the tests see it: through the client, as anybody outside sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from surehand.client.connection import every_event
from surehand.workflows.contracts.approvals import ApprovalRequest, Decision, Verdict
from surehand.workflows.contracts.base import Acknowledged, ChainHead, RunState, Waiting
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.contracts.steering import CancelRun
from surehand.workflows.plan.plan import Plan

T = TypeVar("T")

EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"

#: Seconds that a run may take to get somewhere: ten after a crash, and many on a loaded machine.
PATIENCE_S: Final = 150.0
#: Seconds between two looks: few at first, then more. To ask a run is a workflow task each time.
_POLL_S: Final = 0.04
_LONGEST_POLL_S: Final = 0.4
#: A query waits for a worker; while none is there, it shall not use up the whole patience.
_QUERY_TIMEOUT: Final = timedelta(seconds=3)


def example_plan(name: str, **changed_input: Any) -> Plan:
    plan = yaml.safe_load((EXAMPLES / name).read_text())
    plan["input"].update(changed_input)
    return Plan.model_validate(plan)


def refund_plan(order_id: str) -> Plan:
    """Return the example: an order is read, paid back, restocked, and a mail tells of it."""
    return example_plan("refund.yaml", order_id=order_id)


def failing_plan(order_id: str) -> Plan:
    """Return the example whose last step fails for good, behind a refund and a restock."""
    return example_plan("refund_fails.yaml", order_id=order_id)


async def until(
    look: Callable[[], Awaitable[T] | T],
    reached: Callable[[T], bool],
    timeout_s: float = PATIENCE_S,
) -> T:
    """Look again and again, here or somewhere to wait for, until what is seen is as wanted."""
    deadline = time.monotonic() + timeout_s
    pause = _POLL_S
    seen: object = None
    while time.monotonic() < deadline:
        try:
            answer = look()
            seen = found = await answer if isinstance(answer, Awaitable) else answer
        except RPCError as error:
            seen = error
        else:
            if reached(found):
                return found
        await asyncio.sleep(pause)
        pause = min(pause * 1.25, _LONGEST_POLL_S)
    raise AssertionError(f"not reached within {timeout_s} s; last seen: {seen}")


@dataclass(frozen=True)
class Run:
    """A started run."""

    run_id: str
    handle: WorkflowHandle[Any, Any]

    async def view(self) -> RunView:
        """Ask where the run stands, until a worker has answered."""

        async def ask() -> RunView:
            view: RunView = await self.handle.query(
                "view", result_type=RunView, rpc_timeout=_QUERY_TIMEOUT
            )
            return view

        return await until(ask, lambda view: True)

    async def until(
        self, reached: Callable[[RunView], bool], timeout_s: float = PATIENCE_S
    ) -> RunView:
        """Wait until the view is as wanted; also while no worker is there to give it."""
        return await until(self.view, reached, timeout_s)

    async def in_state(self, state: RunState) -> RunView:
        return await self.until(lambda view: view.result.state is state)

    async def asks_a_human(self) -> Waiting:
        """Wait until only a human can settle an effect of the run, and return the question."""
        [question] = (await self.in_state(RunState.NEEDS_INTERVENTION)).result.waiting_for
        assert question.answers
        return question

    async def asks(
        self, step_id: str | None = None, *, but: ApprovalRequest | None = None
    ) -> ApprovalRequest:
        """Wait until the run asks for an approval (of that step) and return the request.

        With ``but``: for another approval than that one.
        """
        before = but.approval_id if but else None

        def asked(view: RunView) -> list[ApprovalRequest]:
            its = [one for one in view.pending if step_id in (None, one.step_id)]
            return [one for one in its if one.approval_id != before]

        return asked(await self.until(lambda view: bool(asked(view))))[0]

    async def history_has(self, event: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until an event of that kind is in the history; needs no worker."""
        kind = f"EVENT_TYPE_{event.upper()}"
        async with asyncio.timeout(timeout_s):
            async for one in self.handle.fetch_history_events(wait_new_event=True):
                if EventType.Name(one.event_type) == kind:
                    return
        raise AssertionError(f"run {self.run_id} has ended without {event}")

    async def heads(self) -> list[ChainHead]:
        """Return the heads of the event chain that were carried into Temporal's history."""
        heads = []
        # Where it was started: some tests have a server of their own.
        client = self.handle._client
        async for event in every_event(client, self.run_id):
            payloads = (
                *event.activity_task_completed_event_attributes.result.payloads,
                *event.marker_recorded_event_attributes.details["result"].payloads,
            )
            for result in await client.data_converter.decode(payloads):
                if isinstance(result, dict) and result.get("head"):
                    heads.append(ChainHead.model_validate(result["head"]))
        return heads

    async def send(self, decision: object) -> None:
        await self.handle.signal("decide", decision)

    async def decide(self, decision: object) -> Verdict:
        """Send a decision as an update and return what became of it."""
        verdict: Verdict = await self.handle.execute_update("decide", decision, result_type=Verdict)
        return verdict

    async def approve(self) -> ApprovalRequest:
        """Wait for the run's next approval request and approve it by signal."""
        request = await self.asks()
        await self.send(decision_on(request))
        return request

    async def cancel(self, **cancel: Any) -> str:
        """Cancel the run by update and return what it answers."""
        said: Acknowledged = await self.handle.execute_update(
            "cancel", CancelRun(**{"actor": "oscar", **cancel}), result_type=Acknowledged
        )
        return said.message

    async def resolve(self, **resolution: Any) -> str:
        """Settle an intervention by update and return what the run answers."""
        said: Acknowledged = await self.handle.execute_update(
            "resolve", Resolution(**{"actor": "oscar", **resolution}), result_type=Acknowledged
        )
        return said.message

    async def result(self, timeout_s: float = PATIENCE_S) -> RunResult:
        """Wait for the end and return it, failed runs included."""
        try:
            result = await asyncio.wait_for(self.handle.result(), timeout_s)
        except WorkflowFailureError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError) or cause.type != "RunFailed":
                raise
            result = cause.details[0]
        return RunResult.model_validate(result)

    async def completed(self, timeout_s: float = PATIENCE_S) -> RunResult:
        """Wait for the end, which is that the run has completed, and return it."""
        result = await self.result(timeout_s)
        assert result.state is RunState.COMPLETED, (result.state, result.error)
        return result


def decision_on(request: ApprovalRequest, **changes: Any) -> Decision:
    """Return a decision that approves a request, or says something else about it."""
    decision = {
        "approval_id": request.approval_id,
        "params_hash": request.params_hash,
        "outcome": "approve",
        "approver": "ann",
    }
    return Decision.model_validate(decision | changes)


def step(result: RunResult, step_id: str) -> StepView:
    return next(view for view in result.steps if view.id == step_id)


def states(result: RunResult) -> dict[str, str]:
    return {view.id: view.state.value for view in result.steps}


def timeline(view: RunView, step_id: str) -> str:
    return "\n".join(line.text for line in view.timeline if line.step_id == step_id)
