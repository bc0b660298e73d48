"""G1, G2: a row before each call, its result wins, and what a crash left unknown is asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, interventions, steps
from surehand.activities.ledger.effects import outcomes, reconcile
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Dedupes, Found, No, NotFound, Partial, Unknown
from surehand.workflows.contracts.tools import Recovery
from tests.ledger.attempts import Provider, last_of, looked_up, request_for
from tests.ledger.scene import (
    AT_ONCE,
    LEASE,
    LEASE_OVER,
    NOW,
    OTHER_RUN,
    RUN,
    SETTLED,
    STEP,
    TIMEOUT,
    WINDOW,
    Scene,
    said,
)

pytestmark = [pytest.mark.guarantee("G1"), pytest.mark.guarantee("G2")]


MADE_IN = {
    "claimed": Scene.claimed,
    "committed": Scene.committed,
    "in_doubt": Scene.in_doubt,
    "compensating": Scene.compensating,
}


OTHER_PARAMS = {"order": "1001", "amount": "140.00"}
DEDUPES = {"recovery": Recovery.DEDUPES, "window": WINDOW}


def test_a_first_claim_writes_the_entry_and_its_attempt_before_any_call(scene: Scene) -> None:
    request = scene.call(attempt=3)

    entry = scene.claimed(request)

    row = scene.row(effects)
    assert (row["state"], row["generation"], row["fencing_token"]) == ("claimed", 1, 1)
    assert (row["run_id"], row["step_id"], row["holder"]) == (RUN, STEP, request.holder)
    assert (row["params"], row["params_hash"]) == (request.params, request.params_hash)
    assert row["lease_until_ms"] - row["claimed_ms"] == 3_000
    assert row["deadline_ms"] - row["claimed_ms"] == 30_000
    assert row["first_call_ms"] == row["claimed_ms"]
    step = scene.row(steps)
    assert (step["state"], step["attempt"], step["input"]) == ("running", 3, request.params)
    claimed = (scene.events(type_="effect.claimed"))[0]
    assert claimed["body"]["entry_id"] == entry.entry_id
    assert claimed["body"]["fencing_token"] == 1


def test_another_run_gets_the_committed_effect_and_its_maker(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)

    result = scene.claim(scene.call(run_id=OTHER_RUN))

    assert result == entries.Committed(committed)
    assert len(scene.rows(effects)) == 1
    (replayed,) = scene.events(OTHER_RUN, "effect.replayed")
    made = {"tool": committed.tool, "made_by": RUN}
    assert replayed["body"] == {"entry_id": committed.entry_id, **made}


def test_a_committed_effect_is_returned_although_its_tool_has_changed(scene: Scene) -> None:
    committed = scene.committed(scene.call())

    for change in ({"tool_version": "2"}, {"drift": "it is version 2 now"}):
        assert scene.claim(scene.call(**change)) == entries.Committed(committed)


def test_a_changed_tool_claims_nothing(scene: Scene) -> None:
    result = scene.claim(scene.call(drift="it is version 2 now"))

    assert result == entries.Drifted("it is version 2 now")
    assert scene.rows(effects) == []
    (refused,) = scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "Drifted"


@pytest.mark.in_turns
@pytest.mark.parametrize("state", [*MADE_IN, "partial"])
def test_other_params_of_a_live_key_change_nothing(scene: Scene, state: str) -> None:
    if state == "partial":
        entry, _ = scene.asked(scene.call(), partial=True)
    else:
        entry = MADE_IN[state](scene, scene.call())
    scene.open_run(OTHER_RUN)
    before = scene.rows(effects)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(run_id=run_id, params=OTHER_PARAMS))
        assert isinstance(result, entries.Mismatch)
        assert entry.entry_id in result.reason
        (refused,) = scene.events(run_id, "effect.refused")
        assert refused["body"]["rule"] == "Mismatch"
    assert scene.rows(effects) == before


@pytest.mark.parametrize("change", [{"tool": "mail.send"}, {"key": "refund:order-1002"}])
def test_a_key_counts_within_its_tool_only(scene: Scene, change: dict[str, str]) -> None:
    first = scene.committed(scene.call())

    second = scene.claimed(scene.call(step_id="second", **change))

    assert second.entry_id != first.entry_id
    assert second.provider_key != first.provider_key


def test_another_run_takes_a_failed_effect_and_counts_anew(scene: Scene) -> None:
    scene.failed(scene.call())
    scene.open_run(OTHER_RUN)

    taken = scene.claimed(scene.call(run_id=OTHER_RUN))

    assert taken.owned_by(OTHER_RUN, STEP)
    assert taken.failures == {}


def test_a_step_that_was_told_no_is_told_so_again(scene: Scene) -> None:
    answered = scene.answered_no(scene.call())

    result = scene.claim(scene.call(attempt=2))

    assert result == entries.Answered(answered)
    assert answered.answer == {"reason": "already shipped", "code": "shipped"}


@pytest.mark.parametrize("change", [{"run_id": OTHER_RUN}, {"step_id": "later"}])
def test_a_no_keeps_no_other_step_from_asking(scene: Scene, change: dict[str, str]) -> None:
    answered = scene.answered_no(scene.call())
    scene.open_run(OTHER_RUN)

    result = scene.claim(scene.call(**change))

    assert isinstance(result, entries.Claimed)
    assert result.entry.entry_id == answered.entry_id
    assert result.entry.answer is None


Write = Callable[[Transaction, entries.ClaimRequest, entries.Entry], Any]


#: Every way to write an outcome, and what a fenced attempt is told.
WRITES: dict[str, tuple[Write, Any]] = {
    "renew": (lambda tx, request, entry: outcomes.renew_lease(tx, entry), False),
    "commit": (lambda tx, call, own: outcomes.commit_effect(tx, call, own, Kept("late")), None),
    "answer_no": (lambda tx, request, entry: outcomes.record_no(tx, request, entry, "", ""), None),
    "fail": (
        lambda tx, request, own: outcomes.record_failure(tx, request, own, "x", "", delay=None),
        None,
    ),
    "leave_in_doubt": (
        lambda tx, request, entry: outcomes.leave_in_doubt(tx, request, entry, ""), None,
    ),
    "ask_human": (lambda tx, request, entry: outcomes.ask_human(tx, entry, "Did it?"), None),
}  # fmt: skip


def _taken_over(scene: Scene, request: entries.ClaimRequest) -> None:
    scene.claimed(scene.call(attempt=2, recovery=Recovery.DEDUPES, window=WINDOW), LEASE_OVER)


def _doubted(scene: Scene, request: entries.ClaimRequest) -> None:
    assert isinstance(scene.claim(scene.call(attempt=2), LEASE_OVER), entries.Doubtful)


def _committed_by_another(scene: Scene, request: entries.ClaimRequest) -> None:
    later = scene.call(attempt=2, recovery=Recovery.DEDUPES, window=WINDOW)
    scene.commit(later, scene.claimed(later, LEASE_OVER), "the other receipt")


@pytest.mark.in_turns
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("overtaken", [_taken_over, _doubted, _committed_by_another])
def test_an_attempt_with_an_older_token_can_write_nothing(
    scene: Scene, name: str, overtaken: Callable[[Scene, entries.ClaimRequest], None]
) -> None:
    write, refusal = WRITES[name]
    request = scene.call(recovery=Recovery.LOOKUP, window=WINDOW)
    entry = scene.claimed(request)
    overtaken(scene, request)
    before = [scene.rows(table) for table in (effects, steps, interventions)]
    events = scene.events()

    with scene.tx() as tx:
        told = write(tx, request, entry)

    assert told is refusal
    assert [scene.rows(table) for table in (effects, steps, interventions)] == before
    assert scene.events() == events


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ["renew", "fail", "answer_no", "leave_in_doubt", "ask_human"])
def test_what_is_committed_stays_committed_even_for_its_own_token(scene: Scene, name: str) -> None:
    write, refusal = WRITES[name]
    request = scene.call()
    entry = scene.claimed(request)
    scene.commit(request, entry)
    before = scene.rows(effects)

    with scene.tx() as tx:
        assert write(tx, request, entry) is refusal

    assert scene.rows(effects) == before


def test_a_commit_records_the_receipt_its_number_and_the_steps_success(scene: Scene) -> None:
    request = scene.call()
    number = scene.commit(request, scene.claimed(request), {"refund": "r-1"})

    row = scene.row(effects)
    assert (row["state"], row["receipt"]) == ("committed", {"refund": "r-1"})
    assert row["lease_until_ms"] is None
    assert row["settled_ms"] >= row["claimed_ms"]
    (event,) = scene.events(type_="effect.committed")
    assert row["commit_no"] == number
    assert event["body"]["entry_id"] == row["entry_id"]
    step = scene.row(steps)
    assert (step["state"], step["output"]) == ("succeeded", {"refund": "r-1"})


def test_a_receipt_of_nothing_is_a_receipt(scene: Scene) -> None:
    request = scene.call()

    entry = scene.committed(request, receipt=None)

    assert (entry.state, entry.receipt) == ("committed", None)


def test_a_renewal_extends_the_lease_from_now(scene: Scene) -> None:
    entry = scene.claimed(scene.call())

    with scene.tx(after=timedelta(seconds=2)) as tx:
        assert outcomes.renew_lease(tx, entry)
        now_ms = tx.now_ms

    row = scene.row(effects)
    assert row["lease_until_ms"] == now_ms + 3_000
    assert row["fencing_token"] == entry.fencing_token


@pytest.mark.parametrize("after", [NOW, LEASE_OVER])
def test_a_lost_claims_answer_is_found_with_its_lease(scene: Scene, after: timedelta) -> None:
    request = scene.call()
    first = scene.claimed(request)

    again = scene.claimed(request, after)

    assert (again.entry_id, again.fencing_token) == (first.entry_id, first.fencing_token)
    row = scene.row(effects)
    assert row["calls"] == 1
    # It calls the tool from here: what others hold against it counts from here, too.
    assert row["lease_until_ms"] >= (first.lease_until_ms or 0) + after // timedelta(milliseconds=1)
    assert row["deadline_ms"] >= (first.deadline_ms or 0) + after // timedelta(milliseconds=1)


def test_failures_are_counted_by_class_over_the_attempts_of_their_step(scene: Scene) -> None:
    counts = []
    for attempt, class_ in enumerate(["transient", "transient", "rate_limited"], start=1):
        request = scene.call(attempt=attempt)
        entry = scene.claimed(request)
        with scene.tx() as tx:
            failed = outcomes.record_failure(tx, request, entry, class_, "again", delay=LEASE)
        assert failed is not None
        counts.append(failed.failures)

    assert counts == [{"transient": 1}, {"transient": 2}, {"transient": 2, "rate_limited": 1}]
    assert (scene.row(effects))["failures"] == counts[-1]
    attempts = scene.rows(steps)
    assert [row["error_class"] for row in attempts] == ["transient", "transient", "rate_limited"]


def test_a_crash_or_a_wait_is_held_against_no_failure_class(scene: Scene) -> None:
    dedupes = {"recovery": Recovery.DEDUPES, "window": WINDOW}
    for attempt in range(1, 6):
        scene.claimed(scene.call(**dedupes, attempt=attempt), after=attempt * LEASE_OVER)

    row = scene.row(effects)
    assert (row["calls"], row["failures"]) == (5, {})


def test_a_call_without_an_outcome_is_counted_with_its_deadline(scene: Scene) -> None:
    request = scene.call()
    entry = scene.claimed(request)
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, request, entry, "cut off") is not None

    row = scene.row(effects)
    assert (row["state"], row["failures"]) == ("in_doubt", {"in_doubt": 1})
    assert row["deadline_ms"] == entry.deadline_ms
    assert row["deadline_ms"] - row["claimed_ms"] == TIMEOUT // timedelta(milliseconds=1)


def test_a_later_attempt_of_one_activity_takes_a_deduping_call_over_at_once(scene: Scene) -> None:
    first = scene.claimed(scene.call(**DEDUPES))

    second = scene.claimed(scene.call(**DEDUPES, attempt=2))

    assert (second.entry_id, second.fencing_token) == (first.entry_id, 2)
    assert second.provider_key == first.provider_key
    (reconciled,) = scene.events(type_="effect.reconciled")
    assert reconciled["body"]["rule"] == "dedupes"
    assert reconciled["body"]["action"] == "call_again"


def test_another_activity_waits_even_if_the_provider_dedupes(scene: Scene) -> None:
    scene.claimed(scene.call(**DEDUPES))
    scene.open_run(OTHER_RUN)

    assert isinstance(scene.claim(scene.call(**DEDUPES, run_id=OTHER_RUN)), entries.Held)
    same_step = scene.call(**DEDUPES, activity_key="the same step, another activity")
    assert isinstance(scene.claim(same_step), entries.Held)


def test_an_expired_deduping_call_is_repeated_with_its_key(scene: Scene) -> None:
    first = scene.claimed(scene.call(**DEDUPES))
    scene.open_run(OTHER_RUN)

    second = scene.claimed(scene.call(**DEDUPES, run_id=OTHER_RUN), after=LEASE_OVER)

    assert second.provider_key == first.provider_key
    assert second.fencing_token == first.fencing_token + 1
    assert second.run_id == OTHER_RUN


@pytest.mark.parametrize(("partial", "how"), [(False, DEDUPES), (True, {})])
def test_runs_join_one_open_question(scene: Scene, partial: bool, how: dict[str, object]) -> None:
    entry, intervention = scene.asked(scene.call(**how), partial=partial)
    scene.open_run(OTHER_RUN)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(**how, run_id=run_id, attempt=2))
        rule = "partial" if partial else "unknown"
        assert result == entries.Asked(entry, intervention, "Did it?", rule)

    assert entry.state == ("partial" if partial else "in_doubt")
    assert scene.entry(entry.entry_id) == entry
    assert len(scene.rows(interventions)) == 1


@pytest.mark.parametrize("partial", [False, True])
def test_nobody_makes_an_effect_that_a_human_gave_up(scene: Scene, partial: bool) -> None:
    entry, intervention = scene.asked(scene.call(**DEDUPES), partial=partial)
    scene.settle(said(intervention, "give_up"))
    scene.open_run(OTHER_RUN)

    for run_id in (RUN, OTHER_RUN):
        result = scene.claim(scene.call(**DEDUPES, run_id=run_id, attempt=2))
        assert isinstance(result, entries.Barred)
        assert "olga" in result.reason

    assert (scene.entry(entry.entry_id)).state == entry.state


def test_not_found_in_a_run_that_is_being_undone_is_recorded_and_never_calls(scene: Scene) -> None:
    scene.claimed(scene.call())
    request = scene.call(attempt=2)
    doubted = scene.claim(request, after=LEASE_OVER)
    assert isinstance(doubted, entries.Doubtful)

    with scene.tx(SETTLED) as tx:
        result = reconcile.after_not_found(tx, request, doubted.entry, forward=False)

    assert isinstance(result, entries.Barred)
    row = scene.row(effects)
    assert (row["state"], row["calls"]) == ("failed", 1)
    (reconciled,) = scene.events(type_="effect.reconciled")
    assert reconciled["body"]["action"] == "bar"


def test_a_refusal_after_a_lookup_is_recorded(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=timedelta(seconds=20))
    scene.claimed(gated)
    doubted = scene.claim(replace(gated, holder="the next attempt"), LEASE_OVER)
    assert isinstance(doubted, entries.Doubtful)

    with scene.tx(SETTLED) as tx:
        result = reconcile.after_not_found(tx, gated, doubted.entry, forward=True)

    assert type(result).__name__ == "ApprovalRefused"
    (refused,) = scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"


DEDUPING = Dedupes(window=WINDOW)
LOST = httpx.ReadTimeout("the answer was lost")
POST = httpx.Request("POST", "http://provider/refunds")
KEY_REVOKED = httpx.HTTPStatusError("401", request=POST, response=httpx.Response(401, request=POST))
ALREADY = No("already refunded", "done")
PROVABLE = [httpx.ConnectError("no route"), KEY_REVOKED, Permanent("account closed")]
NAMES = ["down", "401", "permanent"]


@pytest.mark.in_turns
@pytest.mark.parametrize("provably", PROVABLE, ids=NAMES)
async def test_a_failed_repeat_proves_nothing_before_it(scene: Scene, provably: Exception) -> None:
    provider = Provider([LOST, provably])
    refund = provider.tool(dedupes=DEDUPING)

    result = await last_of(scene, refund)

    assert isinstance(result, entries.Asked)
    row = scene.row(effects)
    assert (row["state"], row["generation"]) == ("in_doubt", 1)
    assert len(set(provider.keys)) == 1
    question = scene.row(interventions, state="open")
    assert question["intervention_id"] == result.intervention_id
    assert "never answered" in question["question"]
    # Nor does anybody get its key.
    scene.open_run(OTHER_RUN)
    for run in (RUN, OTHER_RUN):
        again = scene.claim(request_for(scene, refund, run_id=run, params=OTHER_PARAMS))
        assert isinstance(again, entries.Mismatch)
    assert isinstance(scene.claim(request_for(scene, refund, run_id=OTHER_RUN)), entries.Asked)
    assert len(scene.rows(effects)) == 1


async def test_without_an_earlier_doubt_a_provable_failure_frees_the_key(scene: Scene) -> None:
    refund = Provider([Permanent("no such order")]).tool(dedupes=DEDUPING)

    with pytest.raises(ApplicationError) as failed:
        await last_of(scene, refund)

    assert failed.value.type == "ToolFailed"
    assert (scene.row(effects))["state"] == "failed"
    other = scene.claim(request_for(scene, refund, params=OTHER_PARAMS))
    assert isinstance(other, entries.Claimed)
    assert other.entry.generation == 2


async def test_a_failing_lookup_repeats_nothing_that_must_not_be(scene: Scene) -> None:
    provider = Provider([LOST, Permanent("account closed")])
    broken = looked_up(RuntimeError("its index is being rebuilt"))

    result = await last_of(scene, provider.tool(dedupes=DEDUPING, lookup=broken, settle=AT_ONCE))

    assert isinstance(result, entries.Asked)
    assert len(provider.keys) == 2
    assert scene.row(effects)["failures"][entries.NO_MORE_REPEATS] == 1


async def test_a_no_to_a_repeat_leaves_the_lost_first_call_to_a_human(scene: Scene) -> None:
    """It may be the first call that the provider says no for."""
    refund = Provider([LOST, ALREADY]).tool(dedupes=DEDUPING)

    result = await last_of(scene, refund)

    assert isinstance(result, entries.Asked)
    row = scene.row(effects)
    assert (row["state"], row["unproven"]) == ("in_doubt", True)
    assert "already refunded" in scene.row(interventions, state="open")["question"]
    other = scene.claim(request_for(scene, refund, step_id="other", params=OTHER_PARAMS))
    assert isinstance(other, entries.Mismatch)


@pytest.mark.parametrize("found", [True, False], ids=["found", "no"])
async def test_after_a_no_a_lookup_settles_both_calls(scene: Scene, found: bool) -> None:
    provider, answer = Provider([LOST, ALREADY]), Found({"id": "r-1"}) if found else ALREADY

    result = await last_of(
        scene, provider.tool(dedupes=DEDUPING, lookup=looked_up(answer), settle=AT_ONCE)
    )

    assert isinstance(result, Done if found else SaidNo)
    assert scene.row(effects)["state"] == ("committed" if found else "failed")
    rules = [event["body"]["rule"] for event in scene.events(type_="effect.in_doubt")]
    assert rules[-1] == "no_to_a_repeat"
    assert len(provider.keys) == 2


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "not found",
        NotFound,
        Unknown("its index is being rebuilt \ud83d \x00"),
        Partial("half \ud83d \x00"),
        KeyError("id"),
        asyncio.CancelledError(),
    ],
    ids=["None", "a string", "a class", "unknown", "partial", "an error", "a cancellation"],
)
async def test_a_lookup_that_says_nothing_ends_with_a_human(scene: Scene, answer: Any) -> None:
    provider = Provider([LOST])

    result = await last_of(scene, provider.tool(lookup=looked_up(answer), settle=AT_ONCE))

    assert isinstance(result, entries.Asked)
    assert len(provider.keys) == 1
    assert len(scene.rows(interventions, state="open")) == 1


async def test_a_tool_that_cancels_itself_ends_with_a_human(scene: Scene) -> None:
    provider = Provider([asyncio.CancelledError()])

    result = await last_of(scene, provider.tool(dedupes=DEDUPING))

    assert isinstance(result, entries.Asked)
    assert (scene.row(effects))["state"] == "in_doubt"
