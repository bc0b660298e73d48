"""Running one step: its params, its approval, its tool call, and what follows from the answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ActivityError

from surehand.workflows import ports
from surehand.workflows.contracts import tools
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.effects import OpenIntervention
from surehand.workflows.contracts.steering import InterruptKind
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import ITERATION, Goto, Plan, Step, room_of_child
from surehand.workflows.plan.policy import ApprovalPolicy
from surehand.workflows.run import run_records, step_rules
from surehand.workflows.run.child_runs import ChildRunner
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.questions import Approvals, Questions
from surehand.workflows.run.run_core import RunPart
from surehand.workflows.run.step_calls import ToolCalls

#: Of a call whose tool has changed.
_IN_ANY_CASE: Final = ApprovalPolicy(standing=False)


@dataclass(eq=False)
class StepRunner(RunPart):
    """Runs the steps of one run; several may be under way at once."""

    _approvals: Approvals
    _compensation: Compensation
    _questions: Questions
    _children: ChildRunner
    tool_calls: ToolCalls

    async def run_step(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        """Run a step, of no list and under no condition, to its end; ``StepFailed``: it has failed.

        Returns where to go on, if its answer says so; ``facts`` is what its references mean.
        """
        data = self._data
        if data.progress_of(step.id) == run_records.StepProgress(
            step=data.progress_of(step.id).step
        ):  # or it goes on waiting
            data.of_step(step.id).begun = workflow.now()
            self._core.set_step(step.id, StepState.RUNNING, error=None)
        try:
            return await self._begin_or_go_on(step, facts)
        except run_records.StepFailed as failed:
            if failed.rejected:
                await self._clear_rejected(step, failed)
            if isinstance(failed, run_records.StepRefused):
                await self._record_refusal(step.id, step.does, failed.reason)
            state = StepState.FAILED if failed.called else StepState.SKIPPED
            self._core.set_step(step.id, state, error=failed.reason)
            self._core.add_line(f"{state}: {failed.reason}", step.id)
            raise
        except ActivityError as error:
            reason, type_ = run_records.reason_of(error), run_records.type_of(error)
            if type_ in run_records.REFUSED:
                await self._record_refusal(step.id, step.does, reason)
            unsettled = await self.tool_calls.may_have_happened(step.id, error)
            attempts = run_records.used_by(error).attempts
            self._core.set_step(step.id, StepState.FAILED, error=reason, attempts=attempts)
            self._core.add_line(f"failed: {reason}", step.id)
            raise run_records.StepFailed(
                reason,
                unsettled=unsettled,
                called_off=type_ == ErrorType.CALLED_OFF,
                unreviewed=type_ == ErrorType.NOT_AS_REVIEWED,
            ) from error
        finally:
            data.calls.pop(step.id, None)

    async def refuse_step(self, step_id: str, does: str, reason: str) -> run_records.StepRefused:
        """Say why a step cannot begin, also where the run goes on without it."""
        await self._record_refusal(step_id, does, reason)
        self._core.set_step(step_id, StepState.SKIPPED, error=reason)
        self._core.add_line(f"failed before it began: {reason}", step_id)
        return run_records.StepRefused(reason, called=False)

    async def renew_tool(self, step: Step) -> None:
        """Take a step's tool as it is loaded now: somebody has looked at how it has changed."""
        data = self._data
        asked = tools.DescribeTools(plan=data.request.plan, defined=(step.tool,))
        described = await self._core.call(ports.DESCRIBE_TOOLS, asked, f"describe {step.tool}")
        data.tools.update(described.tools)
        data.of_step(step.id).renewed = True

    async def _record_refusal(self, step_id: str, does: str, reason: str) -> None:
        refusal = tools.RecordRefusal(**self._data.ids, step_id=step_id, tool=does, reason=reason)
        await self._core.call(ports.RECORD_REFUSAL, refusal, f"{step_id}: refused")

    async def _clear_rejected(self, step: Step, failed: run_records.StepFailed) -> None:
        """Leave nothing of a rejected step behind, where the plan goes on after a rejection."""
        data = self._data
        if data.stopping or data.request.plan.on_reject(step) == "compensate":
            return
        if step.id in data.saga.steps():
            await self._compensation.undo_step(step.id)
        data.facts[step.id] = {"rejected": {"reason": failed.reason}}

    async def _begin_or_go_on(self, step: Step, facts: dict[str, Any]) -> Goto | None:
        data, request = self._data, self._data.request
        at = data.progress_of(step.id)
        if at.call is not None:
            return await self._call_through(step, at.call, asks=at.asks, outcome=at.outcome)
        await self._wait_while_held(step)
        if step.ask is not None:
            question = step_rules.question_of(step.ask, facts)
            answer = await self._questions.ask_human(
                *(step.id, InterruptKind.ASK, question, step.ask.answer),
                expires_in=step.ask.expires_in,
                otherwise=step.ask.otherwise,
            )
            self._succeed_step(step, answer)
            return None
        if step.wait is not None:
            key = step_rules.about_of(step.wait, facts)
            self._succeed_step(step, await self._questions.wait_for_event(step.id, step.wait, key))
            return None
        params, late = step_rules.params_of(step, facts)
        if request.plan.interrupted(step, "before") and not at.accepted:
            question = f"{step.id} is about to start: {step.does}"
            tool = data.tools.get(step.tool)  # Neither a child run has one, nor a turn.
            secret = tool is not None and tool.secret_params
            await self._questions.ask_for_review(
                step.id, InterruptKind.BEFORE, question, params, secret=secret
            )
            data.set_progress(step.id, accepted=True)
        if step.plan is not None:
            await self._wait_while_held(step)
            self._core.set_step(step.id, StepState.RUNNING)
            self._succeed_step(step, await self._run_child(step, step.plan, params))
            return None
        spec = data.spec_of(step)
        call = tools.ToolCall(
            **self._data.ids,
            step_id=step.id,
            plan_version=data.plan_version,
            user=request.user,
            tool=spec,
            params=params,
            late=late,
            policies=self._policies_of(step, spec),
            attempts_before=data.steps[step.id].attempts if step.id in data.stale else 0,
        )
        asks = bool(call.policies) or spec.approval is not None
        return await self._call_through(step, call, asks=asks)

    def _policies_of(self, step: Step, spec: tools.ToolSpec) -> tuple[ApprovalPolicy, ...]:
        if step.tool == tools.MODEL:  # it is asked for nothing but its word
            return ()
        policies = self._data.request.plan.approvals(step)
        if spec.effect is tools.Effect.WRITE and self._data.of_step(step.id).renewed:
            return (*policies, _IN_ANY_CASE)
        return policies

    async def _call_through(
        self,
        step: Step,
        call: tools.ToolCall,
        *,
        asks: bool,
        outcome: tools.ToolOutcome | None = None,
    ) -> Goto | None:
        """Have a call approved, make it, and do what follows, until it is done.

        ``asks``: it has to be approved first. ``outcome`` is how it has ended, where the execution
        before has made it.
        """
        data = self._data
        gated = bool(call.policies) or call.tool.approval is not None
        while True:
            data.set_progress(step.id, call=call, asks=asks, outcome=outcome)
            if outcome is None:
                await self._wait_while_held(step)
                if asks:
                    call, asks = await self._approvals.get_approval(step, call), False
                    data.set_progress(step.id, call=call, asks=False, request=None)
                    await self._wait_while_held(step)
                await self._wait_for_budget(step)
                if data.stopping and not self.tool_calls.has_report(step.id):
                    raise run_records.cut_short(data.saga, step.id)
                data.calls.pop(step.id, None)
                if call.joined is None:
                    self._core.set_step(step.id, StepState.RUNNING)
                outcome = await self._make_call(step, call)
                data.set_progress(step.id, outcome=outcome)
            tried: dict[str, Any] = {"attempts_before": outcome.attempts}
            match outcome:
                case tools.Succeeded():
                    await self._take_success(step, outcome)
                    return None
                case tools.AnsweredNo():
                    return self._take_no(step, outcome)
                case (
                    tools.ApprovalNeeded()
                    | tools.PermissionNeeded()
                    | tools.InputNeeded()
                    | tools.HumanNeeded()
                    | tools.RateLimited()
                    | tools.QuotaNeeded()
                    | tools.CallHalted()
                ) if data.stopping:
                    # The call ended after its cancellation; nobody is asked for it any more.
                    raise run_records.StepFailed("the run is ending")
                case tools.ApprovalNeeded(reason=reason):
                    # Refused right before the call (expired, used up, changed): back to asking.
                    self._core.add_line(f"asking again: {reason}", step.id)
                    tried |= self._ask_again(call, outcome)
                    asks = True
                case tools.PermissionNeeded():
                    await self._wait_for_permission(step, outcome)
                case tools.InputNeeded(question=asked, answer_schema=schema):
                    answer = await self._questions.ask_human(
                        step.id, InterruptKind.TOOL, asked, schema
                    )
                    tried |= {
                        "answers": [*call.answers[: outcome.before], answer],
                        "questions": [*call.questions[: outcome.before], outcome.digest],
                        **_UNAPPROVED,
                    }
                    asks = gated
                case tools.RateLimited():
                    await self._wait_for_provider(step, outcome)
                case tools.QuotaNeeded(wait=found) | tools.CallHalted(wait=found):
                    await self._core.wait_to_look_again(step.id, found)
                case tools.HumanNeeded():
                    tried |= await self._wait_for_resolution(step, call, outcome)
                case _:
                    assert_never(outcome)
            call, outcome = call.model_copy(update=tried), None

    async def _make_call(self, step: Step, call: tools.ToolCall) -> tools.ToolOutcome:
        spent = self._data.progress_of(step.id).spent
        try:
            report = await self.tool_calls.make_call(step, call)
        finally:
            self._data.set_progress(step.id, counted=False)
            if call.joined is not None:
                self._data.interventions.pop(call.joined, None)
        self._data.keep_head(report.head)
        held_up = isinstance(report.outcome, tools.QuotaNeeded | tools.CallHalted)
        self.tool_calls.spending.add_usage(report.usage, calls=0 if held_up else 1)
        if held_up:
            # The step's time is that of its calls, and none was made.
            self._data.set_progress(step.id, spent=spent)
        else:
            self._core.end_looking(step.id)
        return report.outcome

    def _ask_again(self, call: tools.ToolCall, outcome: tools.ApprovalNeeded) -> dict[str, Any]:
        """Return how a call is to be asked about again: a human looks at it in any case.

        No standing approval counts for it. Otherwise two workers of different settings could
        approve and refuse the same call forever.
        """
        tool = outcome.tool or call.tool
        self._data.tools[tool.name] = tool
        asked = _IN_ANY_CASE in call.policies
        policies = call.policies if asked else (*call.policies, _IN_ANY_CASE)
        again = {"tool": tool, "policies": policies, "joined": None} | _UNAPPROVED
        if outcome.policy is not None and outcome.over_limit is not None:
            # Of any number of limits each is asked for once.
            again["policies"] = tuple(dict.fromkeys((*policies, outcome.policy)))
            again["over_limits"] = tuple(sorted({*call.over_limits, outcome.over_limit}))
        return again

    # What a step waits for beside its call.

    async def _wait_while_held(self, step: Step) -> None:
        """Go no further while somebody has the run paused: no call is under way here."""
        run_records.leave_if_cancelled()  # What holds it may wait for its end.
        if self.tool_calls.has_report(step.id):
            return
        inbox = self._data.inbox
        if self._data.request.mode.calls_here:
            # What has been sent is only judged when this workflow task ends, which a local call
            # would put off.
            await workflow.wait_condition(lambda: inbox.idle)
        while self._is_held(step):
            await self._core.wait(
                step.id, StepState.PAUSED_USER, woken_by=lambda: not self._is_held(step)
            )
            self._core.set_step(step.id, StepState.RUNNING)
            # What came right behind the resume may be another pause.
            await workflow.wait_condition(lambda: inbox.idle)

    def _is_held(self, step: Step) -> bool:
        """Return whether a step goes no further now; items end with their list."""
        if step.id in self._data.unacknowledged:
            return False
        amending = self._data.amending and ITERATION.search(step.id) is None
        return self._data.paused is not None or amending or step.id in self._data.held

    async def _wait_for_budget(self, step: Step) -> None:
        """Wait for more budget where it is used up, and have it count the call that follows."""
        if self.tool_calls.has_report(step.id):
            return
        used_up = self.tool_calls.spending.what_is_used_up
        while what := used_up(step.id):
            text = f"the budget is used up: {what}"
            if self._data.steps[step.id].state is not StepState.PAUSED_BUDGET:
                self._core.set_step(step.id, StepState.PAUSED_BUDGET, error=text)
                self._core.add_line(text, step.id)
            async with self._questions.tell_people(step.id, InterruptKind.BUDGET, text):
                while used_up(step.id):  # another step may take what was added
                    await workflow.wait_condition(lambda: used_up(step.id) is None)
                self._data.set_progress(step.id, counted=True)
            self._core.set_step(step.id, StepState.RUNNING, error=None)
            await self._wait_while_held(step)
        self._data.set_progress(step.id, counted=True)

    async def _wait_for_permission(self, step: Step, forbidden: tools.PermissionNeeded) -> None:
        """Wait until somebody has the run go on: the permission is looked up again then."""
        data, text = self._data, f"paused: {forbidden.reason}"
        known = data.progress_of(step.id).resumed
        seen = data.resumed if known is None else known
        if known is None:
            data.set_progress(step.id, resumed=seen)
            self._core.add_line(text, step.id)
        await self._core.wait(
            *(step.id, StepState.PAUSED_PERMISSION),
            reason=text,
            woken_by=lambda: data.resumed > seen,
            attempts=forbidden.attempts,
        )
        data.set_progress(step.id, resumed=None)
        self._core.set_step(step.id, StepState.RUNNING, error=None)

    async def _wait_for_provider(self, step: Step, limited: tools.RateLimited) -> None:
        known = self._data.progress_of(step.id).until
        until = known or workflow.now() + limited.pause
        text = f"rate limited until {until.isoformat(timespec='seconds')}: {limited.reason}"
        if known is None:
            self._data.set_progress(step.id, until=until)
            self._core.add_line(text, step.id)
        waiting = StepState.WAITING_RATE_LIMIT
        # Before the pause may end the step: it shows how often it was tried.
        self._core.set_step(step.id, waiting, error=text, attempts=limited.attempts)
        pause = max(until - workflow.now(), timedelta(0))
        spent = self.tool_calls.time_after_pause(step, pause, limited.reason)
        await self._core.wait(step.id, waiting, reason=text, until=until)
        self._data.set_progress(step.id, until=None, spent=spent)
        self._core.set_step(step.id, StepState.RUNNING, error=None)

    async def _wait_for_resolution(
        self, step: Step, call: tools.ToolCall, outcome: tools.HumanNeeded
    ) -> dict[str, Any]:
        """Wait until a human has said what happened; returns how the call is to be tried again."""
        data, id_ = self._data, outcome.intervention_id
        if outcome.effect is not None:
            data.effects[outcome.effect.entry_id] = outcome.effect
        self._core.set_step(step.id, StepState.NEEDS_INTERVENTION, attempts=outcome.attempts)
        doubt = OpenIntervention(
            intervention_id=id_,
            step_id=step.id,
            question=outcome.question,
            answers=outcome.answers,
        )
        self._compensation.show_intervention(doubt)
        if outcome.effect is not None:
            await self._compensation.wait_until_settled(doubt)
        # What they say is done, however late it is.
        data.set_progress(step.id, spent=timedelta(0))
        if id_ in data.to_undo:
            await self._compensation.undo_step(step.id)
            raise run_records.StepFailed(f"{data.to_undo[id_]} had it undone", called_off=True)
        # The effect of another step, or of another run, is settled there: the next attempts wait
        # for that.
        return {"joined": id_ if outcome.effect is None else None}

    # What a step does.

    async def _run_child(self, step: Step, plan: Plan, params: dict[str, Any]) -> JsonValue:
        """Run a nested plan in a child run; the outputs of its steps are this one's."""
        data = self._data
        data.saga.register(step.id)
        room = room_of_child(data.request.plan, data.request.room, self._count_items(step))
        try:
            result = await self._children.run_child(step.id, plan.with_input(params), room)
        except run_records.StepFailed:
            # It has undone what it had done, or says what it could not.
            data.saga.drop(step.id)
            raise
        self._core.add_line(f"child run {result.run_id} is done", step.id)
        return {view.id: view.output for view in result.steps}

    def _count_items(self, step: Step) -> int:
        base = ITERATION.sub("", step.id)
        if base == step.id:
            return 0
        known, request = self._data.progress_of(base).items, self._data.request
        list_ = request.plan.step(base)
        return len(step_rules.items_of(request.plan, list_, self._data.facts, known, request.room))

    def _succeed_step(self, step: Step, output: JsonValue, **known: Any) -> None:
        self._data.facts[step.id] = output
        self._core.set_step(step.id, StepState.SUCCEEDED, output=output, **known)

    async def _take_success(self, step: Step, outcome: tools.Succeeded) -> None:
        data = self._data
        data.note_success(step.id, outcome)
        text = "done"
        if outcome.made_by:
            text = f"made by run {outcome.made_by}: not repeated, its receipt is used"
        elif outcome.replayed:
            text = "done before a crash: not repeated, the recorded receipt is used"
        if data.progress_of(step.id).interrupt is None:  # else the execution before has said so
            self._core.add_line(text, step.id)
        known = outcome.model_dump(include={"attempts", "replayed", "made_by"})
        output, original = outcome.output, None
        if data.request.plan.interrupted(step, "after"):
            self._core.set_step(step.id, StepState.RUNNING, output=output, **known)
            question = f"{step.id} has its output: {step.tool}"
            output = await self._questions.ask_for_review(
                step.id, InterruptKind.AFTER, question, output
            )
            original = None if output == outcome.output else outcome.output
        if data.spec_of(step).fresh_for is not None:
            data.of_step(step.id).read_at = read_at(outcome)
        self._succeed_step(step, output, original=original, **known)

    def _take_no(self, step: Step, outcome: tools.AnsweredNo) -> Goto | None:
        self._data.saga.drop(step.id)
        said: JsonValue = {"no": {"reason": outcome.reason, "code": outcome.code}}
        self._core.set_step(step.id, StepState.RUNNING, output=said, attempts=outcome.attempts)
        follows = step_rules.after_no(self._data.request.plan, step, outcome.reason)
        self._succeed_step(step, said)
        self._core.add_line(f"answered no: {outcome.reason}", step.id)
        return follows


#: What was approved is another call.
_UNAPPROVED: Final[dict[str, Any]] = {"approval_id": None, "params_hash": None}


def read_at(outcome: tools.Succeeded) -> datetime:
    """Return when a read was made; its report may come long after it."""
    now = workflow.now()
    if outcome.read_ms is None:
        return now
    return min(now, datetime.fromtimestamp(outcome.read_ms / 1000, UTC))
