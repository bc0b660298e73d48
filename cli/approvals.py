"""``pending``, ``approve``, ``reject`` and ``sign``."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.deciding import Given, send
from cli.exits import ExitCode, WrongUse
from cli.looking import look_at, silent_line
from cli.questions import (
    approve_command,
    held_lines,
    request_lines,
    signal_command,
    waiting_lines,
)
from cli.shapes import PendingApproval, PendingHeld, PendingList, PendingQuestion
from cli.signing import USUAL_SIGNATURE
from cli.tenant_client import TenantClient
from workflows.contracts import DecisionOutcome, RunState, RunView
from workflows.names import PENDING_APPROVALS, RUN_STATE

PENDING_EXAMPLE = "Example: python starter.py pending"
APPROVE_EXAMPLE = (
    "Example: python starter.py approve refund-1/refund/1 --params-hash sha256:0a1b... "
    "--reason 'order was returned'"
)
REJECT_EXAMPLE = (
    "Example: python starter.py reject refund-1/refund/1 --params-hash sha256:0a1b... "
    "--reason 'wrong amount'"
)
SIGN_EXAMPLE = (
    "Example: python starter.py sign refund-1/refund/1 --params-hash sha256:0a1b... --key ana.pem"
)

_HASH: Final = re.compile("sha256:[0-9a-f]{64}")

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
        some = f"{PENDING_APPROVALS.name} > 0 OR {RUN_STATE.name} = '{RunState.WAITING_INPUT}'"
        condition = f"({some}) AND ExecutionStatus = 'Running'"
        waiting = [run async for run in server.listed(condition, limit)]
        looked = await look_at(server, waiting)
        if json_output:
            approvals = _approvals(server, looked.views)
            asked = [
                PendingQuestion(**one.model_dump(), run_id=view.result.run_id)
                for view in looked.views
                for one in view.interrupts
            ]
            caller.printer.document(
                PendingList(
                    approvals=approvals,
                    held=[
                        PendingHeld(**one.model_dump(), run_id=view.result.run_id)
                        for view in looked.views
                        for one in view.held
                    ],
                    questions=asked,
                    silent=looked.silent,
                )
            )
        elif not looked.silent and not any(
            view.pending or view.held or view.interrupts for view in looked.views
        ):
            caller.printer.say("Nothing waits for an approval, or an answer")
        else:
            for view in looked.views:
                for request in view.pending:
                    for line in request_lines(server, view.result.run_id, request):
                        caller.printer.say(line)
                    caller.printer.say()
                for held in view.held:
                    for line in held_lines(held):
                        caller.printer.say(line)
                    caller.printer.say()
                for item in view.result.waiting_for:
                    if item.kind == "question":
                        for line in waiting_lines(server, view.result.run_id, item):
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
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Approve a call with exactly the params you have seen."""
    given = Given(approval, params_hash, DecisionOutcome.APPROVE, reason)
    return _decide(given, leave, user, key, tenant, json_output)


def reject(
    approval: Approval,
    params_hash: Hash,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Reject a call: it is not made, and the run undoes what it has done and ends as failed."""
    given = Given(approval, params_hash, DecisionOutcome.REJECT, reason)
    return _decide(given, leave, user, key, tenant, json_output)


def _decide(
    given: Given,
    leave: bool,
    user: str | None,
    key: Path | None,
    tenant: str | None,
    json_output: bool,
) -> int:
    async def verb(caller: Caller) -> int:
        run_id, decision = given.decision(caller.settings)
        return await send(caller, run_id, decision, leave=leave)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def sign(
    approval: Approval,
    params_hash: Hash,
    outcome: Annotated[
        DecisionOutcome, typer.Option("--outcome", help="approve or reject.")
    ] = DecisionOutcome.APPROVE,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    lasts: Annotated[
        timedelta, typer.Option("--lasts", parser=options.duration, help="Until it must arrive.")
    ] = USUAL_SIGNATURE,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Print a signed decision, for the plain Temporal CLI or the signal dialog of the Web UI."""

    async def verb(caller: Caller) -> int:
        if outcome is DecisionOutcome.EDIT:
            raise WrongUse("--outcome: approve or reject; `edit` signs what it sends")
        if caller.settings.key is None:
            raise WrongUse("sign with which key? Name it with --key or SUREHAND_KEY")
        if not _HASH.fullmatch(params_hash):
            raise WrongUse(f"--params-hash {params_hash!r}: sha256: and 64 hex digits, as shown")
        given = Given(approval, params_hash, outcome, reason)
        _, decision = given.decision(caller.settings, lasts=lasts)
        print(decision.model_dump_json(exclude_defaults=True))
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)
