"""Which steps make a stretch: they follow one another, and no human is between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from workflows.book import OPEN, Book
from workflows.contracts import NextStep, StepState, Stretch, ToolCall, ToolSpec
from workflows.plan import ITERATION, Step, item_id
from workflows.references import references, resolve

#: Steps of one stretch: the run hears of all of them at once, at its end.
MOST_STEPS: Final = 100
#: Bytes of what a stretch takes along of earlier outputs.
MOST_FACTS: Final = 256 * 1024

_ENDED: Final = frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED})


def stretch_of(
    book: Book,
    tools: Mapping[str, ToolSpec],
    facts: Mapping[str, Any],
    call: ToolCall,
    most: int | None,
    number: int,
    used: Mapping[str, int],
) -> Stretch | None:
    """Return the stretch that begins with a call; ``None`` if nothing can follow it at once.

    Args:
        book: Where the run stands.
        tools: As recorded at the run's start.
        facts: ``input`` and the outputs of finished steps.
        call: The call of a step that is under way.
        most: Calls that the run's budget lets follow one another; ``None``: as many as come.
        number: The stretch's own.
        used: Attempts that earlier calls of steps have used up.
    """
    if call.joined is not None:
        return None  # it waits for another run's human, whoever has to wait behind it
    plan = book.request.plan
    step = plan.step(call.step_id)
    list_ = step if ITERATION.search(call.step_id) else None
    begun = {call.step_id} if list_ is None else {call.step_id, list_.id}
    open_ = {view.id for view in book.in_state(*OPEN)}
    this = step if list_ is None else step.model_copy(update={"id": call.step_id})
    if open_ - begun or plan.interrupted(this, "after"):
        return None
    if plan.ready(_ended(book), frozenset(begun)):
        return None  # it is about to start beside this one
    follows = _steps(book, call.step_id) if list_ is None else _items(book, list_, facts)
    made = {call.step_id}
    following: list[NextStep] = []
    taken: dict[str, Any] = {}
    size = 0
    longest = MOST_STEPS if most is None else min(most, MOST_STEPS)
    for next_, own in islice(follows, longest - 1):
        if not _unattended(book, tools, next_):
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
                attempts_before=used.get(next_.id, 0),
            )
        )
        made.add(next_.id)
    if not following:
        return None
    named = {step.tool: tools[step.tool] for step in following}
    return Stretch(number=number, first=call, following=following, tools=named, facts=taken)


def _ended(book: Book) -> frozenset[str]:
    steps = book.request.plan.steps
    return frozenset(step.id for step in steps if book.steps[step.id].state in _ENDED)


#: A step that follows, and the facts that only it is told.
_Next = tuple[Step, dict[str, Any]]


def _steps(book: Book, first: str) -> Iterator[_Next]:
    """Yield the steps of a plan that follow one another."""
    plan, done = book.request.plan, _ended(book) | {first}
    while len(ready := plan.ready(done, frozenset())) == 1:
        yield ready[0], {}
        done |= {ready[0].id}


def _items(book: Book, step: Step, facts: Mapping[str, Any]) -> Iterator[_Next]:
    """Yield the items of a list that are still to come, where one follows another."""
    if step.parallel > 1 or step.for_each is None:
        return
    items = book.at(step.id).items
    for number, item in enumerate(resolve(step.for_each, facts) if items is None else items):
        if book.steps[item_id(step.id, number)].state is StepState.PENDING:
            yield step.of_item(number), {step.item: item}


def _unattended(book: Book, tools: Mapping[str, ToolSpec], step: Step) -> bool:
    """Return whether a step only calls a tool, and no policy or interrupt asks for a human."""
    plan = book.request.plan
    if step.when is not None or step.for_each is not None or step.time_limit is not None:
        return False
    if step.id in book.stale:  # its attempts are counted on
        return False
    if not step.tool or plan.approvals(step) or tools[step.tool].approval is not None:
        return False
    return not (plan.interrupted(step, "before") or plan.interrupted(step, "after"))
