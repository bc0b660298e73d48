"""The people of one case: what they may do, approve and answer, and how they make a run wait."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar, assert_never

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.reads import Evidence, read_evidence
from surehand.activities.ledger.people import principals
from surehand.client.connection import Connection
from surehand.drill.consistency import calls_of
from surehand.drill.environment import Workers
from surehand.drill.report import DrilledApproval, ForcedWait
from surehand.drill.request import Disturbance
from surehand.process.exits import ExitCode, NotFound, NoWorker, Refused, SurehandError, WrongUse
from surehand.process.json_schemas import problems
from surehand.workflows.contracts.approvals import ApprovalRequest, Decision, DecisionOutcome
from surehand.workflows.contracts.base import Acknowledged
from surehand.workflows.contracts.runs import RunView, StepView
from surehand.workflows.contracts.states import ENDED_STEPS, StepState
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    Interrupt,
    InterruptKind,
    PauseRun,
    ResumeRun,
    Steering,
    Verb,
)
from surehand.workflows.identity import run_of_approval
from surehand.workflows.plan.plan import ITERATION

T = TypeVar("T")

APPROVER: Final = "drill-approver"
#: In whose name the drill gives and takes.
ACTOR: Final = "drill"
REASON: Final = "a drill"
#: Seconds between looks at whether the run waits for somebody.
_LOOK_PAUSE: Final = 0.2
_LOOK_LIMIT: Final = timedelta(seconds=2)
#: Questions about a step as such, before it has done anything.
AT_ITS_START: Final = frozenset({InterruptKind.BEFORE, InterruptKind.ASK})
#: What is answered to a question of that type, where its schema names nothing.
_OF_TYPE: Final[dict[str, Any]] = {
    "string": "drill",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}


class Principals:
    """Changes the principals of one ledger; one that is not the case's own is left alone."""

    def __init__(
        self,
        database_url: str,
        tenant: str,
        whole: Callable[[Evidence], Evidence],
        *,
        own: bool,
    ) -> None:
        self._url = database_url
        self._tenant = tenant
        self._whole = whole
        self.own = own
        self._given: dict[str, set[tuple[principals.Kind, str]]] = {}

    async def evidence(self, run_id: str) -> Evidence:
        """Return what the ledger holds about a run."""
        async with open_ledger(self._url) as ledger:
            return self._whole(await ledger.transact(self._tenant, read_evidence, run_id))

    async def give(self, name: str, kind: principals.Kind, what: Collection[str]) -> bool:
        """Give roles or permissions; returns whether that changed anything."""
        given = self._given.get(name)
        new = {(kind, one) for one in what} - (given or set())
        if not self.own or not new:
            return False
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                if given is None:
                    principals.add(tx, name, ACTOR)
                for _, one in sorted(new):
                    principals.grant(tx, name, kind, one, ACTOR)
        self._given.setdefault(name, set()).update(new)
        return True

    async def take(self, name: str, permission: str) -> None:
        """Take a permission away."""
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                principals.revoke(tx, name, "permission", permission, ACTOR)
        self._given[name].discard(("permission", permission))


class People:
    """Looks at one run, again and again, and gives it what it waits for."""

    def __init__(self, connection: Connection, run_id: str, principals: Principals) -> None:
        self._connection = connection
        self._run_id = run_id
        self._principals = principals
        self._dealt_with: set[str] = set()
        self.user = connection.settings.user
        self.held = ""
        """A step whose approval and first question are left waiting."""
        self.held_at = AT_ITS_START
        """Which of its questions are."""
        self.ignored: set[str] = set()
        """Approval requests that nobody is to answer."""
        self.approvals: list[DrilledApproval] = []

    async def look(self) -> RunView | None:
        """Deal with all that waits and is not held; ``None`` where no worker answers."""
        await asyncio.sleep(_LOOK_PAUSE)
        with contextlib.suppress(NoWorker):
            view = await self._connection.view(self._run_id, _LOOK_LIMIT)
            await self._deal_with(self._run_id, view, self.held)
            if not self.held and any(one.kind == "permission" for one in view.result.waiting_for):
                await self._permit()
            return view
        return None

    async def _deal_with(self, run_id: str, view: RunView, held: str = "") -> None:
        for request in view.pending:
            left = request.step_id == held and self.held_at == AT_ITS_START
            if not left and request.approval_id not in self.ignored:
                await self.approve(request)
        for interrupt in view.interrupts:
            if interrupt.kind is InterruptKind.EVENT:
                continue  # It comes from outside, or not at all.
            if interrupt.step_id != held or interrupt.kind not in self.held_at:
                await self.answer(interrupt, run_id)
        for step in view.result.steps:
            if step.child is not None and step.state not in ENDED_STEPS:
                with contextlib.suppress(NotFound):  # not taken up yet
                    child = await self._connection.view(step.child, _LOOK_LIMIT)
                    await self._deal_with(step.child, child)

    async def until(self, seen: Callable[[RunView], T | None]) -> T:
        """Deal with what waits until something is seen, and return that."""
        while True:
            view = await self.look()
            found = seen(view) if view is not None else None
            if found is not None:
                return found

    async def while_(self, work: Coroutine[Any, Any, None]) -> None:
        """Deal with what waits until some work is done."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await self.look()
        finally:
            task.cancel()
            await asyncio.wait({task})

    def begin_anew(self) -> None:
        """Deal once more with all that waits, and hold nothing: the run was reset."""
        self._dealt_with.clear()
        self.held = ""

    async def stay(self) -> tuple[RunView, str]:
        """Deal with what waits until only a human, or a question that is held, can move the run.

        Returns:
            The run as it is then, and what is asked.
        """
        before: list[str] = []
        while True:
            view = await self.look()
            if view is None:
                continue
            questions = [
                waiting
                for waiting in view.result.waiting_for
                if waiting.kind == "intervention"
                or (waiting.kind == "question" and waiting.step_id == self.held)
            ]
            asked = [w.id for w in questions]
            moving = is_moving(view)
            # Seen twice: what runs beside it has come to its end, too.
            if asked and asked == before and not moving and not view.pending:
                return view, questions[0].question
            before = asked

    async def approve(self, request: ApprovalRequest) -> None:
        """Approve a request, once, by as many people as it asks for."""
        if request.approval_id in self._dealt_with:
            return
        of_run = run_of_approval(request.approval_id)
        run_id = of_run[0] if of_run else self._run_id
        roles = {role for one in request.requirements for role in one.roles}
        quorum = max((one.quorum for one in request.requirements), default=1)
        for number in range(1, quorum + 1):
            name = APPROVER if number == 1 else f"{APPROVER}-{number}"
            await self._principals.give(name, "role", roles)
            decision = Decision(
                approval_id=request.approval_id,
                params_hash=request.params_hash,
                outcome=DecisionOutcome.APPROVE,
                approver=name,
                reason=REASON,
            )
            await self._connection.signal(run_id, Verb.DECIDE, decision)
        self._dealt_with.add(request.approval_id)
        self.approvals.append(
            DrilledApproval(
                approval_id=request.approval_id,
                tool=request.tool,
                description=request.description,
                params_hash=request.params_hash,
            )
        )

    async def answer(self, interrupt: Interrupt, run_id: str | None = None) -> None:
        """Answer a question, of the run or of a child run, once."""
        of_run = run_id or self._run_id
        once = f"{of_run} {interrupt.interrupt_id}"
        if once in self._dealt_with:
            return
        answers = {interrupt.interrupt_id: answer_to(interrupt)}
        message = AnswerInterrupts(actor=self.user, answers=answers, id=uuid.uuid4().hex)
        await self._connection.signal(of_run, Verb.ANSWER, message)
        self._dealt_with.add(once)

    async def steer(self, verb: Verb, message: Steering) -> None:
        """Send something that steers the run until a worker has taken it."""
        once = message.model_copy(update={"id": uuid.uuid4().hex})
        while True:
            with contextlib.suppress(NoWorker):
                await self._connection.update(self._run_id, verb, once, Acknowledged)
                return

    async def _permit(self) -> None:
        """Give the user what the plan's tools ask for: nobody else could in the drill's ledger."""
        tools = (await self._principals.evidence(self._run_id)).tools.values()
        wanted = {tool.permission for tool in tools if tool.permission is not None}
        if await self._principals.give(self.user, "permission", wanted):
            await self.steer(Verb.RESUME, ResumeRun(actor=self.user, reason=REASON))


def is_moving(view: RunView) -> bool:
    """Say whether a step is under way; one with a list is so in its items only."""
    lists = {ITERATION.sub("", step.id) for step in view.result.steps if ITERATION.search(step.id)}
    running = {step.id for step in view.result.steps if step.state is StepState.RUNNING}
    return bool(running - lists)


def answer_to(interrupt: Interrupt) -> Any:
    """Return an answer that fits a question."""
    schema: dict[str, Any] = interrupt.answer_schema
    if interrupt.kind in (InterruptKind.BEFORE, InterruptKind.AFTER):
        return "accept"
    named = [schema[name] for name in ("default", "const") if name in schema]
    listed = [one for name in ("examples", "enum") for one in schema.get(name, [])]
    for answer in (*named, *listed, _OF_TYPE.get(str(schema.get("type")), "drill")):
        if not problems(schema, answer):
            return answer
    raise SurehandError(
        f"{interrupt.interrupt_id} asks {interrupt.question!r}, and the drill has no answer that"
        " fits its schema: name one there as its `default`",
        code=ExitCode.HUMAN_NEEDED,
    )


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
