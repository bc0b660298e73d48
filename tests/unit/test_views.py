"""What a run shows of its steps and of how much waits for people."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from surehand.workflows.contracts.effects import OpenIntervention
from surehand.workflows.contracts.runs import StartRun, StepView
from surehand.workflows.contracts.states import RunState, StepState
from surehand.workflows.contracts.steering import Interrupt, InterruptKind
from surehand.workflows.plan.plan import Plan
from surehand.workflows.state.run_state import RunData, StepViews

IDS = st.sampled_from("abcde")
CHANGES = st.lists(st.tuples(IDS, st.one_of(st.none(), st.sampled_from(StepState))), max_size=30)


@given(CHANGES, st.sets(st.sampled_from(StepState)))
def test_the_steps_in_a_state_are_those_that_a_look_at_all_finds_in_their_order(
    changes: list[tuple[str, StepState | None]], asked: set[StepState]
) -> None:
    views = StepViews()
    for step_id, state in changes:
        if state is not None:
            views[step_id] = StepView(id=step_id, tool="t", state=state)
        else:
            views.pop(step_id, None)

    assert views.in_state(asked) == [view for view in views.values() if view.state in asked]
    assert views.states == {view.state for view in views.values()}


def running(*others: StepState) -> RunData:
    """Return a run with a call under way, and other steps in these states."""
    steps = [{"id": f"s{number}", "tool": "a.b"} for number in range(len(others) + 1)]
    plan = Plan.model_validate(steps)
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    data = RunData.new(request, "life", datetime.now(UTC))
    for number, state in enumerate((StepState.RUNNING, *others)):
        data.set_step(f"s{number}", state)
    return data


def test_a_question_beside_a_call_that_is_under_way_waits_for_people() -> None:
    data = running(StepState.WAITING_INPUT)
    assert data.open_items == 0

    asked = Interrupt(interrupt_id="s1.1", step_id="s1", kind=InterruptKind.ASK, question="?")
    data.interrupts["s1.1"] = asked

    assert (data.state, data.open_items) == (RunState.RUNNING, 1)


def test_a_doubt_beside_a_call_that_is_under_way_waits_for_people() -> None:
    data = running(StepState.NEEDS_INTERVENTION)
    data.interventions["iv-1"] = OpenIntervention(
        intervention_id="iv-1", step_id="s1", question="Did it?"
    )

    assert (data.state, data.open_items) == (RunState.RUNNING, 1)


def test_a_failure_shows_the_next_attempts_params() -> None:
    data = running(StepState.PAUSED_FAILURE)
    step = data.request.plan.step("s1").model_copy(update={"params": {"to": "${order.to}"}})
    data.set_progress("s1", step=step)
    assert [one.value for one in data.waiting()] == [{"to": "${order.to}"}]

    data.of_step("s1").edited = {"to": "ann"}

    assert [one.value for one in data.waiting()] == [{"to": "ann"}]


def test_paused_steps_wait_for_people_and_those_that_go_on_by_themselves_do_not() -> None:
    paused = running(StepState.PAUSED_FAILURE, StepState.PAUSED_PERMISSION, StepState.PAUSED_BUDGET)
    going_on = running(
        StepState.WAITING_EVENT, StepState.WAITING_QUOTA, StepState.WAITING_RATE_LIMIT
    )

    assert (paused.open_items, going_on.open_items) == (3, 0)
