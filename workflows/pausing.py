"""Pausing and resuming a run: at consistent points only, never between a claim and its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from temporalio import workflow

from workflows.book import Book
from workflows.contracts import (
    IssuedToken,
    PauseRun,
    ReissueToken,
    ResumeKey,
    ResumeRun,
    StepState,
    Verb,
    Way,
)
from workflows.helm import Answer, Delivery, Helm


class Pausing:
    """Pauses and resumes one run."""

    def __init__(
        self,
        book: Book,
        helm: Helm,
        freshen: Callable[[], list[str]],
        recall: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._book = book
        self._freshen = freshen
        self._recall = recall
        helm.take(Verb.PAUSE, PauseRun, self._pause)
        helm.take(Verb.RESUME, ResumeRun, self._resume, self._token_of)
        helm.take(Verb.TOKEN, ReissueToken, self._reissue)

    async def _pause(self, asked: PauseRun, delivery: Delivery) -> Answer:
        book = self._book
        if book.ending:
            return Answer(False, "the run is ending: what it undoes is not paused")
        if book.paused is not None:
            return Answer(False, f"{book.paused.actor} has paused the run already")
        book.unheard.update(await self._recall())
        if self._book.ending:
            return Answer(False, "the run has ended meanwhile")
        book.paused = asked
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        running = book.running()
        return Answer(True, f"pausing after {', '.join(running)}" if running else "paused")

    async def _resume(self, asked: ResumeRun, delivery: Delivery) -> Answer:
        book = self._book
        failed = [view.id for view in book.in_state(StepState.PAUSED_FAILURE)]
        if delivery.forwarded is not None and (asked.step, asked.params) != (None, None):
            # It is about a step of the parent's; here it only ends the pause.
            asked, failed = ResumeRun(actor=asked.actor), []
        if asked.step is not None and asked.step not in failed:
            listed = ", ".join(failed) or "none"
            return Answer(False, f"step {asked.step} has not failed: failed are {listed}")
        if asked.params is not None and (asked.way is not Way.RETRY or len(failed) != 1):
            return Answer(False, "params are for the retry of one step that has failed")
        named = [asked.step] if asked.step is not None else failed
        paused = [view.id for view in book.in_state(StepState.PAUSED_PERMISSION)]
        if not paused and not named and book.paused is None:
            return Answer(True, "nothing is paused; nothing changed")
        again = self._freshen()
        book.resumed += 1
        book.paused = book.token = None
        for step_id in named:
            book.ways[step_id] = asked
        going = ", ".join(paused + [f"{step_id} ({asked.way})" for step_id in named])
        said = f"going on: {going}" if going else "going on"
        return Answer(True, f"{said}; reading again first: {', '.join(again)}" if again else said)

    def _token_of(self, asked: ResumeRun) -> dict[str, Any]:
        if asked.proof is None:
            return {}
        return {"token": self._book.token, "calls": self._book.calls_digest()}

    async def _reissue(self, asked: ReissueToken, delivery: Delivery) -> Answer:
        if self._book.paused is None:
            return Answer(False, "nobody has paused the run: there is nothing to resume")
        self._issue(asked.actor, asked.resume_key, delivery.verified)
        return Answer(True, "a new resume token counts; the old one is void")

    def _issue(self, user: str, key: ResumeKey | None, verified: bool) -> None:
        if key is None:
            self._book.token = None
            return
        self._book.token = IssuedToken(
            user=user,
            public_key=key.public_key,
            expires_at=workflow.now() + key.lasts,
            calls=self._book.calls_digest(),
            verified=verified,
        )
