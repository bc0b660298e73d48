"""What the activities share: what they work with, and who this attempt is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.failures import Retries
from surehand.activities.tools.toolbox import Toolbox
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
