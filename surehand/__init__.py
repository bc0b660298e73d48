"""Surehand: agent runs whose side effects happen once, as approved, never half-done.

All that a tool, a workflow, a notifier or a test of yours imports is here. Nothing below is public
but one module for each framework of agents, which needs that framework: ``surehand.agents``.
What is here is loaded when it is first asked for, so ``import surehand`` alone loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from surehand.activities.ledger.outbox.notification import (
        NotDelivered,
        Notification,
        Notifier,
        ReceiverGone,
    )
    from surehand.activities.tools.call_reports import Draft
    from surehand.activities.tools.failures import (
        DependencyDown,
        FailureClass,
        OutcomeUnknown,
        Permanent,
        RateLimited,
        Transient,
    )
    from surehand.activities.tools.tool import (
        Dedupes,
        Found,
        LookupAnswer,
        No,
        NotFound,
        Partial,
        Tool,
        ToolContext,
        Undo,
        Unknown,
    )
    from surehand.activities.tools.toolbox import READ, WRITE, tool
    from surehand.client.client import Client, ListedRun, Pending
    from surehand.client.messages import SeenRequest
    from surehand.client.run import Paused, Run
    from surehand.drill.request import Context
    from surehand.process.exits import (
        CutOff,
        DecisionRefused,
        Left,
        NoSuchRun,
        NotReachable,
        NoWorker,
        OutOfReach,
        PlanRefused,
        Refused,
        StartNotTaken,
        SurehandError,
        Unanswered,
        WrongUse,
    )
    from surehand.workflows.contracts.approvals import (
        ApprovalRequest,
        DecisionOutcome,
        Verdict,
        VerdictCode,
    )
    from surehand.workflows.contracts.base import Acknowledged, ForeignContent, RunState
    from surehand.workflows.contracts.effects import ResolutionOutcome
    from surehand.workflows.contracts.runs import Linked, RunResult, RunView, StartRun
    from surehand.workflows.contracts.steering import CancelMode, Way
    from surehand.workflows.contracts.tools import ToolDefinition
    from surehand.workflows.names import provider_names
    from surehand.workflows.plan.plan import Durability, Plan
    from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule
    from surehand.workflows.run.code_run import CodeRun, StepMaker
    from surehand.workflows.run.run_records import StepFailed

#: What is public, by the module below this package that defines it.
_MODULES: Final = {
    "activities.ledger.outbox.notification": "NotDelivered Notification Notifier ReceiverGone",
    "activities.tools.call_reports": "Draft",
    "activities.tools.failures": (
        "DependencyDown FailureClass OutcomeUnknown Permanent RateLimited Transient"
    ),
    "activities.tools.tool": (
        "Dedupes Found LookupAnswer No NotFound Partial Tool ToolContext Undo Unknown"
    ),
    "activities.tools.toolbox": "READ WRITE tool",
    "client.client": "Client ListedRun Pending",
    "client.messages": "SeenRequest",
    "client.run": "Paused Run",
    "drill.request": "Context",
    "process.exits": (
        "CutOff DecisionRefused Left NoSuchRun NoWorker NotReachable OutOfReach "
        "PlanRefused Refused StartNotTaken SurehandError Unanswered WrongUse"
    ),
    "workflows.contracts.approvals": "ApprovalRequest DecisionOutcome Verdict VerdictCode",
    "workflows.contracts.base": "Acknowledged ForeignContent RunState",
    "workflows.contracts.effects": "ResolutionOutcome",
    "workflows.contracts.runs": "Linked RunResult RunView StartRun",
    "workflows.contracts.steering": "CancelMode Way",
    "workflows.contracts.tools": "ToolDefinition",
    "workflows.names": "provider_names",
    "workflows.plan.plan": "Durability Plan",
    "workflows.plan.policy": "ApprovalPolicy ApprovalRule",
    "workflows.run.code_run": "CodeRun StepMaker",
    "workflows.run.run_records": "StepFailed",
}
_DEFINED_IN: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "READ",
    "WRITE",
    "Acknowledged",
    "ApprovalPolicy",
    "ApprovalRequest",
    "ApprovalRule",
    "CancelMode",
    "Client",
    "CodeRun",
    "Context",
    "CutOff",
    "DecisionOutcome",
    "DecisionRefused",
    "Dedupes",
    "DependencyDown",
    "Draft",
    "Durability",
    "FailureClass",
    "ForeignContent",
    "Found",
    "Left",
    "Linked",
    "ListedRun",
    "LookupAnswer",
    "No",
    "NoSuchRun",
    "NoWorker",
    "NotDelivered",
    "NotFound",
    "NotReachable",
    "Notification",
    "Notifier",
    "OutOfReach",
    "OutcomeUnknown",
    "Partial",
    "Paused",
    "Pending",
    "Permanent",
    "Plan",
    "PlanRefused",
    "RateLimited",
    "ReceiverGone",
    "Refused",
    "ResolutionOutcome",
    "Run",
    "RunResult",
    "RunState",
    "RunView",
    "SeenRequest",
    "StartNotTaken",
    "StartRun",
    "StepFailed",
    "StepMaker",
    "SurehandError",
    "Tool",
    "ToolContext",
    "ToolDefinition",
    "Transient",
    "Unanswered",
    "Undo",
    "Unknown",
    "Verdict",
    "VerdictCode",
    "Way",
    "WrongUse",
    "provider_names",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Load what is public when it is first asked for (PEP 562)."""
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # As an import statement does it: a workflow's sandbox takes that in hand, but not importlib.
    module = __import__(f"{__name__}.{_DEFINED_IN[name]}", fromlist=[name])
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """Return what is public, for completion."""
    return sorted(__all__)
