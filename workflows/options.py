"""Timeouts and retries for each port.

Temporal's ``maximum_attempts`` is unlimited everywhere: how often a *failure* is retried is counted
by class in the ledger, so that crashes and waits are never held against a healthy run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import (
    ActivityCancellationType,
    ActivityConfig,
    LocalActivityConfig,
)

from surehand.workflows.errors import NON_RETRYABLE

#: A dead worker that no other one has noticed (``activities/worker/takeover.py``) is missed when it
#: has not spoken for this long: every activity heartbeats (``activities/worker/attempt.py``). A
#: live one that is held up for less is not taken for dead. The lease of an effect is as long.
HEARTBEAT_TIMEOUT: Final = timedelta(seconds=3)

#: A worker that dies while it moves a run on (decides what is next, with no call under way) is
#: noticed after this long. With Temporal's default, 10 s, this would be the longest wait of all.
#: The SDK itself gives up on a workflow that blocks its thread for 2 s.
MOVE_TIMEOUT: Final = timedelta(seconds=3)

#: Who takes a run over replays it first, within that time: 60 steps took 0.3 s, 300 took 0.9 s and
#: 600 took 4.6 s on two cores with three times the work they can do. Plans of this many steps get
#: twice the time; it grows with the square, as replays do.
STEPS_REPLAYED: Final = 400

#: What an attempt needs beside the call itself, and its lookups: its claim, its outcome, and a
#: database that comes back from a restart.
CALL_MARGIN: Final = timedelta(seconds=60)

#: Deadline of what undoes a step; the undoing tool's own deadline is usually far below.
LONGEST_COMPENSATION: Final = timedelta(minutes=10)

#: Deadline of one round of ``reconcile``, from its start on; its one call has ten minutes.
LONGEST_RECONCILE: Final = timedelta(minutes=15)

#: One short transaction; longer means that the database hangs and another attempt shall try. A
#: worker that has died in it does not heartbeat, and is noticed before.
LEDGER_TIMEOUT: Final = timedelta(seconds=20)

#: A local activity that is tried again later than this waits on a timer: while it waits by itself,
#: whatever is sent to the run waits behind it.
LONGEST_LOCAL_PAUSE: Final = timedelta(seconds=1)

_RETRY: Final = RetryPolicy(
    # Short: it follows a crash, or a database that is restarting. Failures of tools carry a delay
    # of their own.
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    non_retryable_error_types=sorted(NON_RETRYABLE),
)


def move_timeout(steps: int) -> timedelta:
    """Return how long a worker may take to move a run on: Temporal's workflow task timeout.

    Args:
        steps: Of the run's plan.
    """
    return MOVE_TIMEOUT * (1 + (steps / STEPS_REPLAYED) ** 2)


def _call(timeout: timedelta, summary: str) -> ActivityConfig:
    """Return the options of an activity that is tried again until it has ended."""
    return ActivityConfig(
        start_to_close_timeout=timeout,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_RETRY,
        # Compensation never runs beside a live attempt.
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )


def ledger_call(summary: str) -> ActivityConfig:
    """Return the options of an activity that is one ledger transaction."""
    return _call(LEDGER_TIMEOUT, summary)


def ledger_call_here(summary: str) -> LocalActivityConfig:
    """Return the options of the same in the run's own worker, tried once.

    Each further attempt would add to the run's history: an activity is tried again without.
    """
    return LocalActivityConfig(
        start_to_close_timeout=LEDGER_TIMEOUT,
        retry_policy=RetryPolicy(
            maximum_attempts=1, non_retryable_error_types=sorted(NON_RETRYABLE)
        ),
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )


def fair(tenant: str, *, weight: float | None = None, priority: int | None = None) -> Priority:
    """Return whose turn something waits for: tenants take turns, however much each has queued.

    So one that starts thousands of runs keeps nobody else's waiting. The server looks at it where
    ``matching.enableFairness`` is on (``devserver.py``, ``deploy/temporal/dynamicconfig.yaml``).

    Args:
        weight: How many turns it has, where another one has 1; ``None``: as what it is part of.
        priority: 1 comes before 5, whosever it is; ``None``: as what it is part of, else 3.
    """
    # The server takes 64 bytes; no tenant that our starter knows has more.
    key = tenant.encode()[:64].decode(errors="ignore")
    return Priority(priority_key=priority, fairness_key=key, fairness_weight=weight)


def reconcile_call(tenant: str) -> ActivityConfig:
    """Return the options of one round of ``reconcile``; a round that was lost is not repeated."""
    return ActivityConfig(
        start_to_close_timeout=LONGEST_COMPENSATION,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_attempts=1),
        summary="settle what nobody is settling",
        # The id of its workflow does not begin with its tenant.
        priority=fair(tenant),
    )


def tool_call(longest: timedelta, summary: str) -> ActivityConfig:
    """Return the options of an activity that calls a tool.

    Args:
        longest: What the tool's own deadlines let one attempt take.
        summary: What the Web UI shows beside the activity.
    """
    return _call(longest + CALL_MARGIN, summary)


def local_call(step_id: str, before: int, longest: timedelta, summary: str) -> LocalActivityConfig:
    """Return the options of a local activity that calls a tool.

    Args:
        step_id: Whose call it is.
        before: Attempts that earlier calls of the step have used up.
        longest: What the tool's own deadlines let one attempt take.
        summary: What the Web UI shows beside its marker.
    """
    return LocalActivityConfig(
        start_to_close_timeout=longest + CALL_MARGIN,
        retry_policy=_RETRY,
        local_retry_threshold=LONGEST_LOCAL_PAUSE,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        # Of the step, not by counting: after a crash what is called when may come in another order.
        activity_id=f"{step_id}:{before}",
        summary=summary,
    )


def record_call(step_id: str) -> LocalActivityConfig:
    """Return the options of a local activity that has a value made, and records it."""
    return LocalActivityConfig(
        start_to_close_timeout=CALL_MARGIN,
        retry_policy=_RETRY,
        local_retry_threshold=LONGEST_LOCAL_PAUSE,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        activity_id=step_id,
        summary=f"{step_id}: record a value",
    )


def compensation_call(summary: str) -> ActivityConfig:
    """Return the options of an activity that undoes one step.

    The tools' own deadlines are kept inside: which tool it will be is only known there.
    """
    return tool_call(LONGEST_COMPENSATION, summary)
