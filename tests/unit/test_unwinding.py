"""What a run undoes: page by page, each effect once, and what it does not know of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from surehand.workflows import ports
from surehand.workflows.compensation import Compensation
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    EffectView,
    FindRemaining,
    RemainingEffect,
    RemainingFound,
)
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.state.run_state import RunData

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
        page = [RemainingEffect(effect=_view(id_, self.stands[id_])) for id_ in behind[:2]]
        after = behind[1] if len(behind) > 2 else None
        return RemainingFound(effects=page, after=after, head=ChainHead(seq=1, hash="h"))

    def _undo(self, asked: Compensate) -> CompensationReport:
        self.undone.append(asked.entry_id)
        if asked.entry_id == self.stays:
            return CompensationReport(outcome=CompensationOutcome.UNCOMPENSATED, reason="stays")
        del self.stands[asked.entry_id]
        return CompensationReport(outcome=CompensationOutcome.COMPENSATED, reason="undone")


def _view(entry_id: str, step_id: str) -> EffectView:
    return EffectView(
        entry_id=entry_id, tool="t", key="k", generation=1, state="committed", step_id=step_id
    )


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> RunData:
    # Given a clock that is a stand-in: there is no workflow here
    monkeypatch.setattr("surehand.workflows.compensation.workflow.now", lambda: NOW)
    plan = Plan.model_validate([{"id": step, "tool": "t"} for step in "abc"])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    return RunData.new(request, "life", NOW)


def unwinding(data: RunData, ledger: Ledger) -> Compensation:
    return Compensation(data, cast(Any, None), cast(Any, ledger), lambda: None)


@pytest.mark.parametrize("stays", ["", "ef-2"])
async def test_a_run_that_ends_undoes_all_that_stands_once_whatever_it_knows(
    data: RunData, stays: str
) -> None:
    ledger = Ledger(stays)

    await unwinding(data, ledger).run(cleanup=False)

    assert ledger.undone == [entry for _, entry in MADE]
    assert list(ledger.stands) == ([stays] if stays else [])
    # Barred before anything is listed, and asked once more when all is done.
    assert [asked.bar for asked in ledger.asked if asked.after is None] == [True, True]


async def test_a_run_that_completes_undoes_what_it_does_not_know_of_and_says_so(
    data: RunData,
) -> None:
    ledger = Ledger()
    for step, entry in (("c", "ef-3"), ("b", "ef-2")):
        data.saga.committed(step, entry)

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


async def test_what_a_run_has_yet_to_hear_of_is_found_and_not_taken_for_known(
    data: RunData,
) -> None:
    ledger = Ledger()
    data.saga.committed("c", "ef-3")
    data.saga.register("a")

    assert await unwinding(data, ledger).recall() == ["b", "b"]

    await unwinding(data, ledger).undo_orphaned()
    assert ledger.undone == ["ef-2", "ef-1", "ef-0"]
