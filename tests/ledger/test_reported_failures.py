"""G2: an outside system says itself that a call failed: what its lookup finds confirms it."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import update
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.reaper import settle_stale
from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.history.open_items import OpenItems, open_items
from surehand.activities.ledger.history.recorded import recording_of
from surehand.activities.ledger.history.recorded_view import recorded_view
from surehand.activities.ledger.steps.entries import Asked
from surehand.activities.tools.failures import OutcomeUnknown, ReportedFailure
from surehand.activities.tools.tool import Dedupes, Found, NotFound, Tool, ToolContext, Unknown
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.errors import ErrorType
from tests.ledger.attempts import Payment, Provider, effect_call, last_of, request_for
from tests.ledger.scene import (
    AT_ONCE,
    LEASE,
    OTHER_RUN,
    RUN,
    SETTLE,
    STEP,
    TIMEOUT,
    WINDOW,
    Scene,
)

WORDS: Final = "ENOENT: no such file"
RECEIPT: Final = {"id": "r-1"}


def refusing(answer: Any, *answers: Any, **options: Any) -> tuple[Provider, Tool]:
    """Return a provider that says that a call failed, then ``answers``; what its lookup says."""

    async def look(params: Payment, ctx: ToolContext) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    provider = Provider([ReportedFailure(WORDS), *answers])
    return provider, provider.tool(**{"lookup": look, "settle": SETTLE, **options})


async def fails(scene: Scene, loaded: Tool, **changes: Any) -> str:
    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, loaded, **changes)
    assert failed.value.type == ErrorType.TOOL_FAILED
    return failed.value.message


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("options", [{}, {"dedupes": Dedupes(WINDOW)}], ids=["lookup", "dedupes"])
async def test_where_the_lookup_finds_nothing_the_step_fails_after_one_call_and_without_a_human(
    scene: Scene, options: dict[str, Any]
) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT, **options)

    assert WORDS in await fails(scene, loaded)

    row = scene.row(effects)
    assert (len(provider.keys), row["state"]) == (1, "failed")
    assert WORDS in row["error"]
    assert scene.rows(interventions) == []
    [settled] = scene.events(type_="effect.reconciled")
    assert (settled["body"]["rule"], settled["body"]["action"]) == ("lookup_not_found", "fail")
    assert open_items(scene.events()) == OpenItems([], [], [], [])


async def test_a_worker_that_dies_behind_the_outcome_has_the_next_attempt_told_it_and_not_call(
    scene: Scene,
) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    words = await fails(scene, loaded)

    assert await fails(scene, loaded) == words
    assert (len(provider.keys), scene.row(effects)["state"]) == (1, "failed")


async def test_whoever_tries_the_failed_step_again_has_it_called(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    await fails(scene, loaded)

    assert isinstance(await last_of(scene, loaded, activity_key="another"), Done)
    assert (len(provider.keys), scene.row(effects)["answer"]) == (2, None)


async def test_it_waits_for_the_settle_time_after_the_answer_and_not_for_the_deadline(
    scene: Scene,
) -> None:
    _, loaded = refusing(NotFound())

    with pytest.raises(ApplicationError) as waits:
        await effect_call(scene, loaded, request_for(scene, loaded)).run()

    assert waits.value.type == ErrorType.SETTLING
    row = scene.row(effects)
    assert row["deadline_ms"] - row["claimed_ms"] < TIMEOUT // timedelta(milliseconds=1) // 2
    assert row["state"] == "in_doubt"


async def test_an_earlier_call_that_may_still_arrive_is_waited_for_as_ever(scene: Scene) -> None:
    _, loaded = refusing(NotFound(), dedupes=Dedupes(WINDOW))
    first = scene.claimed(request_for(scene, loaded))
    again = effect_call(scene, loaded, request_for(scene, loaded, attempt=2))

    with pytest.raises(ApplicationError) as waits:
        await again.run()

    assert waits.value.type == ErrorType.SETTLING
    row = scene.row(effects)
    assert (row["unproven"], row["deadline_ms"] >= first.deadline_ms) == (True, True)


async def test_where_the_lookup_finds_it_it_has_happened_whatever_was_said(scene: Scene) -> None:
    provider, loaded = refusing(Found(RECEIPT))

    result = await last_of(scene, loaded)

    assert isinstance(result, Done)
    assert (result.receipt, len(provider.keys)) == (RECEIPT, 1)
    assert scene.row(effects)["answer"] is None


@pytest.mark.parametrize(
    "answer", [Found(RECEIPT), NotFound(), Unknown("?")], ids=lambda one: type(one).__name__
)
async def test_a_run_that_was_told_of_a_failure_is_still_simulated_from_and_shown_truly(
    scene: Scene, answer: Any
) -> None:
    provider, loaded = refusing(answer)
    with suppress(ApplicationError):
        await last_of(scene, loaded)

    with scene.tx() as tx:
        recorded, told = recording_of(tx, RUN), recorded_view(tx, RUN).timeline

    assert {call.step_id for call in recorded.calls} == {STEP}
    assert len(provider.keys) == 1
    assert [line.text for line in told if "it was called again" in line.text] == []


@pytest.mark.parametrize(
    ("answer", "options", "why"),
    [
        (NotFound(), {"settle": None}, "without a settle time"),
        (Unknown("the books are closed"), {}, "the books are closed"),
        (ConnectionError("no route"), {}, "no route"),
        (None, {"lookup": None, "settle": None, "recovery": "human"}, ""),
    ],
    ids=["no settle time", "cannot tell", "fails", "no lookup"],
)
async def test_where_nothing_confirms_it_a_human_is_asked_with_its_words_after_one_call(
    scene: Scene, answer: Any, options: dict[str, Any], why: str
) -> None:
    provider, loaded = refusing(answer, **options)

    asked = await last_of(scene, loaded)

    assert isinstance(asked, Asked)
    assert WORDS in asked.question
    assert why in asked.question
    assert "crash" not in asked.question
    assert len(provider.keys) == 1


async def test_a_state_that_was_so_before_the_call_confirms_nothing(scene: Scene) -> None:
    provider, loaded = refusing(Found(RECEIPT), lookup_by="state")

    asked = await last_of(scene, loaded, observes=True)

    assert isinstance(asked, Asked)
    assert f"{WORDS}; that leaves its outcome unknown, and its lookup was true" in asked.question
    assert len(provider.keys) == 1


async def test_a_human_who_says_that_it_did_not_happen_has_it_called_again(scene: Scene) -> None:
    provider, loaded = refusing(Unknown("?"), RECEIPT)
    asked = await last_of(scene, loaded)
    assert isinstance(asked, Asked)
    said = {"intervention_id": asked.intervention_id, "outcome": "not_happened", "actor": "olga"}
    assert scene.settle(Resolution.model_validate(said))[0]

    assert isinstance(await last_of(scene, loaded), Done)
    assert len(provider.keys) == 2


async def test_another_run_that_finds_nothing_makes_its_own_call(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    with pytest.raises(ApplicationError, match="may still arrive"):
        await effect_call(scene, loaded, request_for(scene, loaded)).run()
    scene.open_run(OTHER_RUN)

    result = await last_of(scene, loaded, run_id=OTHER_RUN)

    assert isinstance(result, Done)
    assert len(provider.keys) == 2
    assert scene.row(effects)["run_id"] == OTHER_RUN


async def test_what_its_run_leaves_behind_the_reaper_settles(scene: Scene) -> None:
    provider, loaded = refusing(NotFound())
    with pytest.raises(ApplicationError):
        await effect_call(scene, loaded, request_for(scene, loaded)).run()
    with scene.tx() as tx:
        mine = effects.c.tenant_id == tx.tenant
        tx.execute(update(effects).where(mine).values(deadline_ms=0, claimed_ms=0))
    toolbox, second = Toolbox([loaded]), timedelta(seconds=1)
    worker = WorkerContext(scene.ledger, toolbox, scene.artifacts, Crash(), LEASE, second)

    async def gone(run_id: str) -> bool:
        return False

    settled = await settle_stale(worker, scene.tenant, gone, quiet=AT_ONCE, limit=10)

    assert (settled.not_applied, scene.row(effects)["state"]) == (1, "failed")
    assert len(provider.keys) == 1


async def test_the_words_of_a_foreign_tool_mark_the_run_that_fails_with_them(scene: Scene) -> None:
    _, loaded = refusing(NotFound())
    await fails(scene, loaded, foreign=True)
    [marked] = scene.events(type_="run.marked_foreign")
    assert marked["body"]["tool"] == "payments.refund"


async def test_a_call_that_was_cut_off_is_made_again_as_ever(scene: Scene) -> None:
    provider, loaded = refusing(NotFound(), RECEIPT)
    provider.answers[0] = OutcomeUnknown("cut off")

    assert isinstance(await last_of(scene, loaded), Done)
    assert len(provider.keys) == 2


async def test_a_worker_that_dies_behind_the_answer_leaves_the_words_to_the_next_attempt(
    scene: Scene,
) -> None:
    provider, loaded = refusing(NotFound())
    request = request_for(scene, loaded)
    call = effect_call(scene, loaded, request)
    left = await call._recorder.leave_in_doubt(scene.claimed(request), WORDS, reported=True)
    assert left.reported_failure == WORDS

    assert WORDS in await fails(scene, loaded)
    assert provider.keys == []
