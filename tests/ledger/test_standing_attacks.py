"""G3 against standing approvals that are forged, widened, copied, borrowed or batched."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals import standing as standing_rows
from surehand.activities.ledger.approvals.standing import Standing, StandingError
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.tables import (
    approvals,
    decisions,
    effects,
    standing_approvals,
    standing_uses,
)
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, ClaimRequest
from surehand.activities.tools.tool import Tool
from surehand.activities.tools.toolbox import READ, WRITE, tool
from surehand.workflows.contracts.approvals import (
    Assurance,
    standing_id_of,
)
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person, signature
from tests.ledger.rows import change
from tests.ledger.scene import RUN, Scene
from tests.ledger.standing import DAY, Refund, ask, grant, granted, listed, refund, scope, signed
from tests.ledger.test_planners import GIVES
from tests.ledger.test_standing import state_of

FOUR_EYES = Requirement(four_eyes=True)


def is_used(scene: Scene, **asked: Any) -> bool:
    """Return whether a request that is made now is approved in advance, and can be used so."""
    call = ask(scene, step_id=f"s{time.monotonic_ns()}", **asked)
    approved = state_of(scene, call) == "approved"
    strict = asked.get("assurance", Assurance.OPEN)
    claimed = isinstance(scene.claim(replace(call, assurance=strict)), Claimed)
    assert claimed == approved
    return approved


def forged(scene: Scene, **columns: Any) -> None:
    """Write a row past all functions, as whoever got hold of the database would."""
    values = {
        "tenant_id": scene.tenant, "granter": "ann", "tool": refund.name, "tool_version": "1",
        "schema_hash": refund.schema_hash, "until_ms": int(time.time() + 9999) * 1000,
        "foreign_too": False, "reason": "", "nonce": "forged-forged-forged",
        "granted_ms": int(time.time() * 1000),
        **columns,
    }  # fmt: skip
    values.setdefault("standing_id", standing_id_of(values["nonce"]))
    with administration(scene) as tx:
        tx.execute(insert(standing_approvals).values(values))


def row_of(scene: Scene, standing: Standing) -> dict[str, Any]:
    return scene.row(standing_approvals, standing_id=standing.standing_id)


# Rows that no granter has made


def test_a_row_written_without_a_key_is_worth_nothing_where_signatures_count(scene: Scene) -> None:
    person(scene, "ann")
    key_of(scene, "ann")
    forged(scene)

    assert not is_used(scene, assurance=Assurance.SIGNED)


def test_a_strict_worker_uses_no_unsigned_one_that_a_lax_worker_has_taken(scene: Scene) -> None:
    granted(scene, "ann")
    call = ask(scene)
    assert state_of(scene, call) == "approved"

    assert isinstance(scene.claim(replace(call, assurance=Assurance.SIGNED)), ApprovalRefused)


def test_a_row_signed_with_the_forgers_own_key_is_worth_nothing(scene: Scene) -> None:
    for name in ("ann", "mallory"):
        person(scene, name)
    key = key_of(scene, "mallory")
    nonce, signature = signed(scene.tenant, "ann", wanted := scope(), key)
    with scene.tx() as tx:
        [kid] = principals.find_principal(tx, "mallory").keys

    forged(scene, nonce=nonce, signature=signature, kid=kid, until_ms=wanted.until * 1000)

    assert not is_used(scene)


WIDER: dict[str, Any] = {
    "most_uses": 1000,
    "most_total": "1000000",
    "condition": None,
    "until_ms": int(time.time() + 8 * DAY.total_seconds()) * 1000,
    "granter": "bob",
    "granted_ms": 1,
    "foreign_too": True,
}


@pytest.mark.in_turns
@pytest.mark.parametrize("column", WIDER)
def test_a_changed_signed_row_is_worth_nothing(scene: Scene, column: str) -> None:
    for name in ("ann", "bob"):
        person(scene, name)
    key = key_of(scene, "ann")
    limits: dict[str, Any] = {
        "when": "amount <= 500", "count": 3, "total_of": "amount", "total": "500"
    }  # fmt: skip
    nonce, signature = signed(scene.tenant, "ann", wanted := scope(**limits), key)
    with scene.tx() as tx:
        [kid] = principals.find_principal(tx, "ann").keys
    as_signed = {
        "nonce": nonce, "signature": signature, "kid": kid, "until_ms": wanted.until * 1000,
        "condition": wanted.when, "most_uses": wanted.count, "total_of": wanted.total_of,
        "most_total": wanted.total,
    }  # fmt: skip
    forged(scene, **{**as_signed, column: WIDER[column]})

    assert not is_used(scene)


def test_a_copy_of_a_used_up_row_under_another_id_is_worth_nothing(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), count=1)
    assert is_used(scene)

    forged(scene, **{**row_of(scene, standing), "standing_id": "SA-000000000000"})

    assert not is_used(scene)


def test_another_tenants_row_is_worth_nothing_here(scene: Scene, other: Scene) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    # One person, one key, in both tenants.
    with scene.tx() as tx:
        [kid] = principals.find_principal(tx, "ann").keys
        known = principals.find_key(tx, kid)
    assert known is not None
    person(other, "ann")
    with administration(other) as tx:
        principals.add_key(tx, "ann", kid, known.public_key, ADMINISTRATOR)
    theirs = granted(other, "ann", key)
    assert is_used(other)
    assert not is_used(scene)

    forged(scene, **{**row_of(other, theirs), "tenant_id": scene.tenant})

    assert not is_used(scene)


def test_a_signed_decision_is_no_standing_approval_and_none_is_a_decision(scene: Scene) -> None:
    person(scene, "ann")
    key = key_of(scene, "ann")
    call = ask(scene)
    decision = signature(scene, key, call)
    nonce, standing = signed(scene.tenant, "ann", scope(), key)

    with pytest.raises(StandingError, match="type is not"), administration(scene) as tx:
        standing_rows.grant_standing(tx, grant("ann", scope(), nonce, decision))
    assert (scene.decide(call, approver="ann", signature=standing)).code == "bad_signature"


# Grants that come late, twice, or by others


@pytest.mark.in_turns
@pytest.mark.parametrize("claims", [{"iat": 1, "exp": 300}, {"exp": int(time.time()) + 86_400}])
def test_a_stored_signature_grants_nothing(scene: Scene, claims: dict[str, Any]) -> None:
    person(scene, "ann")
    nonce, signature = signed(scene.tenant, "ann", scope(), key_of(scene, "ann"), **claims)

    with pytest.raises(StandingError, match="the signature"), administration(scene) as tx:
        standing_rows.grant_standing(tx, grant("ann", scope(), nonce, signature))


def test_a_signature_grants_once_and_only_what_it_is_for(scene: Scene) -> None:
    person(scene, "ann")
    nonce, signature = signed(scene.tenant, "ann", wanted := scope(count=1), key_of(scene, "ann"))

    def arrives(granter: str = "ann", **changes: Any) -> None:
        with administration(scene) as tx:
            widened = wanted.model_copy(update=changes)
            standing_rows.grant_standing(tx, grant(granter, widened, nonce, signature))

    for widened in ({"count": 2}, {"until": wanted.until + 1}, {"version": "2"}):
        with pytest.raises(StandingError, match="for something else"):
            arrives(**widened)
    with pytest.raises(StandingError, match="bob has no key"):
        arrives("bob")
    arrives()
    with pytest.raises(StandingError, match="counted already"):
        arrives()


def test_a_revoked_key_takes_back_what_it_has_granted_and_approved(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"))
    call = ask(scene)
    assert standing.kid is not None

    with administration(scene) as tx:
        principals.revoke_key(tx, "ann", standing.kid, ADMINISTRATOR)

    assert isinstance(scene.claim(call), ApprovalRefused)
    assert not is_used(scene)


@pytest.mark.parametrize(
    "statement",
    [
        update(standing_approvals).values(most_uses=9),
        update(standing_approvals).values(until_ms=2**53),
        update(standing_uses).values(amount="0"),
        standing_approvals.delete(),
        standing_uses.delete(),
    ],
)
def test_nobody_rewrites_what_was_granted_or_used(scene: Scene, statement: Any) -> None:
    granted(scene, "ann", count=1)
    ask(scene)

    refused = pytest.raises(DBAPIError, match=r"append-only|not changed|are kept")
    with refused, administration(scene) as tx:
        tx.execute(statement.where(statement.table.c.tenant_id == scene.tenant))


def test_what_was_revoked_is_not_revived(scene: Scene) -> None:
    standing = granted(scene, "ann")
    with administration(scene) as tx:
        assert standing_rows.revoke_standing(tx, standing.standing_id, "ann")
        assert not standing_rows.revoke_standing(tx, standing.standing_id, "root")

    with pytest.raises(DBAPIError, match=r"append-only|has ended"), administration(scene) as tx:
        tx.execute(update_rows(standing_approvals).values(revoked_ms=None, revoked_by=None))
    assert (row_of(scene, standing))["revoked_by"] == "ann"


# Calls that would slip into a scope


@pytest.mark.in_turns
@pytest.mark.parametrize("amount", ["-1", "-0.01", "1e40", "1e-40", "0e999999"])
def test_no_amount_gives_others_more_or_is_rounded_away(scene: Scene, amount: str) -> None:
    standing = granted(scene, "ann", total_of="amount", total="100")

    assert not is_used(scene, amount=amount)

    assert (listed(scene, standing)).uses == 0


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("urgent", {"urgent": True}),
        ("order", {"order": "5"}),
        ("inner.cost", {"inner": {"cost": "5"}}),
        ("inner.cost", {"inner": {}}),
        ("inner.cost.net", {"inner": {"cost": 5}}),
        ("inner", {"inner": {"cost": 5}}),
        ("amount", {"amount": None}),
        ("amount", {}),
        ("nothing", {}),
    ],
)
def test_a_non_number_is_not_zero(scene: Scene, path: str, params: dict[str, Any]) -> None:
    granted(scene, "ann", total_of=path, total="100")

    assert not is_used(scene, params=params)


def test_a_number_within_other_params_is_added_up(scene: Scene) -> None:
    granted(scene, "ann", total_of="inner.cost", total="9")

    assert is_used(scene, params={"inner": {"cost": 5}})
    assert not is_used(scene, params={"inner": {"cost": 5}})


@pytest.mark.in_turns
@pytest.mark.parametrize("when", ["amount > ", "nothing > 1", "amount", "order < 5"])
def test_a_condition_that_cannot_be_judged_lets_nothing_pass(scene: Scene, when: str) -> None:
    granted(scene, "ann", when=when)

    assert not is_used(scene)


@tool("payments.refund", effect=WRITE, recovery="human", version="2")
async def newer(params: Refund, ctx: object) -> None:
    """Pay money back, differently."""


class Wider(Refund):
    """Params with one field more."""

    to: str = "somebody"


@tool("payments.refund", effect=WRITE, recovery="human")
async def other_params(params: Wider, ctx: object) -> None:
    """Pay money back."""


@pytest.mark.in_turns
@pytest.mark.parametrize("with_tool", [newer, other_params], ids=["version", "params"])
def test_a_changed_tool_is_not_granted(scene: Scene, with_tool: Tool) -> None:
    granted(scene, "ann")

    assert not is_used(scene, with_tool=with_tool)
    assert is_used(scene)


@tool("payments.refund", effect=READ)
async def reading(params: Refund, ctx: object) -> None:
    """Look what could be paid back."""


def test_reads_which_nothing_counts_are_not_covered(scene: Scene) -> None:
    granted(scene, "ann", schema_hash=reading.schema_hash)

    call = ask(scene, with_tool=reading)

    assert state_of(scene, call) == "pending"


@pytest.mark.in_turns
@pytest.mark.parametrize("spelling", ["ada", "Ada", "\uff41da", "ad\u200ba"])
def test_nobody_approves_their_own_calls_in_advance(scene: Scene, spelling: str) -> None:
    granted(scene, spelling)

    assert not is_used(scene, requirement=FOUR_EYES)
    assert not is_used(scene, requirement=(FOUR_EYES, Requirement()))


def test_an_editors_standing_approval_does_not_cover_the_edit(scene: Scene) -> None:
    granted(scene, "bob")
    assert is_used(scene, requirement=FOUR_EYES)

    GIVES["edit"](scene, RUN)

    assert not is_used(scene, requirement=FOUR_EYES)


def test_where_a_policy_refuses_them_people_look_at_each_call(scene: Scene) -> None:
    granted(scene, "ann")

    assert not is_used(scene, standing=False)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "columns",
    [
        {"most_total": "NaN", "total_of": "amount"},
        {"most_total": "1e9", "total_of": "amount"},
        {"most_total": "1", "total_of": "a b"},
    ],
)
def test_a_malformed_row_holds_nothing_up(scene: Scene, columns: dict[str, Any]) -> None:
    forged(scene, **columns)

    assert not is_used(scene)


def test_a_use_that_was_given_back_counts_for_no_late_attempt(scene: Scene) -> None:
    standing = granted(scene, "ann", count=1)
    first = ask(scene)
    scene.close(first, "void")
    yes = {"state": "approved", "decided_by": "ann", "verified": False}
    with pytest.raises(DBAPIError, match="is not answered again"):
        change(scene, approvals, {"approval_id": first.approval_id}, **yes)

    assert isinstance(scene.claim(first), ApprovalRefused)
    assert (listed(scene, standing)).uses == 0


def test_a_vote_without_a_use_of_its_standing_approval_counts_for_nothing(scene: Scene) -> None:
    granted(scene, "ann", count=1)
    call, other = ask(scene), ask(scene, step_id="other")
    with scene.tx() as tx:
        vote = tx.one(select(decisions).where(decisions.c.tenant_id == tx.tenant))
        assert vote is not None
        copied = {**vote, "approval_id": other.approval_id, "decision_id": "copied"}
        tx.execute(insert(decisions).values(copied).execution_options(of_run=RUN))
        yes = update_rows(approvals, approval_id=other.approval_id)
        tx.execute(yes.values(state="approved", decided_by="ann", verified=False))

    assert isinstance(scene.claim(other), ApprovalRefused)
    assert isinstance(scene.claim(call), Claimed)


# Rows of uses, written with the workers' role and the public signature of a real grant

STRICT = Assurance.SIGNED


def smuggle(
    scene: Scene,
    standing: Standing,
    call: ClaimRequest,
    amount: str | None = None,
    *,
    state: str = "approved",
) -> ClaimRequest:
    """Write the use and the vote of a standing approval for a call that it was not asked about."""
    with scene.tx() as tx:
        of_call = {
            "tenant_id": tx.tenant, "approval_id": call.approval_id, "run_id": call.run_id,
            "standing_id": standing.standing_id,
        }  # fmt: skip
        use = {**of_call, "step_id": call.step_id, "amount": amount, "used_ms": 1}
        tx.execute(insert(standing_uses).values(use))
        vote = {
            **of_call, "decision_id": f"smuggled-{call.approval_id}", "approver": standing.granter,
            "outcome": "approve", "params_hash": call.params_hash, "reason": "", "message": "",
            "verdict": "accepted", "verified": True, "signature": standing.signature,
            "kid": standing.kid, "nonce": f"of-{call.approval_id}", "at_ms": tx.now_ms,
        }  # fmt: skip
        tx.execute(insert(decisions).values(vote).execution_options(of_run=RUN))
        decided_by = "ann" if state == "approved" else None
        asked = update_rows(approvals, approval_id=call.approval_id)
        tx.execute(asked.values(state=state, decided_by=decided_by, verified=True))
    return replace(call, assurance=STRICT)


@tool("payments.payout", effect=WRITE, recovery="human")
async def payout(params: Refund, ctx: object) -> None:
    """Pay money to somebody."""


OUTSIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another tool": ({}, {"with_tool": payout}),
    "another version": ({}, {"with_tool": newer}),
    "other params": ({}, {"with_tool": other_params}),
    "another scope": ({"when": "amount <= 100"}, {}),
    "no amount": ({"total_of": "amount", "total": "500"}, {"amount": None}),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("what", OUTSIDE)
async def test_a_use_outside_the_scope_is_no_vote(scene: Scene, what: str) -> None:
    limits, asked = OUTSIDE[what]
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), **limits)
    call = ask(scene, assurance=STRICT, **asked)
    assert state_of(scene, call) == "pending"

    gated = smuggle(scene, standing, call, "0" if "total" in limits else None)

    assert isinstance(scene.claim(gated), ApprovalRefused)
    assert scene.rows(effects) == []


def test_a_use_that_is_written_beyond_the_count_is_no_vote(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), count=1)
    assert is_used(scene, assurance=STRICT)
    call = ask(scene, assurance=STRICT)
    assert state_of(scene, call) == "pending"

    assert isinstance(scene.claim(smuggle(scene, standing, call)), ApprovalRefused)

    assert len(scene.rows(effects)) == 1


@pytest.mark.in_turns
@pytest.mark.parametrize("said", ["120.00", "0", "-120", "NaN", "a lot", None])
def test_a_use_beyond_the_total_is_no_vote(scene: Scene, said: str | None) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), total_of="amount", total="200")
    assert is_used(scene, assurance=STRICT)
    call = ask(scene, assurance=STRICT)
    assert state_of(scene, call) == "pending"

    assert isinstance(scene.claim(smuggle(scene, standing, call, said)), ApprovalRefused)

    assert len(scene.rows(effects)) == 1


def test_a_use_that_is_written_as_less_than_nothing_makes_no_room_for_others(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), total_of="amount", total="100")
    smuggle(scene, standing, ask(scene, assurance=STRICT), "-1000")

    assert not is_used(scene, assurance=STRICT)


def test_a_use_that_is_written_as_given_back_after_its_call_stays_used(scene: Scene) -> None:
    person(scene, "ann")
    standing = granted(scene, "ann", key_of(scene, "ann"), count=1)
    assert is_used(scene, assurance=STRICT)

    change(scene, standing_uses, returned_ms=int(time.time() * 1000))

    assert listed(scene, standing).uses == 1
    assert not is_used(scene, assurance=STRICT)


def test_an_approval_that_was_used_stays_used(scene: Scene) -> None:
    call = scene.approved(scene.call())
    entry = scene.claimed(call)

    with pytest.raises(DBAPIError, match=r"append-only|has ended"):
        change(scene, approvals, consumed_entry=None, consumed_generation=None)

    assert scene.row(approvals)["consumed_entry"] == entry.entry_id


def test_a_smuggled_vote_is_no_half_of_a_quorum(scene: Scene) -> None:
    for name in ("ann", "bob"):
        person(scene, name)
    standing = granted(scene, "ann", key_of(scene, "ann"), when="amount <= 100")
    call = ask(scene, requirement=Requirement(quorum=2))
    smuggle(scene, standing, call, state="pending")

    verdict = scene.decide(call, approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "pending")


@pytest.mark.in_turns
@pytest.mark.parametrize("what", ["another tool", "another version", "beyond the count"])
async def test_an_audit_tells_of_uses_beyond_the_grant(scene: Scene, what: str) -> None:
    person(scene, "ann")
    limits: dict[str, Any] = {"count": 1} if what == "beyond the count" else {}
    standing = granted(scene, "ann", key_of(scene, "ann"), **limits)
    assert is_used(scene, assurance=STRICT)
    asked = {} if limits else OUTSIDE[what][1]
    call = ask(scene, assurance=STRICT, **asked)
    assert await scene.broken() is None

    smuggle(scene, standing, call)
    with scene.tx() as tx:
        body = {"approval_id": call.approval_id, "standing_id": standing.standing_id}
        tx.event(RUN, "approval.standing_used", approver="ann", verified=True, **body)

    assert "nothing proves decision" in str(await scene.broken())
