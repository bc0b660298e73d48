"""``pending``, ``approve`` and ``reject``."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotFound, Refused
from cli.ids import find_approval
from cli.questions import approve_command, request_lines, signal_command
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

#: Runs asked at the same time; each query wakes a worker.
_AT_ONCE: Final = 10

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
        waiting = [run.id async for run in server.listed(condition, limit)]
        views = await _views(server, waiting)
        if json_output:
            caller.printer.document(PendingList(approvals=_approvals(server, views)))
            return ExitCode.DONE
        if not any(view.pending for view in views):
            caller.printer.say("Nothing waits for an approval")
        for view in views:
            for request in view.pending:
                for line in request_lines(server, view.result.run_id, request):
                    caller.printer.say(line)
                caller.printer.say()
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


async def _views(server: TenantClient, run_ids: list[str]) -> list[RunView]:
    """Ask the runs themselves: the server's list may lag behind them by a moment."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def view(run_id: str) -> RunView | None:
        async with places:
            try:
                return await server.view(run_id)
            except NotFound:
                return None

    found = await asyncio.gather(*(view(run_id) for run_id in run_ids))
    return [item for item in found if item is not None]


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
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Approve a call with exactly the params you have seen."""
    return _decide(
        DecisionOutcome.APPROVE, approval, params_hash, user, reason, tenant, json_output
    )


def reject(
    approval: Approval,
    params_hash: Hash,
    user: options.Actor = None,
    reason: options.Reason = "",
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Reject a call; the run goes on as its plan says."""
    return _decide(DecisionOutcome.REJECT, approval, params_hash, user, reason, tenant, json_output)


def _decide(
    outcome: DecisionOutcome,
    approval: str,
    params_hash: str,
    user: str | None,
    reason: str,
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
        await server.describe(run_id)
        verdict = await server.update(run_id, DECIDE, decision, Verdict)
        if verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
            if json_output:
                caller.printer.document(verdict)
                caller.printer.warn(verdict.message)
                return ExitCode.WRONG_USE
            raise Refused(f"{approval_id}: {verdict.message} ({verdict.code})")
        if json_output:
            caller.printer.document(verdict)
        else:
            caller.printer.say(f"{approval_id}: {verdict.message}")
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user)
