"""The steps of a run as people see them; which are in a state is known without a look at all."""

from __future__ import annotations

from collections import UserDict, defaultdict
from collections.abc import Iterable, Mapping
from itertools import count

from workflows.contracts import StepState, StepView


class StepViews(UserDict[str, StepView]):
    """Views of steps by id.

    A run of thousands of steps shows where it stands at each of them: what that takes must not grow
    with the steps that are done.
    """

    def __init__(self, views: Mapping[str, StepView] | None = None) -> None:
        self._in: defaultdict[StepState, set[str]] = defaultdict(set)
        self._places: dict[str, int] = {}
        self._count = count()
        super().__init__(views)

    def __setitem__(self, step_id: str, view: StepView) -> None:
        """Take a step's view."""
        before = self.data.get(step_id)
        if before is None:
            self._places[step_id] = next(self._count)
        else:
            self._in[before.state].discard(step_id)
        self._in[view.state].add(step_id)
        self.data[step_id] = view

    def __delitem__(self, step_id: str) -> None:
        """Forget a step."""
        self._in[self.data.pop(step_id).state].discard(step_id)

    @property
    def states(self) -> set[StepState]:
        """The states in which there is a step."""
        return {state for state, ids in self._in.items() if ids}

    def in_state(self, states: Iterable[StepState]) -> list[StepView]:
        """Return the steps in one of these states, in their order."""
        found = [step_id for state in states for step_id in self._in[state]]
        return [self.data[step_id] for step_id in sorted(found, key=self._places.__getitem__)]
