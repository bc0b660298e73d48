"""Has a run wait at one place, by force, and lets it go on."""

from __future__ import annotations

import contextlib
from typing import assert_never

from surehand.drill.consistency import calls_of
from surehand.drill.disturbance import Disturbance
from surehand.drill.people import (
    AT_ITS_START,
    REASON,
    People,
    Principals,
    is_moving,
)
from surehand.drill.points import ForcedWait
from surehand.drill.workers import Workers
from surehand.process.exits import Refused, WrongUse
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.runs import RunView, StepView
from surehand.workflows.contracts.states import ENDED_STEPS, StepState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb


class Forcing:
    """One forced wait: waits until the run is there, holds it, and has it go on."""

    def __init__(
        self,
        disturbance: Disturbance,
        run_id: str,
        people: People,
        workers: Workers,
        principals: Principals,
    ) -> None:
        how = disturbance.forced_wait
        assert how is not None, "it is another disturbance"
        self._target = disturbance.target
        self._how = how
        self._run_id = run_id
        self._people = people
        self._workers = workers
        self._principals = principals
        self.reached = False
        """Whether the run was interrupted, as it was meant to be."""
        self.violations: list[str] = []
        """What it did although it was to wait."""

    async def run(self) -> None:
        """Interrupt the run and let it go on; never returns if the run does not come to it."""
        self._people.held = self._target.step
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            await self._force()
        self._people.held = ""

    async def _force(self) -> None:
        match self._how:
            case ForcedWait.PAUSE:
                await self._pause()
            case ForcedWait.APPROVAL:
                await self._approval()
            case ForcedWait.ASK:
                await self._ask()
            case ForcedWait.PERMISSION_LOSS:
                await self._lose_permission()
            case ForcedWait.EXPIRY:
                await self._expire()
            case _:
                assert_never(self._how)

    async def _pause(self) -> None:
        people, step = self._people, self._target.step
        asked = await people.until(self._question)
        await people.steer(Verb.PAUSE, PauseRun(actor=people.user, reason=REASON))
        await people.answer(asked)
        # Approvals may be given while a run is paused: they make no call.
        people.held = ""
        if not await self._stands("pause"):
            return
        before = await self._calls()
        await self._workers.replace()
        if await self._stands("pause") and await self._calls() == before:
            self.reached = True
        else:
            self.violations.append(f"a call was made while the run was paused before {step}")
        await self._resume()

    async def _approval(self) -> None:
        request = await self._people.until(self._request)
        await self._workers.replace()
        again = await self._people.until(self._request)
        await self._nothing_called("its approval waited")
        if (again.approval_id, again.params_hash) != (request.approval_id, request.params_hash):
            self.violations.append(f"{again.approval_id} is asked in the place of its equal")
        await self._people.approve(again)
        self.reached = True

    async def _ask(self) -> None:
        await self._people.until(self._question)
        await self._workers.replace()
        asked = await self._people.until(self._question)
        await self._nothing_called("its question waited")
        await self._people.answer(asked)
        self.reached = True

    async def _lose_permission(self) -> None:
        """Take the permission away while the run is paused between the approval and the call."""
        people, permission = self._people, self._target.permission
        assert permission is not None, "the request has refused it"
        request = await people.until(self._request)
        await people.steer(Verb.PAUSE, PauseRun(actor=people.user, reason=REASON))
        await people.approve(request)
        if not await self._stands("pause"):
            return
        await self._principals.take(people.user, permission)
        await self._resume()
        if not await self._stands("loss of the permission", StepState.PAUSED_PERMISSION):
            return
        await self._nothing_called(f"{people.user} had no permission {permission}")
        self.reached = True
        await self._principals.give(people.user, "permission", {permission})
        await self._resume()

    async def _expire(self) -> None:
        people = self._people
        first = await people.until(self._request)
        people.ignored.add(first.approval_id)

        def anew(view: RunView) -> ApprovalRequest | None:
            found = self._request(view)
            return found if found and found.approval_id != first.approval_id else None

        again = await people.until(anew)
        await self._nothing_called("nobody had approved it")
        await people.approve(again)
        self.reached = True

    async def _stands(self, why: str, state: StepState = StepState.PAUSED_USER) -> bool:
        """Wait until the step stands still, and nothing else moves; say if it does not."""

        def still(view: RunView) -> StepState | None:
            found = self._step(view).state
            return (
                found if found in ENDED_STEPS or (found is state and not is_moving(view)) else None
            )

        found = await self._people.until(still)
        if found is not state:
            self.violations.append(f"{self._target.step} is {found} in spite of the {why}")
        return found is state

    async def _resume(self) -> None:
        await self._people.steer(Verb.RESUME, ResumeRun(actor=self._people.user, reason=REASON))

    async def _calls(self, step_id: str | None = None) -> int:
        return calls_of(await self._principals.evidence(self._run_id), step_id)

    async def _nothing_called(self, while_: str) -> None:
        if await self._calls(self._target.step):
            self.violations.append(f"{self._target.step} was called while {while_}")

    def _step(self, view: RunView) -> StepView:
        return next(step for step in view.result.steps if step.id == self._target.step)

    def _request(self, view: RunView) -> ApprovalRequest | None:
        return next((one for one in view.pending if one.step_id == self._target.step), None)

    def _question(self, view: RunView) -> Interrupt | None:
        waiting = (one for one in view.interrupts if one.step_id == self._target.step)
        return next((one for one in waiting if one.kind in AT_ITS_START), None)
