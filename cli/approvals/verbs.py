"""``pending``, ``approve``, ``reject``, ``sign`` and ``edit``."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final

import typer

from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.params import changed, diff
from surehand.cli.verb.pending import (
    commands_of,
    held_lines,
    request_lines,
    silent_line,
    waiting_lines,
)
from surehand.cli.verb.printer import Lines, Reply
from surehand.cli.verb.recorded import open_doubts, recorded_view
from surehand.cli.verb.render import verdict_text
from surehand.cli.verb.shapes import PendingApproval, PendingList
from surehand.client.client import Pending
from surehand.client.connection import Connection
from surehand.client.ids import find_approval
from surehand.client.messages import SeenRequest, decided
from surehand.client.signing import USUAL_SIGNATURE
from surehand.process.exits import ExitCode, NotFound, SurehandError, WrongUse
from surehand.workflows.contracts.approvals import DecisionOutcome, Verdict
from surehand.workflows.contracts.artifacts import as_artifact
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import Waiting

_HASH: Final = re.compile("sha256:[0-9a-f]{64}")

Approval = Annotated[
    str, typer.Argument(metavar="APPROVAL_ID", help="As `pending` shows it: RUN/STEP/NUMBER.")
]
Hash = Annotated[
    str,
    typer.Option("--params-hash", help="The hash of the params you have seen, as shown with them."),
]


async def pending(caller: options.Onlooker, limit: options.Limit = 50) -> Reply:
    """List everything that waits for a person, with the commands that decide, answer and settle.

    Example: python starter.py pending
    """
    client = await caller.client()
    connection, waiting = client.connection, await client.pending(limit=limit)
    for run in waiting.silent:
        caller.printer.warn(silent_line(run))
    others, whole = waiting.others, not waiting.silent
    if caller.has_ledger:
        known = [view.result.run_id for view in waiting.views]
        recorded = [
            await recorded_view(caller, await connection.describe(run.run_id))
            for run in waiting.silent
        ]
        waiting = replace(waiting, views=[*waiting.views, *filter(None, recorded)])
        try:
            others = [*others, *await open_doubts(caller, known)]
        except SurehandError as error:
            # What the runs themselves have said is shown all the same.
            caller.printer.warn(str(error))
            whole = False
    listed = PendingList(
        approvals=_approvals(connection, waiting.views),
        held=waiting.held,
        questions=waiting.questions,
        others=others,
        silent=waiting.silent,
    )
    # A list that is not whole is no success: somebody may believe that nothing else waits.
    code = ExitCode.DONE if whole else ExitCode.NOT_REACHABLE
    return Reply(listed, _pending_lines(connection, waiting, others, whole=whole), code)


def _pending_lines(
    connection: Connection, waiting: Pending, others: list[Waiting], *, whole: bool
) -> Lines:
    if whole and not (waiting.approvals or waiting.held or waiting.questions or others):
        yield "Nothing waits for a person"
    for view in waiting.views:
        for request in view.pending:
            yield from request_lines(connection, view.result.run_id, request)
            yield ""
        for held in view.held:
            yield from held_lines(held)
            yield ""
        for item in view.result.waiting_for:
            if item.kind == "question":
                yield from waiting_lines(connection, view.result.run_id, item)
                yield ""
    for item in others:
        yield f"Run {item.run_id}"
        yield from waiting_lines(connection, item.run_id or "", item)
        yield ""


def _approvals(connection: Connection, views: list[RunView]) -> list[PendingApproval]:
    return [
        PendingApproval(
            **request.model_dump(),
            run_id=view.result.run_id,
            commands=commands_of(connection, view.result.run_id, request),
        )
        for view in views
        for request in view.pending
    ]


async def approve(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    r"""Approve a call with exactly the params you have seen.

    Example: python starter.py approve refund-1/refund/1 --params-hash sha256:0a1b... \
      --reason 'order was returned'
    """
    seen = SeenRequest(approval, params_hash)
    return await _decide(caller, seen, DecisionOutcome.APPROVE, reason, leave)


async def reject(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    r"""Reject a call: it is not made, and the run undoes what it has done and ends as failed.

    Example: python starter.py reject refund-1/refund/1 --params-hash sha256:0a1b... \
      --reason 'wrong amount'
    """
    seen = SeenRequest(approval, params_hash)
    return await _decide(caller, seen, DecisionOutcome.REJECT, reason, leave)


async def _decide(
    caller: Caller, seen: SeenRequest, outcome: DecisionOutcome, reason: str, leave: bool
) -> Reply:
    # Before a server is looked for: an id or a key that cannot be used needs none.
    run_id, _ = decided(caller.settings, seen, outcome, reason=reason)
    run = (await caller.client()).run(run_id)
    return verdict_reply(await run.decide(seen, outcome, reason=reason, leave=leave))


def verdict_reply(verdict: Verdict) -> Reply:
    """Return what became of a decision that counts."""
    return Reply(verdict, f"{verdict.approval_id}: {verdict_text(verdict)}")


async def sign(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    outcome: Annotated[
        DecisionOutcome, typer.Option("--outcome", metavar="OUTCOME", help="approve or reject.")
    ] = DecisionOutcome.APPROVE,
    reason: options.Reason = "",
    lasts: Annotated[
        timedelta, options.lasting("--lasts", "How long it may take to arrive.", show_default="5m")
    ] = USUAL_SIGNATURE,
) -> ExitCode:
    """Print a signed decision, for the plain Temporal CLI or the signal dialog of the Web UI.

    Example: python starter.py sign refund-1/refund/1 --params-hash sha256:0a1b... --key ana.pem
    """
    if outcome is DecisionOutcome.EDIT:
        raise WrongUse("--outcome: approve or reject; `edit` signs what it sends")
    if caller.settings.key is None:
        raise WrongUse("sign with which key? Name it with --key or SUREHAND_KEY")
    if not _HASH.fullmatch(params_hash):
        raise WrongUse(f"--params-hash {params_hash!r}: sha256: and 64 hex digits, as shown")
    seen = SeenRequest(approval, params_hash)
    _, decision = decided(caller.settings, seen, outcome, reason=reason, lasts=lasts)
    print(decision.model_dump_json(exclude_defaults=True))
    return ExitCode.DONE


async def edit(
    caller: options.Sender,
    approval: Approval,
    changes: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="Another value of a param.")
    ],
    reason: options.Reason = "",
) -> Reply:
    """Change the params of a call that waits: the policy looks at them anew, and asks again.

    Example: python starter.py edit refund-1/refund/1 --set amount=50 --reason 'one item'
    """
    run_id, approval_id = find_approval(caller.tenant, approval)
    client = await caller.client()
    await client.connection.open_run(run_id)
    view = await client.run(run_id).view()
    request = next((r for r in view.pending if r.approval_id == approval_id), None)
    if request is None:
        raise NotFound(f"{approval_id} does not wait; `pending` lists what does")
    if as_artifact(request.params) is not None:
        raise WrongUse(f"{approval_id}: its params are an artifact, too large to edit here")
    params = changed(request.params, changes)
    caller.printer.lines(diff(request.params, params))
    return verdict_reply(await client.edit(request, params, reason=reason))
