"""Running one step: its params, its approval, its tool call, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import ports
from workflows.asking import Asking
from workflows.book import Book, Question
from workflows.budget import Spending
from workflows.calling import Calling
from workflows.calls import Calls
from workflows.children import Children
from workflows.contracts import (
    AnsweredNo,
    ApprovalNeeded,
    HumanNeeded,
    InputNeeded,
    InterruptKind,
    PermissionNeeded,
    Progress,
    RateLimited,
    RecordRefusal,
    StepState,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolSpec,
)
from workflows.desk import Desk
from workflows.durability import Durability
from workflows.ends import (
    REFUSED,
    StepFailed,
    StepRefused,
    attempts_of,
    cut_short,
    reason_of,
    type_of,
)
from workflows.interrupts import Interrupts
from workflows.late import resolve_inline
from workflows.outside import Outside
from workflows.plan import ITERATION, Ask, Goto, Plan, Step
from workflows.policy import ApprovalPolicy
from workflows.references import INPUT, ReferenceUnresolved, resolve
from workflows.time_limits import LimitedCalls
from workflows.tree import room_of_child


class Stepper:
    """Runs the steps of one run; several may be under way at once."""

    def __init__(
        self,
        book: Book,
        desk: Desk,
        call: Calls,
        tools: dict[str, ToolSpec],
        changed: Callable[[], None],
        undo: Callable[[str], Awaitable[None]],
        interrupts: Interrupts,
        children: Children,
        outside: Outside,
        spending: Spending,
    ) -> None:
        self._children = children
        self._outside = outside
        self._spending = spending
        self._undo = undo
        self._interrupts = interrupts
        self._book = book
        self._desk = desk
        self._tools = tools
        self._changed = changed
        self._call = call
        self.asking = Asking(book, desk, call, changed)
        self.facts: dict[str, Any] = {INPUT: book.request.plan.input}
        """The input, and what finished steps have returned."""
        self.calling = Calling(book, call, tools, self.facts, spending)
        self._limited = LimitedCalls(book, self.calling, undo)

    async def run(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        """Run a step to its end.

        Args:
            step: The step, of no list and under no condition.
            facts: What its references mean.

        Returns:
            Where to go on, if the step's answer says so.

        Raises:
            StepFailed: It failed for good.
        """
        book = self._book
        if book.at(step.id) == Progress(step=book.at(step.id).step):  # or it goes on waiting
            book.begun[step.id] = workflow.now()
            self._set(step, StepState.RUNNING, error=None)
        try:
            follows = await self._run(step, facts)
        except StepFailed as failed:
            if failed.rejected:
                await self._rejected(step, failed)
            if isinstance(failed, StepRefused):
                await self._record_refusal(step.id, step.does, failed.reason)
            state = StepState.FAILED if failed.called else StepState.SKIPPED
            self._set(step, state, error=failed.reason)
            book.say(workflow.now(), f"{state}: {failed.reason}", step.id)
            raise
        except ActivityError as error:
            reason = reason_of(error)
            if type_of(error) in REFUSED:
                await self._record_refusal(step.id, step.does, reason)
            unsettled = await self.calling.may_have_happened(step.id, error)
            self._set(step, StepState.FAILED, error=reason, attempts=attempts_of(error))
            book.say(workflow.now(), f"failed: {reason}", step.id)
            raise StepFailed(reason, unsettled=unsettled) from error
        finally:
            book.calls.pop(step.id, None)
        return follows

    async def refused(self, step_id: str, does: str, reason: str) -> StepRefused:
        """Say why a step cannot begin, also where the run goes on without it."""
        await self._record_refusal(step_id, does, reason)
        self._book.set_step(step_id, StepState.SKIPPED, error=reason)
        self._book.say(workflow.now(), f"failed before it began: {reason}", step_id)
        self._changed()
        return StepRefused(reason, called=False)

    async def _record_refusal(self, step_id: str, does: str, reason: str) -> None:
        """Have the ledger tell that a step was refused before it began."""
        request = self._book.request
        asked = RecordRefusal(
            tenant=request.tenant, run_id=request.run_id, step_id=step_id, tool=does, reason=reason
        )
        recorded = await self._call(ports.RECORD_REFUSAL, asked, f"{step_id}: refused")
        self._book.saw(recorded.head)

    async def _rejected(self, step: Step, failed: StepFailed) -> None:
        """Where the plan goes on after a rejection, leave nothing of the step behind."""
        book = self._book
        if self._book.stopping or book.request.plan.on_reject(step) == "compensate":
            return
        if step.id in book.saga.steps():
            await self._undo(step.id)
        self.facts[step.id] = {"rejected": {"reason": failed.reason}}

    async def _run(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        at = self._book.at(step.id)
        if at.call is not None:
            return await self._call_through(step, at.call, asks=at.asks, outcome=at.outcome)
        await self._unpaused(step)
        if step.ask is not None:
            await self._ask(step, step.ask, facts)
            return None
        if step.wait is not None:
            output = await self._outside.wait(step.id, step.wait, facts)
            self.facts[step.id] = output
            self._set(step, StepState.SUCCEEDED, output=output)
            return None
        try:
            params, late = resolve_inline(step.params, facts)
        except ReferenceUnresolved as error:
            raise StepRefused(str(error)) from error
        plan = self._book.request.plan
        if plan.interrupted(step, "before"):
            question = f"{step.id} is about to start: {step.does}"
            await self._interrupts.static(step.id, InterruptKind.BEFORE, question, params)
        if step.plan is not None:
            if late:
                raise StepRefused("the input of a child run cannot reach into an artifact")
            await self._unpaused(step)
            await self._run_child(step, step.plan, params)
            return None
        spec = self._tools[step.tool]
        request = self._book.request
        before = self._book.steps[step.id].attempts if step.id in self._book.stale else 0
        call = ToolCall(
            tenant=request.tenant,
            run_id=request.run_id,
            step_id=step.id,
            plan_version=self._book.plan_version,
            user=request.user,
            tool=spec,
            params=params,
            late=late,
            policies=request.plan.approvals(step),
            attempts_before=before,
        )
        asks = bool(call.policies) or spec.approval is not None
        return await self._call_through(step, call, asks=asks)

    async def _call_through(
        self, step: Step, call: ToolCall, *, asks: bool, outcome: ToolOutcome | None = None
    ) -> Goto | None:
        """Have a call approved, make it, and do what follows, until it is done.

        Args:
            step: The call's step.
            call: The call.
            asks: Whether it has to be approved first.
            outcome: How it has ended, where the execution before has made it.
        """
        gated = bool(call.policies) or call.tool.approval is not None
        while True:
            self._book.note(step.id, call=call, asks=asks, outcome=outcome)
            if outcome is None:
                await self._unpaused(step)
                if asks:
                    call, asks = await self.asking.approved(step, call), False
                    self._book.note(step.id, call=call, asks=False, request=None)
                    await self._unpaused(step)
                await self._affordable(step)
                if self._book.stopping and not self.calling.knows(step.id):
                    raise cut_short(self._book.saga, step.id)
                if call.joined is None:
                    self._set(step, StepState.RUNNING)
                outcome = await self._execute(step, call)
                self._book.note(step.id, outcome=outcome)
            attempts = outcome.attempts
            match outcome:
                case Succeeded():
                    await self._succeeded(step, outcome)
                    return None
                case AnsweredNo():
                    return self._answered_no(step, outcome)
                case (
                    ApprovalNeeded()
                    | PermissionNeeded()
                    | InputNeeded()
                    | HumanNeeded()
                    | RateLimited()
                ) if self._book.stopping:
                    # The call ended after its cancellation; nobody is asked for it any more.
                    raise StepFailed("the run is ending")
                case ApprovalNeeded(reason=reason):
                    # Refused right before the call (expired, used up, changed): back to asking.
                    self._book.say(workflow.now(), f"asking again: {reason}", step.id)
                    call, asks = self._unapproved(call, outcome), True
                case PermissionNeeded(reason=reason):
                    await self._pause(step, outcome)
                    call = call.model_copy(update={"attempts_before": attempts})
                case InputNeeded(question=asked, answer_schema=schema):
                    kind = InterruptKind.TOOL
                    answer = await self._interrupts.ask(step.id, kind, asked, schema)
                    call, asks = _answered(call, answer, attempts), gated
                case RateLimited():
                    await self._wait(step, outcome)
                    call = call.model_copy(update={"attempts_before": attempts})
                case HumanNeeded(intervention_id=id_, question=text):
                    if outcome.effect is not None:
                        self._book.effects[outcome.effect.entry_id] = outcome.effect
                    self._set(step, StepState.NEEDS_INTERVENTION, attempts=attempts)
                    doubt = Question(id_, step.id, text)
                    self._desk.ask(doubt)
                    if outcome.effect is not None:
                        await self._desk.settled(doubt)
                    # What they say is done, however late it is.
                    self._book.note(step.id, spent=timedelta(0))
                    if id_ in self._desk.to_undo:
                        await self._undo(step.id)
                        raise StepFailed(f"{self._desk.to_undo[id_]} had it undone")
                    # The effect of another step, or of another run, is settled there: the next
                    # attempts wait for that.
                    joined = id_ if outcome.effect is None else None
                    call = call.model_copy(update={"attempts_before": attempts, "joined": joined})
                case _:
                    assert_never(outcome)
            outcome = None

    async def _execute(self, step: Step, call: ToolCall) -> ToolOutcome:
        try:
            report = await self._limited.report(step, call)
        finally:
            if call.joined is not None:
                self._book.questions.pop(call.joined, None)
        self._book.saw(report.head)
        self._spending.note(report.usage)
        return report.outcome

    def _unapproved(self, call: ToolCall, outcome: ApprovalNeeded) -> ToolCall:
        """Return the call as it is to be asked about again: a human looks at it in any case."""
        tool = outcome.tool or call.tool
        self._tools[tool.name] = tool
        anyway = ApprovalPolicy(standing=False)
        policies = call.policies if anyway in call.policies else (*call.policies, anyway)
        changes: dict[str, Any] = {
            "tool": tool,
            "policies": policies,
            "approval_id": None,
            "params_hash": None,
            "joined": None,
            "attempts_before": outcome.attempts,
        }
        return call.model_copy(update=changes)

    async def _pause(self, step: Step, forbidden: PermissionNeeded) -> None:
        """Wait until somebody has the run go on: the permission is looked up again then."""
        text = f"paused: {forbidden.reason}"
        seen = self._book.at(step.id).resumed
        if seen is None:
            seen = self._book.resumed
            self._book.note(step.id, resumed=seen)
            self._book.say(workflow.now(), text, step.id)
        state = StepState.PAUSED_PERMISSION
        self._set(step, state, error=text, attempts=forbidden.attempts)
        await workflow.wait_condition(lambda: self._book.resumed > seen)
        self._book.note(step.id, resumed=None)
        self._set(step, StepState.RUNNING, error=None)

    async def _unpaused(self, step: Step) -> None:
        """Go no further while somebody has the run paused: no call is under way here."""
        if self.calling.knows(step.id):
            return
        if self._book.request.mode is not Durability.SYNC:
            # What has been sent is only judged when this workflow task ends, which a local call
            # would put off.
            await workflow.wait_condition(lambda: self._desk.idle)
        while self._held(step):
            self._set(step, StepState.PAUSED_USER)
            await workflow.wait_condition(lambda: not self._held(step))
            self._set(step, StepState.RUNNING)
            # What came right behind the resume may be another pause.
            await workflow.wait_condition(lambda: self._desk.idle)

    def knows(self, step_id: str) -> bool:
        """Return whether a step's call has been made already."""
        return self.calling.knows(step_id)

    def _held(self, step: Step) -> bool:
        """Return whether a step goes no further now; items end with their list."""
        if step.id in self._book.unheard:
            return False
        amending = self._book.amending and ITERATION.search(step.id) is None
        return self._book.paused is not None or amending or step.id in self._book.held

    async def _affordable(self, step: Step) -> None:
        """Wait for more budget where it is used up: no call is under way here."""
        while not self.calling.knows(step.id) and (used_up := self._spending.used_up()):
            text = f"the budget is used up: {used_up}"
            if self._book.steps[step.id].state is not StepState.PAUSED_BUDGET:
                self._set(step, StepState.PAUSED_BUDGET, error=text)
                self._book.say(workflow.now(), text, step.id)
            async with self._interrupts.paused(step.id, InterruptKind.BUDGET, text):
                await workflow.wait_condition(lambda: self._spending.used_up() is None)
            self._set(step, StepState.RUNNING, error=None)
            await self._unpaused(step)

    async def _wait(self, step: Step, limited: RateLimited) -> None:
        """Wait as long as the provider wants, and say so."""
        until, pause = self._book.at(step.id).until, limited.pause
        if until is not None:
            pause = max(until - workflow.now(), timedelta(0))
        else:
            until = workflow.now() + pause
            self._book.note(step.id, until=until)
            text = f"rate limited until {until.isoformat(timespec='seconds')}: {limited.reason}"
            self._book.say(workflow.now(), text, step.id)
            self._set(step, StepState.WAITING_RATE_LIMIT, error=text, attempts=limited.attempts)
        spent = self._limited.with_pause(step, pause, limited.reason)
        await workflow.sleep(pause)
        self._book.note(step.id, until=None, spent=spent)
        self._set(step, StepState.RUNNING, error=None)

    async def _run_child(self, step: Step, plan: Plan, params: dict[str, Any]) -> None:
        """Run a plan of its own in a child run; the outputs of its steps are this one's."""
        book = self._book
        book.saga.register(step.id)
        started = plan.model_copy(update={"input": {**plan.input, **params}})
        room = room_of_child(book.request.plan, book.request.room, self._items_of(step))
        try:
            result = await self._children.run(step.id, started, room)
        except StepFailed:
            # It has undone what it had done, or says what it could not.
            book.saga.drop(step.id)
            raise
        output = {view.id: view.output for view in result.steps}
        self.facts[step.id] = output
        book.say(workflow.now(), f"child run {result.run_id} is done", step.id)
        self._set(step, StepState.SUCCEEDED, output=output)

    def _items_of(self, step: Step) -> int:
        """Return how many items the list of a step has; 0: it is of no list."""
        base = ITERATION.sub("", step.id)
        if base == step.id:
            return 0
        items = self._book.at(base).items
        reference = self._book.request.plan.step(base).for_each
        return len(resolve(reference, self.facts) if items is None else items)

    async def _ask(self, step: Step, ask: Ask, facts: dict[str, Any]) -> None:
        """Ask a human; the answer is the step's output."""
        try:
            question = str(resolve(ask.question, facts))
        except ReferenceUnresolved as error:
            raise StepRefused(str(error)) from error
        answer = await self._interrupts.ask(
            *(step.id, InterruptKind.ASK, question, ask.answer),
            expires_in=ask.expires_in,
            otherwise=ask.otherwise,
        )
        self.facts[step.id] = answer
        self._set(step, StepState.SUCCEEDED, output=answer)

    async def _succeeded(self, step: Step, outcome: Succeeded) -> None:
        if outcome.effect is not None:
            self._book.saga.committed(step.id, outcome.effect.entry_id)
            self._book.effects[outcome.effect.entry_id] = outcome.effect
        else:
            # A read, or an effect that another step owns: only its owner undoes it.
            self._book.saga.relies(step.id, outcome.entry_id)
        asked = self._book.at(step.id).interrupt is not None
        text = "done"
        if outcome.made_by:
            text = f"made by run {outcome.made_by}: not repeated, its receipt is used"
        elif outcome.replayed:
            text = "done before a crash: not repeated, the recorded receipt is used"
        if not asked:  # by the execution before, which has said so
            self._book.say(workflow.now(), text, step.id)
        known = {
            "attempts": outcome.attempts,
            "replayed": outcome.replayed,
            "made_by": outcome.made_by,
        }
        output, original = outcome.output, None
        if self._book.request.plan.interrupted(step, "after"):
            self._set(step, StepState.RUNNING, output=output, **known)
            question, kind = f"{step.id} has its output: {step.tool}", InterruptKind.AFTER
            output = await self._interrupts.static(step.id, kind, question, outcome.output)
            original = None if output == outcome.output else outcome.output
        self.facts[step.id] = output
        if self._tools[step.tool].fresh_for is not None:
            self._book.read_at[step.id] = read_at(outcome)
        self._set(step, StepState.SUCCEEDED, output=output, original=original, **known)

    def _answered_no(self, step: Step, outcome: AnsweredNo) -> Goto | None:
        self._book.saga.drop(step.id)
        said = {"no": {"reason": outcome.reason, "code": outcome.code}}
        self._set(step, StepState.RUNNING, output=said, attempts=outcome.attempts)
        follows = self._book.request.plan.on_no(step)
        if follows == "fail":
            raise StepFailed(f"{step.tool} answered no: {outcome.reason}")
        self.facts[step.id] = said
        self._set(step, StepState.SUCCEEDED)
        self._book.say(workflow.now(), f"answered no: {outcome.reason}", step.id)
        return follows if isinstance(follows, Goto) else None

    def _set(self, step: Step, state: StepState, **changes: Any) -> None:
        self._book.set_step(step.id, state, **changes)
        self._changed()


def _answered(call: ToolCall, answer: JsonValue, attempts: int) -> ToolCall:
    """Return the call with one answer more: what was approved was the call without it."""
    changes: dict[str, Any] = {"approval_id": None, "params_hash": None}
    changes |= {"answers": [*call.answers, answer], "attempts_before": attempts}
    return call.model_copy(update=changes)


def read_at(outcome: Succeeded) -> datetime:
    """Return when a read was made; its report may come long after it."""
    now = workflow.now()
    if outcome.read_ms is None:
        return now
    return min(now, datetime.fromtimestamp(outcome.read_ms / 1000, UTC))
