"""What the Web UI shows as a run's current details (Markdown)."""

from __future__ import annotations

import json
import shlex
from typing import Final

from workflows.book import Book
from workflows.contracts import (
    ApprovalRequest,
    Assurance,
    Decision,
    Interrupt,
    StepState,
    Verb,
    VerdictCode,
)
from workflows.contracts import DecisionOutcome as Outcome
from workflows.identity import DEFAULT_TENANT, tenant_of_run
from workflows.names import DECIDE
from workflows.plain_text import markdown, plain

#: Params longer than this are cut in the details; the view has them whole.
_LONGEST_PARAMS: Final = 2000
#: For the reader to replace.
_APPROVER: Final = "YOUR-NAME"


def current_details(book: Book) -> str:
    """Return where the run stands, what it waits for, and how to answer."""
    lines = [f"**{book.state}** · {book.request.plan.name} · for {markdown(book.request.user)}"]
    if book.last_error:
        lines.append(f"> {markdown(book.last_error)}")
    lines += _refused(book)
    for view in book.in_state(StepState.RUNNING):
        lines.append(f"- running `{view.id}`: {view.tool}")
    for view in book.in_state(StepState.WAITING_RATE_LIMIT):
        lines.append(f"- waiting `{view.id}`: {markdown(view.error or '')}")
    if book.paused is not None:
        reason = f": {markdown(book.paused.reason)}" if book.paused.reason else ""
        lines.append(f"- paused by {markdown(book.paused.actor)}{reason}; then `resume`")
    for view in book.in_state(StepState.PAUSED_PERMISSION):
        lines.append(f"- `{view.id}` {markdown(view.error or '')}; then `resume`")
    for request in book.gate.pending.values():
        lines += _approval(book.request.run_id, request)
    for held in book.held_approvals():
        by, waits = markdown(held.approver), markdown(held.waits_for)
        what = f"{held.outcome} by {by}, waits for {waits}"
        lines.append(f"- decided early `{held.approval_id}`: {what}")
    for interrupt in book.interrupts.values():
        lines += _question(interrupt)
    for question in book.questions.values():
        lines += ["", f"### Needs a human: `{question.intervention_id}`", markdown(question.text)]
    # The Web UI's pane is a little lower than what it shows: let it cut off nothing but this.
    return "\n".join([*lines, "", "&nbsp;"])


def _refused(book: Book) -> list[str]:
    """Return what was sent last and did not count; a signal's sender is told nothing."""
    lines = []
    verdict = next(reversed(book.gate.verdicts.values()), None)
    if verdict is not None and verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
        lines += ["", f"**Last decision refused** ({verdict.code}): {markdown(verdict.message)}"]
    if book.refused_signals:
        newest = book.refused_signals[-1]
        name, reason = markdown(newest.name), markdown(newest.reason)
        lines += ["", f"**Last signal refused**: {name}: {reason}"]
    return [*lines, ""]


def _approval(run_id: str, request: ApprovalRequest) -> list[str]:
    shown = json.dumps(request.params, indent=2, ensure_ascii=False)
    params = "\n".join(map(plain, shown.split("\n")))
    cut = len(params) > _LONGEST_PARAMS
    return [
        "",
        f"### Waiting for approval: `{request.approval_id}`",
        markdown(request.description),
        "",
        f"- tool: `{request.tool}` version {request.version}; {request.undo}",
        f"- asked by {markdown(request.askers)}, until {request.expires_at.isoformat()}",
        *_requirements(request),
        "",
        "```json",
        params[:_LONGEST_PARAMS],
        "```",
        "",
        *(["**Cut here**: the query `view` has all params.", ""] if cut else []),
        "Params hash (of tool, version and params):",
        "",
        f"`{request.params_hash}`",  # not in a list: indented, it would run out of the pane
        "",
        *_how_to_decide(run_id, request),
    ]


def _question(interrupt: Interrupt) -> list[str]:
    answer = {"actor": _APPROVER, "answers": {interrupt.interrupt_id: "..."}}
    fence = ["```json", json.dumps(answer, indent=2, ensure_ascii=False), "```"]
    lines = ["", f"### Asks: `{interrupt.interrupt_id}`", markdown(interrupt.question), ""]
    if interrupt.answer_schema:
        schema = "\n".join(map(plain, json.dumps(interrupt.answer_schema, indent=2).split("\n")))
        lines += ["The answer has to fit:", "", "```json", schema[:_LONGEST_PARAMS], "```", ""]
    how = f"To answer, choose *More Actions*, *Send a Signal*, `{Verb.ANSWER}`, and paste:"
    return [*lines, how, "", *fence]


def _requirements(request: ApprovalRequest) -> list[str]:
    lines = [f"- needs {requirement.as_text()}" for requirement in request.requirements]
    if request.votes:
        lines.append(f"- so far: {markdown(', '.join(request.votes))}")
    return lines


def _how_to_decide(run_id: str, request: ApprovalRequest) -> list[str]:
    if request.assurance is Assurance.SIGNED:
        return [
            "Only signed decisions count. This prints the JSON for *More Actions*, *Send a Signal*,"
            f" `{DECIDE}` (with `--outcome reject` it rejects):",
            "",
            "```",
            _sign_command(run_id, request),
            "```",
        ]
    decision = Decision(
        approval_id=request.approval_id,
        params_hash=request.params_hash,
        outcome=Outcome.APPROVE,
        approver=_APPROVER,
    ).model_dump(mode="json", exclude_defaults=True)
    return [
        f"To decide, choose *More Actions*, *Send a Signal*, `{DECIDE}`, and paste this with your"
        f" name (`{Outcome.REJECT}` in place of `{Outcome.APPROVE}` rejects):",
        "",
        "```json",
        json.dumps(decision, indent=2, ensure_ascii=False),
        "```",
        "",
        "Or from a shell:",
        "",
        "```",
        f"temporal workflow signal --workflow-id {shlex.quote(run_id)} --name {DECIDE}"
        f" --input {shlex.quote(json.dumps(decision))}",
        "```",
    ]


def _sign_command(run_id: str, request: ApprovalRequest) -> str:
    parts = ["sign", request.approval_id, "--params-hash", request.params_hash]
    parts += ["--as", _APPROVER, "--key", "KEYFILE"]
    tenant = tenant_of_run(run_id)
    if tenant != DEFAULT_TENANT:
        parts += ["--tenant", tenant]
    return f"python starter.py {shlex.join(parts)}"
