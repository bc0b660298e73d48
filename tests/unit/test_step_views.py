"""Step views: which are in a state is what a look at all of them would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState
from surehand.workflows.state.run_state import StepViews

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
