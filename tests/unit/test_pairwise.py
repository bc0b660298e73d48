"""The cases of a pairwise sample hold every pair there is."""

from __future__ import annotations

import itertools

from tests.pairwise import Case, pairs_of, pairwise

FACTORS = [("a", "b", "c"), (1, 2, 3, 4), (True, False), ("x", "y")]


def possible(case: Case) -> bool:
    return case[:2] != ("c", 4)


def test_every_two_values_that_can_meet_meet_in_a_case_that_can_be() -> None:
    cases = pairwise(FACTORS, possible)

    every = [case for case in itertools.product(*FACTORS) if possible(case)]
    assert set(cases) <= set(every)
    met = {pair for case in cases for pair in pairs_of(case)}
    assert met == {pair for case in every for pair in pairs_of(case)}
    assert len(cases) < len(every) / 3
    assert cases == pairwise(FACTORS, possible)


def test_pairs_that_are_covered_elsewhere_get_no_case() -> None:
    elsewhere = list(itertools.product(FACTORS[0], FACTORS[1], (True,), ("x",)))

    cases = pairwise(FACTORS, covered_by=elsewhere)

    met = {pair for case in [*elsewhere, *cases] for pair in pairs_of(case)}
    assert met == {pair for case in itertools.product(*FACTORS) for pair in pairs_of(case)}
    # Only (True, "x") is there: each of the four numbers needs False and "y", and then there are
    # (False, "x") and (True, "y").
    assert len(cases) <= 6
    assert pairwise(FACTORS, covered_by=itertools.product(*FACTORS)) == []
