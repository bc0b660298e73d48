"""A run's graph for its page: the plan's own edges, the run's own states, and boxes beside it."""

from __future__ import annotations

from surehand.cli.approvals_server.runs import MOST_DRAWN, WIDEST_DRAWN, run_graph
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.plan.plan import Plan


def plan_of(*steps: dict[str, object]) -> Plan:
    return Plan.model_validate({"name": "p", "steps": [{"tool": "t", **one} for one in steps]})


DIAMOND = plan_of(
    {"id": "order"},
    {"id": "amount", "after": ["order"]},
    {"id": "mail", "after": ["order"]},
    {"id": "refund", "after": ["amount", "mail", "order"], "on_failure": {"goto": "note"}},
    {"id": "note", "after": ["refund"]},
)


def test_each_step_names_its_state_and_what_it_waits_for_but_not_what_that_implies() -> None:
    views = [
        StepView(id="order", tool="t", state=StepState.SUCCEEDED),
        StepView(id="amount", tool="t", state=StepState.WAITING_APPROVAL),
    ]
    steps = {one["id"]: one for one in run_graph(DIAMOND, views)["steps"]}

    assert [one["state"] for one in steps.values()] == [
        "succeeded", "waiting_approval", "pending", "pending", "pending"
    ]  # fmt: skip
    assert steps["order"]["after"] == []
    assert steps["refund"]["after"] == ["amount", "mail"]
    assert steps["refund"]["jumps"] == [{"to": "note", "on": ["on_failure"]}]


def test_steps_that_no_plan_names_are_listed_behind_the_others() -> None:
    views = [StepView(id="turn-1.2", tool="bank.pay", state=StepState.RUNNING)]
    graph = run_graph(plan_of({"id": "a"}), views)

    assert [one["id"] for one in graph["steps"]] == ["a", "turn-1.2"]
    assert graph["steps"][1]["after"] is None
    assert graph["drawing"] is None  # one box says nothing


def test_no_box_of_a_drawing_lies_on_another_one_or_outside_of_it_and_each_edge_has_a_line() -> (
    None
):
    drawing = run_graph(DIAMOND, [])["drawing"]
    assert drawing is not None
    wide, high = drawing["box"]["width"], drawing["box"]["height"]
    boxes = drawing["boxes"]
    for one in boxes:
        assert 0 <= one["x"] <= drawing["width"] - wide
        assert 0 <= one["y"] <= drawing["height"] - high
        for other in boxes:
            apart = abs(one["x"] - other["x"]) >= wide or abs(one["y"] - other["y"]) >= high
            assert one is other or apart
    assert len(drawing["lines"]) == 6
    assert [line["jump"] for line in drawing["lines"]].count(True) == 1


def test_what_is_too_large_to_be_read_is_listed_and_not_drawn() -> None:
    wide = plan_of(*({"id": f"s{n}", "after": []} for n in range(WIDEST_DRAWN + 1)))
    long = plan_of(
        {"id": "s0"},
        *({"id": f"s{n}", "after": [f"s{n - 1}"]} for n in range(1, MOST_DRAWN + 1)),
    )
    for plan in (wide, long):
        graph = run_graph(plan, [])
        assert graph["drawing"] is None
        assert len(graph["steps"]) == len(plan.steps)
