"""The activities a run needs: names and types, no bodies.

The workflow knows nothing else of the other room; a test compares these with the implementations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from surehand.workflows.contracts.approvals import (
    ApprovalAsked,
    ApprovalClosed,
    CloseApproval,
    RequestApproval,
    VerdictReached,
    VerifyDecision,
)
from surehand.workflows.contracts.base import Message, Recorded
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationReport,
    FindInterventions,
    FindRemaining,
    InterventionSettled,
    InterventionsFound,
    RemainingFound,
    SettleIntervention,
)
from surehand.workflows.contracts.maintenance import Reconciled, ReconcileLedger, UnwindRun
from surehand.workflows.contracts.runs import (
    Amended,
    AmendRun,
    ChildFound,
    CloseRun,
    Evaluate,
    Evaluated,
    LookAtChild,
    OpenRun,
    RecordValue,
    RunClosed,
    RunOpened,
    ValueRecorded,
)
from surehand.workflows.contracts.steering import RecordInterrupt, Steer, Steered
from surehand.workflows.contracts.tools import (
    Batch,
    BatchReport,
    DescribeTools,
    RecordRefusal,
    ToolCall,
    ToolReport,
    ToolsDescribed,
)
from surehand.workflows.contracts.values import AdmitRun, ArtifactRead, ReadArtifact, RunAdmitted

In = TypeVar("In", bound=Message)
Out = TypeVar("Out", bound=Message)


@dataclass(frozen=True)
class Port(Generic[In, Out]):
    """One activity: what goes in and what comes out.

    Attributes:
        name: Its type in histories.
        takes: What goes in.
        returns: What comes out.
        here: Whether it is tried in the run's own worker first, without Temporal's queue. That is
            for short ones whose result may be lost in a crash, so that the run decides anew: they
            look, or bar what ends in any case, or record something under an id that the run gives
            it again. What ``steer`` judges depends on where the run stands: it is none of them.
    """

    name: str
    takes: type[In]
    returns: type[Out]
    here: bool = False


DESCRIBE_TOOLS: Final = Port("describe_tools", DescribeTools, ToolsDescribed)
OPEN_RUN: Final = Port("open_run", OpenRun, RunOpened, here=True)
EXECUTE_TOOLS: Final = Port("execute_tools", Batch, BatchReport)
TAKE_TURN: Final = Port("take_turn", ToolCall, ToolReport)
COMPENSATE: Final = Port("compensate", Compensate, CompensationReport)
REQUEST_APPROVAL: Final = Port("request_approval", RequestApproval, ApprovalAsked, here=True)
VERIFY_DECISION: Final = Port("verify_decision", VerifyDecision, VerdictReached, here=True)
CLOSE_APPROVAL: Final = Port("close_approval", CloseApproval, ApprovalClosed, here=True)
SETTLE_INTERVENTION: Final = Port("settle_intervention", SettleIntervention, InterventionSettled)
RECORD_INTERRUPT: Final = Port("record_interrupt", RecordInterrupt, Recorded)
RECORD_REFUSAL: Final = Port("record_refusal", RecordRefusal, Recorded)
RECORD_VALUE: Final = Port("record_value", RecordValue, ValueRecorded)
READ_ARTIFACT: Final = Port("read_artifact", ReadArtifact, ArtifactRead)
EVALUATE: Final = Port("evaluate", Evaluate, Evaluated, here=True)
AMEND_RUN: Final = Port("amend_run", AmendRun, Amended)
STEER: Final = Port("steer", Steer, Steered)
FIND_INTERVENTIONS: Final = Port(
    "find_interventions", FindInterventions, InterventionsFound, here=True
)
FIND_REMAINING: Final = Port("find_remaining", FindRemaining, RemainingFound, here=True)
LOOK_AT_CHILD: Final = Port("look_at_child", LookAtChild, ChildFound, here=True)
ADMIT_RUN: Final = Port("admit_run", AdmitRun, RunAdmitted, here=True)
CLOSE_RUN: Final = Port("close_run", CloseRun, RunClosed)
RECONCILE: Final = Port("reconcile", ReconcileLedger, Reconciled)
BEGIN_UNWIND: Final = Port("begin_unwind", UnwindRun, Recorded)

ALL: Final = (
    DESCRIBE_TOOLS,
    OPEN_RUN,
    ADMIT_RUN,
    EXECUTE_TOOLS,
    TAKE_TURN,
    COMPENSATE,
    REQUEST_APPROVAL,
    VERIFY_DECISION,
    CLOSE_APPROVAL,
    SETTLE_INTERVENTION,
    RECORD_INTERRUPT,
    RECORD_REFUSAL,
    RECORD_VALUE,
    READ_ARTIFACT,
    EVALUATE,
    AMEND_RUN,
    STEER,
    FIND_INTERVENTIONS,
    FIND_REMAINING,
    LOOK_AT_CHILD,
    CLOSE_RUN,
    RECONCILE,
    BEGIN_UNWIND,
)
