"""``pending``, ``approve`` and ``reject``."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import options
from cli.caller import Caller, perform
from cli.delivery import deliver, say_left
from cli.exits import ExitCode, Refused
from cli.ids import find_approval
from cli.looking import look_at, silent_line
from cli.questions import approve_command, request_lines, signal_command
from cli.render import verdict_text
from cli.shapes import PendingApproval, PendingList
from cli.tenant_client import TenantClient
from workflows.contracts import Decision, DecisionOutcome, RunView, Verdict, VerdictCode
from workflows.names import DECIDE, PENDING_APPROVALS

PENDING_EXAMPLE = "Example: python starter.py pending"
APPROVE_EXAMPLE = (
    "Example: python starter.py approve refund-1/refund/1 --params-hash sha256:0a1b... "
    "--reason 'order was returned'"
)
REJECT_EXAMPLE = (
    "Example: python starter.py reject refund-1/refund/1 --params-hash sha256:0a1b... "
    "--reason 'wrong amount'"
)

Approval = Annotated[
    str, typer.Argument(metavar="APPROVAL_ID", help="As `pending` shows it: RUN/STEP/NUMBER.")
]
Hash = Annotated[
    str,
    typer.Option("--params-hash", help="The hash of the params you have seen, as shown with them."),
]


def pending(
    limit: options.Limit = 50,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """List the approvals that somebody has to decide, with the commands that do."""

    async def verb(caller: Caller) -> int:
        server = await caller.server()
        condition = f"{PENDING_APPROVALS.name} > 0 AND ExecutionStatus = 'Running'"
        waiting = [run async for run in server.listed(condition, limit)]
        looked = await look_at(server, waiting)
        if json_output:
            approvals = _approvals(server, looked.views)
            caller.printer.document(PendingList(approvals=approvals, silent=looked.silent))
        elif not any(view.pending for view in looked.views) and not looked.silent:
            caller.printer.say("Nothing waits for an approval")
        else:
            for view in looked.views:
                for request in view.pending:
                    for line in request_lines(server, view.result.run_id, request):
                        caller.printer.say(line)
                    caller.printer.say()
        for run in looked.silent:
            caller.printer.warn(silent_line(run))
        # A list that is not whole is no success: somebody may believe that nothing else waits.
        return ExitCode.NOT_REACHABLE if looked.silent else ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def _approvals(server: TenantClient, views: list[RunView]) -> list[PendingApproval]:
    return [
        PendingApproval(
            **request.model_dump(),
            run_id=view.result.run_id,
            approve_command=approve_command(server, request.approval_id, request.params_hash),
            temporal_command=signal_command(
                server, view.result.run_id, request.approval_id, request.params_hash
            ),
        )
        for view in views
        for request in view.pending
    ]


def approve(
    approval: Approval,
    params_hash: Hash,
    user: options.Actor = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Approve a call with exactly the params you have seen."""
    decided = DecisionOutcome.APPROVE
    return _decide(decided, approval, params_hash, user, reason, leave, tenant, json_output)


def reject(
    approval: Approval,
    params_hash: Hash,
    user: options.Actor = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Reject a call: it is not made, and the run undoes what it has done and ends as failed."""
    decided = DecisionOutcome.REJECT
    return _decide(decided, approval, params_hash, user, reason, leave, tenant, json_output)


def _decide(
    outcome: DecisionOutcome,
    approval: str,
    params_hash: str,
    user: str | None,
    reason: str,
    leave: bool,
    tenant: str | None,
    json_output: bool,
) -> int:
    async def verb(caller: Caller) -> int:
        run_id, approval_id = find_approval(caller.settings.tenant, approval)
        decision = Decision(
            approval_id=approval_id,
            params_hash=params_hash,
            outcome=outcome,
            approver=caller.settings.user,
            reason=reason,
        )
        server = await caller.server()
        verdict = await deliver(server, run_id, DECIDE, decision, Verdict, leave=leave)
        if verdict is None:
            return say_left(caller, run_id)
        if verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
            if json_output:
                caller.printer.document(verdict)
                caller.printer.warn(verdict.message)
                return ExitCode.WRONG_USE
            raise Refused(f"{approval_id}: {verdict.message} ({verdict.code})")
        if json_output:
            caller.printer.document(verdict)
        else:
            caller.printer.say(f"{approval_id}: {verdict_text(verdict)}")
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user)
