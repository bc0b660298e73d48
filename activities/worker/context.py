"""What the activities share: what they work with, who this attempt is, what is around them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core import store
from surehand.activities.ledger.history.reads import knows_run
from surehand.activities.ledger.runs.keys import cell_of_tenant
from surehand.activities.limits_file import Limit, read_limits
from surehand.activities.own_policy import OwnPolicy, read_policy
from surehand.activities.run_keys import Hashes
from surehand.activities.tools.failures import Retries
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.crash_points import Crash, CrashPoint
from surehand.activities.worker.settings import CHECKPOINT_EVERY, Settings
from surehand.activities.worker.telemetry import FAILURE_IS_LOGGED, Metrics, Spans
from surehand.activities.worker.watchdog import Watchdog
from surehand.process.settings import OwnCell
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.names import NO_RUNS, PAUSES, WAITS, ErrorType
from surehand.workflows.ports import OPEN_RUN


@dataclass(frozen=True)
class WorkerContext:
    """What the activities of one worker work with; made once, in ``worker.py``."""

    ledger: store.Ledger
    toolbox: Toolbox
    artifacts: ArtifactStore
    crash: Crash
    lease: timedelta
    renew_every: timedelta
    watchdog: Watchdog = field(default_factory=Watchdog)
    retries: Retries = field(default_factory=Retries)
    metrics: Metrics = field(default_factory=Metrics)
    spans: Spans = field(default_factory=Spans)
    checkpoint_every: timedelta = CHECKPOINT_EVERY
    """How often a long call's progress goes into the ledger."""
    limits: tuple[Limit, ...] = ()
    """What the effects of a tenant may come to."""
    policy: OwnPolicy | None = None
    """A policy of the user's own that is asked before each claim."""
    assurance: Assurance = Assurance.OPEN
    """What has to prove a decision; a request's own row may be stricter."""

    @property
    def hashes(self) -> Hashes:
        return Hashes(self.ledger.keys)

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        ledger: store.Ledger,
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
            # Two renewals may fail before the lease is lost.
            renew_every=settings.lease / 3,
            retries=settings.retries,
            metrics=metrics or Metrics(),
            spans=spans or Spans(),
            checkpoint_every=settings.checkpoint_every,
            assurance=Assurance(settings.decisions),
            limits=read_limits(settings.limits, toolbox),
            policy=read_policy(settings.limits, toolbox),
        )


if TYPE_CHECKING:
    from surehand.activities.tools.call_reports import Progress

log = structlog.get_logger()
T = TypeVar("T")

#: A third of the time after which Temporal takes this worker for dead.
HEARTBEAT_EVERY: Final = 1.0  # seconds

#: Characters: a message is part of the history, and no codec makes it smaller.
LONGEST_FAILURE: Final = 4000


def stop(type_: ErrorType, message: str, *details: Any) -> ApplicationError:
    """Return a failure that no repetition heals."""
    text = message[:LONGEST_FAILURE]
    return ApplicationError(text, *details, type=type_.value, non_retryable=True)


def again(type_: ErrorType, message: str, delay: timedelta | None = None) -> ApplicationError:
    """Return a failure after which Temporal tries the activity again."""
    pause = PAUSES[type_] if delay is None else delay
    text = message[:LONGEST_FAILURE]
    return ApplicationError(text, type=type_.value, next_retry_delay=pause)


@contextmanager
def suppress_not_found() -> Iterator[None]:
    """Leave the block if the Temporal server does not know what is asked about."""
    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


class NobodyWaits(Exception):
    """The activity was cancelled while it did what has no effect outside."""


@dataclass
class Doing:
    """What an attempt is at; Temporal shows it beside the activity."""

    text: str = ""
    """What it waits for, or the step that a batch is at."""
    progress: Progress | None = None
    told_before: Mapping[str, Any] | None = None
    """What the attempt before has told of its progress: told on until there is news, so that
    it is not lost with an attempt that dies at once."""
    _ends: asyncio.Task[Any] | None = None
    """The task in which the activity does what a cancellation ends."""

    @staticmethod
    def current() -> Doing:
        return _doing.get(None) or Doing()

    def details(self) -> list[Any]:
        news = self.progress.told() if self.progress is not None else None
        told = news or self.told_before
        return [self.text, told] if told else [self.text] if self.text else []

    @contextmanager
    def until_cancelled(self) -> Iterator[None]:
        """End the block when the activity is cancelled: for what has no effect outside.

        Raises ``NobodyWaits``.
        """
        if _cancelled():
            raise NobodyWaits
        self._ends = task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError as error:
            if task is None or not _cancelled():
                raise
            task.uncancel()
            raise NobodyWaits from error
        finally:
            self._ends = None

    def end(self) -> None:
        """End what a cancellation ends, if the activity is at it."""
        if self._ends is not None and _cancelled():
            self._ends.cancel()


def _cancelled() -> bool:
    """Return whether whoever wanted the activity has cancelled it: its worker's end is no such."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


_doing: Final[ContextVar[Doing]] = ContextVar("doing")


async def keep_alive(work: Coroutine[Any, Any, T]) -> T:
    """Run the current activity to its end, heartbeating, even if it is cancelled meanwhile.

    Only what is inside of ``until_cancelled`` ends then, such as the question to a model. All
    others are short or end within a deadline. A call that is stopped would only have an unknown
    outcome, and nobody would hear what a transaction has come to.

    Every activity heartbeats, because the death of a worker can cut off a transaction of the ledger
    as it can a tool's call. If no other worker notices it (``takeover.py``), missing heartbeats do.
    """
    info = activity.info()
    told = next((part for part in info.heartbeat_details if isinstance(part, dict)), None)
    doing = Doing(told_before=told)
    _doing.set(doing)
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    timer: asyncio.TimerHandle | None = None

    def wait() -> None:
        nonlocal timer
        # A timer and no task: hardly any activity lasts long enough to need one.
        timer = loop.call_later(HEARTBEAT_EVERY, beat)

    def beat() -> None:
        wait()
        activity.heartbeat(*doing.details())

    # A local activity has nobody to tell: it lives as long as its workflow task. Others do not
    # heartbeat at once: Temporal counts from the start, and to write a heartbeat down takes the
    # server as long as to start an activity.
    if not info.is_local:
        wait()
    try:
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                doing.end()
            except Exception:
                break
    finally:
        if timer is not None:
            timer.cancel()
    return task.result()


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
    """The token of the batch that it makes (``ledger/steps/acting.py``)."""
    doing: Doing = field(default_factory=Doing, compare=False)

    @classmethod
    def current(cls) -> Attempt:
        info = activity.info()
        activity_key = f"{info.workflow_run_id}:{info.activity_id}"
        holder = f"{activity_key}:{info.attempt}:{uuid.uuid4().hex}"
        return cls(
            *(info.attempt, activity_key, holder),
            unacknowledged=info.is_local,
            execution=info.workflow_run_id,
            doing=Doing.current(),
        )

    def unacknowledged_holders(self) -> str | None:
        """Return the prefix of the holders whose recorded reads this attempt takes over.

        ``None``: no earlier answer counts. A run that was reset reads again.
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


class ActivityInterceptor(Interceptor):
    """Stands around every activity of a worker."""

    async def around(self, input: ExecuteActivityInput, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make an activity, by ``call``."""
        raise NotImplementedError

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Around(next, self)


class _Around(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, outside: ActivityInterceptor) -> None:
        super().__init__(next)
        self._outside = outside

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await self._outside.around(input, partial(self.next.execute_activity, input))


@dataclass(frozen=True)
class AroundActivities(ActivityInterceptor):
    """Logs every activity of a worker, keeps it alive, and judges its failure."""

    ledger: store.Ledger
    cell: OwnCell | None = None
    """The worker's, if there are several."""

    async def around(self, input: ExecuteActivityInput, call: Callable[[], Awaitable[Any]]) -> Any:
        """Run an activity; each line that it logs has its run, step and attempt."""
        info = activity.info()
        message = input.args[0] if input.args else None
        asked = getattr(message, "first", getattr(message, "call", message))
        with structlog.contextvars.bound_contextvars(
            run_id=info.workflow_id,
            step_id=getattr(asked, "step_id", None),
            attempt=info.attempt,
            activity=info.activity_type,
        ):
            log.debug("activity.started")
            try:
                result = await keep_alive(self._guarded(info, call))
            except Exception as error:
                log_failure(log, error)
                raise
            outcome = getattr(result, "outcome", None)
            log.debug("activity.done", outcome=getattr(outcome, "kind", outcome))
            return result

    async def _guarded(self, info: activity.Info, call: Callable[[], Awaitable[Any]]) -> Any:
        """Run an activity; say ``LedgerLost`` if it fails because nothing is recorded of its run.

        Every write belongs to the run's row, so nothing was called under a ledger that lost it.
        """
        try:
            if self.cell is not None:
                await self._require_own(self.cell)
            return await call()
        except (ApplicationError, store.LedgerUnavailable):
            raise
        except store.TenantInvalid as error:
            raise stop(ErrorType.RUN_ID_INVALID, str(error)) from error
        except Exception as error:
            run_id = info.workflow_id or ""
            # Before the run is recorded, nobody knows it.
            first = info.activity_type == OPEN_RUN.name and not isinstance(error, store.RunNotFound)
            if info.workflow_type in NO_RUNS or first:
                raise
            if await self.ledger.transact(tenant_of_run(run_id), knows_run, run_id):
                raise
            raise stop(
                ErrorType.LEDGER_LOST,
                f"the ledger does not know run {run_id}: its database was replaced or emptied."
                " Nothing is called meanwhile. Restore it from its backup and the run goes on;"
                f" if that cannot be, end it: temporal workflow terminate -w {run_id}",
            ) from error

    async def _require_own(self, cell: OwnCell) -> None:
        """See that the work is of this worker's cell."""
        info = activity.info()
        run_id = info.workflow_id or ""
        tenant = tenant_of_run(run_id)
        problem = cell.problem(tenant)
        begins = info.activity_type == OPEN_RUN.name
        if begins and problem is None:
            # The file may be wrong, or old: another ledger may know the tenant's keys.
            named = await self.ledger.transact(tenant, cell_of_tenant)
            if named is None:
                problem = f"cell {cell.name} does not know tenant {tenant}: `tenant add` adds it"
            elif named != cell.name:
                problem = f"the ledger of cell {cell.name} says: tenant {tenant} is of cell {named}"
        if problem is None:
            return
        if begins and not await self.ledger.transact(tenant, knows_run, run_id):
            raise stop(ErrorType.TENANT_ELSEWHERE, problem)
        raise store.LedgerUnavailable(problem)


def log_failure(log: structlog.stdlib.BoundLogger, error: Exception) -> None:
    """Log how an attempt failed: one line, and a traceback only where nobody expected it."""
    FAILURE_IS_LOGGED.set(True)
    if isinstance(error, store.LedgerUnavailable):
        log.warning("ledger.unavailable", error=str(error))
        return
    if not isinstance(error, ApplicationError):
        log.error("activity.broken", error_type=type(error).__name__, exc_info=error)
        return
    if error.type == ErrorType.LEDGER_LOST:
        say = log.error
    else:
        say = log.info if error.type in WAITS else log.warning
    delay = error.next_retry_delay
    say(
        "activity.failed",
        error_type=error.type,
        error=error.message,
        retry_in=None if delay is None else round(delay.total_seconds(), 3),
        final=error.non_retryable,
    )


@dataclass(frozen=True)
class CrashInterceptor(ActivityInterceptor):
    """Lays the crash points of whole activities."""

    crash: Crash

    async def around(self, input: ExecuteActivityInput, call: Callable[[], Awaitable[Any]]) -> Any:
        name = activity.info().activity_type
        self.crash.at(name, "", CrashPoint.BEFORE_CLAIM)
        result = await call()
        self.crash.at(name, "", CrashPoint.BEFORE_REPORT)
        return result
