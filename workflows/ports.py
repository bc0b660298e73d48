"""The activities that a run needs: their names and types, their time limits, and how one is called.

The workflow knows nothing else of the other room; a test compares this with the implementations.
The search attributes by which the other rooms find runs are here, too: names that are an API.

Temporal's ``maximum_attempts`` is unlimited everywhere: the ledger counts how often a *failure* is
retried, by class, so that crashes and waits are never held against a healthy run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, TypeVar

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, FailureError, RetryState
from temporalio.workflow import ActivityCancellationType, ActivityConfig, LocalActivityConfig

from surehand.workflows.contracts import base, effects, runs, tools
from surehand.workflows.contracts.approvals import (
    ApprovalAsked,
    ApprovalClosed,
    CloseApproval,
    RequestApproval,
    VerdictReached,
    VerifyDecision,
)
from surehand.workflows.contracts.steering import InterruptRecorded, RecordInterrupt, Steer, Steered
from surehand.workflows.contracts.tools import CALL_MARGIN
from surehand.workflows.identity import tenant_of_run
from surehand.workflows.names import NON_RETRYABLE

#: Search attributes are never encrypted by a codec: no params, no names of people.
RUN_STATE: Final = SearchAttributeKey.for_keyword("RunState")
TENANT: Final = SearchAttributeKey.for_keyword("Tenant")
#: How much waits for a human: of the run itself, its child runs have their own.
OPEN_ITEMS: Final = SearchAttributeKey.for_int("OpenItems")
#: The name of its plan.
PLAN: Final = SearchAttributeKey.for_keyword("Plan")
SEARCH_ATTRIBUTES: Final = (RUN_STATE, TENANT, OPEN_ITEMS, PLAN)
#: Search for runs, of plans and of code: only they have a state.
IS_RUN: Final = f"{RUN_STATE.name} IS NOT NULL"

In = TypeVar("In", bound=base.Message)
Out = TypeVar("Out", bound=base.Message)


@dataclass(frozen=True)
class Port(Generic[In, Out]):
    """One activity: what goes in and what comes out.

    Attributes:
        name: Its type in histories.
        takes: What goes in.
        returns: What comes out.
        here: Whether it is tried in the run's own worker first, without Temporal's queue. That is
            for short ones whose result may be lost in a crash, so that the run decides again: they
            look, or bar what ends in any case, or record something under an id that the run gives
            it again. What ``steer`` judges depends on where the run stands: it is none of them.
    """

    name: str
    takes: type[In]
    returns: type[Out]
    here: bool = False


DESCRIBE_TOOLS: Final = Port("describe_tools", tools.DescribeTools, tools.ToolsDescribed)
OPEN_RUN: Final = Port("open_run", runs.OpenRun, runs.RunOpened, here=True)
EXECUTE_TOOLS: Final = Port("execute_tools", tools.Batch, tools.BatchReport)
TAKE_TURN: Final = Port("take_turn", tools.ToolCall, tools.ToolReport)
COMPENSATE: Final = Port("compensate", effects.Compensate, effects.CompensationReport)
REQUEST_APPROVAL: Final = Port("request_approval", RequestApproval, ApprovalAsked, here=True)
VERIFY_DECISION: Final = Port("verify_decision", VerifyDecision, VerdictReached, here=True)
CLOSE_APPROVAL: Final = Port("close_approval", CloseApproval, ApprovalClosed, here=True)
SETTLE_INTERVENTION: Final = Port(
    "settle_intervention", effects.SettleIntervention, effects.InterventionSettled
)
RECORD_INTERRUPT: Final = Port("record_interrupt", RecordInterrupt, InterruptRecorded)
RECORD_REFUSAL: Final = Port("record_refusal", tools.RecordRefusal, base.Recorded)
RECORD_VALUE: Final = Port("record_value", runs.RecordValue, runs.ValueRecorded)
READ_ARTIFACT: Final = Port("read_artifact", base.ReadArtifact, base.ArtifactRead)
EVALUATE: Final = Port("evaluate", runs.Evaluate, runs.Evaluated, here=True)
AMEND_RUN: Final = Port("amend_run", runs.AmendRun, runs.Amended)
STEER: Final = Port("steer", Steer, Steered)
FIND_INTERVENTIONS: Final = Port(
    "find_interventions", base.OfRun, effects.InterventionsFound, here=True
)
FIND_REMAINING: Final = Port(
    "find_remaining", effects.FindRemaining, effects.RemainingFound, here=True
)
LOOK_AT_CHILD: Final = Port("look_at_child", runs.LookAtChild, runs.ChildFound, here=True)
ADMIT_RUN: Final = Port("admit_run", base.OfRun, base.RunAdmitted, here=True)
CLOSE_RUN: Final = Port("close_run", runs.CloseRun, runs.RunClosed)
RECONCILE: Final = Port("reconcile", effects.ReconcileLedger, effects.Reconciled)
BEGIN_UNWIND: Final = Port("begin_unwind", effects.UnwindRun, base.Recorded)
PREVIEW_UNWIND: Final = Port("preview_unwind", effects.UnwindRun, effects.Unwound)


#: A dead worker that no other one has noticed (``activities/worker/takeover.py``) is missed when it
#: has not spoken for this long: every activity heartbeats (``activities/worker/context.py``). A
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
    """Return how long a worker may take to move a run of a plan of so many steps on."""
    return MOVE_TIMEOUT * (1 + (steps / STEPS_REPLAYED) ** 2)


def _call_options(timeout: timedelta, summary: str) -> ActivityConfig:
    return ActivityConfig(
        start_to_close_timeout=timeout,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_RETRY,
        # Compensation never runs beside a live attempt.
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )


def ledger_call(summary: str) -> ActivityConfig:
    return _call_options(LEDGER_TIMEOUT, summary)


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
    ``matching.enableFairness`` is on (``process/dev_server.py``,
    ``deploy/temporal/dynamicconfig.yaml``). A tenant of weight 2 has two turns where another one
    has 1. Priority 1 comes before 5, whosever it is. ``None``: as what it is part of.
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
    """Return the options of an activity that calls a tool; one attempt may take ``longest``."""
    return _call_options(longest + CALL_MARGIN, summary)


def _local_options(timeout: timedelta, activity_id: str, summary: str) -> LocalActivityConfig:
    return LocalActivityConfig(
        start_to_close_timeout=timeout,
        retry_policy=_RETRY,
        local_retry_threshold=LONGEST_LOCAL_PAUSE,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        activity_id=activity_id,
        summary=summary,
    )


def local_call(step_id: str, before: int, longest: timedelta, summary: str) -> LocalActivityConfig:
    """Return the same for a local activity, after so many attempts of earlier calls of the step."""
    # Of the step, not by counting: after a crash what is called when may come in another order.
    return _local_options(longest + CALL_MARGIN, f"{step_id}:{before}", summary)


def record_call(step_id: str) -> LocalActivityConfig:
    return _local_options(CALL_MARGIN, step_id, f"{step_id}: record a value")


def compensation_call(summary: str) -> ActivityConfig:
    """Return the options of an activity that undoes one step.

    The tools' own deadlines are kept inside: which tool it will be is only known there.
    """
    return tool_call(LONGEST_COMPENSATION, summary)


async def call_port(
    port: Port[In, Out],
    message: In,
    summary: str,
    *,
    options: workflow.ActivityConfig | None = None,
    local: workflow.LocalActivityConfig | None = None,
    weight: float | None = None,
) -> Out:
    """Call an activity by its port; ``ActivityError``: as it ended.

    Timeouts and retries are those of one ledger transaction, unless ``options`` or ``local``, for a
    local activity, say something else. ``weight`` is the tenant's, where tenants take turns.
    """
    result: Out
    if local is not None:
        try:
            result = await workflow.execute_local_activity(
                port.name, message, result_type=port.returns, **local
            )
        except ActivityError:
            raise
        except FailureError as error:
            # The SDK wraps the failures of other activities only.
            raise call_failure(port, str(local.get("activity_id")), error) from error
    else:
        given = options or ledger_call(summary)
        turn = fair(tenant_of_run(workflow.info().workflow_id), weight=weight)
        given.setdefault("priority", turn)
        result = await workflow.execute_activity(
            port.name, message, result_type=port.returns, **given
        )
    return result


def call_failure(port: Port[In, Out], activity_id: str, error: FailureError) -> ActivityError:
    """Return the end of a call as that of any activity; to be raised from ``error``."""
    return ActivityError(
        error.message,
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=port.name,
        activity_id=activity_id,
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
