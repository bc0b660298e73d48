"""What somebody has decided: all of it in order, nothing of others, and never by looking at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event, text

from surehand.activities.ledger.approvals.own_decisions import Moment, own_decisions
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.retention.policy import Policy
from surehand.workflows.contracts.approvals import DecisionOutcome
from tests.ledger.scene import RUN, Scene
from tests.ledger.test_retention import office_of

MINUTE = timedelta(minutes=1)


def decided(scene: Scene, number: int, by: str = "ann", **asked: Any) -> str:
    """Ask for a call and have somebody approve it, each a minute after the one before."""
    call = scene.call(step_id=f"s{number}", key=f"k{number}")
    gated = scene.ask_approval(call, description=f"call {number}", **asked)
    scene.decide(gated, approver=by, after=number * MINUTE)
    assert gated.approval_id is not None
    return gated.approval_id


def pages(scene: Scene, approver: str, most: int) -> list[list[str]]:
    found, after = [], None
    while True:
        with scene.tx() as tx:
            page = own_decisions(tx, approver, most=most, after=after)
        found.append([row["approval_id"] for row in page.rows])
        if page.more is None:
            return found
        after = page.more


def test_my_decisions_are_listed_newest_first_and_no_page_repeats_or_leaves_out_one(
    scene: Scene,
) -> None:
    ids = [decided(scene, number) for number in range(1, 6)]
    decided(scene, 9, by="eve")

    assert pages(scene, "ann", 2) == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert pages(scene, "ann", 5) == [ids[::-1]]
    with scene.tx() as tx:
        newest = own_decisions(tx, "ann", most=1).rows[0]
    assert (newest["description"], newest["outcome"]) == ("call 5", "approve")
    assert (newest["verdict"], newest["tool"]) == ("accepted", "payments.refund")


def test_nobody_is_shown_what_another_one_or_another_tenant_has_decided(
    scene: Scene, other: Scene
) -> None:
    decided(scene, 1, by="Ann")
    decided(other, 1, by="ann")

    assert pages(scene, "ann", 5) == [[]]


def test_a_decision_that_does_not_count_is_listed_as_such(scene: Scene) -> None:
    one = decided(scene, 1)
    scene.decide(
        replace(scene.call(step_id="s1", key="k1"), gated=True, approval_id=one),
        approver="ann",
        outcome=DecisionOutcome.REJECT,
        after=2 * MINUTE,
    )

    with scene.tx() as tx:
        newest, first = own_decisions(tx, "ann", most=5).rows
    assert (first["verdict"], newest["outcome"]) == ("accepted", "reject")
    assert newest["verdict"] != "accepted"


async def test_of_a_hidden_run_nothing_that_it_said_is_shown(
    scene: Scene, keeper: Ledger, tmp_path: Path
) -> None:
    decided(scene, 1)
    office = office_of(scene, keeper, tmp_path)
    office.end(RUN)
    await office.round(Policy({"runs": timedelta(0)}, grace=timedelta(days=1)))

    with scene.tx() as tx:
        [row] = own_decisions(tx, "ann", most=5).rows
    assert row["hidden"]
    assert (row["description"], row["reason"], row["message"]) == (None, None, None)


def test_each_page_reads_a_stretch_of_an_index_and_sorts_nothing(scene: Scene) -> None:
    decided(scene, 1)
    looks: list[tuple[str, Any]] = []

    def note(conn: Any, cursor: Any, sql: str, values: Any, *more: Any) -> None:
        if "FROM decisions" in sql:
            looks.append((sql, values))

    with scene.tx() as tx:
        listening = (tx.connection, "before_cursor_execute", note)
        event.listen(*listening)
        for after in (None, Moment(tx.now_ms, "a")):
            own_decisions(tx, "ann", most=5, after=after)
        event.remove(*listening)
        postgresql = tx.connection.dialect.name == "postgresql"
        if postgresql:  # which would rather read a table of one row as a whole
            for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
                tx.connection.execute(text(f"SET LOCAL {name} = off"))
        explain = "EXPLAIN " if postgresql else "EXPLAIN QUERY PLAN "
        plans = [
            str(tx.connection.exec_driver_sql(explain + sql, values).all()) for sql, values in looks
        ]

    assert len(plans) == 2
    for plan in plans:
        assert "ix_decisions_approver" in plan, plan
        assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
        assert "Filter" not in plan.replace("One-Time Filter", ""), plan
