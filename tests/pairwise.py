"""Pairwise coverage: few cases in which every two values meet that can meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Case = tuple[Any, ...]


def pairs_of(case: Case) -> Iterator[tuple[tuple[int, Any], ...]]:
    """Yield each two values of a case, with their places in it."""
    return itertools.combinations(enumerate(case), 2)


def pairwise(
    factors: Sequence[Sequence[Any]],
    possible: Callable[[Case], bool] = lambda case: True,
    covered_by: Iterable[Case] = (),
) -> list[Case]:
    """Return cases that cover all pairs; the same ones each time.

    Greedy: each next case is the one that covers most of what is left, the first of several.

    Args:
        factors: The values of each place of a case.
        possible: Says which cases there are.
        covered_by: Cases that are played elsewhere; their pairs need no other.
    """
    cases = [case for case in itertools.product(*factors) if possible(case)]
    left = {pair for case in cases for pair in pairs_of(case)}
    left.difference_update(pair for case in covered_by for pair in pairs_of(case))
    chosen: list[Case] = []
    while left:
        best = max(cases, key=lambda case: sum(pair in left for pair in pairs_of(case)))
        chosen.append(best)
        left.difference_update(pairs_of(best))
    return chosen
