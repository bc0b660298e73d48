"""Runs as people read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from surehand.cli.verb.pending import held_lines, open_items, request_lines
from surehand.cli.verb.printer import Lines, Styled, Table
from surehand.cli.verb.text import compact, shown_time
from surehand.client.connection import Connection
from surehand.client.outcome import CallProgress
from surehand.workflows.contracts.approvals import ApprovalRequest, Verdict, VerdictCode
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.contracts.foreign import foreign_text
from surehand.workflows.contracts.runs import RunResult, RunView, StepView

#: Characters of an output or error in a table; `show --json` has all of it.
_SHORT: Final = 72
STEP_COLUMNS: Final = ("step", "tool", "state", "attempts", "outcome")


def step_rows(steps: list[StepView]) -> list[list[str]]:
    """Return one row for each step."""
    return [[s.id, s.tool, s.state, str(s.attempts or ""), _outcome(s)] for s in steps]


def effect_table(effects: list[EffectView]) -> Table:
    """Return one row for each ledger entry."""
    rows = [[e.tool, _key(e), e.state, e.step_id] for e in effects]
    return Table(("effect", "key", "state", "step"), rows)


def result_lines(result: RunResult) -> Lines:
    """Yield how a run ended, or stands."""
    yield from _steps_lines(result)
    yield ""
    yield Styled(headline(result), "bold")


def _steps_lines(result: RunResult) -> Lines:
    """Yield the steps, the effects, and what is not undone."""
    yield Table(STEP_COLUMNS, step_rows(result.steps))
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
            yield f"  {effect.tool} {_key(effect)}: {effect.state}{reason}"


def open_lines(
    connection: Connection, result: RunResult, pending: Sequence[ApprovalRequest] = ()
) -> Lines:
    """Yield what a run waits for, with the commands that answer it."""
    for _, lines in open_items(connection, result, pending):
        yield ""
        yield from lines


def view_lines(connection: Connection, view: RunView, calls: CallProgress) -> Lines:
    """Yield everything a run says about itself, and what its calls have told."""
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
        yield f"  {step_id} has come to {_short(compact(progress, _SHORT + 1))}"
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
    verdicts = [[v.approval_id, v.code, verdict_text(v)] for v in view.verdicts]
    signals = [[shown_time(s.at), s.name, s.reason] for s in view.refused_signals]
    timeline = [[shown_time(t.at), t.step_id or "", t.text] for t in view.timeline]
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
    """Return in one line where a run stands, and what went wrong."""
    error = f": {result.error}" if result.error else ""
    return f"Run {result.run_id}: {result.state}{error}"


def _outcome(step: StepView) -> str:
    if step.undone:
        return _short(f"undone {step.undone}")
    if step.error:
        return _short_error(step.error)
    made_by = f"made by run {step.made_by}: " if step.made_by else ""
    replayed = "recorded before: " if step.replayed and not made_by else ""
    output = "" if step.output is None else compact(step.output, _SHORT + 1)
    return _short(f"{made_by or replayed}{output}")


def _key(effect: EffectView) -> str:
    generation = "" if effect.generation == 1 else f" (generation {effect.generation})"
    return effect.key + generation


def _short_error(text: str) -> str:
    """Return the start of an error, and its end: that may be a line of the user's code."""
    end = text[-_SHORT // 2 :]
    return text if len(text) <= _SHORT else f"{text[: _SHORT - len(end) - 1]}…{end}"


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
