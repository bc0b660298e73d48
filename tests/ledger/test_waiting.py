"""What waits for a decision and what was decided: in order, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.approvals.waiting import (
    Group,
    ListPlace,
    list_groups,
    list_own_decisions,
    list_waiting,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals
from surehand.activities.ledger.history.run_display import read_approval, read_progress
from surehand.activities.ledger.runs.steering import judge_steering
from surehand.activities.ledger.steps import foreign
from surehand.workflows.contracts.approvals import Assurance, DecisionOutcome
from surehand.workflows.contracts.base import ForeignContent
from surehand.workflows.contracts.steering import AnswerInterrupts, Steer, Verb
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import administration
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene

MANAGER = Requirement(roles=("manager",))
LAWYER = Requirement(roles=("lawyer", "manager"))
MINUTE = timedelta(minutes=1)


def asked(
    scene: Scene, number: int, *, tool: str = "payments.refund", params: Any = None, **more: Any
) -> str:
    given = {} if params is None else {"params": params}
    call = scene.call(step_id=f"s{number}", key=f"k{number}", tool=tool, **given)
    gated = scene.ask_approval(call, expires_in=number * MINUTE, **more)
    assert gated.approval_id is not None
    return gated.approval_id


def pages(
    scene: Scene, most: int, look: Callable[..., Any] = list_waiting, **filters: Any
) -> list[list[str]]:
    found, after = [], None
    while True:
        with scene.tx() as tx:
            page = look(tx, most=most, after=after, **filters)
        found.append([row["approval_id"] for row in page.rows])
        if page.more is None:
            return found
        after = page.more


def test_requests_are_listed_by_expiry_page_by_page(scene: Scene) -> None:
    ids = [asked(scene, number) for number in (3, 1, 5, 2, 4)]
    in_order = sorted(ids)

    assert pages(scene, 2) == [in_order[:2], in_order[2:4], in_order[4:]]
    assert pages(scene, 5) == [in_order]


def test_what_was_decided_or_has_expired_waits_no_more(scene: Scene) -> None:
    asked(scene, 1)
    left = asked(scene, 9)
    scene.approved(scene.call(step_id="s3", key="k3"))

    with scene.tx(after=MINUTE) as tx:
        assert [row["approval_id"] for row in list_waiting(tx, most=5).rows] == [left]


def test_mine_is_what_my_roles_or_everybody_may_vote_for(scene: Scene) -> None:
    anybodys = asked(scene, 1)
    managers = asked(scene, 2, requirement=MANAGER)
    both = asked(scene, 3, requirement=LAWYER)

    assert pages(scene, 5, roles={"manager"}) == [[anybodys, managers, both]]
    assert pages(scene, 5, roles={"lawyer"}) == [[anybodys, both]]
    assert pages(scene, 5, roles=frozenset()) == [[anybodys]]
    with scene.tx() as tx:
        assert list_groups(tx) == [
            Group("", "payments.refund"),
            Group("lawyer manager", "payments.refund"),
            Group("manager", "payments.refund"),
        ]


def test_filters_by_tool_and_role_go_together_and_page_by_page(scene: Scene) -> None:
    mine = [asked(scene, number, tool="mail.send", requirement=LAWYER) for number in (4, 2)]
    mine.append(asked(scene, 3, tool="mail.send"))
    asked(scene, 1, tool="mail.send", requirement=MANAGER)
    asked(scene, 5)

    first, second = pages(scene, 2, tool="mail.send", roles={"lawyer"})
    assert [*first, *second] == sorted(mine)


def test_a_page_says_who_has_said_yes_in_person(scene: Scene) -> None:
    two = asked(scene, 1, requirement=Requirement(quorum=2))
    scene.decide(replace(scene.call(step_id="s1", key="k1"), gated=True, approval_id=two))

    with scene.tx() as tx:
        [row] = list_waiting(tx, most=5).rows
    assert row["voters"] == ["alice"]


def test_a_line_tells_its_undo_and_foreign_content(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    mine = asked(scene, 1)
    call = scene.call(run_id=OTHER_RUN, step_id="s2", key="k2")
    marked = scene.ask_approval(call).approval_id
    with scene.tx() as tx:
        foreign.mark_foreign(tx, OTHER_RUN, [ForeignContent(tool="mail.read", step_id="inbox")])
    with scene.tx() as tx:
        lines = {row["approval_id"]: row for row in list_waiting(tx, most=5).rows}

    assert {one: row["foreign"] for one, row in lines.items()} == {mine: False, marked: True}
    assert lines[mine]["undo"] == "changes nothing"


_COPIED = {
    "approval_id": "approval_id || '-' || n",
    "step_id": "step_id || n",
    "asked_of": "'others'",
    "tool": "'mail.send'",
}
_NAMES = [column.name for column in approvals.c]
#: Requests that others are asked, of another tool.
_OTHERS = (
    f"INSERT INTO approvals ({', '.join(_NAMES)})"
    f" SELECT {', '.join(_COPIED.get(name, name) for name in _NAMES)}"
    " FROM approvals, generate_series(1, 500) AS n WHERE asked_of = ''"
)


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "ix_approvals_pending"),
        ({"roles": frozenset()}, "ix_approvals_asked"),
        ({"tool": "payments.refund"}, "ix_approvals_asked"),
    ],
)
def test_each_look_reads_an_index(scene: Scene, filters: dict[str, Any], index: str) -> None:
    asked(scene, 1)
    asked(scene, 2)

    with administration(scene) as tx:  # which may have the statistics made
        with heard(tx) as sent:
            list_waiting(tx, most=5, after=ListPlace(tx.now_ms, "a"), **filters)
        if tx.dialect == "postgresql":  # which takes any index for a table of two rows, or none
            tx.connection.execute(text(_OTHERS))
            tx.connection.execute(text("ANALYZE approvals"))
        looks = [one for one in sent if "FROM approvals" in one[0] and " IN (" not in one[0]]
        assert looks
        reads_a_stretch_of(tx, index, looks)


Sent = list[tuple[str, Any]]


@contextmanager
def heard(tx: Transaction) -> Iterator[Sent]:
    """Yield what is sent meanwhile, with its values."""
    sent: Sent = []

    def note(conn: Any, cursor: Any, sql: str, values: Any, *more: Any) -> None:
        sent.append((sql, values))

    listening = (tx.connection, "before_cursor_execute", note)
    event.listen(*listening)
    yield sent
    event.remove(*listening)


def reads_a_stretch_of(tx: Transaction, index: str, looks: Sent) -> None:
    """See that each statement goes along an index, and sorts and leaves out nothing."""
    if tx.dialect == "postgresql":  # which would rather read a small table as a whole
        for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
            tx.connection.execute(text(f"SET LOCAL {name} = off"))
    explain = "EXPLAIN " if tx.dialect == "postgresql" else "EXPLAIN QUERY PLAN "
    for sql, values in looks:
        plan = str(tx.connection.exec_driver_sql(explain + sql, values).all())
        assert index in plan, plan
        assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
        # Row-level security asks once, whose transaction it is.
        assert "Filter" not in plan.replace("One-Time Filter", ""), plan


def decided(scene: Scene, number: int, by: str = "ann", **asked: Any) -> str:
    """Ask for a call and have somebody approve it, each a minute after the one before."""
    call = scene.call(step_id=f"s{number}", key=f"k{number}")
    gated = scene.ask_approval(call, description=f"call {number}", **asked)
    scene.decide(gated, approver=by, after=number * MINUTE)
    assert gated.approval_id is not None
    return gated.approval_id


def test_my_decisions_are_listed_newest_first_page_by_page(scene: Scene) -> None:
    ids = [decided(scene, number) for number in range(1, 6)]
    decided(scene, 9, by="eve")

    anns = {"look": list_own_decisions, "approver": "ann"}
    assert pages(scene, 2, **anns) == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert pages(scene, 5, **anns) == [ids[::-1]]
    with scene.tx() as tx:
        newest = list_own_decisions(tx, "ann", most=1).rows[0]
    assert (newest["description"], newest["outcome"]) == ("call 5", "approve")
    assert (newest["verdict"], newest["tool"]) == ("accepted", "payments.refund")


def test_nobody_sees_another_ones_decisions(scene: Scene, other: Scene) -> None:
    decided(scene, 1, by="Ann")
    decided(other, 1, by="ann")

    assert pages(scene, 5, list_own_decisions, approver="ann") == [[]]


def test_what_i_have_answered_is_listed_with_it_once(scene: Scene) -> None:
    decided(scene, 1)
    answer = AnswerInterrupts(actor="ann", answers={"ask.1": "yes"})
    for number, more in enumerate(
        ({}, {"verb": Verb.CANCEL}, {"actor": "eve"}, {"forwarded_as": "none", "forwarded_by": RUN})
    ):
        message = {
            **{"tenant": scene.tenant, "run_id": RUN, "actor": "ann", "verb": Verb.ANSWER},
            **{"steering_id": f"{RUN}#first.s{number}", "workflow_run_id": "first"},
            **{"content": answer.content(), **more},
        }
        with scene.tx(after=3 * MINUTE) as tx:
            judge_steering(tx, Steer.model_validate(message), Assurance.OPEN)

    with scene.tx() as tx:
        page = list_own_decisions(tx, "ann", most=1)
        assert page.more is not None
        [answered] = page.rows
        [approved] = list_own_decisions(tx, "ann", most=1, after=page.more).rows
    assert (answered["run_id"], answered["approval_id"]) == (RUN, None)
    assert (answered["outcome"], answered["verdict"]) == ("answer", "accepted")
    assert approved["outcome"] == "approve"


def test_a_decision_that_does_not_count_is_listed_as_such(scene: Scene) -> None:
    one = decided(scene, 1)
    scene.decide(
        replace(scene.call(step_id="s1", key="k1"), gated=True, approval_id=one),
        approver="ann",
        outcome=DecisionOutcome.REJECT,
        after=2 * MINUTE,
    )

    with scene.tx() as tx:
        newest, first = list_own_decisions(tx, "ann", most=5).rows
    assert (first["verdict"], newest["outcome"]) == ("accepted", "reject")
    assert newest["verdict"] != "accepted"


def test_each_page_reads_a_stretch_of_an_index_and_sorts_nothing(scene: Scene) -> None:
    decided(scene, 1)

    with scene.tx() as tx:
        with heard(tx) as sent:
            for after in (None, ListPlace(tx.now_ms, "a")):
                list_own_decisions(tx, "ann", most=5, after=after)
        for table, index in (
            ("decisions", "ix_decisions_approver"),
            ("steerings", "ix_steerings_actor"),
        ):
            looks = [one for one in sent if f"FROM {table}" in one[0]]
            assert len(looks) == 2
            reads_a_stretch_of(tx, index, looks)


TWO = Requirement(quorum=2, four_eyes=True)


def test_it_tells_the_call_who_has_said_yes_and_who_is_left_out(scene: Scene) -> None:
    gated = scene.ask_approval(scene.call(), requirement=TWO, answers=["sent twice"])
    scene.decide(gated)

    with scene.tx() as tx:
        one = read_approval(tx, f"{RUN}/{STEP}/1")
    assert one is not None
    assert (one.row["params"], one.row["answers"]) == (gated.params, ["sent twice"])
    assert [(said["approver"], said["verdict"]) for said in one.decisions] == [
        ("alice", "accepted")
    ]
    assert one.excluded == ("ada",)
    assert one.run_open
    assert (one.entries, one.replaces) == ([], None)


def test_it_tells_what_was_edited_and_what_the_same_key_has_done_before(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(params={"order": "1001", "amount": "120.00"}))
    edit = {"order": "1001", "amount": "50.00"}
    call = scene.call(params=edit)
    edited = Edited(edit, call.params_hash, call.key)
    assert scene.decide(first, "edit", edited=edited, params=edit).code == "accepted"
    again = scene.ask_approval(call, number=2, editors=("alice",))
    scene.committed(scene.call(step_id="other"))

    with scene.tx() as tx:
        one = read_approval(tx, again.approval_id or "")
    assert one is not None and one.replaces is not None
    assert one.replaces["params"] == first.params
    assert [(entry["step_id"], entry["state"]) for entry in one.entries] == [("other", "committed")]


def test_how_far_a_run_has_come_grows_with_each_event(scene: Scene) -> None:
    with scene.tx() as tx:
        before, _ = read_progress(tx, RUN)
    scene.ask_approval(scene.call(), expires_in=timedelta(hours=1))
    with scene.tx() as tx:
        assert read_progress(tx, RUN)[0] == before + 1
