"""References between steps: ``${order.lines.0.sku}``; and whether the steps of a plan fit together.

A reference names a step (or ``input``), then a path of fields and list positions. ``$${`` stands
for a literal ``${``. Plans are checked as outlines, which a plan that is wrong in other ways has,
too: its author is told everything at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

#: Nothing in it is tried twice (``+`` after a quantifier): whoever writes a plan writes what it is
#: matched with, and blanks without an end would take hours.
REFERENCE: Final = re.compile(r"\$\{\s*+((?:[^{}\s]++(?:\s++(?=[^{}\s]))?+)*+)\s*+\}")
#: What stands between the braces of a reference that can lead somewhere.
PATH: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

#: The name under which references reach the run's input.
INPUT: Final = "input"
#: In conditions and rules: what the ledger knows of the run itself.
RUN: Final = "run"

_LITERAL: Final = "$${"

#: A position in a list.
_PLACE: Final = re.compile(r"[0-9]{1,9}")
#: Characters of a text that references are written into: each can stand there a thousand times.
LARGEST_TEXT: Final = 8 * 1024 * 1024


class ReferenceUnresolved(ValueError):
    """A reference points at something that the earlier step did not return."""


def resolve(value: Any, facts: Mapping[str, Any]) -> Any:
    """Return ``value`` with its references replaced by what earlier steps returned.

    A string that is one reference takes the referenced value with its type; inside a longer string
    the value is written as text. ``$${`` stands for a literal ``${``. ``ReferenceUnresolved``: a
    field is missing, or a text becomes too large.
    """
    return _map_texts(
        value, lambda text: resolve_text(text, lambda reference: look_up(reference, facts))
    )


def fill_input_in(params: Any, given: Mapping[str, Any]) -> Any:
    """Return params with what the run's input says in the place of references to it alone.

    A reference to what it does not say, or not yet (null), stays.
    """

    def filled(text: str) -> Any:
        whole = REFERENCE.fullmatch(text)
        if whole is None or not whole[1].startswith(f"{INPUT}."):
            return text
        try:
            found = look_up(whole[1], {INPUT: given})
        except ReferenceUnresolved:
            return text
        return text if found is None else found

    return _map_texts(params, filled)


def literal(value: Any) -> Any:
    """Return what ``resolve`` takes for this very value, whatever stands in its texts."""
    return _map_texts(value, lambda text: text.replace("${", _LITERAL))


def _map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return value


def resolve_text(text: str, value_of: Callable[[str], Any]) -> Any:
    """Return one text with its references replaced; see ``resolve``."""
    whole = REFERENCE.fullmatch(text)
    if whole:
        return value_of(whole[1])
    left, texts = LARGEST_TEXT, dict[str, str]()

    def written(match: re.Match[str]) -> str:
        nonlocal left
        reference = match[1]
        if reference not in texts:
            value = value_of(reference)
            texts[reference] = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            )
        left -= len(texts[reference])
        if left < 0:
            raise ReferenceUnresolved(f"${{{reference}}}: a text becomes too large with it")
        return texts[reference]

    return "${".join(REFERENCE.sub(written, part) for part in text.split(_LITERAL))


def look_up(reference: str, facts: Mapping[str, Any]) -> Any:
    """Return what a reference stands for; ``ReferenceUnresolved`` if a field is missing."""
    current: Any = facts
    for part in reference.split("."):
        if isinstance(current, Mapping) and part in current:
            current = current[part]
        elif isinstance(current, list) and _PLACE.fullmatch(part) and int(part) < len(current):
            current = current[int(part)]
        else:
            root, *path = reference.split(".")
            mistaken = root != INPUT and part == "output" and path[0] == part
            hint = f"; write ${{{root}}} or ${{{root}.FIELD}}" if mistaken else ""
            raise ReferenceUnresolved(f"${{{reference}}}: there is no {part!r}{hint}")
    return current


def value_at(plain: Any, path: str) -> Any:
    """Return what lies at a path of params, such as ``customer.id``; ``None``: nothing."""
    for name in path.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def references(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(path, reference)`` for each reference inside a JSON value."""
    for where, text in _walk_texts(value, path):
        for part in text.split(_LITERAL):
            yield from ((where, match[1]) for match in REFERENCE.finditer(part))


def unclosed(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each text in which a ``${`` begins no reference."""
    for where, text in _walk_texts(value, path):
        if any("${" in REFERENCE.sub("", part) for part in text.split(_LITERAL)):
            yield where


def _walk_texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk_texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk_texts(item, f"{path}.{index}")


class PlanError(BaseModel):
    """One thing wrong with a plan: where, and why."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    where: str
    reason: str


def in_words(problems: Iterable[PlanError]) -> str:
    return "; ".join(f"{problem.where}: {problem.reason}" for problem in problems)


class Incoherent(ValueError):
    """A plan does not hold together."""

    def __init__(self, problems: Sequence[PlanError]) -> None:
        super().__init__(in_words(problems))
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


def incoherences(steps: Sequence[Outline]) -> list[PlanError]:
    ids = {step.id for step in steps}
    problems: list[PlanError] = []
    first: dict[str, Outline] = {}
    for index, step in enumerate(steps):
        where = f"steps.{index} ({step.id})"
        if step.id in (INPUT, RUN):
            problems.append(PlanError(where=where, reason=f"a step cannot be called {step.id!r}"))
        if "." in step.id:
            problems.append(
                PlanError(where=f"{where}.id", reason="1 to 64 letters, digits, '_' or '-'")
            )
        if step.id in first:
            problems.append(
                PlanError(where=where, reason=f"the id {step.id!r} is used by an earlier step")
            )
        first.setdefault(step.id, step)
        problems += _find_dangling(step, where, ids)
    # Of two steps with one id the first one counts: what else there is shall not be hidden.
    return problems + _out_of_order(list(first.values()), steps)


def _find_dangling(step: Outline, where: str, ids: set[str]) -> Iterator[PlanError]:
    for other in step.after or ():
        if other not in ids:
            yield PlanError(where=f"{where}.after", reason=f"there is no step {other!r}")
    for part, value in step.texts():
        for path, reference in references(value, f"{where}.{part}"):
            root = reference.split(".")[0]
            if root in step.names and part != "for_each":
                continue
            if not PATH.fullmatch(reference) or (root != INPUT and root not in ids):
                hint = _right_form(reference, {INPUT, *ids})
                yield PlanError(where=path, reason=f"unknown reference ${{{reference}}}{hint}")
        for path in unclosed(value, f"{where}.{part}"):
            why = "a `${` is not closed by a `}`: write ${step.path}, or $${ for a literal ${"
            yield PlanError(where=path, reason=why)
    for name in sorted(step.conditions - ids - {INPUT, RUN}):
        yield PlanError(where=f"{where}.when", reason=f"there is no step {name!r}")
    for name, target in step.gotos.items():
        if target not in ids:
            yield PlanError(where=f"{where}.{name}.goto", reason=f"there is no step {target!r}")
        elif step.texts_of.get("for_each") is not None:
            reason = "an item of a `for_each` cannot `goto`: say here what follows otherwise"
            yield PlanError(where=f"{where}.{name}", reason=reason)


def _right_form(reference: str, names: set[str]) -> str:
    """Return how a reference is written that is meant as other tools write it."""
    found = re.fullmatch(r"steps\.([^.]+)(?:\.outputs?)?(\..+)?", reference)
    if found is None or found[1] not in names:
        return ""
    return f"; write ${{{found[1]}{found[2] or ''}}}"


def _out_of_order(distinct: Sequence[Outline], steps: Sequence[Outline]) -> list[PlanError]:
    dependencies = waits_for(distinct)
    cycles = list(_find_cycles(dependencies))
    if cycles:
        # What comes after what, for a goto, can only be told without them.
        return [_cycle_problem(cycle, distinct) for cycle in cycles]
    targets = {target for step in steps for target in step.gotos.values()} & dependencies.keys()
    before = {target: ancestors(dependencies, target) for target in targets}
    return [
        PlanError(
            where=f"steps.{index} ({step.id}).{name}.goto",
            reason=f"{target!r} does not come after this step",
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


def _find_cycles(dependencies: Mapping[str, frozenset[str]]) -> Iterator[list[str]]:
    """Yield cycles that share no step, as ``[a, b, a]``, from the step that is listed first on."""
    places = {step_id: place for place, step_id in enumerate(dependencies)}
    left = {step_id: sorted(needed) for step_id, needed in dependencies.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
            return
        except CycleError as error:
            cycle = error.args[1][:0:-1]  # of steps that wait for the next one
        first = cycle.index(min(cycle, key=places.__getitem__))
        yield [*cycle[first:], *cycle[: first + 1]]
        left = {step_id: needed for step_id, needed in left.items() if step_id not in cycle}


def _cycle_problem(cycle: list[str], steps: Sequence[Outline]) -> PlanError:
    reason = f"the step waits for itself: {' -> '.join(cycle)} (`->`: waits for)"
    by_id = {step.id: (before, step) for before, step in zip([None, *steps], steps, strict=False)}
    for waiting, other in pairwise(cycle):
        before, step = by_id[waiting]
        if step.after is None and before is not None and before.id == other:
            reason += f"; {waiting} has no `after`, so it waits for the step before it"
            break
    return PlanError(where=f"steps ({cycle[0]})", reason=reason)
