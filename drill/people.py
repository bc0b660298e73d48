"""The people of one case: what they may do, approve and answer."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.reads import Evidence, read_evidence
from surehand.activities.ledger.people import principals
from surehand.client.connection import Connection
from surehand.drill.report import DrilledApproval
from surehand.process.exits import ExitCode, NotFound, NoWorker, SurehandError
from surehand.process.json_schemas import problems
from surehand.workflows.contracts.approvals import ApprovalRequest, Decision, DecisionOutcome
from surehand.workflows.contracts.base import ENDED_STEPS, Acknowledged, StepState, WaitKind
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    Interrupt,
    InterruptKind,
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
        self, database_url: str, tenant: str, whole: Callable[[Evidence], Evidence], *, own: bool
    ) -> None:
        self._url = database_url
        self._tenant = tenant
        self._whole = whole
        self.own = own
        self._given: dict[str, set[tuple[principals.Kind, str]]] = {}

    async def read_evidence(self, run_id: str) -> Evidence:
        async with open_ledger(self._url) as ledger:
            return self._whole(await ledger.transact(self._tenant, read_evidence, run_id))

    async def grant(self, name: str, kind: principals.Kind, what: Collection[str]) -> bool:
        """Give roles or permissions; returns whether that changed anything."""
        given = self._given.get(name)
        new = {(kind, one) for one in what} - (given or set())
        if not self.own or not new:
            return False
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                if given is None:
                    principals.add_principal(tx, name, ACTOR)
                for _, one in sorted(new):
                    principals.give_grant(tx, name, kind, one, ACTOR)
        self._given.setdefault(name, set()).update(new)
        return True

    async def revoke(self, name: str, permission: str) -> None:
        async with open_ledger(self._url) as ledger:
            with ledger.transaction(self._tenant) as tx:
                principals.revoke_grant(tx, name, "permission", permission, ACTOR)
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

    async def attend_once(self) -> RunView | None:
        """Deal with all that waits and is not held; ``None`` where no worker answers."""
        await asyncio.sleep(_LOOK_PAUSE)
        with contextlib.suppress(NoWorker):
            view = await self._connection.view(self._run_id, _LOOK_LIMIT)
            await self._deal_with(self._run_id, view, self.held)
            if not self.held and any(
                one.kind is WaitKind.PERMISSION for one in view.result.waiting_for
            ):
                await self._grant_tools()
            return view
        return None

    async def _deal_with(self, run_id: str, view: RunView, held: str = "") -> None:
        for request in view.pending:
            left = request.step_id == held and self.held_at == AT_ITS_START
            if not left and request.approval_id not in self.ignored:
                await self.approve_request(request)
        for interrupt in view.interrupts:
            if interrupt.kind is InterruptKind.EVENT:
                continue  # It comes from outside, or not at all.
            if interrupt.step_id != held or interrupt.kind not in self.held_at:
                await self.answer_question(interrupt, run_id)
        for step in view.result.steps:
            if step.child is not None and step.state not in ENDED_STEPS:
                with contextlib.suppress(NotFound):  # not taken up yet
                    child = await self._connection.view(step.child, _LOOK_LIMIT)
                    await self._deal_with(step.child, child)

    async def wait_until(self, seen: Callable[[RunView], T | None]) -> T:
        """Deal with what waits until something is seen, and return that."""
        while True:
            view = await self.attend_once()
            found = seen(view) if view is not None else None
            if found is not None:
                return found

    async def attend_until_done(self, work: Coroutine[Any, Any, None]) -> None:
        """Deal with what waits until some work is done."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await self.attend_once()
        finally:
            task.cancel()
            await asyncio.wait({task})

    def forget_answers(self) -> None:
        """Deal once more with all that waits, and hold nothing: the run was reset."""
        self._dealt_with.clear()
        self.held = ""

    async def attend_until_stuck(self) -> tuple[RunView, str]:
        """Deal with what waits until only a human, or a question that is held, can move the run."""
        before: list[str] = []
        while True:
            view = await self.attend_once()
            if view is None:
                continue
            questions = [
                waiting
                for waiting in view.result.waiting_for
                if waiting.kind is WaitKind.INTERVENTION
                or (waiting.kind is WaitKind.QUESTION and waiting.step_id == self.held)
            ]
            asked = [w.id for w in questions]
            moving = is_moving(view)
            # Seen twice: what runs beside it has come to its end, too.
            if asked and asked == before and not moving and not view.pending:
                return view, questions[0].question
            before = asked

    async def approve_request(self, request: ApprovalRequest) -> None:
        """Approve a request, once, by as many people as it asks for."""
        if request.approval_id in self._dealt_with:
            return
        of_run = run_of_approval(request.approval_id)
        run_id = of_run[0] if of_run else self._run_id
        roles = {role for one in request.requirements for role in one.roles}
        quorum = max((one.quorum for one in request.requirements), default=1)
        for number in range(1, quorum + 1):
            name = APPROVER if number == 1 else f"{APPROVER}-{number}"
            await self._principals.grant(name, "role", roles)
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

    async def answer_question(self, interrupt: Interrupt, run_id: str | None = None) -> None:
        """Answer a question, of the run or of a child run, once."""
        of_run = run_id or self._run_id
        once = f"{of_run} {interrupt.interrupt_id}"
        if once in self._dealt_with:
            return
        answers = {interrupt.interrupt_id: make_answer(interrupt)}
        message = AnswerInterrupts(actor=self.user, answers=answers, id=uuid.uuid4().hex)
        await self._connection.signal(of_run, Verb.ANSWER, message)
        self._dealt_with.add(once)

    async def steer_run(self, verb: Verb, message: Steering) -> None:
        """Send something that steers the run until a worker has taken it."""
        once = message.model_copy(update={"id": uuid.uuid4().hex})
        while True:
            with contextlib.suppress(NoWorker):
                await self._connection.update(self._run_id, verb, once, Acknowledged)
                return

    async def _grant_tools(self) -> None:
        """Give the user what the plan's tools ask for: nobody else could in the drill's ledger."""
        tools = (await self._principals.read_evidence(self._run_id)).tools.values()
        wanted = {tool.permission for tool in tools if tool.permission is not None}
        if await self._principals.grant(self.user, "permission", wanted):
            await self.steer_run(Verb.RESUME, ResumeRun(actor=self.user, reason=REASON))


def is_moving(view: RunView) -> bool:
    """Say whether a step is under way; one with a list is so in its items only."""
    lists = {ITERATION.sub("", step.id) for step in view.result.steps if ITERATION.search(step.id)}
    running = {step.id for step in view.result.steps if step.state is StepState.RUNNING}
    return bool(running - lists)


def make_answer(interrupt: Interrupt) -> Any:
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
