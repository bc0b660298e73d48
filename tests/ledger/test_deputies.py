"""G3: a deputy's vote counts in another one's place, for as long and as far as that was said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.votes import find_voters
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.tables import approvals, decisions, deputies
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, ClaimRequest
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import ADMINISTRATOR, administration, person, revoked
from tests.ledger.scene import Scene

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.usefixtures("people")]

MANAGER = Requirement(roles=("manager",))
TWO = Requirement(quorum=2, roles=("manager",))
DAY = timedelta(days=1)


@pytest.fixture
def people(scene: Scene) -> None:
    for name in ("ana", "cleo"):
        person(scene, name, "manager")
    for name in ("bob", "dan"):
        person(scene, name)


def named(scene: Scene, principal: str, deputy: str, lasts: timedelta = DAY, **how: Any) -> str:
    until = datetime.now(UTC) + lasts
    with administration(scene) as tx:
        return principals.name_deputy(tx, principal, deputy, until, ADMINISTRATOR, **how).deputy_id


def not_any_more(scene: Scene, deputy_id: str) -> None:
    with administration(scene) as tx:
        assert principals.revoke_deputy(tx, deputy_id, ADMINISTRATOR)[1]


def asked(scene: Scene, requirement: Requirement = MANAGER, **call: Any) -> ClaimRequest:
    return scene.ask_approval(scene.call(**call), requirement=requirement)


def test_a_deputys_vote_counts_and_both_names_are_kept(scene: Scene) -> None:
    gated = asked(scene)
    assert scene.decide(gated, approver="bob").code == "not_permitted"
    named(scene, "ana", "bob")

    verdict = scene.decide(gated, approver="bob")

    assert (verdict.code, verdict.message) == ("accepted", "approved by bob for ana")
    row = scene.row(decisions, verdict="accepted")
    assert (row["approver"], row["deputy_for"]) == ("bob", "ana")
    [event] = scene.events(type_="decision.accepted")
    assert (event["body"]["approver"], event["body"]["deputy_for"]) == ("bob", "ana")
    with scene.tx() as tx:
        assert find_voters(tx, row["approval_id"]).all == ("bob for ana (unverified)",)
    assert isinstance(scene.claim(gated), Claimed)


@pytest.mark.parametrize("ended", ["revoked", "expired", "no manager any more"])
def test_a_deputy_whose_time_is_over_before_the_claim_has_not_voted(
    scene: Scene, ended: str
) -> None:
    deputy_id = named(scene, "ana", "bob", timedelta(hours=1))
    gated = scene.ask_approval(scene.call(), requirement=MANAGER, expires_in=DAY)
    assert scene.decide(gated, approver="bob").state == "approved"
    after = timedelta(0)
    if ended == "revoked":
        not_any_more(scene, deputy_id)
    elif ended == "expired":
        after = timedelta(hours=2)
    else:
        revoked(scene, "ana", "role", "manager")

    refused = scene.claim(gated, after)

    assert isinstance(refused, ApprovalRefused) and "0 of 1" in refused.reason
    assert isinstance(scene.claim(gated), Claimed if ended == "expired" else ApprovalRefused)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("bound", "amount", "covers"),
    [
        ({"tool": "payments.refund"}, "120.00", True),
        ({"tool": "mail.send"}, "120.00", False),
        ({"amount": ("amount", "120")}, "120.00", True),
        ({"amount": ("amount", "119.99")}, "120.00", False),
        ({"amount": ("amount", "500")}, "-1", False),
        ({"amount": ("amount", "500")}, "NaN", False),
        ({"amount": ("amount", "500")}, 1.5, False),
        ({"amount": ("amount", "500")}, None, False),
        ({"amount": ("amount.value", "500")}, "120.00", False),
    ],
)
def test_a_deputy_is_bound_to_tool_and_amount(
    scene: Scene, bound: dict[str, Any], amount: Any, covers: bool
) -> None:
    named(scene, "ana", "bob", **bound)
    gated = asked(scene, params={"order": "1001", "amount": amount})

    verdict = scene.decide(gated, approver="bob")

    assert verdict.code == ("accepted" if covers else "not_permitted")


def test_a_person_and_their_deputies_are_one(scene: Scene) -> None:
    named(scene, "ana", "bob")
    named(scene, "ana", "dan")
    gated = asked(scene, TWO)
    assert scene.decide(gated, approver="bob").state == "pending"

    assert scene.decide(gated, approver="dan").code == "already_voted"
    herself = scene.decide(gated, approver="ana")
    assert (herself.code, herself.state) == ("accepted", "pending")
    assert scene.decide(gated, approver="bob").code == "already_voted"
    assert scene.decide(gated, approver="cleo").state == "approved"


def test_nobody_votes_as_themselves_and_as_a_deputy(scene: Scene) -> None:
    named(scene, "ana", "cleo")
    gated = asked(scene, TWO)

    own = scene.decide(gated, approver="cleo")

    assert own.message.startswith("approved by cleo; so far 1 of 2")
    assert scene.decide(gated, approver="cleo").code == "already_voted"


def test_a_deputy_of_two_stands_for_the_one_who_has_not_voted(scene: Scene) -> None:
    named(scene, "ana", "bob")
    named(scene, "cleo", "bob")
    gated = asked(scene, TWO)
    scene.decide(gated, approver="ana")

    assert scene.decide(gated, approver="bob").message == "approved by ana, bob for cleo"


@pytest.mark.parametrize("requester", ["ana", "bob"])
def test_four_eyes_hold_for_the_deputy_and_for_the_person(scene: Scene, requester: str) -> None:
    named(scene, "ana", "bob")
    scene.open_run("theirs", start=scene.start("theirs", user=requester))
    eyes = Requirement(roles=("manager",), four_eyes=True)
    gated = asked(scene, eyes, run_id="theirs", user=requester)

    assert scene.decide(gated, approver="bob").code in ("not_permitted", "four_eyes")
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_a_deputy_of_a_deputy_is_none(scene: Scene) -> None:
    named(scene, "ana", "bob")
    named(scene, "bob", "dan")
    gated = asked(scene)

    assert scene.decide(gated, approver="dan").code == "not_permitted"


def test_a_deputy_may_say_no_and_not_edit(scene: Scene) -> None:
    named(scene, "ana", "bob")
    gated = asked(scene)

    assert scene.decide(gated, "edit", approver="bob", params={}).code == "not_permitted"
    rejected = scene.decide(gated, "reject", approver="bob")

    assert (rejected.state, rejected.message) == ("rejected", "rejected by bob for ana")


def test_what_a_worker_writes_makes_nobody_a_deputy(scene: Scene) -> None:
    """A worker writes the row of a decision, and may write any name into it."""
    gated = asked(scene, Requirement())
    assert scene.decide(gated, approver="bob").state == "approved"
    strict = asked(scene, MANAGER, step_id="other", key="other")
    with scene.tx() as tx:
        row = tx.one(decisions.select().where(decisions.c.tenant_id == tx.tenant))
        assert row is not None
        forged = {**row, "decision_id": "forged", "approval_id": strict.approval_id}
        tx.execute(decisions.insert().values({**forged, "deputy_for": "ana"}))
        own = update_rows(approvals, approval_id=strict.approval_id)
        tx.execute(own.values(state="approved", decided_by="bob", verified=False))

    assert isinstance(scene.claim(strict), ApprovalRefused)


def test_a_deputy_is_named_by_an_administrator_and_only_ended(scene: Scene) -> None:
    deputy_id = named(scene, "ana", "bob")
    for values in ({"until_ms": 2**50}, {"deputy": "dan"}, {"tool": "mail.send"}):
        with pytest.raises(DBAPIError), administration(scene) as tx:
            tx.execute(update_rows(deputies, deputy_id=deputy_id).values(**values))
    not_any_more(scene, deputy_id)
    with administration(scene) as tx:
        assert not principals.revoke_deputy(tx, deputy_id, ADMINISTRATOR)[1]
        changes = [one.change for one in principals.read_changes(tx, "ana")][-2:]
    assert changes == ["deputy_named", "deputy_revoked"]
    for wrong in (("ana", "ana"), ("ana", "nobody"), ("nobody", "bob")):
        with pytest.raises(PrincipalError):
            named(scene, *wrong)
