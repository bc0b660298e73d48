"""What of a run's state travels into another execution: all of it, cut short where it is large.

The ledger has everything. Whole are what steps ahead refer to, what has to be undone, and what
people wait for; of the rest as much as ``show`` needs.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, Final, TypeVar

from surehand.workflows.contracts.runs import StepView, cut_to_fit, is_cut
from surehand.workflows.contracts.states import StepState
from surehand.workflows.gate import Gate
from surehand.workflows.identity import run_of_approval
from surehand.workflows.plan.plan import ITERATION, Plan
from surehand.workflows.plan.references import INPUT
from surehand.workflows.plan.validation import ancestors
from surehand.workflows.state.records import StepRecord
from surehand.workflows.state.run_state import OPEN, RunData, StepViews

#: Steps of the plan and the newest others (items of lists, steps of earlier plans) that are listed.
MOST_LISTED: Final = 200
#: Effects that are listed; the ledger's own list replaces them at the end.
MOST_EFFECTS: Final = 200
#: Characters of JSON of outputs that nothing ahead refers to; another plan may.
MOST_OUTPUTS: Final = 8 * 1024 * 1024
#: Characters of one line of the story, and of a signal's refusal.
LONGEST_LINE: Final = 500

V = TypeVar("V")


def snapshot(data: RunData) -> dict[str, Any]:
    """Return a run's state in JSON form, as its next execution takes it over."""
    needed, listed = _needed(data), _listed(data)
    views = _views(listed, needed)
    dropped = [view for view in data.steps.values() if view.id not in views]
    short = data.model_copy(
        update={
            "steps": StepViews(views),
            "more_steps": data.more_steps + len(dropped),
            "replays": data.replays or any(view.made_by for view in dropped),
            "facts": _facts(data, needed, views),
            "records": _records(data),
            "effects": dict(list(data.effects.items())[-MOST_EFFECTS:]),
            "gate": _gate(data),
            # Child runs that nothing has come to yet are looked at when it does.
            "children": data.children.model_copy(update={"early": {}}),
            "timeline": [
                line.model_copy(update={"text": line.text[:LONGEST_LINE]}) for line in data.timeline
            ],
            "refused_signals": [
                one.model_copy(update={"reason": one.reason[:LONGEST_LINE]})
                for one in data.refused_signals
            ],
        }
    )
    return short.model_dump(mode="json")


def _views(listed: list[StepView], needed: set[str]) -> dict[str, StepView]:
    """Return the steps that are listed, with their outputs as far as there is room for them."""
    shown = [_with_output(view, view.id in needed) for view in listed]
    shown.sort(key=lambda one: (one.id not in needed, bool(_item(one.id))))
    views = {view.id: view for view in cut_to_fit(shown, MOST_OUTPUTS, whole=needed)}
    return {view.id: views[view.id] for view in listed}


def _facts(data: RunData, needed: set[str], views: dict[str, StepView]) -> dict[str, Any]:
    """Return what finished steps have returned, where that is not in their view."""
    return {
        name: fact
        for name, fact in data.facts.items()
        if name != INPUT
        and (name in needed or (name in views and _small(fact)))
        and not _told_by(views.get(name), fact)
    }


def _gate(data: RunData) -> Gate:
    """Return the gate; of steps that ask for nothing any more it keeps the newest requests only."""
    done = {view.id for view in data.in_state(StepState.SUCCEEDED, StepState.FAILED)}
    gate = data.gate
    kept = {
        name
        for name in gate.states
        if name in gate.settled or (run_of_approval(name) or ("", ""))[1] not in done
    }
    return gate.model_copy(
        update={
            "states": _of(kept, gate.states),
            "accepted": _of(kept, gate.accepted),
            "verified": gate.verified & kept,
        }
    )


def _records(data: RunData) -> dict[str, StepRecord]:
    """Return what is known of the steps: of those that have ended what a new beginning needs."""
    nothing, records = StepRecord(), dict[str, StepRecord]()
    for step_id, record in data.records.items():
        view = data.steps.get(step_id)
        if step_id not in data.progress:
            ended: dict[str, Any] = {"begun": None, "edited": None, "settles": False}
            if view is None or view.state is not StepState.PENDING:
                ended["attempts_used"] = 0
            record = record.model_copy(update=ended)
        if record != nothing:
            records[step_id] = record
    return records


def _of(kept: Container[str], all_: Mapping[str, V]) -> dict[str, V]:
    return {name: value for name, value in all_.items() if name in kept}


def _needed(data: RunData) -> set[str]:
    """Return whose outputs steps refer to that are not done, and items of lists under way."""
    plan: Plan = data.request.plan
    ahead = [step.id for step in plan.steps if step.id not in data.settled]
    needed = {name for step_id in ahead for name in plan.dependencies[step_id]}
    if any(
        one.read_at for one in data.records.values()
    ):  # what is made again needs what it was made of
        needed |= ancestors(plan.uses, *needed)
    items = {id_ for id_ in data.steps if _item(id_) and _item(id_) in data.progress}
    return needed | items


def _item(step_id: str) -> str | None:
    """Return the step whose item a step is; ``None``: it is a step of its own."""
    parent = ITERATION.sub("", step_id)
    return parent if parent != step_id else None


def _listed(data: RunData) -> list[StepView]:
    """Return the steps that are shown from now on: those of the plan, and the newest others."""
    plan = {step.id for step in data.request.plan.steps}
    needed = {
        view.id
        for view in data.steps.values()
        if view.id in plan
        or view.child is not None
        or view.id in data.progress
        or view.state in OPEN
        or _item(view.id) in data.progress
    }
    others = [view.id for view in data.steps.values() if view.id not in needed]
    listed = needed.union(others[-MOST_LISTED:])
    return [view for view in data.steps.values() if view.id in listed]


def _with_output(view: StepView, needed: bool) -> StepView:
    if needed or view.original is None or _small(view.original):
        return view
    return view.model_copy(update={"original": None})


def _small(value: Any) -> bool:
    return len(json.dumps(value)) <= LONGEST_LINE


def _told_by(view: StepView | None, fact: Any) -> bool:
    done = view is not None and view.state is StepState.SUCCEEDED
    return done and view is not None and view.output == fact and not is_cut(fact)
