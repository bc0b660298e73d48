"""Which steps make a batch: they follow one another, and no human is between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from surehand.workflows.contracts.batches import Batch, NextStep
from surehand.workflows.contracts.states import ENDED_STEPS, StepState
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.plan.plan import ITERATION, Step, item_id
from surehand.workflows.plan.references import references, resolve
from surehand.workflows.state.run_state import OPEN, RunData

#: Steps of one batch: the run hears of all of them at once, at its end.
MOST_STEPS: Final = 100
#: Bytes of what a batch takes along of earlier outputs.
MOST_FACTS: Final = 256 * 1024


def batch_of(data: RunData, call: ToolCall, most: int | None, number: int) -> Batch | None:
    """Return the batch that begins with a call; ``None`` if nothing can follow it at once.

    Args:
        data: Where the run stands.
        call: The call of a step that is under way.
        most: Calls that the run's budget lets follow one another; ``None``: as many as come.
        number: The batch's own.
    """
    if call.joined is not None:
        return None  # it waits for another run's human, whoever has to wait behind it
    plan, facts = data.request.plan, data.facts
    step = plan.step(call.step_id)
    list_ = step if ITERATION.search(call.step_id) else None
    begun = {call.step_id} if list_ is None else {call.step_id, list_.id}
    open_ = {view.id for view in data.in_state(*OPEN)}
    this = step if list_ is None else step.model_copy(update={"id": call.step_id})
    if open_ - begun or plan.interrupted(this, "after"):
        return None
    if plan.ready(_ended(data), frozenset(begun)):
        return None  # it is about to start beside this one
    follows = _steps(data, call.step_id) if list_ is None else _items(data, list_)
    made = {call.step_id}
    following: list[NextStep] = []
    taken: dict[str, Any] = {}
    size = 0
    longest = MOST_STEPS if most is None else min(most, MOST_STEPS)
    for next_, own in islice(follows, longest - 1):
        if not _unattended(data, next_):
            break
        roots = {reference.split(".")[0] for _, reference in references(next_.params)}
        earlier = sorted(roots - made - taken.keys() - own.keys())
        more = {root: facts[root] for root in earlier if root in facts}
        size += len(json.dumps([more, own]))
        if size > MOST_FACTS:
            break
        taken |= more
        following.append(
            NextStep(
                id=next_.id,
                tool=next_.tool,
                params=next_.params,
                own=own,
                attempts_before=data.of_step(next_.id).attempts_used,
            )
        )
        made.add(next_.id)
    if not following:
        return None
    named = {step.tool: data.tools[step.tool] for step in following}
    return Batch(number=number, first=call, following=following, tools=named, facts=taken)


def _ended(data: RunData) -> frozenset[str]:
    steps = data.request.plan.steps
    return frozenset(step.id for step in steps if data.steps[step.id].state in ENDED_STEPS)


#: A step that follows, and the facts that only it is told.
_Next = tuple[Step, dict[str, Any]]


def _steps(data: RunData, first: str) -> Iterator[_Next]:
    """Yield the steps of a plan that follow one another."""
    plan, done = data.request.plan, _ended(data) | {first}
    while len(ready := plan.ready(done, frozenset())) == 1:
        yield ready[0], {}
        done |= {ready[0].id}


def _items(data: RunData, step: Step) -> Iterator[_Next]:
    """Yield the items of a list that are still to come, where one follows another."""
    if step.parallel > 1 or step.for_each is None:
        return
    items = data.progress_of(step.id).items
    for number, item in enumerate(resolve(step.for_each, data.facts) if items is None else items):
        if data.steps[item_id(step.id, number)].state is StepState.PENDING:
            yield step.of_item(number), {step.item: item}


def _unattended(data: RunData, step: Step) -> bool:
    """Return whether a step only calls a tool, and no policy or interrupt asks for a human."""
    plan = data.request.plan
    if step.when is not None or step.for_each is not None or step.time_limit is not None:
        return False
    if step.id in data.stale or step.id in data.held:  # its attempts are counted on, or it waits
        return False
    if data.of_step(step.id).renewed:  # somebody has to look at it, whatever its policies say
        return False
    if not step.tool or plan.approvals(step) or data.tools[step.tool].approval is not None:
        return False
    return not (plan.interrupted(step, "before") or plan.interrupted(step, "after"))
