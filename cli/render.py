"""Runs as people read them: where they stand, and what they wait for, with commands to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from surehand.cli.printer import Lines, Styled, Table, compact, shown_time
from surehand.client.client import SilentRun
from surehand.client.connection import Connection
from surehand.client.outcome import CallProgress
from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    Assurance,
    Decision,
    DecisionOutcome,
    HeldApproval,
    Verdict,
    VerdictCode,
)
from surehand.workflows.contracts.base import Waiting, WaitKind, foreign_text
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
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
    signed = [] if request.assurance is Assurance.OPEN else key
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
    user = connection.settings.user
    # Whose yes might not count is not named: who has which role, only the ledger knows.
    barred = user in request.excluded or any(one.roles for one in request.requirements)
    decision = Decision(
        approval_id=request.approval_id,
        params_hash=request.params_hash,
        outcome=DecisionOutcome.APPROVE,
        approver=YOUR_NAME if barred else user,
    )
    parts = ["temporal", "workflow", "signal", *connection.temporal_options()]
    parts += ["--workflow-id", run_id, "--name", Verb.DECIDE]
    parts += ["--input", json.dumps(decision.model_dump(mode="json", exclude_defaults=True))]
    return shlex.join(parts)


def open_items(
    connection: Connection, result: RunResult, pending: Sequence[ApprovalRequest]
) -> Iterator[tuple[tuple[str, str, str], Iterator[str]]]:
    """Yield each thing that a run waits for: what tells it from others, and its lines."""
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
    who = f"Step {waiting.step_id}" if waiting.step_id else "The run"
    match waiting.kind:
        case WaitKind.APPROVAL:
            yield f"{who} waits for an approval: {waiting.question}"
            yield f"  {command('show', waiting.id)}"
            yield "    shows its params, and the commands that decide on it"
        case WaitKind.PERMISSION | WaitKind.PAUSE:
            yield f"{who} is {waiting.question}"
            yield f"  {command('resume', run_id)}"
        case WaitKind.BUDGET:
            yield f"{who}: {waiting.question}"
            yield f"  {command('top-up', run_id, '--steps', '10')}"
            yield "    or with --tokens 10000, --money 2.50, --time 1h"
        case WaitKind.FAILURE:
            yield f"{who} has failed: {waiting.question}"
            yield f"  {command('resume', run_id, '--step', step)}"
            yield "    or with --way skip, or --way compensate"
        case WaitKind.QUOTA:
            what = f"{who} is" if waiting.step_id else f"{who} waits for a place:"
            yield f"{what} {waiting.question}"
            yield f"  {command('quota', 'show')}"
            yield "    shows the quotas; it goes on by itself, and soon after one is raised"
        case WaitKind.HALT:
            yield f"{who} is {waiting.question}"
            yield f"  {command('halts')}"
            yield "    shows the halts, and how to lift one; it goes on by itself then"
        case WaitKind.EVENT:
            yield f"{who} waits for an event from outside"
            yield f"  {command('event', run_id, 'NAME', '--about', 'TEXT', '--id', 'ID')}"
        case WaitKind.QUESTION:
            yield f"{who} asks: {waiting.question}"
            if waiting.value is not None:
                yield f"  about  {json.dumps(waiting.value, ensure_ascii=False)}"
            yield f"  {command('answer', run_id, f'{waiting.id}=VALUE')}"
        case WaitKind.RATE_LIMIT:
            yield f"{who} waits for its provider, and goes on by itself"
        case WaitKind.INTERVENTION:
            yield f"{who} needs a human: {waiting.question}"
            for outcome, what in _OUTCOMES.items():
                if outcome.replace("-", "_") not in waiting.answers:
                    continue
                yield f"  {command('resolve', waiting.id, outcome, '--run', run_id)}"
                yield f"    {what}"
        case _:
            assert_never(waiting.kind)


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
    yield from whose_lines(request)
    if request.votes:
        yield f"  so far     {', '.join(request.votes)}"
    if request.assurance is not Assurance.OPEN:
        how = "" if request.assurance.by_passkey else " (--key FILE)"
        yield f"  decisions  {request.assurance.as_text()}{how}"
    yield f"  expires    {shown_time(request.expires_at)}"


def request_lines(connection: Connection, run_id: str, request: ApprovalRequest) -> Iterator[str]:
    """Yield everything an approver has to see, then the commands that approve it."""
    yield from request_details(request)
    commands = commands_of(connection, run_id, request)
    if commands:
        yield f"  {commands['approve']}"
        yield f"  {commands.get('temporal', commands['sign'])}"


def whose_lines(request: ApprovalRequest) -> Iterator[str]:
    """Yield what the decision is on, who has asked, and who may decide."""
    yield f"  hash       {request.params_hash}"
    yield f"  undo       {request.undo}"
    editors = (f"{editor} (edited)" for editor in request.editors)
    yield f"  asked by   {' and '.join([request.askers, *editors])}"
    if request.foreign:
        yield f"  foreign    its run has read content from outside: {foreign_text(request.foreign)}"
    for requirement in request.requirements:
        yield f"  needs      {requirement.as_text()}"
    if request.excluded:
        yield f"  not by     {', '.join(request.excluded)}"


def silent_line(run: SilentRun) -> str:
    return f"{run.reason}; the server knows it as {run.state}, waiting for people: {run.open_items}"


#: Characters of an output or error in a table; `show --json` has all of it.
_SHORT: Final = 72


def effect_table(effects: list[EffectView]) -> Table:
    rows = [[e.tool, _key_text(e), e.state, e.step_id] for e in effects]
    return Table(("effect", "key", "state", "step"), rows)


def result_lines(result: RunResult) -> Lines:
    yield from _steps_lines(result)
    yield ""
    yield Styled(headline(result), "bold")


def _steps_lines(result: RunResult) -> Lines:
    rows = [
        [s.id, s.tool, s.state, str(s.attempts or ""), describe_outcome(s)] for s in result.steps
    ]
    yield Table(("step", "tool", "state", "attempts", "outcome"), rows)
    if result.output is not None:
        yield ""
        yield f"Returned: {json.dumps(result.output, ensure_ascii=False)}"
    if result.effects:
        yield ""
        yield effect_table(result.effects)
    if result.uncompensated:
        yield ""
        yield Styled("Not undone:", "bold red")
        for effect in result.uncompensated:
            reason = f" ({effect.reason})" if effect.reason else ""
            yield f"  {effect.tool} {_key_text(effect)}: {effect.state}{reason}"


def open_lines(
    connection: Connection, result: RunResult, pending: Sequence[ApprovalRequest] = ()
) -> Lines:
    for _, lines in open_items(connection, result, pending):
        yield ""
        yield from lines


def view_lines(connection: Connection, view: RunView, calls: CallProgress) -> Lines:
    yield Styled(headline(view.result), "bold")
    goal = f": {view.plan.goal}" if view.plan.goal else ""
    yield f"  plan     {view.plan.name}, version {view.plan_version}{goal}"
    by = "" if view.started_by in ("", view.user) else f", started by {view.started_by}"
    yield f"  user     {view.user}{by}, tenant {view.tenant}"
    if view.durability.calls_here:
        where = f", a batch is at {calls.under_way}" if calls.under_way else ""
        yield f"  durable  {view.durability}{where}"
    yield f"  started  {shown_time(view.started_at)}"
    if view.result.foreign:
        yield f"  foreign  has read content from outside: {foreign_text(view.result.foreign)}"
    yield f"  web ui   {connection.web_ui(view.result.run_id)}"
    yield ""
    yield from _steps_lines(view.result)
    for step_id, progress in calls.by_step.items():
        yield f"  {step_id} has come to {_cut_short(compact(progress, _SHORT + 1))}"
    for step_id, size in calls.bytes_written.items():
        yield f"  {step_id} has written {size:,} bytes of its artifact"
    asked = {request.approval_id for request in view.pending}
    for request in view.pending:
        yield ""
        yield from request_lines(connection, view.result.run_id, request)
    for held in view.held:
        yield ""
        yield from held_lines(held)
    others = [item for item in view.result.waiting_for if item.id not in asked]
    yield from open_lines(connection, view.result.model_copy(update={"waiting_for": others}))
    refused = [v for v in view.verdicts if v.code is not VerdictCode.ACCEPTED]  # others: below
    verdicts = [[v.approval_id, v.code, verdict_text(v)] for v in refused]
    signals = [[shown_time(s.at), s.name, s.reason] for s in view.refused_signals]
    told = [t for t in view.timeline if t.text != view.result.error]  # the first line has that
    timeline = [[shown_time(t.at), t.step_id or "", t.text] for t in told]
    for columns, rows in (
        (("decision on", "verdict", "because"), verdicts),
        (("time", "refused signal", "because"), signals),
        (("time", "step", "what happened"), timeline),
    ):
        if rows:
            yield ""
            yield Table(columns, rows)


def verdict_text(verdict: Verdict) -> str:
    """Return what the gate made of a decision; one that counts, with the mark of its signature."""
    counts = verdict.code in (VerdictCode.ACCEPTED, VerdictCode.HELD)
    return f"{verdict.message}{'' if verdict.verified or not counts else ' (unverified)'}"


def headline(result: RunResult) -> str:
    error = f": {result.error}" if result.error else ""
    return f"Run {result.run_id}: {result.state}{error}"


def describe_outcome(step: StepView) -> str:
    if step.undone:
        return _cut_short(f"undone {step.undone}")
    if step.error:
        return _short_error(step.error)
    made_by = f"made by run {step.made_by}: " if step.made_by else ""
    replayed = "recorded before: " if step.replayed and not made_by else ""
    output = "" if step.output is None else compact(step.output, _SHORT + 1)
    return _cut_short(f"{made_by or replayed}{output}")


def _key_text(effect: EffectView) -> str:
    generation = "" if effect.generation == 1 else f" (generation {effect.generation})"
    return effect.key + generation


def _short_error(text: str) -> str:
    """Return the start of an error, and its end: that may be a line of the user's code."""
    end = text[-_SHORT // 2 :]
    return text if len(text) <= _SHORT else f"{text[: _SHORT - len(end) - 1]}…{end}"


def _cut_short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
