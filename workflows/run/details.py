"""What the Web UI shows as a run's current details (Markdown)."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance, Decision, VerdictCode
from surehand.workflows.contracts.approvals import DecisionOutcome as Outcome
from surehand.workflows.contracts.foreign import foreign_text
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.states import StepState
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import DEFAULT_TENANT, tenant_of_run
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plain_text import markdown, plain
from surehand.workflows.state.run_state import RunData

#: Params longer than this are cut in the details; the view has them whole.
_LONGEST_PARAMS: Final = 2000
_IN_LINES: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


def current_details(data: RunData) -> str:
    """Return where the run stands, what it waits for, and how to answer."""
    lines = [f"**{data.state}** · {data.request.plan.name} · for {markdown(data.request.user)}"]
    if data.last_error:
        lines.append(f"> {markdown(data.last_error)}")
    lines += _refused(data)
    for view in data.in_state(StepState.RUNNING):
        lines.append(f"- running `{view.id}`: {view.tool}")
    for view in data.in_state(StepState.WAITING_RATE_LIMIT, StepState.WAITING_QUOTA):
        lines.append(f"- waiting `{view.id}`: {markdown(view.error or '')}")
    if data.queued is not None:
        lines.append(f"- waiting for its tenant's quota, {markdown(data.queued.text)}")
    if data.paused is not None:
        reason = f": {markdown(data.paused.reason)}" if data.paused.reason else ""
        lines.append(f"- paused by {markdown(data.paused.actor)}{reason}; then `resume`")
    for view in data.in_state(StepState.PAUSED_PERMISSION):
        lines.append(f"- `{view.id}` {markdown(view.error or '')}; then `resume`")
    if data.foreign:
        lines.append(f"- has read content from outside: {markdown(foreign_text(data.foreign))}")
    for request in data.gate.pending.values():
        lines += _approval(data.request.run_id, request)
    for held in data.held_approvals():
        by, waits = markdown(held.approver), markdown(held.waits_for)
        what = f"{held.outcome} by {by}, waits for {waits}"
        lines.append(f"- decided early `{held.approval_id}`: {what}")
    for interrupt in data.interrupts.values():
        lines += _question(interrupt)
    for question in data.interventions.values():
        lines += [
            "",
            f"### Needs a human: `{question.intervention_id}`",
            markdown(question.question),
        ]
    # The Web UI's pane is a little lower than what it shows: let it cut off nothing but this.
    return "\n".join([*lines, "", "&nbsp;"])


def _refused(data: RunData) -> list[str]:
    """Return what was sent last and did not count; a signal's sender is told nothing."""
    lines = []
    verdict = next(reversed(data.inbox.verdicts.values()), None)
    if verdict is not None and verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
        lines += ["", f"**Last decision refused** ({verdict.code}): {markdown(verdict.message)}"]
    if data.refused_signals:
        newest = data.refused_signals[-1]
        name, reason = markdown(newest.name), markdown(newest.reason)
        lines += ["", f"**Last signal refused**: {name}: {reason}"]
    return [*lines, ""]


def _approval(run_id: str, request: ApprovalRequest) -> list[str]:
    params = _indented(request.params)
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
        *how_to_decide(run_id, request),
    ]


def _indented(value: Any) -> str:
    """Return a JSON value in lines for people, with more characters than are shown at most.

    A run's details are made whenever it has moved, so the rest of a large value is not looked at.
    """
    text = ""
    for part in _IN_LINES.iterencode(value):
        text += part[: _LONGEST_PARAMS + 1]
        if len(text) > _LONGEST_PARAMS:
            break
    return "\n".join(map(plain, text.split("\n")))


def _question(interrupt: Interrupt) -> list[str]:
    answer = {"actor": YOUR_NAME, "answers": {interrupt.interrupt_id: "..."}}
    fence = ["```json", json.dumps(answer, indent=2, ensure_ascii=False), "```"]
    lines = ["", f"### Asks: `{interrupt.interrupt_id}`", markdown(interrupt.question), ""]
    if interrupt.answer_schema:
        schema = _indented(interrupt.answer_schema)[:_LONGEST_PARAMS]
        lines += ["The answer has to fit:", "", "```json", schema, "```", ""]
    how = f"To answer, choose *More Actions*, *Send a Signal*, `{Verb.ANSWER}`, and paste:"
    return [*lines, how, "", *fence]


def _requirements(request: ApprovalRequest) -> list[str]:
    lines = [f"- needs {requirement.as_text()}" for requirement in request.requirements]
    if request.excluded:
        lines.append(f"- not by: {markdown(', '.join(request.excluded))}")
    if request.votes:
        lines.append(f"- so far: {markdown(', '.join(request.votes))}")
    return lines


def how_to_decide(run_id: str, request: ApprovalRequest) -> list[str]:
    """Return the lines that say how a request is answered from the Web UI."""
    if request.assurance.by_passkey:
        return [f"Decisions {request.assurance.as_text()}: not from here, nor by a command."]
    if request.assurance is Assurance.SIGNED:
        return [
            "Only signed decisions count. This prints the JSON for *More Actions*, *Send a Signal*,"
            f" `{Verb.DECIDE}` (with `--outcome reject` it rejects):",
            "",
            "```",
            _sign_command(run_id, request),
            "```",
        ]
    decision = Decision(
        approval_id=request.approval_id,
        params_hash=request.params_hash,
        outcome=Outcome.APPROVE,
        approver=YOUR_NAME,
    ).model_dump(mode="json", exclude_defaults=True)
    shown = json.dumps(decision, indent=2, ensure_ascii=False)
    return [
        f"To decide, choose *More Actions*, *Send a Signal*, `{Verb.DECIDE}`, and paste this with"
        f" your name (`{Outcome.REJECT}` in place of `{Outcome.APPROVE}` rejects):",
        "",
        "```json",
        shown,
        "```",
        "",
        "Or from a shell:",
        "",
        "```",
        # In short lines: the pane is narrow.
        "temporal workflow signal \\",
        f"  --workflow-id {shlex.quote(run_id)} \\",
        f"  --name {Verb.DECIDE} --input {shlex.quote(shown)}",
        "```",
    ]


def _sign_command(run_id: str, request: ApprovalRequest) -> str:
    parts = ["sign", request.approval_id, "--params-hash", request.params_hash]
    parts += ["--as", YOUR_NAME, "--key", "KEYFILE"]
    tenant = tenant_of_run(run_id)
    if tenant != DEFAULT_TENANT:
        parts += ["--tenant", tenant]
    return f"{request.program} {shlex.join(parts)}"
