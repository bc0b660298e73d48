"""What a run waits for a human for, with commands that can be pasted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
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


def approve_command(server: Connection, approval_id: str, params_hash: str) -> str:
    """Return our own command that approves exactly these params."""
    return _decide("approve", server, approval_id, params_hash)


def reject_command(server: Connection, approval_id: str, params_hash: str) -> str:
    """Return our own command that rejects exactly these params."""
    return _decide("reject", server, approval_id, params_hash)


def edit_command(server: Connection, approval_id: str) -> str:
    """Return our own command that asks for other params; PATH and VALUE are to be filled in."""
    return server.settings.command("edit", approval_id, "--set", "PATH=VALUE")


def sign_command(server: Connection, approval_id: str, params_hash: str) -> str:
    """Return our own command that prints a signed approval of exactly these params."""
    return _decide("sign", server, approval_id, params_hash)


def _decide(verb: str, server: Connection, approval_id: str, params_hash: str) -> str:
    return server.settings.command(verb, approval_id, "--params-hash", params_hash)


def signal_command(
    server: Connection, run_id: str, approval_id: str, params_hash: str, approver: str
) -> str:
    """Return the plain Temporal CLI's command that approves exactly these params."""
    decision = Decision(
        approval_id=approval_id,
        params_hash=params_hash,
        outcome=DecisionOutcome.APPROVE,
        approver=approver,
    )
    parts = ["temporal", "workflow", "signal", *server.temporal_options()]
    parts += ["--workflow-id", run_id, "--name", Verb.DECIDE]
    parts += ["--input", json.dumps(decision.model_dump(mode="json", exclude_defaults=True))]
    return shlex.join(parts)


def approver_of(server: Connection, request: ApprovalRequest) -> str:
    """Return who is named as approver: you, unless your yes might not count."""
    user, asked = server.settings.user, {request.requested_by, *request.editors}
    # Who has which role, only the ledger knows.
    barred = any(r.roles or (r.four_eyes and user in asked) for r in request.requirements)
    return YOUR_NAME if barred else user


def key_option(assurance: Assurance) -> str:
    """Return what a command that decides needs beside itself; KEYFILE is to be filled in."""
    return " --key KEYFILE" if assurance is Assurance.SIGNED else ""


def waiting_lines(server: Connection, run_id: str, waiting: Waiting) -> Iterator[str]:
    """Yield what one thing is that a run waits for, and how to answer it."""
    command = server.settings.command
    if waiting.kind == "approval":
        yield f"Step {waiting.step_id} waits for an approval: {waiting.question}"
        params_hash = waiting.params_hash or ""
        yield f"  {approve_command(server, waiting.id, params_hash)}"
        yield f"  {signal_command(server, run_id, waiting.id, params_hash, YOUR_NAME)}"
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
        yield f"  {command('resume', run_id, '--step', waiting.step_id)}"
        yield "    or with --way skip, or --way compensate"
    elif waiting.kind == "event":
        yield f"Step {waiting.step_id} waits for an event from outside"
        yield f"  {command('event', run_id, 'NAME', '--about', 'TEXT', '--id', 'ID')}"
    elif waiting.kind == "question":
        yield f"Step {waiting.step_id} asks: {waiting.question}"
        if waiting.value is not None:
            yield f"  about  {json.dumps(waiting.value, ensure_ascii=False)}"
        yield f"  {command('answer', run_id, f'{waiting.id}=VALUE')}"
    else:
        yield f"Step {waiting.step_id} needs a human: {waiting.question}"
        for outcome, what in _OUTCOMES.items():
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
    for requirement in request.requirements:
        yield f"  needs      {requirement.as_text()}"
    if request.votes:
        yield f"  so far     {', '.join(request.votes)}"
    if request.assurance is Assurance.SIGNED:
        yield "  decisions  have to be signed (--key FILE)"
    yield f"  expires    {shown_time(request.expires_at)}"


def request_lines(server: Connection, run_id: str, request: ApprovalRequest) -> Iterator[str]:
    """Yield everything an approver has to see, then the commands that approve it."""
    yield from request_details(request)
    signed = key_option(request.assurance)
    yield f"  {approve_command(server, request.approval_id, request.params_hash)}{signed}"
    if signed:
        yield f"  {sign_command(server, request.approval_id, request.params_hash)}{signed}"
    else:
        seen = request.approval_id, request.params_hash
        yield f"  {signal_command(server, run_id, *seen, approver_of(server, request))}"


def _edited(request: ApprovalRequest) -> list[str]:
    return [f"{editor} (edited)" for editor in request.editors]


def silent_line(run: SilentRun) -> str:
    """Return what is known of a run that does not answer."""
    return (
        f"{run.reason}; the server knows it as {run.state}, approvals pending:"
        f" {run.pending_approvals}"
    )
