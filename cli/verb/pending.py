"""What a run waits for a human for, with commands that can be pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from surehand.cli.verb.text import shown_time
from surehand.client.connection import Connection
from surehand.client.query import SilentRun
from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    Assurance,
    Decision,
    DecisionOutcome,
    HeldApproval,
)
from surehand.workflows.contracts.foreign import foreign_text
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.contracts.states import Waiting
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.names import YOUR_NAME

#: What a human can say of an effect in doubt, and what comes of it.
_OUTCOMES: Final = {
    "happened": "with --evidence TEXT, and --receipt JSON if later steps use its output",
    "not-happened": "calls again",
    "call-off": "it did not happen: never call again",
    "compensated": "it did, and was undone by hand",
    "undo": "has the tool's compensation run",
    "give-up": "nobody can tell: it is listed as not undone",
}


def commands_of(connection: Connection, run_id: str, request: ApprovalRequest) -> dict[str, str]:
    """Return the commands that answer a request, by verb; what is in capitals is to be filled in.

    Where decisions have to be signed, all of ours name a key, and there is none for the plain
    Temporal CLI. Where a passkey has to sign, there is none at all: a browser has the passkeys.
    """
    if request.assurance.by_passkey:
        return {}
    id_, seen = request.approval_id, ["--params-hash", request.params_hash]
    key = ["--key", "KEYFILE"]
    signed = key if request.assurance is Assurance.SIGNED else []
    command = connection.settings.command
    commands = {
        "approve": command("approve", id_, *seen, *signed),
        "reject": command("reject", id_, *seen, *signed),
        "edit": command("edit", id_, "--set", "PATH=VALUE", *signed),
        "sign": command("sign", id_, *seen, *key),
    }
    if not signed:
        commands["temporal"] = _signal_command(connection, run_id, request)
    return commands


def _signal_command(connection: Connection, run_id: str, request: ApprovalRequest) -> str:
    """Return the plain Temporal CLI's command that approves exactly these params."""
    decision = Decision(
        approval_id=request.approval_id,
        params_hash=request.params_hash,
        outcome=DecisionOutcome.APPROVE,
        approver=_approver_of(connection, request),
    )
    parts = ["temporal", "workflow", "signal", *connection.temporal_options()]
    parts += ["--workflow-id", run_id, "--name", Verb.DECIDE]
    parts += ["--input", json.dumps(decision.model_dump(mode="json", exclude_defaults=True))]
    return shlex.join(parts)


def _approver_of(connection: Connection, request: ApprovalRequest) -> str:
    """Return who is named as approver: you, unless your yes might not count."""
    user = connection.settings.user
    # Who has which role, only the ledger knows.
    barred = user in request.excluded or any(one.roles for one in request.requirements)
    return YOUR_NAME if barred else user


def open_items(
    connection: Connection, result: RunResult, pending: Sequence[ApprovalRequest]
) -> Iterator[tuple[tuple[str, str, str], Iterator[str]]]:
    """Yield each thing that a run waits for: what tells it from others, and its lines.

    Args:
        connection: Where the run is.
        result: Where it stands.
        pending: Its requests, as far as they are known.
    """
    run_id, requests = result.run_id, {request.approval_id: request for request in pending}
    for waiting in result.waiting_for:
        request = requests.get(waiting.id)
        lines = waiting_lines(connection, run_id, waiting)
        if request is not None:
            lines = request_lines(connection, run_id, request)
        yield (run_id, waiting.kind, waiting.id), lines


def waiting_lines(connection: Connection, run_id: str, waiting: Waiting) -> Iterator[str]:
    """Yield what one thing is that a run waits for, and how to answer it."""
    command, step = connection.settings.command, waiting.step_id
    if waiting.run_id is not None:  # which answers under its own names
        run_id, step = waiting.run_id, waiting.step_id.rpartition("/")[2]
    if waiting.kind == "approval":
        yield f"Step {waiting.step_id} waits for an approval: {waiting.question}"
        yield f"  {command('show', waiting.id)}"
        yield "    shows its params, and the commands that decide on it"
    elif waiting.kind == "permission":
        yield f"Step {waiting.step_id} is {waiting.question}"
        yield f"  {command('resume', run_id)}"
    elif waiting.kind == "pause":
        yield f"The run is {waiting.question}"
        yield f"  {command('resume', run_id)}"
    elif waiting.kind == "budget":
        yield f"Step {waiting.step_id}: {waiting.question}"
        yield f"  {command('top-up', run_id, '--steps', '10')}"
        yield "    or with --tokens 10000, --money 2.50, --time 1h"
    elif waiting.kind == "failure":
        yield f"Step {waiting.step_id} has failed: {waiting.question}"
        yield f"  {command('resume', run_id, '--step', step)}"
        yield "    or with --way skip, or --way compensate"
    elif waiting.kind == "quota":
        what = f"Step {waiting.step_id} is" if waiting.step_id else "The run waits for a place:"
        yield f"{what} {waiting.question}"
        yield f"  {command('quota', 'show')}"
        yield "    shows the quotas; it goes on by itself, and soon after one is raised"
    elif waiting.kind == "event":
        yield f"Step {waiting.step_id} waits for an event from outside"
        yield f"  {command('event', run_id, 'NAME', '--about', 'TEXT', '--id', 'ID')}"
    elif waiting.kind == "question":
        yield f"Step {waiting.step_id} asks: {waiting.question}"
        if waiting.value is not None:
            yield f"  about  {json.dumps(waiting.value, ensure_ascii=False)}"
        yield f"  {command('answer', run_id, f'{waiting.id}=VALUE')}"
    elif not waiting.step_id:
        yield f"The run needs a human: {waiting.question}"
    else:
        yield f"Step {waiting.step_id} needs a human: {waiting.question}"
        for outcome, what in _OUTCOMES.items():
            if outcome == "undo" and not waiting.can_undo:
                continue
            yield f"  {command('resolve', waiting.id, outcome, '--run', run_id)}"
            yield f"    {what}"


def held_lines(held: HeldApproval) -> Iterator[str]:
    """Yield what is known of a decision that has come before its request."""
    yield f"{held.approval_id}  was decided early, and is held"
    yield f"  decision   {held.outcome} by {held.approver} (not looked at yet)"
    yield f"  waits for  {held.waits_for}"


def request_details(request: ApprovalRequest) -> Iterator[str]:
    """Yield everything an approver has to see."""
    yield f"{request.approval_id}  {request.description}"
    yield f"  tool       {request.tool} (version {request.version})"
    yield f"  params     {json.dumps(request.params, ensure_ascii=False)}"
    yield f"  hash       {request.params_hash}"
    yield f"  undo       {request.undo}"
    yield f"  asked by   {' and '.join([request.askers, *_edited(request)])}"
    if request.foreign:
        yield f"  foreign    its run has read content from outside: {foreign_text(request.foreign)}"
    for requirement in request.requirements:
        yield f"  needs      {requirement.as_text()}"
    if request.excluded:
        yield f"  not by     {', '.join(request.excluded)}"
    if request.votes:
        yield f"  so far     {', '.join(request.votes)}"
    if request.assurance is not Assurance.OPEN:
        how = " (--key FILE)" if request.assurance is Assurance.SIGNED else ""
        yield f"  decisions  {request.assurance.as_text()}{how}"
    yield f"  expires    {shown_time(request.expires_at)}"


def request_lines(connection: Connection, run_id: str, request: ApprovalRequest) -> Iterator[str]:
    """Yield everything an approver has to see, then the commands that approve it."""
    yield from request_details(request)
    commands = commands_of(connection, run_id, request)
    if commands:
        yield f"  {commands['approve']}"
        yield f"  {commands.get('temporal', commands['sign'])}"


def _edited(request: ApprovalRequest) -> list[str]:
    return [f"{editor} (edited)" for editor in request.editors]


def silent_line(run: SilentRun) -> str:
    """Return what is known of a run that does not answer."""
    return f"{run.reason}; the server knows it as {run.state}, waiting for people: {run.open_items}"
