"""A played plan waits where its run is interrupted; a pairwise sample of what operators do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.environment import prepare_drill
from surehand.drill.people import make_answer
from surehand.drill.report import (
    DrillCell,
    DrillTarget,
    ForcedWait,
    Operation,
    Point,
)
from surehand.drill.request import EXPIRES_IN, HELD, Disturbance, DrillRequest, change_plan
from surehand.drill.suite import Suite
from surehand.process.dev_server import free_ports
from surehand.process.exits import SurehandError
from surehand.process.settings import client_settings
from surehand.workflows.contracts.steering import Interrupt, InterruptKind
from surehand.workflows.contracts.tools import Effect, Recovery
from surehand.workflows.plan.plan import Durability, Plan
from surehand.workflows.plan.policy import combine
from tests.cli.starter import ROOT
from tests.pairwise import Case, pairwise
from tests.shop_process import ShopProcess

PAY = DrillTarget(step="pay", tool="bank.pay", effect=Effect.WRITE)
WAIVED = {"roles": ["finance"], "rules": [{"when": "amount < 5", "required": False}]}


def plan(**of_step: Any) -> Plan:
    steps = [{"id": "look", "tool": "bank.look"}, {"id": "pay", "tool": "bank.pay", **of_step}]
    return Plan.model_validate({"defaults": {"interrupt": "after"}, "steps": steps})


def played(point: Point, **of_step: Any) -> Plan:
    given = plan(**of_step)
    found = change_plan(given, Disturbance(PAY, point))
    assert found.steps[0] == given.steps[0]
    return Plan.model_validate(found.model_dump(mode="json"))


@pytest.mark.parametrize("point", CrashPoint)
def test_a_kill_changes_nothing(point: CrashPoint) -> None:
    assert change_plan(plan(), Disturbance(PAY, point)) == plan() == change_plan(plan(), None)


@pytest.mark.parametrize("point", [ForcedWait.PAUSE, ForcedWait.ASK])
def test_a_human_looks_before_the_step_and_where_they_looked_anyway(point: ForcedWait) -> None:
    found = played(point)

    assert found.interrupted(found.step("pay"), "before")
    assert found.interrupted(found.step("pay"), "after")


@pytest.mark.parametrize("behind", [(), ("look",), ("look", "pay")])
def test_a_run_waits_behind_what_an_operator_waits_for(behind: tuple[str, ...]) -> None:
    found = change_plan(plan(), Disturbance(PAY, Operation.TERMINATE, behind=behind))

    last = (behind or ("pay",))[-1]
    ids = [step.id for step in found.steps]
    assert ids.index(HELD) == ids.index(last) + 1
    assert Plan.model_validate(found.model_dump()).dependencies[HELD] >= {last}
    assert tuple(step for step in found.steps if step.id != HELD) == plan().steps


@pytest.mark.parametrize("point", [one for one in Operation if one.crash_point is not None])
def test_a_worker_dying_under_an_operator_is_killed_in_the_users_plan(point: Operation) -> None:
    disturbance = Disturbance(PAY, point)

    assert change_plan(plan(), disturbance) == plan()
    assert disturbance.crash_at == f"bank.pay:{point.crash_point}@pay"


@pytest.mark.parametrize("point", ["approval", "permission_loss", "expiry"])
@pytest.mark.parametrize("approval", [None, True, WAIVED])
def test_a_drilled_call_always_asks_enough_people(point: str, approval: Any) -> None:
    found = played(ForcedWait(point), approval=approval)

    needs = combine(found.approvals(found.step("pay")), lambda expression: True)
    assert needs is not None
    assert not needs.standing
    assert needs.requirements[0].roles == (("finance",) if approval is WAIVED else ())
    if point == "expiry":
        assert (needs.on_expiry, needs.expires_in) == ("ask_again", EXPIRES_IN)


@pytest.mark.parametrize(
    ("kind", "schema", "answer"),
    [
        (InterruptKind.BEFORE, {"anyOf": [{"enum": ["accept", "reject"]}]}, "accept"),
        (InterruptKind.ASK, {}, "drill"),
        (InterruptKind.ASK, {"enum": ["A", "B"]}, "A"),
        (InterruptKind.TOOL, {"type": "string", "default": "sent twice"}, "sent twice"),
        (InterruptKind.TOOL, {"type": "integer"}, 1),
    ],
)
def test_what_the_users_plan_asks_is_answered_by_its_schema(
    kind: InterruptKind, schema: dict[str, Any], answer: Any
) -> None:
    assert make_answer(asked(kind, schema)) == answer


def test_a_question_whose_schema_leaves_open_what_fits_wants_a_default() -> None:
    with pytest.raises(SurehandError, match=r"pay\.1 asks 'Which\?'.*`default`"):
        make_answer(asked(InterruptKind.ASK, {"type": "string", "pattern": "^DE[0-9]{20}$"}))


def asked(kind: InterruptKind, schema: dict[str, Any]) -> Interrupt:
    return Interrupt(
        interrupt_id="pay.1", step_id="pay", kind=kind, question="Which?", answer_schema=schema
    )


@pytest.mark.parametrize(
    ("promise", "point", "may"),
    [
        ({"recovery": "human"}, CrashPoint.BEFORE_CLAIM, False),
        ({"recovery": "human"}, CrashPoint.AFTER_CLAIM, True),
        ({"recovery": "human"}, CrashPoint.AFTER_CALL, True),
        ({"recovery": "human"}, CrashPoint.AFTER_OUTCOME, False),
        ({"recovery": "human"}, Operation.DEPLOY, True),
        ({"recovery": "human"}, Operation.RESET, False),
        ({"recovery": "dedupes"}, CrashPoint.AFTER_CALL, False),
        # Its repeat is refused as well, and does not say what the first call has done.
        ({"recovery": "dedupes", "succeeded": False}, CrashPoint.AFTER_CALL, True),
        ({"recovery": "lookup", "succeeded": False}, CrashPoint.AFTER_CALL, False),
        ({"recovery": "lookup"}, CrashPoint.AFTER_CLAIM, False),
        ({"recovery": "lookup", "absence_provable": False}, CrashPoint.AFTER_CLAIM, True),
        ({"recovery": "lookup", "absence_provable": False}, CrashPoint.AFTER_CALL, False),
    ],
)
def test_a_human_may_be_asked_if_the_tool_says_so_and_the_call_is_in_doubt(
    promise: dict[str, Any], point: Point, may: bool
) -> None:
    target = DrillTarget(step="pay", tool="bank.pay", effect=Effect.WRITE, **promise)

    assert Disturbance(target, point).may_need_human is may


@pytest.mark.parametrize("point", [CrashPoint.AFTER_OUTCOME, Operation.RESET_KILLED])
def test_recorded_together_the_next_call_is_in_doubt(point: Point) -> None:
    refused = {"step": "close", "recovery": Recovery.DEDUPES, "succeeded": False}
    close = PAY.model_copy(update=refused)

    def in_doubt(mode: Durability, point: Point, following: DrillTarget | None) -> tuple[str, bool]:
        found = Disturbance(PAY, point, mode, following=following).in_doubt
        return found.target.step, found.may_need_human

    assert in_doubt(Durability.EXIT, point, close) == ("close", True)
    assert in_doubt(Durability.SYNC, point, close) == ("pay", False)
    assert in_doubt(Durability.EXIT, CrashPoint.DURING_CALL, close) == ("pay", False)
    assert in_doubt(Durability.EXIT, point, None) == ("pay", False)
    # Its claim is not made with another call's outcome.
    alone = close.model_copy(update={"absence_provable": False})
    assert in_doubt(Durability.EXIT, point, alone) == ("pay", False)


def by_code(point: Point, behind: tuple[str, ...] = ()) -> Plan:
    """The plan of an agent whose first call is disturbed."""
    target = DrillTarget(step="turn-1.1", tool="bank.pay", effect=Effect.WRITE)
    given = Plan.model_validate({"agent": "bank:clerk", "goal": "Pay"})
    found = change_plan(given, Disturbance(target, point, behind=behind, by_code=True))
    return Plan.model_validate(found.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("point", "behind", "before", "after"),
    [
        (ForcedWait.PAUSE, (), ("turn-1.1",), ()),
        (ForcedWait.ASK, (), ("turn-1.1",), ()),
        (Operation.TERMINATE, (), (), ("turn-1.1",)),
        (Operation.RESET_STEP, ("turn-1", "turn-1.1", "turn-2"), (), ("turn-2",)),
        (Operation.FREEZE, (), (), ()),
    ],
)
def test_a_run_whose_steps_an_agent_makes_waits_at_a_step_of_that_name(
    point: Point, behind: tuple[str, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    found = by_code(point, behind).interrupts

    assert (found.before, found.after) == (before, after)


def test_an_agents_call_is_approved_with_all_others() -> None:
    for point in (ForcedWait.APPROVAL, ForcedWait.PERMISSION_LOSS):
        assert by_code(point).defaults.approval is not None
    expiring = by_code(ForcedWait.EXPIRY).defaults.approval
    assert expiring is not None and expiring.expires_in == EXPIRES_IN


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

    def plan_cells(self, targets: list[DrillTarget]) -> Iterator[DrillCell]:
        """Yield the cells that are chosen."""
        for cell in super().plan_cells(targets):
            if (cell.step, cell.point, cell.mode) in self.chosen:
                yield cell


@pytest.mark.crash
def test_the_sample_has_every_plan_operation_and_mode() -> None:
    assert CELLS.keys() == PLANS.keys()
    places = [place for cells in CELLS.values() for place in cells]
    assert {operation for _, operation, _ in places} == set(Operation)
    assert {mode for _, _, mode in places} == set(Durability)


@pytest.mark.crash
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
    request = DrillRequest(
        str(ROOT / plan),
        points=[one.value for one in Operation],
        modes=[one.value for one in Durability],
        world=f"{world}:world",
        fresh=f"{world}:fresh",
    )
    with prepare_drill(variables, database=None, say=print) as environment:
        suite = Sample(request, environment, client_settings(variables), variables, print)
        suite.chosen = CELLS[plan]
        report = await suite.run()

    assert {(cell.step, cell.point, cell.mode) for cell in report.cells} == CELLS[plan]
    assert report.ok, str(report)


@pytest.mark.usefixtures("temporal_cli")
def test_where_the_named_server_of_this_machine_does_not_run_a_drill_has_one_of_its_own() -> None:
    [port] = free_ports(1)
    variables = {"TEMPORAL_ADDRESS": f"127.0.0.1:{port}"}
    with prepare_drill(variables, database=None, say=print) as environment:
        assert environment.embedded
        assert environment.temporal["TEMPORAL_ADDRESS"] != variables["TEMPORAL_ADDRESS"]
