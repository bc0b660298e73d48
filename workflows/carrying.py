"""What a run's book takes along into another execution: all that is needed, and little else.

The ledger has everything. What travels is what steps ahead refer to, what has to be undone, what
people wait for, and of the rest as much as ``show`` needs.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Set
from typing import Any, Final

from workflows.book import (
    LONGEST_TIMELINE,
    MOST_REFUSED_SIGNALS,
    OPEN,
    Book,
    Question,
)
from workflows.coherence import ancestors
from workflows.contracts import (
    Carried,
    OpenQuestion,
    StepState,
    StepView,
)
from workflows.plan import ITERATION, Plan
from workflows.step_views import StepViews

#: Steps of the plan and the newest others (items of lists, steps of earlier plans) that are listed.
MOST_LISTED: Final = 200
#: Effects that are listed; the ledger's own list replaces them at the end.
MOST_EFFECTS: Final = 200
#: Characters of JSON of outputs that nothing ahead refers to; another plan may.
MOST_OUTPUTS: Final = 8 * 1024 * 1024
#: Characters of one line of the story, and of a signal's refusal.
LONGEST_LINE: Final = 500
#: Executions before this one whose signatures are remembered; a signature lasts ten minutes.
MOST_LIVES: Final = 100


def carry_book(
    book: Book, settled: Set[str], facts: Mapping[str, Any], workflow_run_id: str
) -> dict[str, Any]:
    """Return the book, and the facts that go with it, as fields of ``Carried``.

    Args:
        book: The book.
        settled: The steps of the plan that are done.
        facts: What finished steps have returned.
        workflow_run_id: Temporal's id of this execution.
    """
    needed = _needed(book, settled)
    listed = _listed(book)
    views = [_with_output(view, view.id in needed) for view in listed]
    left, carried = MOST_OUTPUTS, dict[str, StepView]()
    for view in sorted(views, key=lambda one: (one.id not in needed, bool(_item(one.id)))):
        size = len(json.dumps(view.output)) if view.output is not None else 0
        if view.id not in needed:
            if size > left:
                view = view.model_copy(update={"output": {"too_large": {"bytes": size}}})
            else:
                left -= size
        carried[view.id] = view
    kept = {view.id for view in listed}
    dropped = [view for view in book.steps.values() if view.id not in kept]
    return {
        "lives": (workflow_run_id, *book.lives)[:MOST_LIVES],
        "started_at": book.started_at,
        "plan_version": book.plan_version,
        "head": book.head,
        "steps": [carried[view.id] for view in listed],
        "more_steps": book.more_steps + len(dropped),
        "replays": book.replays or any(view.made_by for view in dropped),
        "begun": {id_: at for id_, at in book.begun.items() if id_ in book.progress},
        "read_at": book.read_at,
        "progress": book.progress,
        "effects": dict(list(book.effects.items())[-MOST_EFFECTS:]),
        "questions": [
            OpenQuestion(intervention_id=q.intervention_id, step_id=q.step_id, question=q.text)
            for q in book.questions.values()
        ],
        "timeline": [
            line.model_copy(update={"text": line.text[:LONGEST_LINE]}) for line in book.timeline
        ],
        "refused_signals": [
            one.model_copy(update={"reason": one.reason[:LONGEST_LINE]})
            for one in book.refused_signals
        ],
        "resumed": book.resumed,
        "ways": book.ways,
        "paused": book.paused,
        "token": book.token,
        "calls": book.calls,
        "unheard": sorted(book.unheard),
        **book.saga.carry(),
        "facts": {
            name: facts[name]
            for name in facts
            if (name in needed or (name in carried and _small(facts[name])))
            and not _told_by(carried.get(name), facts[name])
        },
    }


def restore_book(book: Book, carried: Carried) -> dict[str, Any]:
    """Take over what another execution has carried; returns the facts that go with it."""
    book.started_at = carried.started_at
    book.plan_version = carried.plan_version
    book.head = carried.head
    book.lives = carried.lives
    book.more_steps = carried.more_steps
    book.replays = carried.replays
    book.steps = StepViews({view.id: view for view in carried.steps})
    book.begun = dict(carried.begun)
    book.read_at = dict(carried.read_at)
    book.progress = dict(carried.progress)
    book.effects = dict(carried.effects)
    book.questions = {
        one.intervention_id: Question(one.intervention_id, one.step_id, one.question)
        for one in carried.questions
    }
    book.timeline = deque(carried.timeline, maxlen=LONGEST_TIMELINE)
    book.refused_signals = deque(carried.refused_signals, maxlen=MOST_REFUSED_SIGNALS)
    book.resumed = carried.resumed
    book.ways = dict(carried.ways)
    book.paused = carried.paused
    book.token = carried.token
    book.calls = dict(carried.calls)
    book.unheard = set(carried.unheard)
    book.saga.restore(carried)
    told = {view.id: view.output for view in carried.steps if view.state is StepState.SUCCEEDED}
    return {**{id_: out for id_, out in told.items() if not _cut(out)}, **carried.facts}


def _needed(book: Book, settled: Set[str]) -> set[str]:
    """Return whose outputs steps refer to that are not done, and items of lists under way."""
    plan: Plan = book.request.plan
    ahead = [step.id for step in plan.steps if step.id not in settled]
    needed = {name for step_id in ahead for name in plan.dependencies[step_id]}
    if book.read_at:  # what is made again needs what it was made of
        needed |= ancestors(plan.uses, *needed)
    items = {id_ for id_ in book.steps if _item(id_) and _item(id_) in book.progress}
    return needed | items


def _item(step_id: str) -> str | None:
    """Return the step whose item a step is; ``None``: it is a step of its own."""
    parent = ITERATION.sub("", step_id)
    return parent if parent != step_id else None


def _listed(book: Book) -> list[StepView]:
    """Return the steps that are shown from now on: those of the plan, and the newest others."""
    plan = {step.id for step in book.request.plan.steps}
    needed = {
        view.id
        for view in book.steps.values()
        if view.id in plan
        or view.child is not None
        or view.id in book.progress
        or view.state in OPEN
        or _item(view.id) in book.progress
    }
    others = [view.id for view in book.steps.values() if view.id not in needed]
    listed = needed.union(others[-MOST_LISTED:])
    return [view for view in book.steps.values() if view.id in listed]


def _with_output(view: StepView, needed: bool) -> StepView:
    if needed or view.original is None or _small(view.original):
        return view
    return view.model_copy(update={"original": None})


def _small(value: Any) -> bool:
    return len(json.dumps(value)) <= LONGEST_LINE


def _told_by(view: StepView | None, fact: Any) -> bool:
    done = view is not None and view.state is StepState.SUCCEEDED
    return done and view is not None and view.output == fact and not _cut(fact)


def _cut(output: Any) -> bool:
    return isinstance(output, dict) and set(output) == {"too_large"}
