"""What the Web UI shows as a run's current details (Markdown)."""

from __future__ import annotations

import json
import shlex

from workflows.book import Book
from workflows.contracts import ApprovalRequest, Assurance, StepState

#: Params longer than this are cut in the details; the view has them whole.
_LONGEST_PARAMS = 2000


def current_details(book: Book) -> str:
    """Return where the run stands, what it waits for, and how to answer."""
    lines = [f"**{book.state}** · {book.request.plan.name} · for {book.request.user}"]
    if book.last_error:
        lines.append(f"> {book.last_error}")
    for view in book.in_state(StepState.RUNNING):
        lines.append(f"- running `{view.id}`: {view.tool}")
    for view in book.in_state(StepState.WAITING_RATE_LIMIT):
        lines.append(f"- waiting `{view.id}`: {view.error}")
    for view in book.in_state(StepState.PAUSED_PERMISSION):
        lines.append(f"- `{view.id}` {view.error}; then `resume`")
    for request in book.gate.pending.values():
        lines += _approval(book.request.run_id, request)
    for question in book.questions.values():
        lines += ["", f"### Needs a human: `{question.intervention_id}`", question.text]
    if book.refused_signals:
        newest = book.refused_signals[-1]
        # What a stranger sent stays text: no Markdown of theirs.
        lines += ["", "Last refused signal:", "", f"    {newest.name!a}: {newest.reason}"]
    return "\n".join(lines)


def signal_command(run_id: str, request: ApprovalRequest) -> str:
    """Return the plain Temporal CLI command that approves a request.

    Its JSON stands on lines of its own, so that it can be copied into the Web UI's signal dialog.
    """
    decision = {
        "approval_id": request.approval_id,
        "params_hash": request.params_hash,
        "outcome": "approve",
        "approver": "YOUR-NAME",
    }
    return (
        f"temporal workflow signal --workflow-id {shlex.quote(run_id)} --name decide"
        f" --input {shlex.quote(json.dumps(decision, indent=2))}"
    )


def _approval(run_id: str, request: ApprovalRequest) -> list[str]:
    params = json.dumps(request.params, indent=2, ensure_ascii=False)[:_LONGEST_PARAMS]
    return [
        "",
        f"### Waiting for approval: `{request.approval_id}`",
        request.description,
        "",
        f"- tool: `{request.tool}` version {request.version}; {request.undo}",
        f"- params hash: `{request.params_hash}`",
        f"- asked by {request.requested_by}, until {request.expires_at.isoformat()}",
        "",
        "```json",
        params,
        "```",
        "",
        *_requirements(request),
        *_how_to_approve(run_id, request),
    ]


def _requirements(request: ApprovalRequest) -> list[str]:
    lines = []
    for requirement in request.requirements:
        people = f" of {' or '.join(requirement.roles)}" if requirement.roles else ""
        eyes = ", not by who asked for it" if requirement.four_eyes else ""
        lines.append(f"- needs {requirement.quorum} approval(s){people}{eyes}")
    if request.votes:
        lines.append(f"- so far: {', '.join(request.votes)}")
    return [*lines, ""]


def _how_to_approve(run_id: str, request: ApprovalRequest) -> list[str]:
    if request.assurance is Assurance.SIGNED:
        command = shlex.join(
            ["sign", request.approval_id, "--params-hash", request.params_hash, "--key", "KEYFILE"]
        )
        return [
            "Only signed decisions count. This prints the JSON for the signal dialog (`decide`):",
            "",
            "```",
            f"python starter.py {command}",
            "```",
        ]
    return [
        "Approve with this command, or with its JSON in the signal dialog (`decide`):",
        "",
        "```",
        signal_command(run_id, request),
        "```",
    ]
