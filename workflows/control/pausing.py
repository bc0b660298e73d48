"""Pausing and resuming a run: at consistent points only, never between a claim and its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow

from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import (
    IssuedToken,
    PauseRun,
    ReissueToken,
    ResumeKey,
    ResumeRun,
    Verb,
    Way,
)
from surehand.workflows.control.inbox import Control
from surehand.workflows.deliveries import Answer, Delivery
from surehand.workflows.state.effects import NO_MORE
from surehand.workflows.state.run_state import RunData


class Pausing:
    """Pauses and resumes one run."""

    def __init__(
        self,
        data: RunData,
        control: Control,
        freshen: Callable[[], list[str]],
        recall: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._data = data
        self._freshen = freshen
        self._recall = recall
        control.take_steering(Verb.PAUSE, self._pause)
        control.take_steering(Verb.RESUME, self._resume, self._token_of)
        control.take_steering(Verb.TOKEN, self._reissue)

    async def _pause(self, asked: PauseRun, delivery: Delivery) -> Answer:
        data = self._data
        if data.ending:
            return Answer(accepted=False, message="the run is ending: what it undoes is not paused")
        if data.paused is not None:
            return Answer(accepted=False, message=f"{data.paused.actor} has paused the run already")
        data.unacknowledged.update(await self._recall())
        if self._data.ending:
            return Answer(accepted=False, message="the run has ended meanwhile")
        data.paused = asked
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        running = data.running()
        return Answer(
            accepted=True, message=f"pausing after {', '.join(running)}" if running else "paused"
        )

    async def _resume(self, asked: ResumeRun, delivery: Delivery) -> Answer:
        data = self._data
        shown = [view.id for view in data.in_state(StepState.PAUSED_FAILURE)]
        # Of a child run under way its own failure is shown: it has to be told itself.
        below = {one: data.children.running[one] for one in shown if one in data.children.running}
        failed = [one for one in shown if one not in below]
        if delivery.forwarded is not None and (asked.step, asked.params) != (None, None):
            # It is about a step of the parent's; here it only ends the pause.
            asked, failed = ResumeRun(actor=asked.actor), []
        unnamed = asked.step is None and not failed
        meant = sorted(run for one, run in below.items() if unnamed or one == asked.step)
        if meant and delivery.forwarded is None and data.paused is None:
            runs = ", ".join(meant)
            return Answer(accepted=False, message=f"what has failed is in run {runs}: resume it")
        if asked.step is not None and asked.step not in failed:
            listed = ", ".join(failed) or "none"
            return Answer(
                accepted=False, message=f"step {asked.step} has not failed: failed are {listed}"
            )
        named = [asked.step] if asked.step is not None else failed
        if asked.params is not None and (asked.way is not Way.RETRY or len(named) != 1):
            return Answer(
                accepted=False, message="params are for the retry of one step that has failed"
            )
        undone = [one for one in named if one in data.saga.barred and asked.way is Way.RETRY]
        if undone:
            return Answer(accepted=False, message=f"step {undone[0]} {NO_MORE}")
        paused = [view.id for view in data.in_state(StepState.PAUSED_PERMISSION)]
        if not paused and not named and data.paused is None:
            return Answer(accepted=True, message="nothing is paused; nothing changed")
        again = self._freshen()
        data.resumed += 1
        data.paused = data.token = None
        for step_id in named:
            data.of_step(step_id).way = asked
        going = ", ".join(paused + [f"{step_id} ({asked.way})" for step_id in named])
        said = f"going on: {going}" if going else "going on"
        return Answer(
            accepted=True,
            message=f"{said}; reading again first: {', '.join(again)}" if again else said,
        )

    def _token_of(self, asked: ResumeRun) -> dict[str, Any]:
        if asked.proof is None:
            return {}
        return {"token": self._data.token, "calls": self._data.calls_digest()}

    async def _reissue(self, asked: ReissueToken, delivery: Delivery) -> Answer:
        if self._data.paused is None:
            return Answer(
                accepted=False, message="nobody has paused the run: there is nothing to resume"
            )
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        return Answer(accepted=True, message="a new resume token counts; the old one is void")

    def _issue(self, user: str, key: ResumeKey | None, verified: bool) -> None:
        if key is None:
            self._data.token = None
            return
        self._data.token = IssuedToken(
            user=user,
            public_key=key.public_key,
            expires_at=workflow.now() + key.lasts,
            calls=self._data.calls_digest(),
            verified=verified,
        )
