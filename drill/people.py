"""Who acts on a run: people who approve and answer, and those who interrupt, stop and reset it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, assert_never

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from surehand.activities.ledger.approvals.decisions import lift_halt
from surehand.activities.ledger.core.store import Transaction, open_ledger
from surehand.activities.ledger.halts import halt_calls
from surehand.activities.ledger.history.reads import Evidence, read_evidence
from surehand.activities.ledger.people import principals
from surehand.activities.worker.crash_points import CrashPoint
from surehand.client.connection import Connection
from surehand.drill.environment import Workers
from surehand.drill.judge import Played, list_calls
from surehand.drill.report import DrillTarget, ForcedWait, Operation
from surehand.drill.request import HELD, Disturbance
from surehand.process.exits import ExitCode, NotFound, NoWorker, Refused, SurehandError, WrongUse
from surehand.process.json_schemas import problems
from surehand.workflows.contracts.approvals import ApprovalRequest, Decision, DecisionOutcome
from surehand.workflows.contracts.base import ENDED_STEPS, Acknowledged, StepState, WaitKind
from surehand.workflows.contracts.effects import Compensate, UnwindRun
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    Interrupt,
    InterruptKind,
    PauseRun,
    ResumeRun,
    Steering,
    Verb,
)
from surehand.workflows.contracts.tools import Batch, ToolCall, ToolSpec
from surehand.workflows.identity import child_run_id, run_of_approval
from surehand.workflows.plan.plan import ITERATION
from surehand.workflows.ports import COMPENSATE, EXECUTE_TOOLS, TAKE_TURN

T = TypeVar("T")
P = ParamSpec("P")

APPROVER: Final = "drill-approver"
#: In whose name the drill gives and takes.
ACTOR: Final = "drill"
REASON: Final = "a drill"
#: Seconds between looks at whether the run waits for somebody.
_LOOK_PAUSE: Final = 0.2
_LOOK_LIMIT: Final = timedelta(seconds=2)
#: How long the drill waits for a ledger that workers write to: it keeps the machine busy, and has
#: nobody who would ask once more.
PATIENCE: Final = timedelta(minutes=1)
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


@dataclass
class CaseLedger:
    """Reads a case's ledger, and changes who may do what there; nobody in one that is shared."""

    url: str
    tenant: str
    own: bool
    described: Mapping[str, ToolSpec]
    """The tools that the run was told of after its start, as code and agents ask, by name."""
    _given: dict[str, set[tuple[principals.Kind, str]]] = field(default_factory=dict)

    async def run_transaction(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        async with open_ledger(self.url, patience=PATIENCE) as ledger:
            return await ledger.transact(self.tenant, work, *args, **named)

    async def read_evidence(self, run_id: str) -> Evidence:
        return self.add_tools(await self.run_transaction(read_evidence, run_id))

    def add_tools(self, evidence: Evidence) -> Evidence:
        """Return what the ledger holds of the run, and the tools that it was told of later."""
        return replace(evidence, tools={**self.described, **evidence.tools})

    async def grant(self, name: str, kind: principals.Kind, what: Collection[str]) -> bool:
        """Give roles or permissions; returns whether that changed anything."""
        given = self._given.get(name)
        new = {(kind, one) for one in what} - (given or set())
        if not self.own or not new:
            return False

        def give_grants(tx: Transaction) -> None:
            if given is None:
                principals.add_principal(tx, name, ACTOR)
            for _, one in sorted(new):
                principals.give_grant(tx, name, kind, one, ACTOR)

        await self.run_transaction(give_grants)
        self._given.setdefault(name, set()).update(new)
        return True

    async def revoke(self, name: str, permission: str) -> None:
        await self.run_transaction(principals.revoke_grant, name, "permission", permission, ACTOR)
        self._given[name].discard(("permission", permission))


@dataclass
class People:
    """Looks at one run, again and again, and gives it what it waits for."""

    connection: Connection
    run_id: str
    ledger: CaseLedger
    held: str = ""
    """A step whose approval and first question are left waiting."""
    held_at: frozenset[InterruptKind] = AT_ITS_START
    """Which of its questions are."""
    ignored: set[str] = field(default_factory=set)
    """Approval requests that nobody is to answer."""
    _dealt_with: set[str] = field(default_factory=set)

    @property
    def user(self) -> str:
        return self.connection.settings.user

    async def attend_once(self) -> RunView | None:
        """Deal with all that waits and is not held; ``None`` where no worker answers."""
        await asyncio.sleep(_LOOK_PAUSE)
        with contextlib.suppress(NoWorker):
            view = await self.connection.view(self.run_id, _LOOK_LIMIT)
            await self._deal_with(self.run_id, view, self.held)
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
                    child = await self.connection.view(step.child, _LOOK_LIMIT)
                    await self._deal_with(step.child, child)

    async def disturb_run(self) -> None:
        """Leave it alone."""

    async def wait_until(self, seen: Callable[[RunView], T | None]) -> T:
        """Deal with what waits until something is seen, and return that."""
        while True:
            view = await self.attend_once()
            found = seen(view) if view is not None else None
            if found is not None:
                return found

    async def attend_until_stuck(self) -> tuple[RunView, str]:
        """Deal with what waits until only a human can move the run."""
        before: list[str] = []
        while True:
            view = await self.attend_once()
            if view is None:
                continue
            waiting = view.result.waiting_for
            questions = [one for one in waiting if one.kind is WaitKind.INTERVENTION]
            asked = [one.id for one in questions]
            # Seen twice: what runs beside it has come to its end, too.
            if asked and asked == before and not is_moving(view) and not view.pending:
                return view, questions[0].question
            before = asked

    async def approve_request(self, request: ApprovalRequest) -> None:
        """Approve a request, once, by as many people as it asks for."""
        if request.approval_id in self._dealt_with:
            return
        of_run = run_of_approval(request.approval_id)
        run_id = of_run[0] if of_run else self.run_id
        roles = {role for one in request.requirements for role in one.roles}
        quorum = max((one.quorum for one in request.requirements), default=1)
        for number in range(1, quorum + 1):
            name = APPROVER if number == 1 else f"{APPROVER}-{number}"
            await self.ledger.grant(name, "role", roles)
            decision = Decision(
                approval_id=request.approval_id,
                params_hash=request.params_hash,
                outcome=DecisionOutcome.APPROVE,
                approver=name,
                reason=REASON,
            )
            await self.connection.signal(run_id, Verb.DECIDE, decision)
        self._dealt_with.add(request.approval_id)

    async def answer_question(self, interrupt: Interrupt, run_id: str | None = None) -> None:
        """Answer a question, of the run or of a child run, once."""
        of_run = run_id or self.run_id
        once = f"{of_run} {interrupt.interrupt_id}"
        if once in self._dealt_with:
            return
        answers = {interrupt.interrupt_id: make_answer(interrupt)}
        message = AnswerInterrupts(actor=self.user, answers=answers, id=uuid.uuid4().hex)
        await self.connection.signal(of_run, Verb.ANSWER, message)
        self._dealt_with.add(once)

    async def pause_run(self) -> None:
        await self._steer_run(Verb.PAUSE, PauseRun(actor=self.user, reason=REASON))

    async def resume_run(self) -> None:
        await self._steer_run(Verb.RESUME, ResumeRun(actor=self.user, reason=REASON))

    async def _steer_run(self, verb: Verb, message: Steering) -> None:
        """Send something that steers the run until a worker has taken it."""
        once = message.model_copy(update={"id": uuid.uuid4().hex})
        while True:
            with contextlib.suppress(NoWorker):
                await self.connection.update(self.run_id, verb, once, Acknowledged)
                return

    async def _grant_tools(self) -> None:
        """Give the user what the plan's tools ask for: nobody else could in the drill's ledger."""
        tools = (await self.ledger.read_evidence(self.run_id)).tools.values()
        wanted = {tool.permission for tool in tools if tool.permission is not None}
        if await self.ledger.grant(self.user, "permission", wanted):
            await self.resume_run()


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


@dataclass(kw_only=True)
class Disturber(People):
    """Does to the run what its case is about, and takes down in ``played`` what came of it."""

    disturbance: Disturbance
    played: Played
    workers: Workers

    @property
    def _target(self) -> DrillTarget:
        return self.disturbance.target

    async def disturb_run(self) -> None:
        """Disturb the run and let it go on; never returns if the run does not come to the place."""
        # What is refused is not there any more, such as a run that is ending: it was not reached.
        with contextlib.suppress(Refused, WrongUse):
            point = self.disturbance.point
            self.held = self._target.step if isinstance(point, ForcedWait) else ""
            match point:
                case ForcedWait.PAUSE:
                    await self._stop_at_call(ForcedWait.PAUSE)
                case ForcedWait.HALT:
                    await self._stop_at_call(ForcedWait.HALT)
                case ForcedWait.APPROVAL:
                    await self._wait_for_approval()
                case ForcedWait.ASK:
                    await self._ask_human()
                case ForcedWait.PERMISSION_LOSS:
                    await self._lose_permission()
                case ForcedWait.EXPIRY:
                    await self._let_expire()
                case Operation() as how:
                    await self._operate_run(how)
                case CrashPoint():
                    pass  # The worker does it by itself.
                case _:
                    assert_never(point)
        self.held = ""

    async def _stop_at_call(self, how: ForcedWait) -> None:
        """Pause the run before the call, or halt its calls, and let another worker go on."""
        asked = await self.wait_until(self._find_question)
        halt_id = None
        if how is ForcedWait.HALT:
            halt = await self.ledger.run_transaction(halt_calls, ACTOR, REASON, run_id=self.run_id)
            halt_id = halt.halt_id
        else:
            await self.pause_run()
        state = StepState.HALTED if halt_id else StepState.PAUSED_USER
        await self.answer_question(asked)
        # Approvals may be given while a run stands: they make no call.
        self.held = ""
        if not await self._wait_until_still(how.value, state):
            return
        before = await self._count_calls()
        await self.workers.replace_all()
        if await self._wait_until_still(how.value, state) and await self._count_calls() == before:
            self.played.reached = True
        else:
            why = f"a call was made in spite of the {how.value} before {self._target.step}"
            self.played.violations.append(why)
        if halt_id is None:
            await self.resume_run()
        else:
            await self.ledger.run_transaction(lift_halt, halt_id, ACTOR)

    async def _wait_for_approval(self) -> None:
        request = await self.wait_until(self._find_request)
        await self.workers.replace_all()
        again = await self.wait_until(self._find_request)
        await self._require_no_call("its approval waited")
        if (again.approval_id, again.params_hash) != (request.approval_id, request.params_hash):
            why = f"{again.approval_id} is asked in the place of its equal"
            self.played.violations.append(why)
        await self.approve_request(again)
        self.played.reached = True

    async def _ask_human(self) -> None:
        await self.wait_until(self._find_question)
        await self.workers.replace_all()
        asked = await self.wait_until(self._find_question)
        await self._require_no_call("its question waited")
        await self.answer_question(asked)
        self.played.reached = True

    async def _lose_permission(self) -> None:
        """Take the permission away while the run is paused between the approval and the call."""
        permission = self._target.permission
        assert permission is not None, "the request has refused it"
        request = await self.wait_until(self._find_request)
        await self.pause_run()
        await self.approve_request(request)
        if not await self._wait_until_still("pause"):
            return
        await self.ledger.revoke(self.user, permission)
        await self.resume_run()
        if not await self._wait_until_still("loss of the permission", StepState.PAUSED_PERMISSION):
            return
        await self._require_no_call(f"{self.user} had no permission {permission}")
        self.played.reached = True
        await self.ledger.grant(self.user, "permission", {permission})
        await self.resume_run()

    async def _let_expire(self) -> None:
        first = await self.wait_until(self._find_request)
        self.ignored.add(first.approval_id)

        def find_next(view: RunView) -> ApprovalRequest | None:
            found = self._find_request(view)
            return found if found and found.approval_id != first.approval_id else None

        again = await self.wait_until(find_next)
        await self._require_no_call("nobody had approved it")
        await self.approve_request(again)
        self.played.reached = True

    async def _wait_until_still(self, why: str, state: StepState = StepState.PAUSED_USER) -> bool:
        """Wait until the step stands still, and nothing else moves; say if it does not."""

        def find_rest(view: RunView) -> StepState | None:
            found = next(s.state for s in view.result.steps if s.id == self._target.step)
            rests = found in ENDED_STEPS or (found is state and not is_moving(view))
            return found if rests else None

        found = await self.wait_until(find_rest)
        if found is not state:
            self.played.violations.append(f"{self._target.step} is {found} in spite of the {why}")
        return found is state

    async def _count_calls(self, step_id: str | None = None) -> int:
        return len(list_calls(await self.ledger.read_evidence(self.run_id), step_id))

    async def _require_no_call(self, while_: str) -> None:
        if await self._count_calls(self._target.step):
            self.played.violations.append(f"{self._target.step} was called while {while_}")

    def _find_request(self, view: RunView) -> ApprovalRequest | None:
        return next((one for one in view.pending if one.step_id == self._target.step), None)

    def _find_question(self, view: RunView) -> Interrupt | None:
        waiting = (one for one in view.interrupts if one.step_id == self._target.step)
        return next((one for one in waiting if one.kind in AT_ITS_START), None)

    async def _operate_run(self, how: Operation) -> None:
        if how.crash_point is None:
            await self._wait_behind_step()
        while how.crash_point is not None and self.workers.died_at is None:
            await self.attend_once()
        match how:
            case Operation.RESET | Operation.RESET_STEP:
                await self._reset_here(how)
            case Operation.RESET_KILLED:
                await self._reset_here(how)
                await self.workers.start()
            case Operation.FREEZE:
                await self.workers.start()
            case Operation.TERMINATE:
                await self.connection.handle(self.run_id).terminate(REASON)
                await self._unwind_run()
            case Operation.DEPLOY:
                await self.workers.start_release()
            case _:
                assert_never(how)
        self.played.reached = True

    async def _wait_behind_step(self) -> None:
        self.held = held = self.disturbance.held
        if held != HELD:
            self.held_at = frozenset({InterruptKind.AFTER})

        def find_question(view: RunView) -> Interrupt | None:
            waiting = (one for one in view.interrupts if one.step_id == held)
            return next((one for one in waiting if one.kind in self.held_at), None)

        await self.wait_until(find_question)

    async def _reset_here(self, how: Operation) -> None:
        with self.connection.translated(self.run_id):
            await reset_run(self.connection.client, self.run_id, how, self._target.step)
        # All that waits is dealt with once more.
        self._dealt_with.clear()
        self.held = ""

    async def _unwind_run(self) -> None:
        settings = self.connection.settings
        asked = UnwindRun(tenant=settings.tenant, run_id=self.run_id, actor=self.user)
        while self.played.unwound is None:
            try:
                with contextlib.suppress(NoWorker):
                    self.played.unwound = await self.connection.unwind(asked)
            except (Refused, NotFound) as error:
                why = f"a run that was terminated is not unwound: {error}"
                self.played.violations.append(why)
                return


#: A step's own call, or its undo: step id and whether it is the undo.
Place = tuple[str, bool]


async def read_calls(client: Client, event: HistoryEvent) -> list[Place]:
    """Return the calls that an event schedules."""
    scheduled = event.activity_task_scheduled_event_attributes
    payloads = scheduled.input.payloads
    match scheduled.activity_type.name:
        case EXECUTE_TOOLS.name:
            batch = await decode(client, payloads, Batch)
            return [(id_, False) for id_ in (batch.first.step_id, *(b.id for b in batch.following))]
        case TAKE_TURN.name:
            return [((await decode(client, payloads, ToolCall)).step_id, False)]
        case COMPENSATE.name:
            return [((await decode(client, payloads, Compensate)).step_id, True)]
    return []


async def decode(client: Client, payloads: Any, model: type[T]) -> T:
    [value] = await client.data_converter.decode(payloads, [model])
    found: T = value
    return found


async def reset_run(client: Client, run_id: str, how: Operation, step: str) -> None:
    """Have Temporal reset a run to a workflow task; what the run was sent is sent again.

    RESET goes to its first one, RESET_STEP to the one that began the step, others to its last.
    """
    first = last = before = begun = 0
    async for event in client.get_workflow_handle(run_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last, first = event.event_id, first or event.event_id
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            begun = begun or event.event_id
        elif not before and await _begins_step(client, run_id, event, step):
            before = last
    # A worker may have died in the run's first task.
    task = {Operation.RESET: first, Operation.RESET_STEP: before}.get(how, last or begun)
    if not task:
        raise WrongUse(f"run {run_id} has not come to {step}")
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            reason="a drill",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=task,
        ),
        retry=True,  # it has an id: twice is once
    )


async def _begins_step(client: Client, run_id: str, event: HistoryEvent, step: str) -> bool:
    """Say whether an event begins a step: its call, the batch with it, or its child run."""
    match event.event_type:
        case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
            child = event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            return child == child_run_id(run_id, step)
        case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            return (step, False) in await read_calls(client, event)
        case EventType.EVENT_TYPE_MARKER_RECORDED:
            # A local activity: its id says whose call it is.
            for payload in event.marker_recorded_event_attributes.details["data"].payloads:
                local = json.loads(payload.data)
                return str(local.get("activity_id", "")).rpartition(":")[0] == step
    return False
