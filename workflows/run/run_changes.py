"""What people change of a run under way: they pause it, resume it, or give it another plan."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from temporalio import workflow

from surehand.workflows import ports
from surehand.workflows.contracts import steering
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import Amend, AmendRun, StepView
from surehand.workflows.contracts.tools import Effect
from surehand.workflows.plan.plan import ITERATION, Plan, Step
from surehand.workflows.plan.references import INPUT, ancestors, descendants, in_words
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.deliveries import Answer, Delivery, accept, refuse
from surehand.workflows.run.questions import Approvals
from surehand.workflows.run.run_core import RunPart
from surehand.workflows.run.run_data import WAITING, StepViews
from surehand.workflows.run.run_records import NO_MORE
from surehand.workflows.run.step_calls import ToolCalls


@dataclass(eq=False)
class Pausing(RunPart):
    """Pauses and resumes one run."""

    _compensation: Compensation
    _freshness: Freshness

    async def pause(self, asked: steering.PauseRun, delivery: Delivery) -> Answer:
        """Pause the run: no step begins anything more."""
        data = self._data
        if data.ending:
            return refuse("the run is ending: what it undoes is not paused")
        if data.paused is not None:
            return refuse(f"{data.paused.actor} has paused the run already")
        data.unacknowledged.update(await self._compensation.find_unheard_steps())
        if self._data.ending:
            return refuse("the run has ended meanwhile")
        data.paused = asked
        data.token = None
        if asked.resume_key is not None:
            data.token = steering.IssuedToken(
                user=asked.actor,
                public_key=asked.resume_key.public_key,
                expires_at=workflow.now() + asked.resume_key.lasts,
                calls=data.calls_digest(),
                verified=delivery.verified,
            )
        running = data.running()
        return accept(f"pausing after {', '.join(running)}" if running else "paused")

    async def resume(self, asked: steering.ResumeRun, delivery: Delivery) -> Answer:
        """Have the run go on after a pause, and steps that have failed as they are told to."""
        data = self._data
        shown = [view.id for view in data.in_state(StepState.PAUSED_FAILURE)]
        # Of a child run under way its own failure is shown: it has to be told itself.
        below = {one: data.children.running[one] for one in shown if one in data.children.running}
        failed = [one for one in shown if one not in below]
        if delivery.forwarded is not None and (asked.step, asked.params) != (None, None):
            # It is about a step of the parent's; here it only ends the pause.
            asked, failed = steering.ResumeRun(actor=asked.actor), []
        unnamed = asked.step is None and not failed
        meant = sorted(run for one, run in below.items() if unnamed or one == asked.step)
        if meant and delivery.forwarded is None and data.paused is None:
            runs = ", ".join(meant)
            return refuse(f"what has failed is in run {runs}: resume it")
        if asked.step is not None and asked.step not in failed:
            listed = ", ".join(failed) or "none"
            return refuse(f"step {asked.step} has not failed: failed are {listed}")
        named = [asked.step] if asked.step is not None else failed
        if asked.params is not None and (asked.way is not steering.Way.RETRY or len(named) != 1):
            return refuse("params are for the retry of one step that has failed")
        undone = [
            one for one in named if one in data.saga.barred and asked.way is steering.Way.RETRY
        ]
        if undone:
            return refuse(f"step {undone[0]} {NO_MORE}")
        paused = [view.id for view in data.in_state(StepState.PAUSED_PERMISSION)]
        if not paused and not named and data.paused is None:
            return accept("nothing is paused; nothing changed")
        again = self._freshness.hold_what_is_stale()
        data.resumed += 1
        data.paused = data.token = None
        for step_id in named:
            data.of_step(step_id).way = asked
        going = ", ".join(paused + [f"{step_id} ({asked.way})" for step_id in named])
        said = f"going on: {going}" if going else "going on"
        return accept(f"{said}; reading again first: {', '.join(again)}" if again else said)

    def find_token(self, asked: steering.ResumeRun) -> dict[str, Any]:
        """Return what the ledger has to know of the token that a resume proves."""
        if asked.proof is None:
            return {}
        return {"token": self._data.token, "calls": self._data.calls_digest()}


@dataclass(eq=False)
class Freshness(RunPart):
    """Has one run look again at what it has read."""

    _approvals: Approvals

    def hold_what_is_stale(self) -> list[str]:
        """Hold back what rests on stale outputs; returns the reads that are to be made again."""
        data, plan = self._data, self._data.request.plan
        ahead = {step.id for step in plan.steps if self._is_ahead(step)}
        stale = [one for one in ancestors(plan.uses, *ahead) if self._is_stale(one)]
        for step_id in stale:
            data.stale[step_id] = self._data.facts.get(step_id)
        self._hold_back(ahead)
        return sorted(stale)

    def has_reads_to_begin(self) -> bool:
        return not self._data.settled.isdisjoint(self._data.stale)

    def begin_reads(self) -> None:
        """Have the stale reads made again, as steps that are not done."""
        for step_id in sorted(self._data.settled & self._data.stale.keys()):
            self._read_again(step_id)

    async def note_end(self, step: Step, running: dict[str, asyncio.Task[Any]]) -> None:
        """Take note of the end of a step: if it was read again, of what follows from it.

        ``running`` are the steps under way; those that are given up are taken out.
        """
        data = self._data
        if step.id not in data.stale:
            return
        before = data.stale.pop(step.id)
        if self._data.facts.get(step.id) == before:
            self._core.add_line("read again: as before", step.id)
        else:
            self._core.add_line("read again: changed; what depends on it starts again", step.id)
            await self._begin_again(step.id, running)
        self._hold_back(data.held)

    async def _begin_again(self, changed: str, running: dict[str, asyncio.Task[Any]]) -> None:
        data, plan = self._data, self._data.request.plan
        to_follow, seen = [changed], {changed}
        while to_follow:
            one = to_follow.pop()
            for step in plan.steps:
                if one not in plan.uses[step.id] or step.id in seen | data.stale.keys():
                    continue
                seen.add(step.id)
                if step.id in data.settled and self._is_read(step):
                    data.stale[step.id] = self._data.facts.get(step.id)
                    self._read_again(step.id)
                elif step.id in data.settled:
                    # Nothing makes it again; who approves what rests on it is to know all the same.
                    to_follow.append(step.id)
                elif step.id in running and self._is_ahead(step):
                    at = data.progress_of(step.id)
                    if at.step is not None and at.call is None:
                        continue  # somebody has said how it goes on: its params are resolved then
                    task = running.pop(step.id)
                    task.cancel()
                    await workflow.wait_condition(task.done)
                    for approval_id in data.gate.standing_of(step.id):
                        await self._approvals.close_request(approval_id)
                    data.set_step(step.id, StepState.PENDING)

    def _hold_back(self, steps: Set[str]) -> None:
        """Hold back those of these steps that rest on what is still to be read again."""
        data = self._data
        data.held = set(steps & descendants(data.request.plan.uses, *data.stale))

    def _read_again(self, step_id: str) -> None:
        self._data.settled.discard(step_id)
        self._data.facts.pop(step_id, None)
        self._data.set_step(step_id, StepState.PENDING)

    def _is_ahead(self, step: Step) -> bool:
        """Return whether a step can be held back: nothing of it may have happened yet."""
        state = self._data.steps[step.id].state
        if step.id in self._data.unacknowledged:
            return False
        if state is StepState.PENDING:
            return True
        if state not in WAITING or step.for_each is not None or step.plan is not None:
            return False
        if self._data.progress_of(step.id).outcome is not None:
            return False  # It has been called, and waits for what follows from it.
        return step.id not in self._data.saga.unsettled()

    def _is_read(self, step: Step) -> bool:
        spec = self._data.tools.get(step.tool)
        done = self._data.steps[step.id].state is StepState.SUCCEEDED
        return done and step.for_each is None and spec is not None and spec.effect is Effect.READ

    def _is_stale(self, step_id: str) -> bool:
        data = self._data
        step, read_at = data.request.plan.step(step_id), data.of_step(step_id).read_at
        if read_at is None or not self._is_read(step) or step_id in data.stale:
            return False
        fresh_for = self._data.tools[step.tool].fresh_for
        return fresh_for is not None and workflow.now() - read_at >= fresh_for


#: What stays as it is.
_FACTS: Final = frozenset({StepState.SUCCEEDED, StepState.FAILED})


@dataclass(eq=False)
class Amendment(RunPart):
    """Gives one run another plan."""

    _approvals: Approvals
    _compensation: Compensation
    _tool_calls: ToolCalls

    async def amend(self, asked: Amend, delivery: Delivery) -> Answer:
        """Have another plan validated and recorded; it is taken over once no call is under way."""
        data = self._data
        if data.ending:
            return refuse("the run is ending")
        if data.request.plan.code is not None or asked.plan.code is not None:
            return refuse("where code makes the steps there is no plan to amend")
        if data.next_plan is not None:
            return refuse(f"{data.next_plan.actor} is amending the plan already")
        if asked.based_on != data.plan_version:
            reason = f"the plan is at version {data.plan_version}, not {asked.based_on}"
            return refuse(f"{reason}: look at it again")
        # Held from here on: what the new plan would lose sight of does not grow meanwhile.
        data.amending = True
        try:
            refused = await self._record_plan(asked, delivery)
            if refused is None:
                data.next_plan = asked
        finally:
            data.amending = data.next_plan is not None
        if refused is not None:
            return refuse(refused)
        return accept(f"going on with plan version {data.plan_version + 1}")

    async def _record_plan(self, asked: Amend, delivery: Delivery) -> str | None:
        data = self._data
        # Unless somebody else waits to be heard: what begins after that is undone, if dropped.
        await workflow.wait_condition(
            lambda: self._tool_calls.has_heard_all or data.stopping or bool(data.inbox.queue)
        )
        data.unacknowledged.update(await self._compensation.find_unheard_steps())
        if data.ending:
            return "the run is ending"
        refused = self._what_is_lost(asked) or self._what_is_repeated(asked)
        if refused is not None:
            return refused
        amended = await self._core.call(
            ports.AMEND_RUN,
            AmendRun(
                **self._data.ids,
                plan=asked.plan,
                plan_version=data.plan_version + 1,
                steering_id=delivery.id,
            ),
            "validate and record the new plan",
        )
        if amended.problems:
            return in_words(amended.problems)
        data.tools.update(amended.tools)
        return None

    def _what_is_lost(self, asked: Amend) -> str | None:
        new = {step.id: step for step in asked.plan.steps}
        for started in self._data.saga.steps():
            step_id = ITERATION.sub("", started)
            if step_id not in new:
                if step_id not in asked.drops:
                    how = f"say so (`--drop {step_id}`)"
                    return f"the plan drops step {step_id}, whose effect may stand: {how}"
            elif started in self._data.steps and (
                new[step_id].does != self._data.steps[started].tool
            ):
                return f"step {step_id} has been started: it cannot become {new[step_id].does}"
        return None

    def _what_is_repeated(self, asked: Amend) -> str | None:
        """Return which step the new plan would do again that is undone, as one clause."""
        data, new = self._data, {step.id for step in asked.plan.steps}
        for undone in sorted(data.saga.barred):
            step_id = ITERATION.sub("", undone)
            ended = step_id in data.settled and data.steps[step_id].state in _FACTS
            # A list that has begun ends before the new plan, whatever that says of it.
            ends = step_id in data.progress and step_id in data.request.plan.lists
            if step_id in new and not (ended or ends):
                return f"step {undone} {NO_MORE}"
        return None

    def is_due(self, running: Mapping[str, asyncio.Task[Any]]) -> bool:
        """Return whether there is a new plan, and no call under way or made that is to be heard."""
        data = self._data
        return (
            data.next_plan is not None
            and data.unacknowledged.isdisjoint(running)
            and all(
                data.steps[step_id].state in WAITING and step_id not in data.children.running
                for step_id in running
            )
        )

    async def apply_plan(self, running: dict[str, asyncio.Task[Any]]) -> None:
        """Give up what waits, the steps under way, and take the new plan over."""
        data = self._data
        asked = data.next_plan
        assert asked is not None
        given_up = set(running)
        for task in running.values():
            task.cancel()
        await workflow.wait_condition(lambda: all(task.done() for task in running.values()))
        for approval_id in list(data.gate.pending):
            await self._approvals.close_request(approval_id)
        new = {step.id for step in asked.plan.steps}
        for step_id in data.saga.steps():
            # Begun since the plan was amended, or not: what goes on at its step is given up.
            dropped = step_id in asked.drops and step_id not in running
            if dropped:
                data.saga.accept(step_id)
            elif ITERATION.sub("", step_id) not in new:
                await self._compensation.undo_step(step_id)
        running.clear()
        # Of steps, too, that the execution before had under way.
        data.progress.clear()
        data.interrupts.clear()
        data.stale.clear()
        data.held.clear()
        self._show_plan(asked.plan, given_up)
        # Those that were skipped may be ready again; one that was given up may have ended before.
        done = {v.id for v in data.steps.values() if v.state in _FACTS}
        data.settled = (data.settled | given_up) & done
        data.facts[INPUT] = asked.plan.input
        data.plan_version += 1
        self._core.add_line(f"plan version {data.plan_version} by {asked.actor}")
        data.next_plan, data.amending = None, False

    def _show_plan(self, plan: Plan, given_up: set[str]) -> None:
        data, kept = self._data, set(self._data.saga.steps())
        done = {
            view.id: view
            for view in data.steps.values()
            if view.state is StepState.SUCCEEDED
            # What was cut off has not failed.
            or (view.state is StepState.FAILED and view.id not in given_up)
        }
        data.request = data.request.model_copy(update={"plan": plan})
        ahead = {
            step.id: StepView(id=step.id, tool=step.does, state=StepState.PENDING)
            for step in plan.steps
        }
        # The end of the run looks at each write that was begun, also at those of the old plan; the
        # oldest items of long lists are not shown any more once the run has continued as new.
        begun = {
            id_: data.steps[id_].model_copy(update={"state": StepState.SKIPPED})
            for id_ in sorted((kept & data.steps.keys()) - ahead.keys())
        }
        data.steps = StepViews({**ahead, **begun, **done})
