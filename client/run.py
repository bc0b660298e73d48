"""One run, from outside: looked at, waited for, decided on and steered."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue

from surehand.client import messages
from surehand.client.connection import Connection, deliver
from surehand.client.messages import Seen
from surehand.client.outcome import Watch, state_of, until_ended, until_settled, wait_taken_up
from surehand.client.plan_file import PlanDraft, PlanSource
from surehand.process.exits import DecisionRefused, NoWorker, WrongUse
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome, Verdict, VerdictCode
from surehand.workflows.contracts.base import Acknowledged, StepState
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.runs import Amend, OutsideEvent, RunResult, RunView, TopUp
from surehand.workflows.contracts.steering import (
    AnswerInterrupts,
    CancelMode,
    CancelRun,
    PauseRun,
    ResumeRun,
    Steering,
    Verb,
    Way,
)
from surehand.workflows.plan.references import references
from surehand.workflows.run.deliveries import MESSAGES

#: A decision that counts, now or once its request is there.
_COUNTS: Final = (VerdictCode.ACCEPTED, VerdictCode.HELD)
#: What carries each message to the run.
_VERBS: Final = {model: verb for verb, model in MESSAGES.items()}


@dataclass(frozen=True)
class Paused:
    """A run was told to pause.

    Example:
        >>> paused = await run.pause(reason="waiting for legal")
        >>> said = await run.resume(token=paused.resume_token)
    """

    message: str
    """What the run has answered."""
    resume_token: str
    """In the place of the user's key: resumes the run once, in that name. Kept nowhere else."""


@dataclass(frozen=True)
class Run:
    """One run; made by ``Client.start`` and ``Client.run``.

    Every method raises :class:`NoSuchRun` if the tenant has no such run, and :class:`NotReachable`
    if the server does not answer. What asks the run itself raises :class:`NoWorker` if no worker
    answers in time, and :class:`OutOfReach` if the answer is in a store that is not set here.

    What decides and steers takes a ``reason``, which is recorded with it, and ``leave``: if no
    worker answers, leave it with the server, where it counts once a worker is back; :class:`Left`
    says so. Without it nothing is sent then (:class:`NoWorker`). If the worker goes in the middle
    of it, it was sent, and counts once a worker is back (:class:`Unanswered`). If the run does not
    take it, :class:`Refused` says why. What steers also takes ``id``: two messages of one id are
    one, so what may have been lost can be sent again.

    Example:
        >>> run = await client.start("refund.yaml", input={"order_id": "order-7"})
        >>> result = await run.wait()
        >>> result.state
        <RunState.COMPLETED: 'completed'>
    """

    connection: Connection
    run_id: str
    is_new: bool = False
    """Whether this very call of ``start`` has started it: it may have been there before."""

    @property
    def web_ui(self) -> str:
        """Return the run's page in the Web UI."""
        return self.connection.web_ui(self.run_id)

    async def state(self) -> str:
        """Return where the run stands, as the server knows it; needs no worker.

        One of ``RunState``, or ``terminated`` or ``timed_out``.

        Example:
            >>> await run.state()
            'waiting_approval'
        """
        return state_of(await self.connection.describe(self.run_id))

    async def view(self) -> RunView:
        """Return all that the run says of itself: steps, what it waits for, its timeline.

        Example:
            >>> view = await run.view()
            >>> [step.id for step in view.result.steps if step.state == "succeeded"]
            ['order', 'amount']
        """
        return await self.connection.view(self.run_id)

    async def checkpoint(self) -> dict[str, Any]:
        """Return the run's state as one document.

        Example:
            >>> (await run.checkpoint())["completed_steps"]
            ['order', 'amount']
        """
        return await self.connection.checkpoint(self.run_id)

    async def taken_up(self) -> bool:
        """Wait until a worker has taken the run up; ``False``: none has, and the run is kept.

        Raises:
            PlanRefused: The plan does not fit the worker's tools.
            StartNotTaken: The worker does not open the run.

        Example:
            >>> await run.taken_up()
            True
        """
        return await wait_taken_up(self.connection, self.run_id)

    async def wait(
        self,
        *,
        timeout: timedelta | None = None,
        or_human: bool = False,
        watch: Watch | None = None,
    ) -> RunResult:
        """Wait for the run's end, through deaths of workers and restarts of the server.

        A run that has failed or was cancelled has a result, too: ``result.state`` says which, and
        ``result.uncompensated`` what it could not undo.

        Args:
            or_human: Return also when nothing but a human can move the run; then
                ``result.waiting_for`` says what for.
            watch: Is told of each look at the run.

        Raises:
            TimeoutError: The time is over; the run goes on.
            PlanRefused: The plan does not fit the worker's tools: nothing was done.
            StartNotTaken: The worker does not open the run: nothing was done.
            CutOff: The server has ended it: it was terminated, and has undone nothing.

        Example:
            >>> result = await run.wait(or_human=True)
            >>> [waiting.kind.value for waiting in result.waiting_for]
            ['approval']
        """
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
            if watch is None and not or_human:
                return await until_ended(self.connection, self.run_id)
            return await until_settled(self.connection, self.run_id, watch, stay=not or_human)

    async def approve(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Approve a call with exactly the params that were seen.

        Args:
            request: What was seen: the ``ApprovalRequest`` itself, or a ``SeenRequest``.

        Returns:
            The verdict; ``verdict.state`` is still ``pending`` where others have to say yes, too.

        Raises:
            DecisionRefused: It does not count; ``verdict.code`` says why. Among others: the params
                are not those that were seen, the approver lacks the role, it is decided already.

        Example:
            >>> [request] = (await run.view()).pending
            >>> (await run.approve(request, reason="order was returned")).state
            <ApprovalState.APPROVED: 'approved'>
        """
        return await self.decide(request, DecisionOutcome.APPROVE, reason=reason, leave=leave)

    async def reject(self, request: Seen, *, reason: str = "", leave: bool = False) -> Verdict:
        """Reject a call: it is not made, and what follows is what the plan says.

        Example:
            >>> [request] = (await run.view()).pending
            >>> (await run.reject(request, reason="wrong amount")).state
            <ApprovalState.REJECTED: 'rejected'>
        """
        return await self.decide(request, DecisionOutcome.REJECT, reason=reason, leave=leave)

    async def edit(
        self, request: Seen, params: Mapping[str, Any], *, reason: str = "", leave: bool = False
    ) -> Verdict:
        """Ask for other params in place of those that wait: the policy looks at them again.

        Example:
            >>> [request] = (await run.view()).pending
            >>> (await run.edit(request, {**request.params, "amount": "50.00"})).code
            <VerdictCode.ACCEPTED: 'accepted'>
        """
        outcome = DecisionOutcome.EDIT
        return await self.decide(request, outcome, params=dict(params), reason=reason, leave=leave)

    async def decide(
        self,
        request: Seen,
        outcome: DecisionOutcome,
        *,
        params: dict[str, Any] | None = None,
        reason: str = "",
        leave: bool = False,
    ) -> Verdict:
        """Send a decision; :meth:`approve`, :meth:`reject` and :meth:`edit` are of its kind.

        Example:
            >>> [request] = (await run.view()).pending
            >>> (await run.decide(request, DecisionOutcome.APPROVE)).code
            <VerdictCode.ACCEPTED: 'accepted'>
        """
        _, decision = messages.compose_decision(
            self.connection.settings, request, outcome, reason=reason, params=params
        )
        return await send_decision(self, decision, leave=leave)

    async def forward(self, decision: Mapping[str, Any], *, leave: bool = False) -> Verdict:
        """Send a decision as somebody has made it: nothing is signed here.

        Args:
            decision: As `sign` prints it, or as a page has had it signed in its user's browser.

        Raises:
            DecisionRefused: As for :meth:`approve`.
            WrongUse: It is no decision, or its request is another run's.

        Example:
            >>> [request] = (await run.view()).pending
            >>> seen = {"approval_id": request.approval_id, "params_hash": request.params_hash}
            >>> (await run.forward({**seen, "outcome": "approve", "approver": "ann"})).code
            <VerdictCode.ACCEPTED: 'accepted'>
        """
        return await send_decision(
            self, messages.compose_message(Decision, **decision), leave=leave
        )

    async def forward_steering(self, verb: str, message: Mapping[str, Any]) -> Acknowledged:
        """Send what somebody else says to the run, as they have made it: nothing is signed here.

        Args:
            message: As the verb has it, with its actor; signed in their browser, for example.

        Example:
            >>> said = await run.forward_steering("pause", {"actor": "uma", "id": "pause-1"})
            >>> said = await run.forward_steering("resume", {"actor": "uma", "id": "resume-1"})
        """
        model = MESSAGES.get(Verb(verb)) if verb in set(Verb) else None
        if model is None or not issubclass(model, Steering):
            raise WrongUse(f"{verb[:40]!r} steers no run")
        made = messages.compose_message(model, **message)
        if made.id is None and made.signature is None:
            # Sent again where no answer comes: it counts once by its id alone.
            made = made.model_copy(update={"id": uuid.uuid4().hex})
        return await deliver(self.connection, self.run_id, verb, made, Acknowledged, leave=False)

    async def answer(
        self, value: JsonValue, *, reason: str = "", id: str | None = None, leave: bool = False
    ) -> Acknowledged:
        """Answer the only question that the run asks; of several, use :meth:`answer_all`.

        Example:
            >>> said = await run.answer("sent twice")
            >>> (await run.wait()).state
            <RunState.COMPLETED: 'completed'>
        """
        # A value of null is told from no value by what is given, not by what it is.
        given: dict[str, Any] = {} if value is None else {"answer": value}
        return await self._steer(AnswerInterrupts, leave=leave, reason=reason, id=id, **given)

    async def answer_all(
        self,
        answers: Mapping[str, JsonValue],
        *,
        reason: str = "",
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """Answer questions by their ``interrupt_id``: all of the answers count, or none.

        Example:
            >>> [question] = (await run.view()).interrupts
            >>> said = await run.answer_all({question.interrupt_id: "sent twice"})
            >>> (await run.wait()).state
            <RunState.COMPLETED: 'completed'>
        """
        given = dict(answers)
        return await self._steer(AnswerInterrupts, leave=leave, answers=given, reason=reason, id=id)

    async def cancel(
        self,
        mode: CancelMode = CancelMode.COMPENSATE,
        *,
        reason: str = "",
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """End the run before its plan does.

        Args:
            mode: What happens to its effects: all undone, kept, or only what is temporary undone.

        Example:
            >>> said = await run.cancel(reason="ordered by mistake")
            >>> (await run.wait()).state
            <RunState.CANCELLED: 'cancelled'>
        """
        return await self._steer(CancelRun, leave=leave, mode=mode, reason=reason, id=id)

    async def pause(self, *, reason: str = "", id: str | None = None) -> Paused:
        """Have the run stop before its next call.

        With the token of the answer the same user resumes it, once, without a key, within an hour.

        Example:
            >>> paused = await run.pause(reason="waiting for legal")
            >>> said = await run.resume(token=paused.resume_token)
        """
        settings = self.connection.settings
        token, key = messages.new_token(settings.tenant, self.run_id, settings.user)
        answer = await self._steer(PauseRun, resume_key=key, reason=reason, id=id)
        return Paused(answer.message, token)

    async def resume(
        self,
        *,
        reason: str = "",
        step: str | None = None,
        way: Way = Way.RETRY,
        params: Mapping[str, Any] | None = None,
        token: str | None = None,
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """Let a paused run go on; it checks the reason for its pause again.

        Args:
            step: The step, if several have failed.
            way: How to go on after a failed step: repeat it, skip it, or undo the run.
            params: Again, with these params in the place of the plan's.
            token: A resume token in the place of a key.

        Example:
            >>> paused = await run.pause(reason="waiting for legal")
            >>> said = await run.resume(reason="legal agrees")
        """
        return await self._steer(
            ResumeRun,
            token=token,
            leave=leave,
            reason=reason,
            id=id,
            step=step,
            way=way,
            params=None if params is None else dict(params),
        )

    async def send_event(
        self,
        name: str,
        event_id: str,
        *,
        about: str = "",
        payload: JsonValue = None,
        reason: str = "",
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """Tell the run of something that has happened outside; kept until a step waits for it.

        Args:
            name: As the waiting step names it.
            event_id: The event's id: a second event with the same id is ignored.
            about: The step's ``about``.
            payload: The step's output.

        Example:
            >>> said = await run.send_event("returned", "dhl-9", about="order-7")
        """
        return await self._steer(
            OutsideEvent,
            leave=leave,
            name=name,
            about=about,
            event_id=event_id,
            payload=payload,
            reason=reason,
            id=id,
        )

    async def top_up(
        self,
        *,
        steps: int = 0,
        tokens: int = 0,
        money: str = "0",
        time: timedelta = timedelta(0),
        reason: str = "",
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """Give the run more budget; one that was paused for it goes on.

        Example:
            >>> said = await run.top_up(steps=20, money="5")
        """
        return await self._steer(
            TopUp,
            leave=leave,
            steps=steps,
            tokens=tokens,
            money=money,
            time=time,
            reason=reason,
            id=id,
        )

    async def amend(
        self,
        plan: PlanSource,
        *,
        based_on: int,
        drops: Sequence[str] = (),
        reason: str = "",
        id: str | None = None,
    ) -> Acknowledged:
        """Give the run another plan: what is done stays, what waits is asked again.

        Args:
            plan: The plan, its document, or its file; without an input it keeps the run's.
            based_on: The plan version that its author has seen (``view.plan_version``).
            drops: Steps with a remaining effect that the new plan does not have, on purpose.

        Example:
            >>> view = await run.view()
            >>> plan = view.plan.model_copy(update={"goal": "Refund it, and say so"})
            >>> said = await run.amend(plan, based_on=view.plan_version)
        """
        draft = PlanDraft.of(plan)
        return await self._steer(
            Amend,
            plan=draft.amending((await self.view()).plan),
            based_on=based_on,
            drops=tuple(drops),
            reason=reason,
            id=id,
        )

    async def resolve(
        self,
        intervention_id: str,
        outcome: ResolutionOutcome,
        *,
        evidence: str = "",
        receipt: JsonValue = None,
        nothing_to_give: bool = False,
        id: str | None = None,
        leave: bool = False,
    ) -> Acknowledged:
        """Settle an intervention: say whether the effect happened.

        Args:
            intervention_id: As ``view.result.waiting_for`` names it.
            evidence: How you know.
            receipt: What the call would have returned; later steps and the undo may need it.
            nothing_to_give: There is no receipt, although a later step takes something from it.

        Example:
            >>> [doubt] = (await run.view()).result.waiting_for
            >>> said = await run.resolve(doubt.id, ResolutionOutcome.NOT_HAPPENED)
            >>> (await run.wait()).state
            <RunState.COMPLETED: 'completed'>
        """
        if outcome is ResolutionOutcome.HAPPENED and receipt is None and not nothing_to_give:
            with contextlib.suppress(NoWorker):  # said, or left with the server, when it is sent
                missed = missed_without_receipt(await self.view(), intervention_id)
                if missed is not None:
                    raise WrongUse(
                        f"step {missed[0]} takes ${{{missed[1]}}} from what this call returned:"
                        " give that as the receipt (null, if there is nothing to give)"
                    )
        return await self._steer(
            Resolution,
            leave=leave,
            intervention_id=intervention_id,
            outcome=outcome,
            evidence=evidence,
            receipt=receipt,
            id=id,
        )

    async def _steer(
        self,
        model: type[Steering],
        *,
        token: str | None = None,
        leave: bool | None = None,
        **values: Any,
    ) -> Acknowledged:
        """Compose a message, prove by key or token who sends it, and deliver it."""
        settings = self.connection.settings
        named = values | {"id": values.get("id") or uuid.uuid4().hex}
        message = messages.compose_message(model, actor=settings.user, **named)
        if isinstance(message, ResumeRun) and token is not None:
            held = messages.read_token(token, settings.tenant, self.run_id)
            message = held.proof_of(message)
        verb = _VERBS[model]
        sent = messages.sign_message(settings, self.run_id, verb, message)
        return await deliver(self.connection, self.run_id, verb, sent, Acknowledged, leave=leave)


async def send_decision(run: Run, decision: Decision, *, leave: bool) -> Verdict:
    """Send a decision to its run; one that does not count is a :class:`DecisionRefused`."""
    run_id, _ = messages.find_approval(run.connection.settings.tenant, decision.approval_id)
    if run_id != run.run_id:
        raise WrongUse(f"approval {decision.approval_id} is not one of run {run.run_id}")
    verdict = await deliver(run.connection, run_id, Verb.DECIDE, decision, Verdict, leave=leave)
    if verdict.code not in _COUNTS:
        raise DecisionRefused(verdict)
    return verdict


def missed_without_receipt(view: RunView, intervention: str) -> tuple[str, str] | None:
    """Return the first step still to come that refers to the output in question, and how."""
    states = {step.id: step.state for step in view.result.steps}
    for item in view.result.waiting_for:
        # While a run unwinds, nothing is to come; its questions are of steps in other states. A
        # child run's steps, and those that the view has no room for, are not among its own.
        doubt = states.get(item.step_id) is StepState.NEEDS_INTERVENTION
        if item.id != intervention or not doubt:
            continue
        for step in view.plan.outlines():
            texts = [reference for _, text in step.texts() for _, reference in references(text)]
            for reference in (*texts, *step.conditions):
                taken = reference.partition(".")[0] == item.step_id
                if taken and states.get(step.id) is StepState.PENDING:
                    return step.id, reference
    return None
