"""What a run and its child runs have left is theirs to say: all that stands, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.drill.consistency import RunTree
from surehand.workflows.contracts.effects import EffectView
from surehand.workflows.contracts.maintenance import NotUndone, Unwound
from surehand.workflows.contracts.runs import RunResult, StepView
from surehand.workflows.contracts.states import RunState, StepState


def entry(name: str, run_id: str = "drill-1", state: str = "committed", **facts: Any) -> Any:
    made = {"entry_id": f"ef-{name}", "step_id": name, "tool": f"bank.{name}", "key": name}
    return {**made, "run_id": run_id, "state": state, "undoes": None, **facts}


def ended(state: RunState, left: tuple[str, ...] = (), **steps: StepState) -> RunResult:
    views = [
        StepView(id=id_, tool="bank", state=s, child="drill-1~child" if id_ == "child" else None)
        for id_, s in steps.items()
    ]
    uncompensated = [
        EffectView(
            entry_id=f"ef-{name}",
            tool="bank",
            key=name,
            generation=1,
            state="committed",
            step_id=name,
        )
        for name in left
    ]
    return RunResult(run_id="drill-1", state=state, steps=views, uncompensated=uncompensated)


DONE, FAILED, SKIPPED = StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED
INSIDE = "drill-1~child~deep"


@pytest.mark.parametrize(
    ("entries", "result", "untold"),
    [
        ([entry("pay")], ended(RunState.COMPLETED, pay=DONE), 0),
        ([entry("pay"), entry("pay", key="2")], ended(RunState.COMPLETED, pay=DONE), 1),
        ([entry("pay")], ended(RunState.COMPLETED, pay=SKIPPED), 1),
        ([entry("pay", INSIDE)], ended(RunState.COMPLETED, child=DONE), 0),
        ([entry("pay", INSIDE)], ended(RunState.COMPLETED, child=FAILED), 1),
        ([entry("pay", "drill-1~other")], ended(RunState.COMPLETED, child=DONE), 1),
        ([entry("pay")], ended(RunState.FAILED, pay=DONE), 1),
        ([entry("pay")], ended(RunState.FAILED, ("pay",), pay=DONE), 0),
        ([entry("pay", INSIDE)], ended(RunState.CANCELLED, child=DONE), 1),
        ([entry("pay", state="in_doubt")], ended(RunState.FAILED, pay=FAILED), 1),
        ([entry("pay", state="compensated")], ended(RunState.FAILED, pay=DONE), 0),
        ([entry("pay", state="failed")], ended(RunState.FAILED, pay=FAILED), 0),
    ],
)
def test_what_stands_is_accounted_for_or_told(
    entries: list[Any], result: RunResult, untold: int
) -> None:
    assert len(list(RunTree("drill-1", entries).unreported(result))) == untold


@pytest.mark.parametrize(
    ("state", "outcome", "untold"),
    [("open", None, 0), ("settled", "give_up", 0), ("settled", "happened", 1)],
)
def test_what_a_human_is_asked_about_or_has_given_up_is_told(
    state: str, outcome: str | None, untold: int
) -> None:
    asked = {"entry_id": "ef-pay", "state": state, "outcome": outcome}
    tree = RunTree("drill-1", [entry("pay")], [asked])

    assert len(list(tree.unreported(ended(RunState.FAILED)))) == untold


@pytest.mark.parametrize("said", ["pay", f"{INSIDE}/pay"])
def test_of_a_run_that_was_unwound_nothing_stands_but_what_is_said_to_of_that_run(
    said: str,
) -> None:
    own, inside = entry("pay"), entry("pay", INSIDE, entry_id="ef-inside")
    left = [NotUndone(step_id=said, reason="it cannot be undone")]

    [found] = RunTree("drill-1", [own, inside]).not_unwound(
        Unwound(run_id="drill-1", undone=[], left=left)
    )

    other = "pay" if said != "pay" else "child/deep/pay"
    assert f"bank.pay of {other} (pay) is committed" in found


@pytest.mark.parametrize(
    ("committed", "undone", "wrong"),
    [
        ({"a": "1", "b": "2"}, {"b": "3", "a": "4"}, False),
        ({"a": "1", "b": "2"}, {"a": "3", "b": "4"}, True),
        # At the same time: there is no last one.
        ({"a": "1", "b": "1"}, {"a": "3", "b": "4"}, False),
        # The second one came after the first was undone.
        ({"a": "1", "b": "5"}, {"a": "3", "b": "6"}, False),
    ],
)
def test_the_last_commit_is_undone_first_in_whichever_run(
    committed: dict[str, str], undone: dict[str, str], wrong: bool
) -> None:
    entries = [
        made
        for name, at in undone.items()
        for made in (
            entry(name, INSIDE if name == "b" else "drill-1", "compensated"),
            entry(f"undo-{name}", undoes=f"ef-{name}", claimed_at=at),
        )
    ]
    events = [
        {"type": "effect.committed", "body": {"entry_id": f"ef-{name}"}, "at": at}
        for name, at in committed.items()
    ]

    assert bool(list(RunTree("drill-1", entries, [], events).out_of_order())) is wrong
