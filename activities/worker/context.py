"""What the activities share: what they work with, and who this attempt is."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import timedelta

from temporalio import activity

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.hashes import Hashes
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.tools.retries import Retries
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.alive import Doing
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.metrics import Metrics
from surehand.activities.worker.settings import (
    CHECKPOINT_EVERY,
    RESOURCE_LEASE,
    RESOURCE_WAIT,
    ReconcileLimits,
    Settings,
)
from surehand.activities.worker.spans import Spans
from surehand.activities.worker.watchdog import Watchdog
from surehand.workflows.contracts.approvals import Assurance


@dataclass(frozen=True)
class WorkerContext:
    """What the activities of one worker work with; made once, in ``worker.py``."""

    ledger: Ledger
    toolbox: Toolbox
    artifacts: ArtifactStore
    crash: Crash
    lease: timedelta
    renew_every: timedelta
    watchdog: Watchdog = field(default_factory=Watchdog)
    retries: Retries = field(default_factory=Retries)
    reconcile_limits: ReconcileLimits = field(default_factory=ReconcileLimits)
    metrics: Metrics = field(default_factory=Metrics)
    spans: Spans = field(default_factory=Spans)
    resource_lease: timedelta = RESOURCE_LEASE
    """Time limit of a resource's lease, where the tool names none."""
    resource_wait: timedelta = RESOURCE_WAIT
    """How long an attempt waits for a busy resource, where the tool says nothing."""
    checkpoint_every: timedelta = CHECKPOINT_EVERY
    """How often a long call's progress goes into the ledger."""
    stream_turns: bool = False
    """Whether models are asked for their answers token by token."""
    assurance: Assurance = Assurance.OPEN
    """What has to prove a decision; a request's own row may be stricter."""

    @property
    def hashes(self) -> Hashes:
        """How params are hashed."""
        return Hashes(self.ledger.keys)

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        ledger: Ledger,
        toolbox: Toolbox,
        artifacts: ArtifactStore,
        crash: Crash,
        metrics: Metrics | None = None,
        spans: Spans | None = None,
    ) -> WorkerContext:
        """Return what was opened, with the limits that the settings name."""
        return cls(
            ledger=ledger,
            toolbox=toolbox,
            artifacts=artifacts,
            crash=crash,
            lease=settings.lease,
            renew_every=settings.lease_renewal,
            retries=settings.retries,
            reconcile_limits=ReconcileLimits(settings.reconcile_quiet, settings.reconcile_batch),
            metrics=metrics or Metrics(),
            spans=spans or Spans(),
            resource_lease=settings.resource_lease,
            resource_wait=settings.resource_wait,
            checkpoint_every=settings.checkpoint_every,
            stream_turns=settings.stream_turns,
            assurance=Assurance(settings.decisions),
        )


@dataclass(frozen=True)
class Attempt:
    """This attempt of the current activity."""

    number: int
    """Counts from 1."""
    activity_key: str
    holder: str
    unacknowledged: bool = False
    """Whether an earlier one may have come to an end that Temporal has not heard of: what it has
    stored is taken then, because what was made of it may be there."""
    execution: str | None = None
    """The execution of the run that it is an attempt of."""
    batch: str | None = None
    """The token of the batch that it makes (``ledger/steps/batches.py``)."""
    doing: Doing = field(default_factory=Doing, compare=False)

    @classmethod
    def current(cls) -> Attempt:
        """Return the attempt that this code runs in."""
        info = activity.info()
        activity_key = f"{info.workflow_run_id}:{info.activity_id}"
        holder = f"{activity_key}:{info.attempt}:{uuid.uuid4().hex}"
        unacknowledged, doing = info.is_local, Doing.current()
        execution = info.workflow_run_id
        return cls(
            *(info.attempt, activity_key, holder),
            unacknowledged=unacknowledged,
            execution=execution,
            doing=doing,
        )

    def unacknowledged_holders(self) -> str | None:
        """Return the prefix of the holders whose recorded reads this attempt takes over.

        ``None``: no earlier answer counts. A run that was reset reads anew.
        """
        if self.unacknowledged:
            return ""
        # Had Temporal heard of an answer of this activity, there would be no further attempt.
        return f"{self.activity_key}:" if self.number > 1 else None

    def of_next_step(self, *, unacknowledged: bool = False) -> Attempt:
        """Return the attempt as that of one step more, whose claims are its own."""
        holder = f"{self.activity_key}:{self.number}:{uuid.uuid4().hex}"
        unacknowledged = unacknowledged or self.unacknowledged or self.number > 1
        return replace(self, holder=holder, unacknowledged=unacknowledged)
