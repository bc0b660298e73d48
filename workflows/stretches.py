"""Which steps make a stretch: they follow one another, and no human is between them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from workflows.book import OPEN, Book
from workflows.contracts import NextStep, StepState, Stretch, ToolCall, ToolSpec
from workflows.plan import Step
from workflows.references import references

#: Steps of one stretch: their outputs, of 8 KiB at most, have to fit into one message of 2 MiB.
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
) -> Stretch | None:
    """Return the stretch that begins with a call; ``None`` if nothing can follow it at once.

    Args:
        book: Where the run stands.
        tools: As recorded at the run's start.
        facts: ``input`` and the outputs of finished steps.
        call: The call of a step that is under way.
        most: Calls that the run's budget lets follow one another; ``None``: as many as come.
    """
    plan = book.request.plan
    if len(book.in_state(*OPEN)) > 1 or plan.interrupted(plan.step(call.step_id), "after"):
        return None
    ended = frozenset(view.id for view in book.in_state(*_ENDED))
    if plan.ready(ended, frozenset({call.step_id})):
        return None  # it is about to start beside this one
    done = ended | {call.step_id}
    made = {call.step_id}
    following: list[NextStep] = []
    taken: dict[str, Any] = {}
    size = 0
    longest = MOST_STEPS if most is None else min(most, MOST_STEPS)
    while len(following) < longest - 1:
        ready = plan.ready(done, frozenset())
        if len(ready) != 1 or not _unattended(book, tools, ready[0]):
            break
        step = ready[0]
        roots = {reference.split(".")[0] for _, reference in references(step.params)}
        more = {root: facts[root] for root in sorted(roots - made - taken.keys()) if root in facts}
        size += len(json.dumps(more))
        if size > MOST_FACTS:
            break
        taken |= more
        following.append(NextStep(id=step.id, tool=step.tool, params=step.params))
        done |= {step.id}
        made.add(step.id)
    if not following:
        return None
    named = {step.tool: tools[step.tool] for step in following}
    return Stretch(first=call, following=following, tools=named, facts=taken)


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
