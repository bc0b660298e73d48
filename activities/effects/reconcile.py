"""Settling an entry in doubt: the outside system is asked, or a human (guarantee G2)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from pydantic import BaseModel

from surehand.activities.effects.recorder import Done, Recorder, SaidNo
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects import reconcile
from surehand.activities.ledger.steps.entries import (
    FORGOTTEN,
    UNASKED,
    Asked,
    Barred,
    ClaimResult,
    Entry,
    Held,
)
from surehand.activities.runs import as_newest
from surehand.activities.tools.classify import classify
from surehand.activities.tools.output_json import clean_text, make_json
from surehand.activities.tools.tool import Found, No, NotFound, Partial, Unknown
from surehand.activities.worker.attempt import again, stop
from surehand.activities.worker.crash_points import CrashPoint
from surehand.process import clock
from surehand.workflows.names import ErrorType

log = structlog.get_logger()

Settled = Done | SaidNo | Asked | ClaimResult

#: How often an effect is looked for while "not found" proves nothing.
_LOOK_AGAIN: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class Settling:
    """One attempt to settle an entry that is in doubt under its fencing token.

    ``forward`` says whether the tool may be called when the effect is proven not to have happened;
    a run that is being undone only records that.
    """

    recorder: Recorder
    params: BaseModel
    entry: Entry
    forward: bool

    async def run(self) -> Settled:
        """Return what is recorded now; a ``ClaimResult`` says how the call goes on."""
        tool, recorder = self.recorder.tool, self.recorder
        never_in_doubt = tool.transactional and self.entry.tool_version == tool.version
        if never_in_doubt and not self.forward:
            # However late: without an outcome nothing has happened.
            return await self._not_applied("transactional", clock.now())
        if self.entry.observed == UNASKED:
            # A lookup by state is asked, and its answer recorded, before anything is called.
            return await self._not_applied("not_called", clock.now())
        limit = recorder.request.recovery_limit
        # By the database's clock, as it was in the newest transaction.
        if self.entry.recovers_too_long(limit, await recorder.now_ms()):
            seconds = limit.total_seconds()
            return await self._ask(f"its recovery has taken longer than {seconds:g} s")
        if never_in_doubt:
            return await self._not_applied("transactional", clock.now())
        if tool.lookup is None:
            return await self._ask(self.entry.unknown_because)
        if tool.lookup_by == "state" and (proves_nothing := self._proves_nothing()):
            return await self._ask(proves_nothing)
        looked, what = clock.now(), f"the lookup of {tool.name} of run {recorder.request.run_id}"
        try:
            async with recorder.worker.watchdog.watched(what, recorder.request.timeout):
                answer: object = await tool.lookup(self.params, recorder.context(self.entry))
        except (Exception, asyncio.CancelledError) as error:
            failure = classify(error)
            why = f"lookup failed: {failure.message}"
            return await recorder.unsettled(self.entry, why, failure.retry_after)
        answered = type(answer).__name__
        log.info("effect.looked_up", entry_id=self.entry.entry_id, answer=answered)
        if isinstance(answer, Found | Partial | No):
            recorder.hear_lookup()
        return await self._believe(answer, looked)

    async def _believe(self, answer: object, looked: float) -> Settled:
        match answer:
            case Found(receipt):
                evidence: dict[str, Any] = {"rule": "lookup", "answer": "found"}
                if self.recorder.tool.lookup_by == "state":
                    evidence["before"] = self.entry.observed
                return await self.recorder.commit(self.entry, await make_json(receipt), evidence)
            case NotFound() if self.entry.settle_ms is None:
                return await self._ask(
                    "the lookup found nothing, and the call was made without a settle time"
                )
            case NotFound():
                return await self._not_applied("lookup_not_found", looked)
            case No():
                said = answer.cleaned()
                await self.recorder.say_no(self.entry, said)
                return SaidNo(said.reason, said.code, False)
            case Partial(details, receipt):
                worker, request = self.recorder.worker, self.recorder.request
                whose = (request.tenant, request.run_id)
                part = await worker.artifacts.keep(*whose, await make_json(receipt))
                why = clean_text(f"it happened in part: {details}")
                return await self.recorder.ask(self.entry, why, part=part)
            case Unknown(reason):
                return await self._ask(clean_text(f"the lookup cannot tell: {reason}"))
        # User code may return anything at all; then it says nothing.
        why = f"lookup answered {type(answer).__name__}"
        return await self.recorder.unsettled(self.entry, why)

    async def _ask(self, why: str) -> Asked:
        return await self.recorder.ask(self.entry, why)

    def _proves_nothing(self) -> str | None:
        """Return why the state of the world, as it is now, tells nothing of the call."""
        before, unknown = self.entry.observed_answer, self.entry.unknown_because
        if before == "not_found":
            return None
        if before == "found":
            return f"{unknown}, and its lookup was true before the call"
        if before == FORGOTTEN:
            return f"{unknown}, and what its lookup said before the call"
        return f"{unknown}, and its lookup could not tell before the call"

    async def _not_applied(self, rule: reconcile.Proof, looked: float) -> ClaimResult:
        recorder, request = self.recorder, self.recorder.request
        mine = self.entry.owned_by(request.run_id, request.step_id)
        # What another run was told, is not this one's end: it makes the call.
        failed = self.entry.reported_failure if self.forward and mine else None

        def go_on(tx: Transaction) -> ClaimResult:
            # What was not there when it was looked for may have come since.
            result = reconcile.after_not_found(
                tx,
                request,
                self.entry,
                forward=self.forward and failed is None,
                rule=rule,
                looked=timedelta(seconds=clock.now() - looked),
                action="bar" if failed is None else "fail",
            )
            if failed is not None and isinstance(result, Barred):
                recorder.mark_foreign(tx)
            return result

        result = await as_newest(recorder.worker.ledger, lambda: recorder.in_ledger(go_on))
        if isinstance(result, Held) and result.settling:
            tool = recorder.tool.name
            recorder.worker.metrics.lease_wait(tool, "settling", result.wait)
            message = f"{tool}: not found, but the first call may still arrive"
            # Until then it may be found as well.
            raise again(ErrorType.SETTLING, message, min(result.wait, _LOOK_AGAIN))
        if failed is not None and isinstance(result, Barred):
            recorder.crash(CrashPoint.AFTER_OUTCOME)
            raise stop(ErrorType.TOOL_FAILED, f"{recorder.tool.name}: {failed}")
        return result
