"""Quotas: what a tenant may use, and the wait for one that is used up."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from surehand.workflows.contracts.base import ChainHead, Message

#: Whoever waits for a quota looks at it after times between these: nobody is told that it is free.
SHORTEST_LOOK: Final = timedelta(seconds=2)
LONGEST_LOOK: Final = timedelta(minutes=5)


class Quota(StrEnum):
    """What a tenant may use no more than so much of; named as the ledger's columns are."""

    OPEN_RUNS = "open_runs"
    EFFECTS = "effects_per_hour"
    APPROVALS = "pending_approvals"
    TOKENS = "tokens_per_day"
    MONEY = "money_per_day"


class QuotaWait(Message):
    """A quota that is used up, and how long it may be."""

    quota: Quota
    used: str
    limit: str
    until: datetime | None = None
    """When its hour or day ends; ``None``: when somebody else's run or approval does."""
    ahead: int | None = None
    """Of a run that is not admitted: how many were opened before it, and wait, too."""
    pause: timedelta
    """After which it may be free; it may be raised sooner."""

    @property
    def text(self) -> str:
        """Return it as one clause."""
        said = f"{self.quota}: {self.used} of {self.limit} used"
        if self.until is not None:
            said += f", until {self.until.isoformat(timespec='seconds')}"
        if self.ahead is not None:
            said += f", {self.ahead} ahead in the queue"
        return said


class AdmitRun(Message):
    """Asks whether a run may take steps."""

    tenant: str
    run_id: str


class RunAdmitted(Message):
    """Whether it may."""

    queued: QuotaWait | None
    """What it waits for; ``None``: it may."""
    head: ChainHead
