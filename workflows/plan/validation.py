"""Whether a plan's steps hold together: ids, references, cycles and gotos, all found in one go.

It works on outlines, which a plan that is wrong in other ways has, too: whoever wrote it is told
everything at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from surehand.workflows.plan.references import INPUT, PATH, RUN, references, unclosed


@dataclass(frozen=True)
class PlanProblem:
    """One thing that does not fit; ``where`` is its path inside the plan."""

    where: str
    reason: str


class Incoherent(ValueError):
    """A plan does not hold together."""

    def __init__(self, problems: Sequence[PlanProblem]) -> None:
        super().__init__("; ".join(f"{p.where}: {p.reason}" for p in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Outline:
    """A step, as far as its place in the plan goes."""

    id: str
    after: tuple[str, ...] | None = None
    params: Any = None
    texts_of: Mapping[str, Any] = field(default_factory=dict)
    """What else may refer to earlier steps, by its path inside the step."""
    names: frozenset[str] = frozenset()
    """What references mean in this step alone: the item of a list."""
    conditions: frozenset[str] = frozenset()
    """The names in its ``when``."""
    gotos: Mapping[str, str] = field(default_factory=dict)
    """Where to go on, by ``on_no``, ``on_failure`` and ``on_reject``, the plan's defaults too."""

    def texts(self) -> Iterator[tuple[str, Any]]:
        """Yield what may refer to earlier steps, each with its path inside the step."""
        yield "params", self.params
        yield from self.texts_of.items()


def incoherences(steps: Sequence[Outline]) -> list[PlanProblem]:
    """Return everything in which the steps do not fit together."""
    ids = {step.id for step in steps}
    problems: list[PlanProblem] = []
    first: dict[str, Outline] = {}
    for index, step in enumerate(steps):
        where = f"steps.{index} ({step.id})"
        if step.id in (INPUT, RUN):
            problems.append(PlanProblem(where, f"a step cannot be called {step.id!r}"))
        if "." in step.id:
            problems.append(PlanProblem(f"{where}.id", "1 to 64 letters, digits, '_' or '-'"))
        if step.id in first:
            problems.append(PlanProblem(where, f"the id {step.id!r} is used by an earlier step"))
        first.setdefault(step.id, step)
        problems += _nowhere(step, where, ids)
    # Of two steps with one id the first one counts: what else there is shall not be hidden.
    return problems + _out_of_order(list(first.values()), steps)


def _nowhere(step: Outline, where: str, ids: set[str]) -> Iterator[PlanProblem]:
    """Yield what points at something that is not there."""
    for other in step.after or ():
        if other not in ids:
            yield PlanProblem(f"{where}.after", f"there is no step {other!r}")
    for part, value in step.texts():
        for path, reference in references(value, f"{where}.{part}"):
            root = reference.split(".")[0]
            if root in step.names and part != "for_each":
                continue
            if not PATH.fullmatch(reference) or (root != INPUT and root not in ids):
                yield PlanProblem(path, f"unknown reference ${{{reference}}}")
        for path in unclosed(value, f"{where}.{part}"):
            yield PlanProblem(
                path, "a `${` is not closed by a `}`: write ${step.path}, or $${ for a literal ${"
            )
    for name in sorted(step.conditions - ids - {INPUT, RUN}):
        yield PlanProblem(f"{where}.when", f"there is no step {name!r}")
    for name, target in step.gotos.items():
        if target not in ids:
            yield PlanProblem(f"{where}.{name}.goto", f"there is no step {target!r}")
        elif step.texts_of.get("for_each") is not None:
            reason = "an item of a `for_each` cannot `goto`: say here what follows otherwise"
            yield PlanProblem(f"{where}.{name}", reason)


def _out_of_order(distinct: Sequence[Outline], steps: Sequence[Outline]) -> list[PlanProblem]:
    dependencies = waits_for(distinct)
    cycles = list(_cycles(dependencies))
    if cycles:
        # What comes after what, for a goto, can only be told without them.
        return [_cycle_problem(cycle, distinct) for cycle in cycles]
    targets = {target for step in steps for target in step.gotos.values()} & dependencies.keys()
    before = {target: ancestors(dependencies, target) for target in targets}
    return [
        PlanProblem(
            f"steps.{index} ({step.id}).{name}.goto", f"{target!r} does not come after this step"
        )
        for index, step in enumerate(steps)
        for name, target in step.gotos.items()
        if target in before and step.id not in before[target]
    ]


def waits_for(steps: Sequence[Outline]) -> dict[str, frozenset[str]]:
    """Return, for each step, the steps it waits for: ``after`` and what its params refer to."""
    result: dict[str, frozenset[str]] = {}
    previous: tuple[str, ...] = ()
    for step in steps:
        after = previous if step.after is None else step.after
        named = (found for _, value in step.texts() for _, found in references(value))
        roots = {reference.split(".")[0] for reference in named}
        named_here = (roots - step.names) | step.conditions
        result[step.id] = frozenset(after) | named_here - {INPUT, RUN}
        previous = (step.id,)
    return result


def uses(steps: Sequence[Outline]) -> dict[str, frozenset[str]]:
    """Return, for each step, the steps whose outputs it refers to."""
    return waits_for([replace(step, after=()) for step in steps])


def ancestors(dependencies: Mapping[str, frozenset[str]], *steps: str) -> frozenset[str]:
    """Return every step that comes before one of these, directly or not."""
    seen: set[str] = set()
    waiting = [before for step_id in steps for before in dependencies[step_id]]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(dependencies.get(current, ()))
    return frozenset(seen)


def descendants(dependencies: Mapping[str, frozenset[str]], *steps: str) -> frozenset[str]:
    """Return every step that comes after one of these, directly or not."""
    followers: dict[str, set[str]] = {one: set() for one in dependencies}
    for one, needed in dependencies.items():
        for other in needed:
            followers[other].add(one)
    return ancestors({one: frozenset(found) for one, found in followers.items()}, *steps)


def _cycles(dependencies: Mapping[str, frozenset[str]]) -> Iterator[list[str]]:
    """Yield cycles as ``[a, b, a]``; each step that waits for itself is in one of them."""
    try:
        # Looking behind each step takes the square of the steps; mostly there is no cycle.
        TopologicalSorter(dependencies).prepare()
        return
    except CycleError:
        pass
    told: set[str] = set()
    for step_id in dependencies:
        if step_id not in told and step_id in ancestors(dependencies, step_id):
            cycle = _way_back(step_id, dependencies)
            told.update(cycle)
            yield cycle


def _way_back(step_id: str, dependencies: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the shortest way from a step back to itself, which there is."""
    ways = deque([[step_id]])
    seen: set[str] = set()
    while True:
        way = ways.popleft()
        for other in sorted(dependencies.get(way[-1], ())):
            if other == step_id:
                return [*way, other]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])


def _cycle_problem(cycle: list[str], steps: Sequence[Outline]) -> PlanProblem:
    reason = f"the step waits for itself: {' -> '.join(cycle)} (`->`: waits for)"
    by_id = {step.id: (before, step) for before, step in zip([None, *steps], steps, strict=False)}
    for waiting, other in pairwise(cycle):
        before, step = by_id[waiting]
        if step.after is None and before is not None and before.id == other:
            reason += f"; {waiting} has no `after`, so it waits for the step before it"
            break
    return PlanProblem(f"steps ({cycle[0]})", reason)
