"""Runs as people read them."""

from __future__ import annotations

import json
from typing import Final

from cli.heartbeats import NOTHING_TOLD, Told
from cli.printer import Printer
from cli.questions import held_lines, request_lines, waiting_lines
from cli.tenant_client import TenantClient
from cli.text import compact, shown_time
from workflows.contracts import (
    EffectView,
    RunResult,
    RunView,
    StepView,
    Verdict,
    VerdictCode,
)
from workflows.durability import Durability

#: Characters of an output or error in a table; `show --json` has all of it.
_SHORT: Final = 72

STEP_COLUMNS: Final = ("step", "tool", "state", "attempts", "outcome")
EFFECT_COLUMNS: Final = ("effect", "key", "state", "step")


def step_rows(steps: list[StepView]) -> list[list[str]]:
    """Return one row for each step."""
    return [[s.id, s.tool, s.state, str(s.attempts or ""), _outcome(s)] for s in steps]


def effect_rows(effects: list[EffectView]) -> list[list[str]]:
    """Return one row for each ledger entry."""
    return [[e.tool, _key(e), e.state, e.step_id] for e in effects]


def print_result(printer: Printer, result: RunResult) -> None:
    """Print how a run ended, or stands."""
    print_steps(printer, result)
    printer.say()
    printer.say(headline(result), "bold")


def print_steps(printer: Printer, result: RunResult) -> None:
    """Print the steps, the effects, and what is not undone."""
    printer.table(STEP_COLUMNS, step_rows(result.steps))
    if result.output is not None:
        printer.say()
        printer.say(f"Returned: {json.dumps(result.output, ensure_ascii=False)}")
    if result.effects:
        printer.say()
        printer.table(EFFECT_COLUMNS, effect_rows(result.effects))
    if result.uncompensated:
        printer.say()
        printer.say("Not undone:", "bold red")
        for effect in result.uncompensated:
            reason = f" ({effect.reason})" if effect.reason else ""
            printer.say(f"  {effect.tool} {_key(effect)}: {effect.state}{reason}")


def print_waiting(printer: Printer, server: TenantClient, result: RunResult) -> None:
    """Print what a run waits for, with the commands that answer it."""
    for waiting in result.waiting_for:
        printer.say()
        for line in waiting_lines(server, result.run_id, waiting):
            printer.say(line)


def print_view(
    printer: Printer, server: TenantClient, view: RunView, told: Told = NOTHING_TOLD
) -> None:
    """Print everything a run says about itself, and what its calls have told."""
    printer.say(headline(view.result), "bold")
    goal = f": {view.plan.goal}" if view.plan.goal else ""
    printer.say(f"  plan     {view.plan.name}, version {view.plan_version}{goal}")
    by = "" if view.started_by in ("", view.user) else f", started by {view.started_by}"
    printer.say(f"  user     {view.user}{by}, tenant {view.tenant}")
    if view.durability is not Durability.SYNC:
        where = f", a stretch is at {told.under_way}" if told.under_way else ""
        printer.say(f"  durable  {view.durability}{where}")
    printer.say(f"  started  {shown_time(view.started_at)}")
    printer.say(f"  web ui   {server.web_ui(view.result.run_id)}")
    printer.say()
    print_steps(printer, view.result)
    for step_id, progress in told.progress.items():
        printer.say(f"  {step_id} has come to {_short(compact(progress))}")
    asked = {request.approval_id for request in view.pending}
    for request in view.pending:
        printer.say()
        for line in request_lines(server, view.result.run_id, request):
            printer.say(line)
    for held in view.held:
        printer.say()
        for line in held_lines(held):
            printer.say(line)
    others = [item for item in view.result.waiting_for if item.id not in asked]
    print_waiting(printer, server, view.result.model_copy(update={"waiting_for": others}))
    if view.verdicts:
        printer.say()
        rows = [[v.approval_id, v.code, verdict_text(v)] for v in view.verdicts]
        printer.table(("decision on", "verdict", "because"), rows)
    if view.refused_signals:
        printer.say()
        signals = [[shown_time(s.at), s.name, s.reason] for s in view.refused_signals]
        printer.table(("time", "refused signal", "because"), signals)
    if view.timeline:
        printer.say()
        rows = [[shown_time(t.at), t.step_id or "", t.text] for t in view.timeline]
        printer.table(("time", "step", "what happened"), rows)


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
        return _short(step.error)
    made_by = f"made by run {step.made_by}: " if step.made_by else ""
    replayed = "recorded before: " if step.replayed and not made_by else ""
    output = "" if step.output is None else compact(step.output)
    return _short(f"{made_by or replayed}{output}")


def _key(effect: EffectView) -> str:
    generation = "" if effect.generation == 1 else f" (generation {effect.generation})"
    return effect.key + generation


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
