"""Running one step: its params, its approval, its tool call, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from surehand.workflows import ports
from surehand.workflows.activity_client import ActivityClient
from surehand.workflows.contracts.effects import OpenIntervention
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import InterruptKind
from surehand.workflows.contracts.tools import (
    MODEL,
    AnsweredNo,
    ApprovalNeeded,
    DescribeTools,
    Effect,
    HumanNeeded,
    InputNeeded,
    PermissionNeeded,
    QuotaNeeded,
    RateLimited,
    RecordRefusal,
    Succeeded,
    ToolCall,
    ToolOutcome,
    ToolSpec,
)
from surehand.workflows.control.budget import Spending
from surehand.workflows.control.child_runs import Children
from surehand.workflows.control.interrupts import (
    Decisions,
    ExternalEvents,
    Interrupts,
    Interventions,
)
from surehand.workflows.errors import ErrorType
from surehand.workflows.plan.plan import ITERATION, Ask, Goto, Plan, Step
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.plan.size import room_of_child
from surehand.workflows.state.records import (
    REFUSED,
    StepFailed,
    StepProgress,
    StepRefused,
    cut_short,
    leave_if_cancelled,
    reason_of,
    type_of,
    used_by,
)
from surehand.workflows.state.run_state import RunData
from surehand.workflows.steps import rules
from surehand.workflows.steps.approval import ApprovalWait, LimitedCalls, QuotaWaits
from surehand.workflows.steps.tool_calls import ToolCalls

#: Of a call whose tool has changed.
_IN_ANY_CASE: Final = ApprovalPolicy(standing=False)


class StepRunner:
    """Runs the steps of one run; several may be under way at once."""

    def __init__(
        self,
        data: RunData,
        decisions: Decisions,
        interventions: Interventions,
        call: ActivityClient,
        changed: Callable[[], None],
        undo: Callable[[str], Awaitable[None]],
        interrupts: Interrupts,
        children: Children,
        events: ExternalEvents,
        spending: Spending,
    ) -> None:
        self._children = children
        self._events = events
        self._spending = spending
        self._undo = undo
        self._interrupts = interrupts
        self._data = data
        self._interventions = interventions
        self._changed = changed
        self._call = call
        self._quotas = QuotaWaits(data, changed)
        self._approval_wait = ApprovalWait(data, decisions, call, changed, self._quotas)
        self.tool_calls = ToolCalls(data, call, spending)
        self._limited = LimitedCalls(data, self.tool_calls, undo)

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
        data = self._data
        if data.progress_of(step.id) == StepProgress(
            step=data.progress_of(step.id).step
        ):  # or it goes on waiting
            data.of_step(step.id).begun = workflow.now()
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
            data.add_line(workflow.now(), f"{state}: {failed.reason}", step.id)
            raise
        except ActivityError as error:
            reason = reason_of(error)
            if type_of(error) in REFUSED:
                await self._record_refusal(step.id, step.does, reason)
            unsettled = await self.tool_calls.may_have_happened(step.id, error)
            self._set(step, StepState.FAILED, error=reason, attempts=used_by(error).attempts)
            data.add_line(workflow.now(), f"failed: {reason}", step.id)
            raise StepFailed(
                reason,
                unsettled=unsettled,
                called_off=type_of(error) == ErrorType.CALLED_OFF,
                unreviewed=type_of(error) == ErrorType.NOT_AS_REVIEWED,
            ) from error
        finally:
            data.calls.pop(step.id, None)
        return follows

    async def refused(self, step_id: str, does: str, reason: str) -> StepRefused:
        """Say why a step cannot begin, also where the run goes on without it."""
        await self._record_refusal(step_id, does, reason)
        self._data.set_step(step_id, StepState.SKIPPED, error=reason)
        self._data.add_line(workflow.now(), f"failed before it began: {reason}", step_id)
        self._changed()
        return StepRefused(reason, called=False)

    async def renew(self, step: Step) -> None:
        """Take a step's tool as it is loaded now: somebody has looked at how it has changed."""
        data = self._data
        asked = DescribeTools(plan=data.request.plan, defined=(step.tool,))
        described = await self._call(ports.DESCRIBE_TOOLS, asked, f"describe {step.tool}")
        data.tools.update(described.tools)
        data.of_step(step.id).renewed = True

    async def _record_refusal(self, step_id: str, does: str, reason: str) -> None:
        """Have the ledger tell that a step was refused before it began."""
        request = self._data.request
        asked = RecordRefusal(
            tenant=request.tenant, run_id=request.run_id, step_id=step_id, tool=does, reason=reason
        )
        recorded = await self._call(ports.RECORD_REFUSAL, asked, f"{step_id}: refused")
        self._data.keep_head(recorded.head)

    async def _rejected(self, step: Step, failed: StepFailed) -> None:
        """Where the plan goes on after a rejection, leave nothing of the step behind."""
        data = self._data
        if self._data.stopping or data.request.plan.on_reject(step) == "compensate":
            return
        if step.id in data.saga.steps():
            await self._undo(step.id)
        self._data.facts[step.id] = {"rejected": {"reason": failed.reason}}

    async def _run(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        at = self._data.progress_of(step.id)
        if at.call is not None:
            return await self._call_through(step, at.call, asks=at.asks, outcome=at.outcome)
        await self._unpaused(step)
        if step.ask is not None:
            await self._ask(step, step.ask, facts)
            return None
        if step.wait is not None:
            key = rules.about_of(step.wait, facts)
            output = await self._events.wait(step.id, step.wait, key)
            self._data.facts[step.id] = output
            self._set(step, StepState.SUCCEEDED, output=output)
            return None
        params, late = rules.params_of(step, facts)
        plan = self._data.request.plan
        if plan.interrupted(step, "before") and not at.accepted:
            question = f"{step.id} is about to start: {step.does}"
            tool = self._data.tools.get(step.tool)  # Neither a child run has one, nor a turn.
            secret = tool is not None and tool.secret_params
            kind = InterruptKind.BEFORE
            await self._interrupts.static(step.id, kind, question, params, secret=secret)
            self._data.set_progress(step.id, accepted=True)
        if step.plan is not None:
            await self._unpaused(step)
            self._set(step, StepState.RUNNING)
            await self._run_child(step, step.plan, params)
            return None
        spec = self._data.spec_of(step)
        request = self._data.request
        before = self._data.steps[step.id].attempts if step.id in self._data.stale else 0
        call = ToolCall(
            tenant=request.tenant,
            run_id=request.run_id,
            step_id=step.id,
            plan_version=self._data.plan_version,
            user=request.user,
            tool=spec,
            params=params,
            late=late,
            policies=self._policies(step, spec),
            attempts_before=before,
        )
        asks = bool(call.policies) or spec.approval is not None
        return await self._call_through(step, call, asks=asks)

    def _policies(self, step: Step, spec: ToolSpec) -> tuple[ApprovalPolicy, ...]:
        if step.tool == MODEL:  # it is asked for nothing but its word
            return ()
        policies = self._data.request.plan.approvals(step)
        if spec.effect is Effect.WRITE and self._data.of_step(step.id).renewed:
            return (*policies, _IN_ANY_CASE)
        return policies

    async def _call_through(
        self, step: Step, call: ToolCall, *, asks: bool, outcome: ToolOutcome | None = None
    ) -> Goto | None:
        """Have a call approved, make it, and do what follows, until it is done.

        Args:
            asks: Whether it has to be approved first.
            outcome: How it has ended, where the execution before has made it.
        """
        gated = bool(call.policies) or call.tool.approval is not None
        while True:
            self._data.set_progress(step.id, call=call, asks=asks, outcome=outcome)
            if outcome is None:
                await self._unpaused(step)
                if asks:
                    call, asks = await self._approval_wait.approved(step, call), False
                    self._data.set_progress(step.id, call=call, asks=False, request=None)
                    await self._unpaused(step)
                await self._affordable(step)
                if self._data.stopping and not self.tool_calls.knows(step.id):
                    raise cut_short(self._data.saga, step.id)
                self._data.calls.pop(step.id, None)
                if call.joined is None:
                    self._set(step, StepState.RUNNING)
                outcome = await self._execute(step, call)
                self._data.set_progress(step.id, outcome=outcome)
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
                    | QuotaNeeded()
                ) if self._data.stopping:
                    # The call ended after its cancellation; nobody is asked for it any more.
                    raise StepFailed("the run is ending")
                case ApprovalNeeded(reason=reason):
                    # Refused right before the call (expired, used up, changed): back to asking.
                    self._data.add_line(workflow.now(), f"asking again: {reason}", step.id)
                    call, asks = self._unapproved(call, outcome), True
                case PermissionNeeded(reason=reason):
                    await self._pause(step, outcome)
                    call = call.model_copy(update={"attempts_before": attempts})
                case InputNeeded(question=asked, answer_schema=schema):
                    kind = InterruptKind.TOOL
                    answer = await self._interrupts.ask(step.id, kind, asked, schema)
                    call, asks = _answered(call, outcome, answer), gated
                case RateLimited():
                    await self._wait(step, outcome)
                    call = call.model_copy(update={"attempts_before": attempts})
                case QuotaNeeded(wait=found):
                    await self._quotas.wait(step.id, found)
                    call = call.model_copy(update={"attempts_before": attempts})
                case HumanNeeded(intervention_id=id_, question=text):
                    if outcome.effect is not None:
                        self._data.effects[outcome.effect.entry_id] = outcome.effect
                    self._set(step, StepState.NEEDS_INTERVENTION, attempts=attempts)
                    doubt = OpenIntervention(
                        intervention_id=id_,
                        step_id=step.id,
                        question=text,
                        # The effect of another step, or of another run, is its owner's to undo.
                        can_undo=outcome.effect is not None and call.tool.compensation is not None,
                    )
                    self._interventions.show(doubt)
                    if outcome.effect is not None:
                        await self._interventions.settled(doubt)
                    # What they say is done, however late it is.
                    self._data.set_progress(step.id, spent=timedelta(0))
                    if id_ in self._data.to_undo:
                        await self._undo(step.id)
                        reason = f"{self._data.to_undo[id_]} had it undone"
                        raise StepFailed(reason, called_off=True)
                    # The effect of another step, or of another run, is settled there: the next
                    # attempts wait for that.
                    joined = id_ if outcome.effect is None else None
                    call = call.model_copy(update={"attempts_before": attempts, "joined": joined})
                case _:
                    assert_never(outcome)
            outcome = None

    async def _execute(self, step: Step, call: ToolCall) -> ToolOutcome:
        spent = self._data.progress_of(step.id).spent
        try:
            report = await self._limited.report(step, call)
        finally:
            self._data.set_progress(step.id, counted=False)
            if call.joined is not None:
                self._data.interventions.pop(call.joined, None)
        self._data.keep_head(report.head)
        over = isinstance(report.outcome, QuotaNeeded)
        self._spending.add_usage(report.usage, calls=0 if over else 1)
        if over:
            # The step's time is that of its calls, and none was made.
            self._data.set_progress(step.id, spent=spent)
        else:
            self._quotas.over(step.id)
        return report.outcome

    def _unapproved(self, call: ToolCall, outcome: ApprovalNeeded) -> ToolCall:
        """Return the call as it is to be asked about again: a human looks at it in any case.

        No standing approval counts for it. Otherwise two workers of different settings could
        approve and refuse the same call for ever.
        """
        tool = outcome.tool or call.tool
        self._data.tools[tool.name] = tool
        policies = call.policies
        if _IN_ANY_CASE not in policies:
            policies = (*policies, _IN_ANY_CASE)
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
        seen = self._data.progress_of(step.id).resumed
        if seen is None:
            seen = self._data.resumed
            self._data.set_progress(step.id, resumed=seen)
            self._data.add_line(workflow.now(), text, step.id)
        state = StepState.PAUSED_PERMISSION
        self._set(step, state, error=text, attempts=forbidden.attempts)
        await workflow.wait_condition(lambda: self._data.resumed > seen)
        self._data.set_progress(step.id, resumed=None)
        self._set(step, StepState.RUNNING, error=None)

    async def _unpaused(self, step: Step) -> None:
        """Go no further while somebody has the run paused: no call is under way here."""
        leave_if_cancelled()  # What holds it may wait for its end.
        if self.tool_calls.knows(step.id):
            return
        if self._data.request.mode.calls_here:
            # What has been sent is only judged when this workflow task ends, which a local call
            # would put off.
            await workflow.wait_condition(lambda: self._data.inbox.idle)
        while self._held(step):
            self._set(step, StepState.PAUSED_USER)
            await workflow.wait_condition(lambda: not self._held(step))
            self._set(step, StepState.RUNNING)
            # What came right behind the resume may be another pause.
            await workflow.wait_condition(lambda: self._data.inbox.idle)

    def _held(self, step: Step) -> bool:
        """Return whether a step goes no further now; items end with their list."""
        if step.id in self._data.unacknowledged:
            return False
        amending = self._data.amending and ITERATION.search(step.id) is None
        return self._data.paused is not None or amending or step.id in self._data.held

    async def _affordable(self, step: Step) -> None:
        """Wait for more budget where it is used up, and have it count the call that follows."""
        if self.tool_calls.knows(step.id):
            return
        while used_up := self._spending.used_up(step.id):
            text = f"the budget is used up: {used_up}"
            if self._data.steps[step.id].state is not StepState.PAUSED_BUDGET:
                self._set(step, StepState.PAUSED_BUDGET, error=text)
                self._data.add_line(workflow.now(), text, step.id)
            async with self._interrupts.paused(step.id, InterruptKind.BUDGET, text):
                while self._spending.used_up(step.id):  # another step may take what was added
                    await workflow.wait_condition(lambda: self._spending.used_up(step.id) is None)
                self._data.set_progress(step.id, counted=True)
            self._set(step, StepState.RUNNING, error=None)
            await self._unpaused(step)
        self._data.set_progress(step.id, counted=True)

    async def _wait(self, step: Step, limited: RateLimited) -> None:
        """Wait as long as the provider wants, and say so."""
        until, pause = self._data.progress_of(step.id).until, limited.pause
        if until is not None:
            pause = max(until - workflow.now(), timedelta(0))
        else:
            until = workflow.now() + pause
            self._data.set_progress(step.id, until=until)
            text = f"rate limited until {until.isoformat(timespec='seconds')}: {limited.reason}"
            self._data.add_line(workflow.now(), text, step.id)
            self._set(step, StepState.WAITING_RATE_LIMIT, error=text, attempts=limited.attempts)
        spent = self._limited.with_pause(step, pause, limited.reason)
        await workflow.sleep(pause)
        self._data.set_progress(step.id, until=None, spent=spent)
        self._set(step, StepState.RUNNING, error=None)

    async def _run_child(self, step: Step, plan: Plan, params: dict[str, Any]) -> None:
        """Run a plan of its own in a child run; the outputs of its steps are this one's."""
        data = self._data
        data.saga.register(step.id)
        started = rules.child_plan(plan, params)
        room = room_of_child(data.request.plan, data.request.room, self._items_of(step))
        try:
            result = await self._children.run(step.id, started, room)
        except StepFailed:
            # It has undone what it had done, or says what it could not.
            data.saga.drop(step.id)
            raise
        output = {view.id: view.output for view in result.steps}
        self._data.facts[step.id] = output
        data.add_line(workflow.now(), f"child run {result.run_id} is done", step.id)
        self._set(step, StepState.SUCCEEDED, output=output)

    def _items_of(self, step: Step) -> int:
        """Return how many items the list of a step has; 0: it is of no list."""
        base = ITERATION.sub("", step.id)
        if base == step.id:
            return 0
        known, request = self._data.progress_of(base).items, self._data.request
        list_ = request.plan.step(base)
        return len(rules.items_of(request.plan, list_, self._data.facts, known, request.room))

    async def _ask(self, step: Step, ask: Ask, facts: dict[str, Any]) -> None:
        """Ask a human; the answer is the step's output."""
        question = rules.question_of(ask, facts)
        answer = await self._interrupts.ask(
            *(step.id, InterruptKind.ASK, question, ask.answer),
            expires_in=ask.expires_in,
            otherwise=ask.otherwise,
        )
        self._data.facts[step.id] = answer
        self._set(step, StepState.SUCCEEDED, output=answer)

    async def _succeeded(self, step: Step, outcome: Succeeded) -> None:
        self._data.note_success(step.id, outcome)
        asked = self._data.progress_of(step.id).interrupt is not None
        text = "done"
        if outcome.made_by:
            text = f"made by run {outcome.made_by}: not repeated, its receipt is used"
        elif outcome.replayed:
            text = "done before a crash: not repeated, the recorded receipt is used"
        if not asked:  # by the execution before, which has said so
            self._data.add_line(workflow.now(), text, step.id)
        known = {
            "attempts": outcome.attempts,
            "replayed": outcome.replayed,
            "made_by": outcome.made_by,
        }
        output, original = outcome.output, None
        if self._data.request.plan.interrupted(step, "after"):
            self._set(step, StepState.RUNNING, output=output, **known)
            question, kind = f"{step.id} has its output: {step.tool}", InterruptKind.AFTER
            output = await self._interrupts.static(step.id, kind, question, outcome.output)
            original = None if output == outcome.output else outcome.output
        self._data.facts[step.id] = output
        if self._data.spec_of(step).fresh_for is not None:
            self._data.of_step(step.id).read_at = read_at(outcome)
        self._set(step, StepState.SUCCEEDED, output=output, original=original, **known)

    def _answered_no(self, step: Step, outcome: AnsweredNo) -> Goto | None:
        self._data.saga.drop(step.id)
        said = {"no": {"reason": outcome.reason, "code": outcome.code}}
        self._set(step, StepState.RUNNING, output=said, attempts=outcome.attempts)
        follows = rules.after_no(self._data.request.plan, step, outcome.reason)
        self._data.facts[step.id] = said
        self._set(step, StepState.SUCCEEDED)
        self._data.add_line(workflow.now(), f"answered no: {outcome.reason}", step.id)
        return follows

    def _set(self, step: Step, state: StepState, **changes: Any) -> None:
        self._data.set_step(step.id, state, **changes)
        self._changed()


def _answered(call: ToolCall, asked: InputNeeded, answer: JsonValue) -> ToolCall:
    """Return the call with one answer more: what was approved was the call without it."""
    changes: dict[str, Any] = {"approval_id": None, "params_hash": None}
    changes["answers"] = [*call.answers[: asked.before], answer]
    changes["questions"] = [*call.questions[: asked.before], asked.digest]
    return call.model_copy(update={**changes, "attempts_before": asked.attempts})


def read_at(outcome: Succeeded) -> datetime:
    """Return when a read was made; its report may come long after it."""
    now = workflow.now()
    if outcome.read_ms is None:
        return now
    return min(now, datetime.fromtimestamp(outcome.read_ms / 1000, UTC))
