"""Limits over effects: judged where they are claimed, and never exceeded by a cent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import effects, limit_uses
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.limits import LimitUse
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, OverLimit
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.plan.policy import ApprovalPolicy
from tests.ledger.databases import Database
from tests.ledger.scene import LEASE, NOW, RUN, WORKERS, Scene

DAY = timedelta(days=1)
ASK = ApprovalPolicy(roles=("finance",))


def use(amount: str | None, most: str = "100", **changes: Any) -> LimitUse:
    group = changes.pop("group", "customer-1")
    return LimitUse(
        name=changes.pop("name", "refunds"),
        group=group,
        plain_group=changes.pop("plain_group", group),
        amount=None if amount is None else Decimal(amount),
        most=Decimal(most),
        within_ms=DAY // timedelta(milliseconds=1),
        ask=changes.pop("ask", None),
        shadow=changes.pop("shadow", False),
        approved=changes.pop("approved", False),
    )


def call(scene: Scene, name: str, *uses: LimitUse, **changes: Any) -> ClaimRequest:
    return scene.call(key=name, step_id=name, lease=LEASE, uses=uses, **changes)


def test_a_call_over_a_limit_is_refused_and_nothing_is_claimed(scene: Scene) -> None:
    scene.committed(call(scene, "a", use("60")))
    scene.claimed(call(scene, "b", use("30")))  # under way: it counts
    refused = scene.claim(call(scene, "c", use("10.01")))

    assert refused == OverLimit(
        "limit refunds: 90 of 100 used, this call adds 10.01", "refunds", None
    )
    assert {row["key"] for row in scene.rows(effects)} == {"a", "b"}
    assert sorted(row["amount"] for row in scene.rows(limit_uses)) == [30_000_000, 60_000_000]
    assert scene.claimed(call(scene, "c", use("10")))
    told = scene.events(RUN, "effect.refused")[-1]["body"]
    assert (told["rule"], told["evidence"]) == ("OverLimit", refused.reason)


def test_what_did_not_happen_or_was_undone_or_is_long_ago_counts_no_more(scene: Scene) -> None:
    scene.failed(call(scene, "a", use("100")))
    scene.compensated(call(scene, "b", use("100")))
    scene.committed(call(scene, "c", use("100")))
    assert isinstance(scene.claim(call(scene, "d", use("1"))), OverLimit)
    assert scene.claimed(call(scene, "d", use("100")), DAY + timedelta(seconds=1))


def test_ten_limits_cost_a_claim_as_many_statements_as_one(scene: Scene) -> None:
    def sent(name: str, count: int) -> int:
        statements = list[str]()
        uses = (use("1", name=f"limit-{n}", group=f"{n}") for n in range(count))
        claimed = call(scene, name, *uses)
        listener = (
            scene.ledger.engine,
            "before_cursor_execute",
            lambda *of: statements.append(of[2]),
        )
        event.listen(*listener)
        try:
            scene.claimed(claimed)
        finally:
            event.remove(*listener)
        return len(statements)

    none, one, ten = (sent(f"with-{n}", n) for n in (0, 1, 10))
    assert len(scene.rows(limit_uses)) == 11
    on_postgres = scene.ledger.engine.dialect.name == "postgresql"  # SQLite has nothing to lock
    assert (one - none, ten - none) == ((3, 3) if on_postgres else (2, 2))


def test_a_failed_call_counts_from_when_it_is_made_again(scene: Scene) -> None:
    first = call(scene, "a", use("100"))
    scene.failed(first)
    again = scene.claimed(replace(first, attempt=2, holder="again"), DAY)
    assert again.calls == 2
    [row] = scene.rows(limit_uses)
    assert row["counted_ms"] == again.claimed_ms or row["counted_ms"] > again.claimed_ms
    # A day after the first call, and a moment after the second.
    late = DAY + timedelta(seconds=5)
    assert isinstance(scene.claim(call(scene, "b", use("1")), late), OverLimit)


def test_a_call_that_is_repeated_counts_from_then(scene: Scene) -> None:
    """The effect may be the repeat's: a day after the first call it is not a day old."""
    dedupes = {"recovery": Recovery.DEDUPES, "window": 2 * DAY, "recovery_limit": 2 * DAY}
    first = call(scene, "a", use("100"), **dedupes)
    scene.claimed(first)
    again = replace(first, attempt=2, holder="again")
    assert scene.claimed(again, DAY - timedelta(seconds=5)).calls == 2
    late = DAY + timedelta(seconds=5)
    assert isinstance(scene.claim(call(scene, "b", use("1")), late), OverLimit)


def test_a_call_in_doubt_is_not_repeated_into_the_room_of_others(scene: Scene) -> None:
    """Its own time was over, so another call was let: both together would be too much."""
    dedupes = {"recovery": Recovery.DEDUPES, "window": 3 * DAY, "recovery_limit": 3 * DAY}
    first = call(scene, "a", use("100"), **dedupes)
    scene.claimed(first)
    again = replace(first, attempt=2, holder="again")
    scene.claimed(call(scene, "b", use("1")), DAY + timedelta(seconds=5))
    assert isinstance(scene.claim(again, DAY + timedelta(seconds=6)), OverLimit)
    assert scene.claimed(again, 2 * DAY + timedelta(seconds=6)).calls == 2


def test_other_groups_other_limits_and_other_tenants_do_not_count(
    scene: Scene, other: Scene
) -> None:
    scene.committed(call(scene, "a", use("100")))
    assert scene.claimed(call(scene, "b", use("100", group="customer-2")))
    assert scene.claimed(call(scene, "c", use("100", name="mails")))
    assert other.claimed(call(other, "a", use("100")))


def test_what_was_counted_before_runs_were_sealed_counts(scene: Scene) -> None:
    scene.committed(call(scene, "a", use("60")))
    keyed = {"group": "hmac:1", "plain_group": "customer-1"}
    scene.committed(call(scene, "b", use("30", **keyed)))
    assert isinstance(scene.claim(call(scene, "c", use("11", **keyed))), OverLimit)
    assert scene.claimed(call(scene, "c", use("10", **keyed)))


def test_what_cannot_be_added_up_is_within_no_limit(scene: Scene) -> None:
    refused = scene.claim(call(scene, "a", use(None)))
    assert isinstance(refused, OverLimit) and "is no number" in refused.reason


def test_a_shadow_limit_records_what_it_would_have_stopped(scene: Scene) -> None:
    scene.committed(call(scene, "a", use("100")))
    assert scene.claimed(call(scene, "b", use("5", shadow=True)))
    [told] = scene.events(RUN, "limit.exceeded")
    assert (told["body"]["limit"], told["body"]["allowed"]) == ("refunds", "shadow")


def test_people_can_let_a_call_through_that_was_asked_about_as_over(scene: Scene) -> None:
    scene.committed(call(scene, "a", use("100")))
    over = call(scene, "b", use("5", ask=ASK))
    assert scene.claim(over) == OverLimit(
        "limit refunds: 100 of 100 used, this call adds 5", "refunds", ASK
    )
    # An approval that was given for something else does not do.
    gated = scene.approved(over)
    assert isinstance(scene.claim(gated), OverLimit)
    asked = replace(gated, uses=(use("5", ask=ASK, approved=True),))
    assert scene.claimed(asked)
    [told] = scene.events(RUN, "limit.exceeded")
    assert told["body"]["allowed"] == "approval"
    # Nobody is asked about what only a refusal is the answer to.
    assert isinstance(scene.claim(call(scene, "c", use("5", approved=True))), OverLimit)


def test_the_outcome_of_a_call_is_settled_however_much_is_used_meanwhile(scene: Scene) -> None:
    first = call(scene, "a", use("60"))
    entry = scene.claimed(first)
    scene.committed(call(scene, "b", use("40")))
    # Its worker has asked once more: the answer to its claim was lost.
    assert scene.claimed(first).fencing_token == entry.fencing_token


def test_a_claim_in_the_transaction_of_an_outcome_counts_as_well(scene: Scene) -> None:
    scene.committed(call(scene, "a", use("100")))
    with scene.tx() as tx:
        assert claims.claim_at_once(tx, call(scene, "b", use("1"))) is None


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(
    amounts=st.lists(st.integers(1, 5000), min_size=2, max_size=50),
    most=st.integers(0, 20000),
)
def test_of_any_claims_at_once_no_more_are_made_than_the_limit_lets(
    database: Database, workers: list[Ledger], amounts: list[int], most: int
) -> None:
    """Amounts in cents, in whichever order the claims come."""
    scene = Scene.begin(workers[0], f"limited-{next(_numbers)}")
    cents = [f"{amount / 100:.2f}" for amount in amounts]
    limit = f"{most / 100:.2f}"

    async def claim_all() -> list[Any]:
        return await asyncio.gather(
            *(
                asyncio.to_thread(
                    Scene(workers[n % WORKERS], scene.tenant).claim,
                    call(scene, f"k-{n}", use(cent, limit)),
                    NOW,
                )
                for n, cent in enumerate(cents)
            )
        )

    found = asyncio.run(claim_all())
    made = sum(a for a, one in zip(amounts, found, strict=True) if isinstance(one, Claimed))

    assert made <= most
    left = [a for a, one in zip(amounts, found, strict=True) if isinstance(one, OverLimit)]
    assert all(made + amount > most for amount in left)
    assert sum(row["amount"] for row in scene.rows(limit_uses)) == made * 10_000


_numbers = iter(range(1, 10_000))
