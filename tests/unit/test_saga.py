"""G4: what a run knows to have done, what it undoes, and what another plan leaves of its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

import surehand.workflows.run.run_changes as module
from surehand.workflows import ports
from surehand.workflows.contracts.base import ChainHead, StepState
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    EffectView,
    FindRemaining,
    RemainingEffect,
    RemainingFound,
)
from surehand.workflows.contracts.runs import Amend, StartRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.agent_run import AgentRun
from surehand.workflows.run.compensation import Compensation
from surehand.workflows.run.run_changes import Amendment
from surehand.workflows.run.run_core import RunCore
from surehand.workflows.run.run_data import RunData
from surehand.workflows.run.run_records import Saga, leave_if_cancelled


def begun(*steps: str) -> Saga:
    saga = Saga()
    for step in steps:
        saga.register(step)
    return saga


def remaining(entry_id: str, step_id: str = "a", child: str | None = None) -> RemainingEffect:
    effect = EffectView(
        entry_id=entry_id, tool="t", key="k", generation=1, state="committed", step_id=step_id
    )
    return RemainingEffect(effect=effect, child=child)


def test_a_write_is_unsettled_until_its_outcome_is_known() -> None:
    saga = begun("a", "b", "c", "a")
    saga.note_commit("a", "ef-1")
    saga.drop("b")

    assert saga.unsettled() == ["c"]
    assert saga.steps() == ["a", "c"]


def test_what_another_life_has_made_is_not_known_though_its_step_is() -> None:
    saga = begun("a")
    saga.note_commit("a", "ef-2")

    assert saga.knows(remaining("ef-2"))
    assert not saga.knows(remaining("ef-1"))


def test_a_step_has_all_that_it_has_made_in_several_lives() -> None:
    saga = begun("a")
    for entry_id in ("ef-1", "ef-2"):
        saga.note_commit("a", entry_id)
    saga.forget_undone("ef-1")

    assert not saga.knows(remaining("ef-1"))
    assert saga.steps() == ["a"]


@pytest.mark.parametrize("own", [True, False])
def test_what_a_step_goes_on_with_is_known_until_the_step_begins_anew(own: bool) -> None:
    saga = begun("again")
    saga.note_reliance("again", "ef-1", own=own)
    assert (saga.unsettled(), saga.knows(remaining("ef-1"))) == ([], True)

    saga.register("again")

    assert not saga.knows(remaining("ef-1"))


def test_of_what_a_step_goes_on_with_its_own_run_has_to_see_whether_it_stands() -> None:
    """Of what another run has undone, a human is asked."""
    saga = begun("ours", "theirs")
    saga.note_reliance("ours", "ef-1", own=True)
    saga.note_reliance("theirs", "ef-2", own=False)

    assert saga.lost_steps({"ef-1"}, set()) == []
    assert saga.lost_steps(set(), set()) == ["ours"]


def test_what_a_child_run_goes_on_with_is_known_where_it_has_completed() -> None:
    saga = begun("pay", "mail")
    used = [remaining("ef-1").model_copy(update={"used_in": [child]}) for child in ("pay", "mail")]
    saga.note_child_end("pay", "pay", completed=True)
    saga.note_child_end("mail", "mail", completed=False)

    assert [saga.knows(one) for one in used] == [True, False]


def test_what_this_life_takes_for_done_and_does_not_stand_is_lost_unless_it_was_withdrawn() -> None:
    saga = begun("a", "b", "pay", "mail")
    saga.note_commit("a", "ef-1")
    saga.note_commit("b", "ef-2")
    for step in ("pay", "mail"):
        saga.note_child_end(step, f"r~{step}", completed=True)

    assert saga.lost_steps({"ef-2"}, {"r~pay"}) == ["a", "pay"]

    saga.forget_undone("ef-1")
    saga.withdraw("pay")
    assert saga.lost_steps({"ef-2"}, {"r~pay"}) == []


def test_what_a_child_run_has_left_is_known_once_its_end_is() -> None:
    saga, its = begun("pay", "mail"), remaining("ef-1", child="r~pay")
    assert not saga.knows(its)

    saga.note_child_end("pay", "r~pay", completed=True)
    saga.note_child_end("mail", "r~mail", completed=False)

    assert saga.knows(its)
    assert saga.steps() == ["pay"]


def test_what_the_ledger_was_found_to_have_is_known_once_the_run_comes_to_it() -> None:
    saga = Saga()
    saga.add_found("a", "ef-1")
    saga.add_found("b", "ef-2")
    assert (saga.knows(remaining("ef-1")), saga.steps()) == (False, ["a", "b"])

    saga.note_commit("a", "ef-1")
    saga.accept("b")

    assert saga.knows(remaining("ef-1")) and saga.knows(remaining("ef-2", "b"))


def test_all_of_it_travels() -> None:
    saga = begun("a", "b", "c")
    saga.note_commit("a", "ef-1")
    saga.add_found("d", "ef-2")
    saga.note_child_end("c", "r~c", completed=True)
    saga.note_reliance("e", "ef-3", own=True)
    saga.note_reliance("f", "ef-4", own=False)

    assert Saga.model_validate_json(saga.model_dump_json()) == saga


NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: Steps and entries, as the ledger lists them.
MADE = [("c", "ef-3"), ("b", "ef-2"), ("b", "ef-1"), ("a", "ef-0")]


class Ledger:
    """A stand-in that lists two effects a page, and undoes what it is told to but one."""

    def __init__(self, stays: str = "") -> None:
        self.stands, self.stays = dict((entry, step) for step, entry in MADE), stays
        self.asked: list[FindRemaining] = []
        self.undone: list[str] = []

    async def __call__(self, port: Any, asked: Any, *_: Any, **__: Any) -> Any:
        return self._list(asked) if port is ports.FIND_REMAINING else self._undo(asked)

    def _list(self, asked: FindRemaining) -> RemainingFound:
        self.asked.append(asked)
        behind = [one for one in sorted(self.stands, reverse=True) if one < (asked.after or "f")]
        page = [remaining(id_, self.stands[id_]) for id_ in behind[:2]]
        after = behind[1] if len(behind) > 2 else None
        return RemainingFound(effects=page, after=after, head=ChainHead(seq=1, hash="h"))

    def _undo(self, asked: Compensate) -> CompensationReport:
        self.undone.append(asked.entry_id)
        if asked.entry_id == self.stays:
            return CompensationReport(outcome=CompensationOutcome.UNCOMPENSATED, reason="stays")
        del self.stands[asked.entry_id]
        return CompensationReport(outcome=CompensationOutcome.COMPENSATED, reason="undone")


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> RunData:
    # Given a clock that is a stand-in: there is no workflow here
    monkeypatch.setattr("surehand.workflows.run.compensation.workflow.now", lambda: NOW)
    plan = Plan.model_validate([{"id": step, "tool": "t"} for step in "abc"])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return RunData.new(request, "life", NOW)


def unwinding(data: RunData, ledger: Ledger) -> Compensation:
    core = RunCore(data)
    core.call = ledger  # type: ignore[method-assign, assignment]
    core.show_change = lambda: None  # type: ignore[method-assign]
    return Compensation(core)


@pytest.mark.parametrize("stays", ["", "ef-2"])
async def test_an_ending_run_undoes_all_that_stands_once(data: RunData, stays: str) -> None:
    ledger = Ledger(stays)

    await unwinding(data, ledger).undo_all(cleanup=False)

    assert ledger.undone == [entry for _, entry in MADE]
    assert list(ledger.stands) == ([stays] if stays else [])
    # Barred before anything is listed, and asked once more when all is done.
    assert [asked.bar for asked in ledger.asked if asked.after is None] == [True, True]


async def test_a_completing_run_undoes_what_it_does_not_know(data: RunData) -> None:
    ledger = Ledger()
    for step, entry in (("c", "ef-3"), ("b", "ef-2")):
        data.saga.note_commit(step, entry)

    await unwinding(data, ledger).undo_orphaned()
    await unwinding(data, ledger).undo_orphaned()

    assert ledger.undone == ["ef-1", "ef-0"]
    said = [line.step_id for line in data.timeline if line.text.startswith("orphaned: ")]
    assert said == ["b", "a"]
    assert not any(asked.bar for asked in ledger.asked)


async def test_an_orphaned_effect_that_stays_is_known_from_then_on(data: RunData) -> None:
    ledger = Ledger("ef-0")

    await unwinding(data, ledger).undo_orphaned()
    ledger.undone.clear()
    await unwinding(data, ledger).undo_orphaned()

    assert ledger.undone == []


async def test_what_a_run_will_hear_of_is_found(data: RunData) -> None:
    ledger = Ledger()
    data.saga.note_commit("c", "ef-3")
    data.saga.register("a")

    assert await unwinding(data, ledger).find_unheard_steps() == ["b", "b"]

    await unwinding(data, ledger).undo_orphaned()
    assert ledger.undone == ["ef-2", "ef-1", "ef-0"]


def _data(*steps: str) -> RunData:
    plan = Plan.model_validate([{"id": step, "tool": "a.b"} for step in steps])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return RunData.new(request, "first", datetime.now(UTC))


def _amendment(data: RunData) -> Amendment:
    nothing = cast(Any, None)
    return Amendment(RunCore(data), nothing, nothing, nothing)


def _amended(data: RunData, *steps: str, given_up: tuple[str, ...] = ()) -> None:
    _amendment(data)._show_plan(_data(*steps).request.plan, set(given_up))


def test_a_write_that_the_new_plan_drops_can_still_be_undone_at_the_end() -> None:
    data = _data("order", "pay")
    data.saga.register("pay")
    data.set_step("pay", StepState.PAUSED_FAILURE)

    _amended(data, "order")

    assert set(data.saga.steps()) <= data.steps.keys()
    assert (data.steps["pay"].tool, data.steps["pay"].state) == ("a.b", StepState.SKIPPED)


def test_a_write_whose_view_was_left_behind_by_continue_as_new_is_in_nobodys_way() -> None:
    data = _data("order")
    data.saga.register("pay[0]")

    _amended(data, "order", "mail")

    assert list(data.steps) == ["order", "mail"]


def test_what_an_amendment_has_cut_off_has_not_failed() -> None:
    data = _data("order", "pay")
    for step in ("order", "pay"):
        data.set_step(step, StepState.FAILED)

    _amended(data, "order", "pay", given_up=("pay",))

    states = {view.id: view.state for view in data.steps.values()}
    assert states == {"order": StepState.FAILED, "pay": StepState.PENDING}


def test_what_had_begun_before_the_run_continued_as_new_is_ended_before_another_plan() -> None:
    """In the new execution nothing runs at first: what is under way is what has progress."""
    data = _data("ship", "mail")
    data.set_step("ship", StepState.RUNNING)
    data.set_progress("ship", items=["a", "b"])
    data.amending = True
    data.next_plan = Amend(actor="olga", plan=_data("ship").request.plan, based_on=1)
    run = AgentRun.__new__(AgentRun)
    run._data = data
    run._runner = cast(Any, SimpleNamespace(tool_calls=SimpleNamespace(has_report=lambda _: False)))
    run._amendment = _amendment(data)

    assert [step.id for step in run._find_ready({})] == ["ship"]
    assert not run._may_amend({})


async def test_a_plan_repeats_nothing_just_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer and the end of the last call came at once: nobody has taken note of its end."""
    data = _data("order", "pay")
    data.set_step("order", StepState.SUCCEEDED)
    data.next_plan = Amend(actor="olga", plan=_data("order", "mail").request.plan, based_on=1)

    async def reached(condition: Callable[[], bool]) -> None:
        await asyncio.sleep(0)
        assert condition()

    async def nothing() -> None:
        """Do nothing."""

    ended = asyncio.create_task(nothing())
    await ended
    monkeypatch.setattr(module.workflow, "wait_condition", reached)
    monkeypatch.setattr(module.workflow, "now", lambda: datetime.now(UTC))
    await _amendment(data).apply_plan({"order": ended})

    ready = data.request.plan.ready(frozenset(data.settled), frozenset())
    assert [step.id for step in ready] == ["mail"]


async def test_a_step_that_was_cancelled_during_a_ledger_call_does_not_wait_afterwards() -> None:
    recorded = asyncio.Event()

    async def step() -> None:
        call = asyncio.ensure_future(recorded.wait())
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            await call  # as a call whose cancellation is waited for: it ends as if nothing was
        leave_if_cancelled()
        await asyncio.Event().wait()

    running = asyncio.create_task(step())
    await asyncio.sleep(0)
    running.cancel()
    recorded.set()
    ended, _ = await asyncio.wait([running], timeout=5)

    assert ended and running.cancelled()
