"""How large a run may grow with its child runs and lists: each can start more of the other.

A run has room for so many steps, its own and those of all runs inside it. What multiplies (a list,
a step that is a plan) gets an equal part of that room, and each item of a list of plans an equal
part of the list's. So the whole tree stays within its root's room, and no run needs to know what
the others have used. Steps that code or a model makes are bounded by budgets instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from surehand.workflows.plan.plan import Plan, Step
from surehand.workflows.plan.references import INPUT, ReferenceUnresolved, resolve
from surehand.workflows.plan.validation import PlanProblem

#: Child runs inside one another.
MOST_LEVELS: Final = 5
#: Steps of a run and of all runs inside it; an item of a list is a step.
MOST_STEPS: Final = 100_000


def size_of(plan: Plan) -> int:
    """Return how many steps a plan has at the least: nobody knows yet how long its lists are."""
    inside = (step.plan for step in plan.steps if step.plan is not None and step.for_each is None)
    return len(plan.steps) + sum(map(size_of, inside))


def room_of_step(plan: Plan, room: int) -> int:
    """Return the room of each step of a plan that multiplies."""
    left = min(room, MOST_STEPS) - len(plan.steps)
    multiplying = sum(step.plan is not None or step.for_each is not None for step in plan.steps)
    return left // max(multiplying, 1)


def room_of_child(plan: Plan, room: int, items: int = 0) -> int:
    """Return the room of a child run that a step starts, or each of so many items of it."""
    share = room_of_step(plan, room)
    return share // items - 1 if items else share  # an item is a step, beside those of its run


def too_many_items(plan: Plan, room: int, step: Step, items: int) -> str | None:
    """Return why a list is too long for a plan's room, if it is."""
    share = room_of_child(plan, room, items) if step.plan else room_of_step(plan, room)
    needed = size_of(step.plan) if step.plan else items
    if items == 0 or needed <= share:
        return None
    each = f" plans of {needed} steps" if step.plan else ""
    return (
        f"a list of {items}{each} is too much: a run has {MOST_STEPS:,} steps with all runs inside"
        f" it, and of these this list has {room_of_step(plan, room):,}"
    )


def too_deep(level: int) -> str | None:
    """Return why a run may start no child run, if it may not; the run that people start is 0."""
    if max(level, 0) < MOST_LEVELS:
        return None
    return f"child runs are nested too deeply: at most {MOST_LEVELS} inside one another"


def overgrown(
    plan: Plan, room: int = MOST_STEPS, level: int = 0, inside: str = ""
) -> Iterator[PlanProblem]:
    """Yield what makes a plan too large, as far as that shows before it runs."""
    share = room_of_step(plan, room)
    for index, step in enumerate(plan.steps):
        where = f"{inside}steps.{index} ({step.id})"
        items = _items(plan, step)
        if step.plan is not None and (why := too_deep(level)) is not None:
            yield PlanProblem(f"{where}.plan", why)
        elif items and (why := too_many_items(plan, room, step, items)) is not None:
            yield PlanProblem(f"{where}.for_each", why)
        elif step.plan is not None:
            if step.for_each is None and size_of(step.plan) > share:
                why = f"a plan of {size_of(step.plan)} steps is too much here: at most {share:,}"
                yield PlanProblem(f"{where}.plan", why)
                continue
            inner = room_of_child(plan, room, items or int(step.for_each is not None))
            yield from overgrown(step.plan, inner, level + 1, f"{where}.plan.")


def _items(plan: Plan, step: Step) -> int:
    """Return how long a list is that the plan's own input has; 0: nobody knows yet."""
    if step.for_each is None:
        return 0
    try:
        items = resolve(step.for_each, {INPUT: plan.input})
    except ReferenceUnresolved:
        return 0
    return len(items) if isinstance(items, list) else 0
