"""The claim of a batch's next write, made in the transaction that records the outcome before it.

One transaction of the ledger instead of two. Only for a write that needs nothing but its claim, and
only where nothing is in its way: whatever else there is, the write's own claim finds out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from surehand.activities.effects.prepare import (
    PreparedCall,
    claim_request,
    prepare_here,
)
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.tools import Effect, ToolCall

log = structlog.get_logger()


@dataclass(frozen=True)
class Next:
    """The write that follows, as it would be claimed."""

    call: ToolCall
    prepared: PreparedCall
    request: ClaimRequest


@dataclass(frozen=True)
class Begun:
    """A write that is prepared: its params are not validated anew, or they might change."""

    next: Next
    claimed: Claimed | None
    """``None``: it has yet to be claimed, or nobody has heard whether it is."""
    began: float
    """When the transaction of the claim began, by ``clock.now()``."""


@dataclass
class Ahead:
    """What a batch does after the write that is under way."""

    worker: WorkerContext
    attempt: Attempt
    """The next step's."""
    call_after: Callable[[Any], ToolCall | None]
    """The next step's call, made of the write's output; ``None``: there is none, or not now."""
    begun: Begun | None = field(default=None, init=False)

    def find(self, output: Any) -> Next | None:
        """Return what to claim after a write, if it can be claimed with its outcome.

        Never raises: an outcome is in hand. What is wrong with the next call, it says itself.
        """
        try:
            call = self.call_after(output)
            return None if call is None else self._prepared(call)
        except Exception as error:
            log.debug("ahead.not_claimed", reason=repr(error))
            return None

    def _prepared(self, call: ToolCall) -> Next | None:
        tool = self.worker.toolbox.get(call.tool.name)
        if tool is None or call.late or call.params_hash is not None:
            return None
        # One that is transactional waits for a place: a claim would be held meanwhile.
        if tool.effect is Effect.READ or tool.transactional:
            return None
        # A worker that dies with the claim leaves the call in doubt, though nobody has made it. No
        # human is to be asked for that.
        if not tool.recovery.proves_absence(tool.settle):
            return None
        prepared = prepare_here(self.worker, call)
        if prepared.resources:
            return None
        request = claim_request(self.worker, call, prepared, self.attempt)
        # Whatever a human has a say in is looked at by the write's own claim.
        if request.gated or request.drift or request.if_foreign is not None:
            return None
        return Next(call, prepared, request)
