"""What a drill has found, compared, judged, kept and written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.drill.judge import Baseline, Played, RunTree, judge_cell
from surehand.drill.report import (
    CellOutcome,
    DrillCell,
    DrillReport,
    DrillTarget,
    FaultFree,
    Tally,
    add_tallies,
    describe_cell,
    describe_result,
    list_recoveries,
    make_lines,
    make_tables,
    nearest_rank,
    print_lines,
)
from surehand.drill.request import Disturbance
from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.effects import EffectView, NotUndone, Unwound
from surehand.workflows.contracts.runs import RunResult, StepView
from surehand.workflows.contracts.tools import MODEL, Effect, Recovery

READ = DrillTarget(step="order", tool="orders.read", effect=Effect.READ)
WRITE = DrillTarget(step="refund", tool="payments.refund", effect=Effect.WRITE)
FAULT_FREE = FaultFree(run_id="drill-0", state="completed", effects=1, counted={"refunds": 1})
BASELINE = Baseline(
    targets=[READ, WRITE],
    fault_free=FAULT_FREE,
    compared={"run": "completed", "ledger": ["refund: payments.refund committed"]},
    remaining=["refund: payments.refund committed"],
)


def html(report: DrillReport) -> str:
    return print_lines(make_lines(report), html=True)


def cell(point: str = "after_call", **facts: Any) -> DrillCell:
    given = {"outcome": CellOutcome.NOT_REACHED, "undo": False, "mode": "sync", **facts}
    return DrillCell(step="refund", tool="payments.refund", point=point, **given)


def played(**facts: Any) -> Played:
    stands = {"remaining": BASELINE.remaining, "applied": 1, "counted": {"refunds": 1}}
    given = {"reached": True, "compared": BASELINE.compared, **stands, **facts}
    return Played("drill-1", **given)


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({}, CellOutcome.SAME),
        ({"compared": {"run": "failed"}}, CellOutcome.DIFFERS),
        # Nobody was killed: as good as it looks, it proves nothing.
        ({"reached": False}, CellOutcome.NOT_REACHED),
        ({"reached": False, "compared": {"run": "failed"}}, CellOutcome.NOT_REACHED),
        # What must not happen is no less wrong in a world that looks as it should.
        ({"violations": ["refund was called while its approval waited"]}, CellOutcome.DIFFERS),
        ({"violations": ["it did not wait"], "reached": False}, CellOutcome.DIFFERS),
    ],
)
def test_a_case_is_judged_by_what_it_has_left(facts: dict[str, Any], outcome: CellOutcome) -> None:
    assert judge_cell(cell(), BASELINE, played(**facts), world=True).outcome is outcome


STOPPED = {
    "run": "needs_intervention",
    "steps": {"order": "succeeded", "refund": "needs_intervention", "mail": "pending"},
}
ENDED = {"run": "completed", "steps": dict.fromkeys(STOPPED["steps"], "succeeded")}
HUMAN = WRITE.model_copy(update={"recovery": Recovery.HUMAN})
LOOKUP = WRITE.model_copy(update={"recovery": Recovery.LOOKUP})


@pytest.mark.parametrize(
    ("target", "facts", "outcome"),
    [
        (HUMAN, {"counted": {}}, CellOutcome.NEEDS_HUMAN),
        (HUMAN, {"counted": {"refunds": 1}}, CellOutcome.NEEDS_HUMAN),
        (HUMAN, {"counted": {"refunds": 2}}, CellOutcome.DIFFERS),
        (HUMAN, {"counted": {"mails": 1}}, CellOutcome.DIFFERS),
        # What the ledger has as done is not there, or more is there than it knows of.
        (HUMAN, {"counted": {}, "applied": 1}, CellOutcome.DIFFERS),
        (HUMAN, {"counted": {"refunds": 1, "mails": 1}}, CellOutcome.DIFFERS),
        # Another call is in doubt, too, or has another end.
        (HUMAN, {"entries": ["mail"]}, CellOutcome.DIFFERS),
        (HUMAN, {"mail": "failed"}, CellOutcome.DIFFERS),
        (HUMAN, {"mail": "needs_intervention"}, CellOutcome.DIFFERS),
        # Its tool says that nobody has to be asked.
        (LOOKUP, {"counted": {}}, CellOutcome.DIFFERS),
    ],
)
def test_of_a_run_that_needs_a_human_only_the_call_in_doubt_may_differ(
    target: DrillTarget, facts: dict[str, Any], outcome: CellOutcome
) -> None:
    steps = {**STOPPED["steps"], "mail": facts.pop("mail", "pending")}
    entries = [entry(step, state="in_doubt") for step in ("refund", *facts.pop("entries", ()))]
    given = {"applied": 0, "counted": {}, "compared": {**STOPPED, "steps": steps}, **facts}
    asks = played(question="Did it happen?", entries=entries, in_doubt=1, **given)
    baseline = replace(BASELINE, compared=ENDED)
    doubtful = Disturbance(target, CrashPoint.AFTER_CALL)

    found = judge_cell(cell(), baseline, asks, world=True, doubtful=doubtful)

    assert found.outcome is outcome


UNDONE_BEFORE = {"run": "completed", "ledger": ["refund: two more entries, of which one undoes"]}


@pytest.mark.parametrize(
    ("point", "facts", "outcome"),
    [
        # What was undone on the way is not there any more.
        ("reset", {"compared": UNDONE_BEFORE}, CellOutcome.SAME),
        ("reset", {"remaining": []}, CellOutcome.DIFFERS),
        ("reset", {"compared": {"run": "failed"}}, CellOutcome.DIFFERS),
        ("reset", {"counted": {"refunds": 2}}, CellOutcome.DIFFERS),
        ("reset", {"question": "Does it stand?", "counted": {}}, CellOutcome.DIFFERS),
        ("deploy", {"compared": UNDONE_BEFORE}, CellOutcome.DIFFERS),
        ("terminate", {"compared": {}, "counted": {}, "applied": 0}, CellOutcome.UNDONE),
        ("terminate", {"counted": {"refunds": 2}}, CellOutcome.DIFFERS),
        ("terminate", {"violations": ["it stands"]}, CellOutcome.DIFFERS),
        ("terminate", {"reached": False}, CellOutcome.NOT_REACHED),
    ],
)
def test_what_an_operator_has_done_is_judged_by_what_stands(
    point: str, facts: dict[str, Any], outcome: CellOutcome
) -> None:
    assert judge_cell(cell(point), BASELINE, played(**facts), world=True).outcome is outcome


def test_each_way_to_disturb_a_run_has_a_matrix_of_its_own() -> None:
    cells = [cell("after_call", outcome=CellOutcome.SAME), cell("pause"), cell("reset")]
    found = report(*cells, points=["after_call", "pause", "reset"])

    drawn = [(one.columns, [row[0] for row in one.rows]) for one in make_tables(found)]
    assert drawn == [
        (["step", "after_call"], ["refund", "recovery p50"]),
        (["step", "pause"], ["refund"]),
        (["step", "reset"], ["refund"]),
    ]


def test_a_world_that_nobody_has_looked_at_is_not_called_the_same() -> None:
    found = judge_cell(cell(), BASELINE, played(), world=False)

    assert found.outcome == "same ledger"
    assert judge_cell(cell(), BASELINE, played(reached=False), world=False).outcome == "not reached"
    assert "same ledger, 1" in str(report(found))


@pytest.mark.parametrize(("number", "said"), [(1, "1 case in"), (2, "2 cases in")])
def test_one_is_not_told_as_many(number: int, said: str) -> None:
    assert f"NOT OK: {said}" in describe_result(report(*[cell()] * number))


def test_percentiles_are_times_that_were_measured() -> None:
    times = [float(n) for n in range(1, 21)]

    assert nearest_rank(times, 50) == 10
    assert nearest_rank(times, 95) == 19
    assert nearest_rank([7.0], 50) == nearest_rank([7.0], 95) == 7
    cells = [cell(recovery_s=3), cell(recovery_s=5), cell("after_claim", recovery_s=None)]
    assert list_recoveries(cells) == list_recoveries(cells, "after_call") == [3, 5]
    assert list_recoveries(cells, "after_claim") == []


def test_one_call_of_thousands_that_was_not_approved_is_no_hundred_percent() -> None:
    tally = add_tallies(Tally(gated=4999, as_approved=4999), Tally(gated=1))

    assert (tally.as_approved, tally.gated, tally.percent_approved) == (4999, 5000, 99.9)
    assert not tally.holds
    assert Tally().percent_approved is None
    assert not Tally(losses=1, drifted=1).holds


def report(*cells: DrillCell, points: Sequence[str] = ("after_claim", "after_call")) -> DrillReport:
    return DrillReport(
        ok=False,
        plan="<b>refund</b>.yaml",
        modes=["sync"],
        server="embedded",
        world="own:world",
        seconds=60,
        fault_free=FAULT_FREE,
        points=list(points),
        targets=[READ, WRITE],
        cells=list(cells),
        tally=add_tallies(Tally(), *(one.tally for one in cells)),
    )


FOUND = report(
    cell(
        outcome=CellOutcome.DIFFERS,
        effects=2,
        recovery_s=3.25,
        differences=["world.mail: <script>|*", "world.effects.refunds: 2, expected 1"],
    ),
    cell("after_claim", question="no worker has come to this point"),
)


def test_the_matrix_says_of_each_step_and_point_what_was_found() -> None:
    [matrix] = make_tables(FOUND)
    assert list(matrix.rows) == [
        ["refund", "not reached", "differs, 2"],
        ["recovery p50", "-", "3.2 s"],
    ]


@pytest.mark.parametrize("write", [html, str])
def test_every_report_names_what_differs_and_what_was_not_reached(write: Any) -> None:
    text = write(FOUND)

    for part in ("differs, 2", "not reached", "expected 1", "no worker has come to this point"):
        assert part in text
    assert ("3.2 s" in text) or ("3.3 s" in text)


@pytest.mark.parametrize("write", [html, str])
def test_every_report_has_forced_waits_and_both_numbers(write: Any) -> None:
    tally = Tally(gated=3, as_approved=2, losses=2, drifted=1)
    lost = cell("permission_loss", outcome=CellOutcome.DIFFERS, tally=tally)
    found = report(cell(), lost, points=["after_call", "permission_loss"])

    assert [one.columns for one in make_tables(found)] == [
        ["step", "after_call"],
        ["step", "permission_loss"],
    ]
    text = write(found)
    assert "Approval Consistency: 66.6 % (calls made exactly as approved: 2 of 3)" in text
    assert "Permission Drift: 1 (calls made without it: 2 times" in text


def test_each_case_that_is_done_gets_a_line() -> None:
    told = [describe_cell(one) for one in (cell(outcome=CellOutcome.SAME), FOUND.cells[0])]
    assert told[0] == "refund after_call: same world, 0 effects"
    assert "refund after_call: differs, 2 effects, recovered in 3.2 s (world.mail" in told[1]


def test_what_a_plan_or_a_world_wrote_is_text_in_a_report_and_nothing_else() -> None:
    page = html(FOUND)
    assert "<script>" not in page and "<b>" not in page
    assert "http" not in page  # nothing is loaded from elsewhere


@pytest.mark.parametrize(
    ("asked", "tool", "point", "outcome"),
    [
        (0, MODEL, "after_call", CellOutcome.SAME),
        (3, MODEL, "after_call", CellOutcome.SAME),
        # The answer has died with its worker.
        (4, MODEL, "after_call", CellOutcome.SAME),
        (4, MODEL, "during_call", CellOutcome.SAME),
        (5, MODEL, "after_call", CellOutcome.DIFFERS),
        (4, MODEL, "before_report", CellOutcome.DIFFERS),
        (4, "payments.refund", "after_call", CellOutcome.DIFFERS),
    ],
)
def test_a_turn_that_is_asked_again_although_recorded_is_a_difference(
    asked: int, tool: str, point: str, outcome: CellOutcome
) -> None:
    given = cell(point).model_copy(update={"tool": tool})
    found = judge_cell(given, BASELINE, played(turns_asked=asked, turns_recorded=3), world=True)

    assert found.outcome is outcome
    assert bool(found.differences) is (outcome is CellOutcome.DIFFERS)
    assert all("although recorded" in line for line in found.differences)


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
def test_what_stands_is_told(entries: list[Any], result: RunResult, untold: int) -> None:
    assert len(list(RunTree("drill-1", entries).list_unreported(result))) == untold


@pytest.mark.parametrize(
    ("state", "outcome", "untold"),
    [("open", None, 0), ("settled", "give_up", 0), ("settled", "happened", 1)],
)
def test_open_and_left_effects_are_told(state: str, outcome: str | None, untold: int) -> None:
    asked = {"entry_id": "ef-pay", "state": state, "outcome": outcome}
    tree = RunTree("drill-1", [entry("pay")], [asked])

    assert len(list(tree.list_unreported(ended(RunState.FAILED)))) == untold


@pytest.mark.parametrize("said", ["pay", f"{INSIDE}/pay"])
def test_an_unwound_run_leaves_only_what_is_said_to_stand(said: str) -> None:
    own, inside = entry("pay"), entry("pay", INSIDE, entry_id="ef-inside")
    left = [NotUndone(step_id=said, reason="it cannot be undone")]

    [found] = RunTree("drill-1", [own, inside]).list_not_unwound(
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

    assert bool(list(RunTree("drill-1", entries, [], events).list_out_of_order())) is wrong
