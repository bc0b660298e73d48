"""What proves who has decided, granted or started: a signature, by a key that is theirs (G3).

What arrives is judged by :func:`verify_proof`, what is on record by :func:`verify_stored`, wherever
it counts: a row that somebody has written without the key, or changed, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from surehand import verify
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import decisions
from surehand.activities.ledger.people import principals, signatures
from surehand.activities.ledger.people.principals import Key
from surehand.verify import BadSignature
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts import approvals

C = TypeVar("C", bound=approvals.Claims)
#: Why a decision does not count.
Refusal = tuple[approvals.VerdictCode, str]


@dataclass(frozen=True)
class Proof:
    """What proves a decision to be its approver's, if anything does."""

    kid: str | None = None
    claims: approvals.DecisionClaims | None = None
    assurance: approvals.Assurance = approvals.Assurance.OPEN
    """How much it proves."""

    @property
    def verified(self) -> bool:
        return self.claims is not None


def prove_decision(tx: Transaction, run_id: str, decision: approvals.Decision) -> Proof | Refusal:
    """Verify a decision's signature with a key that is registered for its approver now."""
    if decision.signature is None:
        return Proof()
    try:
        key, claims = verify_proof(
            tx, decision.signature, decision.approver, _claims_of(decision.signature)
        )
    except BadSignature as error:
        return approvals.VerdictCode.BAD_SIGNATURE, str(error)
    differs = signatures.find_mismatch(claims, decision, run_id, tx.tenant)
    params = decision.params
    edited = None if params is None else signatures.digest_signed(params)
    # Params of which there is no digest, nobody can have signed, and no tool takes.
    if differs is None and (claims.edited != edited or (params is not None and edited is None)):
        differs = "it is for other edited params"
    if differs is None and claims.reason != (digest(decision.reason) if decision.reason else None):
        differs = "it is for another reason"
    if differs is not None:
        return approvals.VerdictCode.BAD_SIGNATURE, differs
    its = {"approver": decision.approver, "nonce": claims.jti}
    if tx.has(rows_of(decisions, "decision_id", **its)):
        # Also one that was refused: a role that is given later makes it no decision.
        return approvals.VerdictCode.USED_SIGNATURE, "this signature was judged before: sign again"
    return _decision_proof(key, claims)


def verify_proof(
    tx: Transaction,
    token: str,
    signer: str,
    claims_of: type[C],
    *,
    arrived_ms: int | None = None,
    in_force: bool = True,
) -> tuple[Key, C]:
    """Return the key and the claims of a compact JWS, or of a passkey's proof if these have one.

    The key is one that is registered for its signer; of a decision in a chat, for ``CHAT``, whose
    keys count for nothing else. What the claims are bound to, and whether their nonce is fresh, is
    the caller's to look at. For one on record ``arrived_ms`` is when it was taken: its expiry is
    judged by that. Unless ``in_force``, its key had to count then, and the page that asked for a
    gesture is not looked at.
    """
    arrived = tx.now_ms if arrived_ms is None else arrived_ms
    if issubclass(claims_of, approvals.ChatClaims):
        signer = approvals.CHAT
    elif signer == approvals.CHAT:
        raise BadSignature(verify.NO_PRESS)
    typ = claims_of.passkey_typ
    if typ is None or not verify.is_gesture(token, typ):
        kid = verify.header_kid(token, claims_of.typ)
        key = _find_key_of(tx, kid, signer, arrived, in_force=in_force)
        if key.passkey is not None:
            raise BadSignature(f"key {kid} is a passkey's, which makes no compact JWS")
        return key, signatures.verify_in_time(
            token, key.public_key, claims_of, now_s=arrived // 1000
        )
    gesture = verify.read_gesture(token, typ)
    key = _find_key_of(tx, gesture.kid, signer, arrived, in_force=in_force)
    if key.passkey is None:
        raise BadSignature(f"key {key.kid} is no passkey's")
    origins = tx.passkey_origins if in_force else None
    signed = verify.verify_gesture(gesture, key.public_key, key.passkey, origins=origins)
    claims = signatures.parse_claims(signed, claims_of)
    verify.require_in_time(vars(claims), arrived // 1000)
    return key, claims


def _claims_of(token: str) -> type[approvals.DecisionClaims]:
    """Return what a decision's signature claims: one of a chat is a kind of its own."""
    try:
        verify.header_kid(token, approvals.ChatClaims.typ)
    except BadSignature:
        return approvals.DecisionClaims
    return approvals.ChatClaims


def _decision_proof(key: Key, claims: approvals.DecisionClaims) -> Proof:
    """Return what a verified decision proves, by the kind of its key."""
    if isinstance(claims, approvals.ChatClaims):
        return Proof(key.kid, claims, approvals.Assurance.CHAT)
    if key.passkey is None:
        return Proof(key.kid, claims, approvals.Assurance.SIGNED)
    bound = key.passkey.device_bound
    return Proof(
        key.kid,
        claims,
        approvals.Assurance.DEVICE_PASSKEY if bound else approvals.Assurance.PASSKEY,
    )


def _find_key_of(tx: Transaction, kid: str, signer: str, arrived_ms: int, *, in_force: bool) -> Key:
    key = principals.find_key(tx, kid)
    if key is None or key.principal != signer:
        raise BadSignature(f"{signer} has no key {kid}")
    if key.revoked_ms is not None and (in_force or key.revoked_ms < arrived_ms):
        raise BadSignature(f"key {kid} was revoked")
    return key


@dataclass(frozen=True)
class StoredSignature:
    """A signature as it is on record, with what its row says of it."""

    signature: str | None
    signer: str
    kid: str | None
    nonce: str | None
    """``None``: the row is one of several that hang on this signature."""
    taken_ms: int


def verify_stored(
    tx: Transaction, kept: StoredSignature, claims_of: type[C], *, in_force: bool = True
) -> tuple[Key, C]:
    """Return the key and the claims of a signature on record, all of it verified again."""
    if kept.signature is None:
        raise BadSignature("it is not signed")
    key, claims = verify_proof(
        tx, kept.signature, kept.signer, claims_of, arrived_ms=kept.taken_ms, in_force=in_force
    )
    nonce = claims.jti if kept.nonce is None else kept.nonce
    if (claims.aud, claims.sub, claims.jti, key.kid) != (
        approvals.audience(tx.tenant), kept.signer, nonce, kept.kid
    ):  # fmt: skip
        raise BadSignature("its signature is for something else")
    return key, claims


def why_unproven(tx: Transaction, row: Mapping[str, Any], asked: approvals.Assurance) -> str | None:
    """Return why nothing proves a decision on record to be its approver's; ``None``: it is proven.

    Not for votes of standing approvals: those are as good as what they were granted by.
    """
    kept = StoredSignature(
        row["signature"], row["approver"], row["kid"], row["nonce"], row["at_ms"]
    )
    if kept.signature is None or kept.nonce is None:  # The nonce is what is on record once.
        return "it is not signed"
    try:
        key, claims = verify_stored(tx, kept, _claims_of(kept.signature))
        decision = approvals.Decision(
            approval_id=row["approval_id"],
            params_hash=row["params_hash"],
            outcome=approvals.DecisionOutcome(row["outcome"]),
            approver=row["approver"],
        )
    except (BadSignature, ValueError) as error:
        return str(error)
    if not _decision_proof(key, claims).assurance.satisfies(asked):
        return f"decisions {asked.as_text()}"
    return signatures.find_mismatch(claims, decision, row["run_id"], tx.tenant)
