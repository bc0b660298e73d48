"""A pairwise sample of what operators do to runs: step x operation x durability.

Runs with child runs and lists, and one whose read says something else when it is asked again.
``make drill-full`` plays all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from surehand.cli.printer import Printer
from surehand.client.plan_file import load_plan
from surehand.drill.environment import prepared
from surehand.drill.report import DrillCell, DrillTarget, Operation
from surehand.drill.request import DrillRequest
from surehand.drill.suite import DrillProgress, Suite
from surehand.drill.world import Function
from surehand.process.settings import client_settings
from surehand.workflows.plan.durability import Durability
from tests.cli.starter import ROOT
from tests.pairwise import Case, pairwise
from tests.shop_process import ShopProcess

pytestmark = pytest.mark.crash

SHOP: Final = ("surehand.examples.shop.tools", "surehand.examples.shop.drill")
NEWEST: Final = ("tests.variants.newest", "tests.variants.newest")
#: Of two calls that go out at once, the one that is claimed first is committed last.
SLOW: Final = {"delay_after_s": 1.5}
#: Each plan, with its tools and the module of its world.
PLANS: Final = {
    "examples/refund_fails.yaml": SHOP,
    "tests/variants/newest.yaml": NEWEST,
    "tests/variants/parent.yaml": SHOP,
    "tests/variants/parent_fails.yaml": ("tests.variants.refund_ungated", SHOP[1]),
}


@dataclass(frozen=True)
class Place:
    """A step that something is done at."""

    plan: str
    step: str
    operations: tuple[Operation, ...] = tuple(Operation)
    modes: tuple[Durability, ...] = tuple(Durability)


SYNC, ASYNC, EXIT = Durability
WAITING: Final = tuple(one for one in Operation if one.crash_point is None)
PLACES: Final = (
    Place("examples/refund_fails.yaml", "refund"),
    Place("tests/variants/newest.yaml", "newest", (Operation.RESET_STEP,), (SYNC, EXIT)),
    Place("tests/variants/parent.yaml", "mail[0]"),
    Place("tests/variants/parent.yaml", "pay", WAITING),
    Place("tests/variants/parent_fails.yaml", "pay", (Operation.TERMINATE,), (ASYNC,)),
)


def possible(case: Case) -> bool:
    place, operation, mode = case
    return operation in place.operations and mode in place.modes


def sample() -> dict[str, set[tuple[str, str, str]]]:
    """Return the cells of each plan: step, operation and mode."""
    cases = pairwise((PLACES, list(Operation), list(Durability)), possible)
    by_plan = groupby(sorted(cases, key=lambda case: case[0].plan), lambda case: case[0].plan)
    return {
        plan: {(place.step, operation.value, mode.value) for place, operation, mode in these}
        for plan, these in by_plan
    }


CELLS: Final = sample()


class Sample(Suite):
    """A drill of some of the cells."""

    chosen: set[tuple[str, str, str]]

    def wanted(self, targets: list[DrillTarget]) -> Iterator[DrillCell]:
        """Yield the cells that are chosen."""
        for cell in super().wanted(targets):
            if (cell.step, cell.point, cell.mode) in self.chosen:
                yield cell


def test_the_sample_has_every_plan_operation_and_mode() -> None:
    assert CELLS.keys() == PLANS.keys()
    places = [place for cells in CELLS.values() for place in cells]
    assert {operation for _, operation, _ in places} == set(Operation)
    assert {mode for _, _, mode in places} == set(Durability)


@pytest.mark.parametrize("plan", PLANS)
async def test_runs_that_operators_reset_stop_and_deploy_under_leave_the_world_they_should(
    plan: str,
    settings: dict[str, str],
    shop: ShopProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    tools, world = PLANS[plan]
    if plan.endswith("parent_fails.yaml"):
        shop.fault("refunds", **SLOW)
    monkeypatch.setenv("SHOP_URL", settings["SHOP_URL"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    variables = {**os.environ, **settings, "SUREHAND_TOOL_MODULES": tools}
    request = DrillRequest.checked(
        load_plan(str(ROOT / plan)),
        plan,
        points=[one.value for one in Operation],
        modes=[one.value for one in Durability],
        steps=(),
        world=Function.load("world", f"{world}:world"),
        fresh=Function.load("fresh", f"{world}:fresh"),
        parallel=2,
        limit=timedelta(minutes=2),
    )
    with prepared(variables, database=None, say=print) as environment:
        progress = DrillProgress(Printer(json_output=False))
        suite = Sample(request, environment, client_settings(variables), variables, progress)
        suite.chosen = CELLS[plan]
        report = await suite.run()

    assert {(cell.step, cell.point, cell.mode) for cell in report.cells} == CELLS[plan]
    assert report.ok, str(report)
