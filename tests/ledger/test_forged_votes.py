"""G3 against whoever may write to the database: a row of decisions is worth what its signature is.

The workers' role may insert decisions: a tool's SQL, or what is injected into it, may, too. What
was asked stays as it was asked, and a request that no worker has written is nobody's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.approvals.requests import refuse_read
from surehand.activities.ledger.core.statements import delete_rows, update_rows
from surehand.activities.ledger.core.tables import approvals, decisions, effects
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.steps import entries
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Assurance, DecisionOutcome
from surehand.workflows.plan.policy import Needs, Requirement
from tests.ledger import rows
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person, signature
from tests.ledger.scene import RUN, STEP, WINDOW, Scene

pytestmark = pytest.mark.guarantee("G3")
STRICT = Assurance.SIGNED
FINANCE = Requirement(roles=("finance",))
TWO = Requirement(roles=("finance",), quorum=2)
#: How a database says no to a change of what is on record.
REFUSED = "append-only|permission denied|is not answered again"
#: What a forger gives for a signature, and whether the row is still called verified.
FORGERIES = ("none", "unsigned", "foreign", "altered", "of_another_call", "of_a_reject")


@pytest.fixture
def key(scene: Scene) -> Ed25519PrivateKey:
    """Ann's."""
    person(scene, "ann", "finance")
    return key_of(scene, "ann")


def forgery(
    scene: Scene, key: Ed25519PrivateKey, gated: entries.ClaimRequest, kind: str
) -> dict[str, Any]:
    """Return the columns of a vote that ann has not given."""
    mine = Ed25519PrivateKey.generate()
    token = {
        "none": None,
        "unsigned": None,
        "foreign": signature(scene, mine, gated),
        "altered": signature(scene, key, gated)[:-8] + "AAAAAAAA",
        "of_another_call": signature(scene, key, gated, params_hash="sha256:other"),
        "of_a_reject": signature(scene, key, gated, outcome=DecisionOutcome.REJECT),
    }[kind]
    if kind == "unsigned":
        return {"signature": None, "kid": None, "nonce": None, "verified": False}
    return {"signature": token, "nonce": "a-nonce-of-the-forger", "verified": True}


def forge(
    scene: Scene, gated: entries.ClaimRequest, *, state: str = "approved", **columns: Any
) -> None:
    """Write a decision and what it makes of its request, as whoever has the workers' rights can."""
    with scene.tx() as tx:
        kids = principals.find_principal(tx, "ann").keys
        vote = {
            "tenant_id": tx.tenant,
            "decision_id": "forged",
            "run_id": RUN,
            "approval_id": gated.approval_id,
            "approver": "ann",
            "outcome": "approve",
            "params_hash": gated.params_hash,
            "reason": "",
            "verdict": "accepted",
            "message": "",
            "kid": kids[0],
            "at_ms": tx.now_ms,
            **columns,
        }
        tx.execute(insert(decisions).values(vote).execution_options(of_run=RUN))
        if state != "pending":
            decided = {"state": state, "decided_by": "ann", "verified": columns["verified"]}
            tx.execute(update_rows(approvals).values(decided))


def may_read(scene: Scene, gated: entries.ClaimRequest) -> bool:
    with scene.tx() as tx:
        return refuse_read(tx, gated) is None


@pytest.mark.in_turns
@pytest.mark.parametrize("who_is_strict", ["request", "worker"])
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_row_that_its_approver_has_not_signed_is_no_vote(
    scene: Scene, key: Ed25519PrivateKey, kind: str, who_is_strict: str
) -> None:
    asked = STRICT if who_is_strict == "request" else Assurance.OPEN
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=asked)
    if who_is_strict == "worker":
        gated = replace(gated, assurance=STRICT)
    forge(scene, gated, **forgery(scene, key, gated, kind))

    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_vote_is_no_half(scene: Scene, key: Ed25519PrivateKey, kind: str) -> None:
    person(scene, "bob", "finance")
    bobs = key_of(scene, "bob")
    gated = scene.ask_approval(scene.call(), requirement=TWO, assurance=STRICT)
    forge(scene, gated, state="pending", **forgery(scene, key, gated, kind))

    verdict = scene.decide(
        gated, approver="bob", signature=signature(scene, bobs, gated, approver="bob")
    )

    assert (verdict.code, verdict.state) == ("accepted", "pending")


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", FORGERIES)
async def test_forged_votes_are_audited(scene: Scene, key: Ed25519PrivateKey, kind: str) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    assert await scene.broken() is None
    columns = forgery(scene, key, gated, kind)
    forge(scene, gated, **columns)
    unwritten = "decision forged of ann counts in the ledger, but no event"
    assert unwritten in str(await scene.broken())

    with scene.tx() as tx:
        body = {"decision_id": "forged", "approval_id": gated.approval_id, "outcome": "approve"}
        verified = columns["verified"]
        tx.event(RUN, "decision.accepted", approver="ann", verified=verified, **body)

    assert "nothing proves decision forged of ann" in str(await scene.broken())


@pytest.mark.parametrize(
    "columns", [{"signature": None}, {"approver": "bob"}, {"params_hash": "sha256:other"}], ids=str
)
async def test_what_somebody_has_decided_is_not_rewritten(
    scene: Scene, key: Ed25519PrivateKey, columns: dict[str, Any]
) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    before = scene.rows(decisions)

    with pytest.raises(DBAPIError, match=REFUSED):
        rows.change(scene, decisions, **columns)
    with pytest.raises(DBAPIError, match=REFUSED), scene.tx() as tx:
        tx.execute(delete_rows(decisions))

    assert scene.rows(decisions) == before


@pytest.mark.in_turns
@pytest.mark.parametrize("signed", [None, "", digest({"amount": "1"})], ids=["none", "empty", "1"])
def test_an_edit_counts_for_the_params_alone_that_were_signed(
    scene: Scene, key: Ed25519PrivateKey, signed: str | None
) -> None:
    params = {"amount": "2"}
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    by: dict[str, Any] = {"approver": "ann", "outcome": DecisionOutcome.EDIT, "params": params}
    proof = signature(scene, key, gated, edited=signed, **by)
    edited = Edited(params, "sha256:edited", gated.key)

    verdict = scene.decide(gated, **by, signature=proof, edited=edited)

    assert verdict.message == "it is for other edited params"


def end_without_yes(scene: Scene, gated: entries.ClaimRequest, how: str) -> str:
    """Have bob reject or edit a request, or nobody answer it, or its run end; returns its state."""
    if how in ("void", "expired"):
        return scene.close(gated, how, after=WINDOW)
    edited = Edited({"amount": "1"}, "sha256:edited", gated.key)
    by: dict[str, Any] = {"approver": "bob", "outcome": DecisionOutcome(how)}
    if how == "edit":
        by["params"] = edited.params
    new = digest(edited.params) if how == "edit" else None
    proof = signature(scene, key_of(scene, "bob"), gated, edited=new, **by)
    return str(scene.decide(gated, **by, signature=proof, edited=edited).state)


@pytest.mark.in_turns
@pytest.mark.parametrize("before", [True, False], ids=["after a yes", "before a yes"])
@pytest.mark.parametrize(
    ("how", "state"),
    [("reject", "rejected"), ("edit", "superseded"), ("void", "void"), ("expired", "expired")],
)
def test_a_no_is_not_taken_off(
    scene: Scene, key: Ed25519PrivateKey, how: str, state: str, before: bool
) -> None:
    """By whoever has the workers' rights, and the yes that its approver has really signed."""
    person(scene, "bob", "finance")
    quorum = TWO if before and how in ("reject", "edit") else FINANCE
    gated = scene.ask_approval(scene.call(), requirement=quorum, assurance=STRICT)
    if before:
        scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    assert end_without_yes(scene, gated, how) == state
    if not before:
        late = scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
        assert late.code != "accepted"
    ended = scene.row(approvals)

    for table, columns in (
        (decisions, {"verdict": "accepted", "outcome": "approve"}),
        (approvals, {"state": "approved", "decided_by": "ann", "verified": True}),
        (approvals, {"state": "pending", "decided_by": None, "verified": None}),
    ):
        with pytest.raises(DBAPIError, match=REFUSED):
            rows.change(scene, table, **columns)

    assert scene.row(approvals) == ended
    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []


@pytest.mark.in_turns
@pytest.mark.parametrize("used", [False, True], ids=["unused", "said to be used"])
@pytest.mark.parametrize("how", ["reject", "edit"])
def test_a_no_counts_though_the_request_is_said_to_be_approved(
    scene: Scene, key: Ed25519PrivateKey, how: str, used: bool
) -> None:
    """By whoever has the workers' rights; nobody has said yes by then."""
    person(scene, "bob", "finance")
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    said = {"state": "approved", "decided_by": "ann", "verified": True}
    if used:
        entry = entries.entry_id_for(scene.tenant, gated.tool, gated.key, 1)
        said |= {"consumed_entry": entry, "consumed_generation": 1}
    rows.change(scene, approvals, **said)

    end_without_yes(scene, gated, how)
    late = scene.decide(gated, approver="ann", signature=signature(scene, key, gated))

    assert late.code != "accepted"
    verdicts = {row["approver"]: row["verdict"] for row in scene.rows(decisions)}
    assert verdicts["bob"] == "accepted"
    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []


@pytest.mark.parametrize("nonce", [True, False], ids=["its nonce", "no nonce"])
def test_a_refused_yes_written_again_is_no_vote(scene: Scene, nonce: bool) -> None:
    """By whoever has the workers' rights, once its approver may decide."""
    person(scene, "ann")
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    yes = signature(scene, key_of(scene, "ann"), gated)
    assert scene.decide(gated, approver="ann", signature=yes).code == "not_permitted"
    with administration(scene) as tx:
        principals.give_grant(tx, "ann", "role", "finance", "olga")
    said = scene.row(decisions)
    names = ("signature", "kid", "nonce", "verified")
    copied = {name: said[name] for name in names}

    with suppress(DBAPIError):
        forge(scene, gated, **copied | ({} if nonce else {"nonce": None, "verified": False}))
    rewrite(scene, state="approved", decided_by="ann", verified=True)

    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert not may_read(scene, gated)


@pytest.mark.parametrize("outcome", ["reject", "edit"])
def test_a_recorded_no_stops_every_yes(scene: Scene, key: Ed25519PrivateKey, outcome: str) -> None:
    """Whatever the request's row says."""
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    assert may_read(scene, gated)
    no = {"decision_id": "no", "approver": "bob", "outcome": outcome}
    forge(scene, gated, state="pending", **no, kid=None, verified=False)

    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert not may_read(scene, gated)
    assert scene.rows(effects) == []


async def test_a_key_revoked_later_breaks_no_audit(scene: Scene, key: Ed25519PrivateKey) -> None:
    gated = scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    assert isinstance(scene.claim(gated), entries.Claimed)

    with administration(scene) as tx:
        [kid] = principals.find_principal(tx, "ann").keys
        assert principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)

    assert await scene.broken() is None
    assert not may_read(scene, gated)


# The request's own row, changed or written by whoever has the workers' rights

#: One yes of the chief in the place of two of finance, once nobody has answered.
ESCALATES = Requirement(roles=("finance",), quorum=2, escalate="chief")
ESCALATED = Needs(requirements=(ESCALATES,), expires_in=WINDOW).escalated("chief")


def rewrite(scene: Scene, **columns: Any) -> None:
    with suppress(DBAPIError):
        rows.change(scene, approvals, **columns)


def write_first(
    scene: Scene, call: entries.ClaimRequest, requirement: Requirement, **lie: Any
) -> str:
    """Write the row of a call's first request before its worker does, and return its id."""
    approval_id = f"{RUN}/{STEP}/1"
    with scene.tx() as tx:
        expires_ms = tx.now_ms + int(WINDOW.total_seconds() * 1000)
    needs = Needs(requirements=(requirement,), expires_in=WINDOW)
    of_call = {
        "approval_id": approval_id, "step_id": call.step_id, "tool": call.tool,
        "tool_version": call.tool_version, "key": call.key, "params_hash": call.params_hash,
        "params": call.params, "user_id": call.user, "assurance": "signed",
        "needs": needs.model_dump(mode="json"), "expires_ms": expires_ms,
    }  # fmt: skip
    rows.write(scene, approvals, **{**of_call, **lie})
    return approval_id


def test_an_expired_yes_stays_expired(scene: Scene, key: Ed25519PrivateKey) -> None:
    gated = scene.ask_approval(scene.call(assurance=STRICT), assurance=STRICT)
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))

    rewrite(scene, expires_ms=2**50)

    assert isinstance(scene.claim(gated, after=WINDOW), entries.ApprovalRefused)
    assert scene.rows(effects) == []


def test_a_changed_precondition_cannot_be_hidden(scene: Scene, key: Ed25519PrivateKey) -> None:
    before = scene.call(assurance=STRICT, precondition="sha256:before")
    gated = scene.ask_approval(before, assurance=STRICT)
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))

    rewrite(scene, precondition="sha256:after")

    assert isinstance(
        scene.claim(replace(gated, precondition="sha256:after")), entries.ApprovalRefused
    )
    assert scene.rows(effects) == []


def test_a_request_in_time_is_not_escalated(scene: Scene, key: Ed25519PrivateKey) -> None:
    with administration(scene) as tx:
        principals.give_grant(tx, "ann", "role", "chief", ADMINISTRATOR)
    call = scene.call(assurance=STRICT, requirements=(ESCALATES,))
    gated = scene.ask_approval(call, assurance=STRICT, requirement=ESCALATES)

    rewrite(scene, needs=ESCALATED.model_dump(mode="json"))
    scene.decide(gated, approver="ann", signature=signature(scene, key, gated))

    assert isinstance(scene.claim(gated), entries.ApprovalRefused)
    assert scene.rows(effects) == []


def test_a_request_cannot_be_taken_away_and_written_anew(scene: Scene) -> None:
    scene.ask_approval(scene.call())

    with suppress(DBAPIError), scene.tx() as tx:
        tx.execute(delete_rows(approvals))
    rewrite(scene, approval_id="elsewhere")

    assert scene.row(approvals)["approval_id"] == f"{RUN}/{STEP}/1"


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "lie",
    [
        {"params": {"order": "1001", "amount": "1.00"}},
        {"description": "pay back 1.00"},
        {"undo": "by itself"},
        {"user_id": "eve"},
        {"editors": ["eve"]},
        {"precondition": "sha256:after"},
        {"expires_ms": 2**50},
        {"needs": ESCALATED.model_dump(mode="json")},
        {"assurance": "open"},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_row_that_was_written_before_its_request_is_not_the_request(
    scene: Scene, key: Ed25519PrivateKey, lie: dict[str, Any]
) -> None:
    with administration(scene) as tx:
        principals.give_grant(tx, "ann", "role", "chief", ADMINISTRATOR)
    asks = ESCALATES if "needs" in lie else FINANCE
    call = scene.call(assurance=STRICT, requirements=(asks,))
    forged = write_first(scene, call, asks, **lie)

    gated = scene.ask_approval(call, assurance=STRICT, requirement=asks)
    shown = replace(gated, approval_id=forged)
    scene.decide(shown, approver="ann", signature=signature(scene, key, shown))

    assert not isinstance(scene.claim(gated), entries.Claimed)
    assert scene.rows(effects) == []
    asked = scene.row(approvals, approval_id=f"{RUN}/{STEP}/2")
    assert (gated.approval_id, asked["state"]) == (asked["approval_id"], "pending")
    assert (asked["params"], asked["description"], asked["undo"]) == (
        call.params,
        "",
        "changes nothing",
    )
    [told] = scene.events(type_="approval.requested")
    assert told["body"]["approval_id"] == gated.approval_id
