"""Limits of order: a call only after another effect, and only if others stand behind that."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from surehand.activities.ledger.approvals import requests
from surehand.activities.ledger.core.statements import insert_row, update_rows
from surehand.activities.ledger.core.tables import decisions, effects
from surehand.activities.ledger.effects.run_tree import find_highest
from surehand.activities.ledger.limits import LimitUse
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, ClaimResult, OverLimit
from surehand.client.messages import sign_start
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.effects import UndoSpec
from surehand.workflows.contracts.runs import Parent
from surehand.workflows.plan.policy import ApprovalPolicy, AskedProof, Requirement
from tests.ledger.people import key_of, person, revoked
from tests.ledger.scene import NOW, OTHER_RUN, RUN, UNDOABLE, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.test_deputies import named, not_any_more

DAY = timedelta(days=1)
CHECK = "orders.check"
ASK = ApprovalPolicy(roles=("finance",))


def use(after: str | None = None, group: str = "order-1", **changes: Any) -> LimitUse:
    values: dict[str, Any] = {"name": "checked", "group": group, "plain_group": group}
    values |= {"amount": Decimal(0), "most": None, "within_ms": DAY // timedelta(0, 0, 1000)}
    values |= {"ask": None, "shadow": False, "approved": False, "after": after}
    return LimitUse(**values | changes)


def check(
    scene: Scene, name: str = "check", group: str = "order-1", **changes: Any
) -> ClaimRequest:
    call = {"tool": CHECK, "key": name, "step_id": name, "uses": (use(group=group),)}
    return scene.call(**call | changes)


def pay(scene: Scene, name: str = "pay", *, by_other: bool = False, **changes: Any) -> ClaimRequest:
    uses = (use(CHECK, by_other=by_other),)
    return scene.call(**{"key": name, "step_id": name, "uses": uses} | changes)


def test_a_call_is_made_only_once_the_effect_before_it_stands(scene: Scene) -> None:
    refused = scene.claim(pay(scene))
    why = "limit checked: no orders.check has come before it in time"
    assert refused == OverLimit(why, "checked", None)

    entry = scene.claimed(check(scene))  # under way: it may fail
    assert isinstance(scene.claim(pay(scene)), OverLimit)
    scene.commit(check(scene), entry)
    assert scene.claimed(pay(scene))
    assert scene.claimed(pay(scene, "pay-2"))


@pytest.mark.in_turns
@pytest.mark.parametrize("state", ["in_doubt", "failed", "compensating", "compensated"])
def test_what_may_not_have_happened_or_is_undone_comes_before_nothing(
    scene: Scene, state: str
) -> None:
    getattr(scene, state)(check(scene))
    assert isinstance(scene.claim(pay(scene)), OverLimit)


def test_another_group_limit_or_tenant_and_what_is_long_ago_come_before_nothing(
    scene: Scene, other: Scene
) -> None:
    scene.committed(check(scene, "a", "order-2"))
    scene.committed(check(scene, "b", uses=()))  # by a worker that has no such file
    scene.committed(check(scene, "c", uses=(use(name="another"),)))
    scene.committed(pay(scene, "d", uses=(use(),)))  # of the group, and no check
    other.committed(check(other))
    assert isinstance(scene.claim(pay(scene)), OverLimit)
    scene.committed(check(scene, "e"))
    assert isinstance(scene.claim(pay(scene), DAY + timedelta(seconds=5)), OverLimit)
    assert scene.claimed(pay(scene))


def test_people_are_asked_or_it_is_only_recorded_as_for_any_limit(scene: Scene) -> None:
    asks = (use(CHECK, ask=ASK),)
    refused = scene.claim(pay(scene, uses=asks))
    assert isinstance(refused, OverLimit) and refused.ask == ASK
    gated = scene.approved(pay(scene))
    assert scene.claimed(replace(gated, uses=(replace(asks[0], approved=True),)))
    assert scene.claimed(pay(scene, "shadow", uses=(use(CHECK, shadow=True),)))
    told = [one["body"]["allowed"] for one in scene.events(RUN, "limit.exceeded")]
    assert told == ["approval", "shadow"]


def test_what_was_summed_up_under_the_same_name_does_not_refuse_the_effect_before(
    scene: Scene,
) -> None:
    """The file said ``most`` of the check until now, and says ``after`` of the payment."""
    summed = use(amount=Decimal(60), most=Decimal(100))
    scene.committed(check(scene, "a", uses=(summed,)))
    assert scene.claimed(check(scene, "b", uses=(replace(summed, amount=Decimal(0), most=None),)))


def other_pays(scene: Scene, **changes: Any) -> Any:
    return scene.claim(pay(scene, by_other=True, **changes))


def test_a_check_by_whoever_has_started_the_run_is_none_by_another(scene: Scene) -> None:
    scene.committed(check(scene))
    refused = other_pays(scene)
    assert isinstance(refused, OverLimit)
    assert refused.reason == (
        "limit checked: no orders.check that others stand behind has come before it in time"
    )
    for run_id, user in (("run-2", " ADA"), ("run-3", "eve")):
        scene.open_run(run_id, user=user)
        scene.committed(check(scene, run_id, run_id=run_id, user=user))
        assert isinstance(other_pays(scene), Claimed if user == "eve" else OverLimit)


def test_a_check_is_by_those_who_have_approved_it(scene: Scene) -> None:
    for approver in ("ada", "Ada", "alice"):
        gated = scene.ask_approval(check(scene, approver))
        assert scene.decide(gated, approver=approver).code == "accepted"
        scene.committed(gated)
        assert isinstance(other_pays(scene), Claimed if approver == "alice" else OverLimit)


def test_whoever_approves_the_call_is_not_who_has_checked(scene: Scene) -> None:
    scene.committed(scene.approved(check(scene)))
    for name, approver, made in (("pay-a", "alice", False), ("pay-b", "bob", True)):
        gated = scene.ask_approval(pay(scene, name, by_other=True))
        assert scene.decide(gated, approver=approver).code == "accepted"
        assert isinstance(scene.claim(gated), Claimed if made else OverLimit)


OPS = Requirement(roles=("ops",))


def checked_by(scene: Scene, approver: str, name: str = "check") -> None:
    """Have somebody approve a check for which there has to be a role, and make it."""
    gated = scene.ask_approval(check(scene, name), requirement=OPS)
    assert scene.decide(gated, approver=approver).code == "accepted"
    scene.committed(gated)


def test_a_role_that_was_revoked_takes_the_check_away(scene: Scene) -> None:
    checked_by(scene, person(scene, "dana", "ops"))
    assert isinstance(other_pays(scene, name="before"), Claimed)
    revoked(scene, "dana", "role", "ops")
    assert isinstance(other_pays(scene), OverLimit)


@pytest.mark.parametrize("ended", [True, False])
def test_a_deputy_whose_time_is_over_has_checked_nothing(scene: Scene, ended: bool) -> None:
    person(scene, "bea", "ops"), person(scene, "cem")
    deputy = named(scene, "bea", "cem")
    checked_by(scene, "cem")
    assert isinstance(other_pays(scene, name="before"), Claimed)
    if ended:
        not_any_more(scene, deputy)
    # The deputy is named for a day, as the limit lasts.
    lasts = {"within_ms": 3 * DAY // timedelta(0, 0, 1000)}
    late = pay(scene, uses=(use(CHECK, by_other=True, **lasts),))
    assert isinstance(scene.claim(late, NOW if ended else DAY * 2), OverLimit)


@pytest.mark.parametrize(("checks", "pays"), [("bea", "cem"), ("cem", "bea")])
def test_a_deputy_and_their_person_are_not_two(scene: Scene, checks: str, pays: str) -> None:
    person(scene, "bea", "ops"), person(scene, "cem"), person(scene, "dana", "ops")
    named(scene, "bea", "cem")
    checked_by(scene, checks)
    gated = scene.ask_approval(pay(scene, by_other=True), requirement=OPS)
    assert scene.decide(gated, approver=pays).code == "accepted"
    assert isinstance(scene.claim(gated), OverLimit)
    checked_by(scene, "dana", "again")
    assert isinstance(scene.claim(gated), Claimed)


@pytest.mark.parametrize("proof", ["open", "signed"])
def test_a_check_needs_the_proof_that_its_own_policy_has_asked_for(
    scene: Scene, proof: AskedProof
) -> None:
    person(scene, "dana", "ops")
    gated = scene.ask_approval(check(scene), requirement=OPS, proof=proof)
    same = {"run_id": RUN, "approval_id": gated.approval_id, "params_hash": gated.params_hash}
    said = {"approver": "dana", "outcome": "approve", "verdict": "accepted", "verified": False}
    texts = {"decision_id": "forged", "reason": "", "message": "", "at_ms": 1}
    with scene.tx() as tx:
        tx.execute(insert_row(decisions, **same, **said, **texts))
    scene.committed(replace(gated, gated=False))
    assert isinstance(other_pays(scene), Claimed if proof == "open" else OverLimit)


def test_who_stands_behind_the_call_is_read_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        scene.committed(check(scene, name))
    read = list[str]()
    monkeypatch.setattr(
        requests, "find_planners", lambda tx, run_id: read.append(run_id) or frozenset({"ada"})
    )
    assert isinstance(other_pays(scene), OverLimit)
    assert read == [RUN]


def test_nobody_has_looked_at_a_check_that_was_approved_in_advance(scene: Scene) -> None:
    person(scene, "ann")
    granted(scene, "ann")
    gated = ask(scene, step_id="check")
    refunds = (use(gated.tool, by_other=True),)
    scene.committed(replace(gated, uses=(use(),)))
    assert isinstance(scene.claim(pay(scene, tool="mail.send", uses=refunds)), OverLimit)


def test_a_row_that_nobody_has_signed_makes_no_other_person(scene: Scene) -> None:
    gated = scene.ask_approval(check(scene))
    assert scene.decide(gated, approver="ada").code == "accepted"
    scene.committed(gated)
    row = {**scene.row(decisions), "decision_id": "forged", "approver": "zoe"}
    with scene.tx() as tx:
        tx.execute(insert_row(decisions, **{k: v for k, v in row.items() if k != "tenant_id"}))
    assert isinstance(other_pays(scene, assurance=Assurance.SIGNED), OverLimit)


def test_a_start_that_nobody_has_signed_makes_no_other_person(scene: Scene) -> None:
    scene.open_run("run-2", user="eve")
    scene.committed(check(scene, run_id="run-2", user="eve"))
    assert isinstance(other_pays(scene, assurance=Assurance.SIGNED), OverLimit)
    assert isinstance(other_pays(scene), Claimed)


@pytest.mark.parametrize("proven", [True, False])
def test_of_a_call_whose_start_is_unproven_nobody_is_another_person(
    scene: Scene, proven: bool
) -> None:
    starts = {name: key_of(scene, person(scene, name)) for name in ("eve", "ada")}
    for run_id, user in (("run-e", "eve"), ("run-a", "ada")):
        start = scene.start(run_id, user=user, started_by=user)
        if user == "eve" or proven:
            start = sign_start(start, starts[user], int(time.time()))
        signed = Assurance.SIGNED if start.signature else Assurance.OPEN
        scene.open_run(run_id, start=start, assurance=signed)
    scene.committed(check(scene, run_id="run-e", user="eve"))
    made = other_pays(scene, run_id="run-a", assurance=Assurance.SIGNED)
    assert isinstance(made, Claimed if proven else OverLimit), made


def test_an_outcome_that_is_missing_is_settled_whatever_has_been_undone(scene: Scene) -> None:
    """The check may be undone while the call is under way: that is no second call."""
    entry = scene.committed(check(scene))
    call = pay(scene)
    first = scene.claimed(call)
    scene.claimed(scene.undo(entry, tool="orders.uncheck"))
    assert scene.claimed(call).fencing_token == first.fencing_token
    assert isinstance(scene.claim(pay(scene, "pay-2"), NOW), OverLimit)


BELOW = f"{RUN}~pay"


@pytest.mark.in_turns
@pytest.mark.parametrize("made_in", [RUN, BELOW])
@pytest.mark.parametrize("asked_in", [RUN, BELOW])
def test_what_a_runs_whole_tree_has_made_at_most_decides(
    scene: Scene, made_in: str, asked_in: str
) -> None:
    scene.open_run(BELOW, parent=Parent(run_id=RUN, step_id="pay"))
    scene.open_run(OTHER_RUN)
    final = UndoSpec(version="1", irreversible=True)

    def make(name: str, undo: UndoSpec, run_id: str = made_in) -> ClaimRequest:
        return scene.call(key=name, step_id=name, run_id=run_id, undo=undo)

    def claim(name: str, at_most: str) -> ClaimResult:
        uses = (use(name="chain", at_most=at_most),)
        return scene.claim(scene.call(key=name, step_id=name, uses=uses, run_id=asked_in))

    def highest() -> str:
        with scene.tx() as tx:
            return find_highest(tx, asked_in, "ef-none", tx.now_ms)

    scene.committed(make("elsewhere", final, OTHER_RUN))
    scene.failed(make("did-not-happen", final))
    assert highest() == "read"
    scene.undone(scene.committed(make("undone", UNDOABLE)))
    assert highest() == "read"
    scene.claimed(make("under-way", UNDOABLE))
    assert highest() == "undoable"
    assert isinstance(claim("a", "read"), OverLimit)
    assert isinstance(claim("a", "undoable"), Claimed)
    scene.in_doubt(make("final", final))
    assert highest() == "irreversible"
    why = "limit chain: the run has made an effect that is more than undoable"
    assert claim("b", "undoable") == OverLimit(why, "chain", None)
    with scene.tx() as tx:  # a clock that is set back hides nothing
        tx.execute(update_rows(effects).values(claimed_ms=effects.c.claimed_ms + 3_600_000))
    assert claim("c", "undoable") == OverLimit(why, "chain", None)
