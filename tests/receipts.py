"""Receipts made by hand: a right one, and broken ones, for the Python module and the page alike."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.client.messages import sign
from surehand.workflows.canonical_json import canonical_json, digest
from surehand.workflows.contracts.approvals import (
    ChatClaims,
    DecisionClaims,
    DecisionOutcome,
    ReceiptClaims,
    Scope,
    StandingClaims,
    StartClaims,
)
from tests.passkeys import Authenticator, as_json, b64, digest_of, put_together

Receipt = dict[str, Any]
Events = list[dict[str, Any]]

RUN: Final = "acme/refund-1"
TENANT: Final = "acme"
NOW: Final = 1_800_000_000
#: Who signs the receipt, two approvers, and a stranger.
EVA, ANN, SUE, MALLORY = (
    Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3, 4)
)
BOB: Final = Authenticator(ec.derive_private_key(5, ec.SECP256R1()))


def jwk(key: Ed25519PrivateKey) -> dict[str, Any]:
    return {**OKPKey.import_key(key.public_key()).as_dict()}


def kid(key: Ed25519PrivateKey) -> str:
    return OKPKey.import_key(key.public_key()).thumbprint()


def hash_of(name: str) -> str:
    return digest({"params": name})


def chained(events: Events, run_id: str = RUN) -> Events:
    """Return events with hashes that fit, as the ledger makes them, and a forger can."""
    previous = GENESIS
    for seq, event in enumerate(events, start=1):
        hashed = {
            "run_id": run_id,
            "seq": seq,
            "type": event["type"],
            "step_id": event.get("step_id"),
            "body": event["body"],
            "at_ms": event.get("at_ms", (NOW + seq) * 1000),
        }
        event.clear()
        event |= {**hashed, "previous": previous, "hash": event_hash(previous, hashed)}
        previous = event["hash"]
    return events


def claims_of(step: str, signer: str, **changes: Any) -> dict[str, Any]:
    return {
        "aud": f"surehand:{TENANT}",
        "sub": signer,
        "iat": NOW,
        "exp": NOW + 300,
        "jti": f"a-nonce-for-{step}-{signer}",
        "approval_id": f"{RUN}/{step}/1",
        "run_id": RUN,
        "params_hash": hash_of(step),
        "outcome": DecisionOutcome.APPROVE,
        **changes,
    }


def by_key(key: Ed25519PrivateKey, step: str, signer: str, **changes: Any) -> str:
    return sign(key, DecisionClaims(**claims_of(step, signer, **changes)))


def by_passkey(step: str, signer: str, **changes: Any) -> str:
    raw = canonical_json(claims_of(step, signer, **changes))
    found = BOB.get(digest_of(raw))
    return put_together(BOB.header(found), raw, found.signature)


def asked(step: str, n: int, assurance: str, quorum: int = 1) -> dict[str, Any]:
    body = {
        "approval_id": f"{RUN}/{step}/1",
        "tool": f"bank.{step}",
        "version": "1",
        "params_hash": hash_of(step),
        "expires_ms": (NOW + 3600) * 1000,
        "assurance": assurance,
        "quorum": quorum,
    }
    return {"type": "approval.requested", "step_id": step, "body": body}


def voted(step: str, who: str, kid_: str, proof: str) -> dict[str, Any]:
    body = {
        "decision_id": f"{RUN}#{step}.{who}",
        "approval_id": f"{RUN}/{step}/1",
        "outcome": "approve",
        "approver": who,
        "verified": True,
        "proof": proof,
        "kid": kid_,
    }
    return {"type": "decision.accepted", "step_id": step, "body": body}


def made(step: str, entry: str, **more: Any) -> Events:
    about = {"entry_id": entry, "tool": f"bank.{step}"}
    approval = f"{RUN}/{step}/1"
    used = {"approval_id": approval, "entry_id": entry, "params_hash": hash_of(step)}
    claim = {**about, "params_hash": hash_of(step), "approval_id": approval}
    return [
        {"type": "approval.approved", "step_id": step, "body": {"approval_id": approval}},
        {"type": "approval.consumed", "step_id": step, "body": used},
        {"type": "effect.claimed", "step_id": step, "body": claim},
        {"type": "effect.committed", "step_id": step, "body": {**about, "receipt": digest(entry)}},
    ]


def undone(step: str, entry: str) -> Events:
    about = {"entry_id": f"undo-{entry}", "tool": f"bank.undo_{step}"}
    claim = {**about, "params_hash": hash_of(entry), "undoes": entry}
    over = {"entry_id": entry, "tool": f"bank.{step}", "by": about["entry_id"]}
    return [
        {"type": "effect.claimed", "step_id": step, "body": claim},
        {"type": "effect.committed", "step_id": step, "body": about},
        {"type": "effect.compensated", "step_id": step, "body": over},
    ]


def decided(step: str, who: str, kid_: str, signature: str, **changes: Any) -> dict[str, Any]:
    return {
        "decision_id": f"{RUN}#{step}.{who}",
        "approval_id": f"{RUN}/{step}/1",
        "approver": who,
        "outcome": "approve",
        "params_hash": hash_of(step),
        "verified": True,
        "assurance": "signed",
        "at_ms": (NOW + 5) * 1000,
        "deputy_for": None,
        "standing_id": None,
        "kid": kid_,
        "nonce": f"a-nonce-for-{step}-{who}",
        "signature": signature,
        **changes,
    }


def evidence() -> Receipt:
    """Return what a receipt has but for who signs it: three effects, two of them undone."""
    start = StartClaims(
        **{k: v for k, v in claims_of("start", "ann").items() if k in StartClaims.model_fields},
        user="ann",
        content=digest("plan"),
    )
    scope = Scope(
        tool="bank.fee",
        version="1",
        schema_hash=digest("schema"),
        when="amount <= 5",
        until=NOW * 2,
    )
    granted = StandingClaims(
        **{k: v for k, v in claims_of("fee", "sue").items() if k in StandingClaims.model_fields},
        scope=scope,
    )
    standing = sign(SUE, granted)
    vote = {"approval_id": f"{RUN}/fee/1", "standing_id": "SA-1", "approver": "sue"}
    vote |= {"verified": True, "proof": "signed", "kid": kid(SUE)}
    opened = {"user": "ann", "started_by": "ann", "kid": kid(ANN), "verified": True}
    events = chained(
        [
            {"type": "run.opened", "body": {**opened, "gated": ["refund", "mail", "fee"]}},
            asked("refund", 2, "signed"),
            voted("refund", "ann", kid(ANN), "signed"),
            *made("refund", "ef-1"),
            asked("mail", 2, "passkey"),
            voted("mail", "bob", BOB.kid, "passkey"),
            *made("mail", "ef-2"),
            asked("fee", 2, "signed"),
            {"type": "approval.standing_used", "step_id": "fee", "body": vote},
            *made("fee", "ef-3"),
            *undone("mail", "ef-2"),
            *undone("refund", "ef-1"),
            {"type": "run.failed", "body": {"error": True, "share": 0.25}},
        ]
    )
    fee = decided("fee", "sue", kid(SUE), standing, standing_id="SA-1", decision_id="vote-1")
    keys = [("ann", ANN), ("sue", SUE)]
    return {
        "format": "surehand-receipt/1",
        "tenant": TENANT,
        "run_id": RUN,
        "start": {
            "user": "ann",
            "started_by": "ann",
            "at_ms": NOW * 1000,
            "kid": kid(ANN),
            "nonce": start.jti,
            "signature": sign(ANN, start),
        },
        "events": events,
        "decisions": [
            decided("refund", "ann", kid(ANN), by_key(ANN, "refund", "ann")),
            decided("mail", "bob", BOB.kid, by_passkey("mail", "bob"), assurance="passkey"),
            fee,
        ],
        "standing": [
            {
                "standing_id": "SA-1",
                "granter": "sue",
                "scope": scope.model_dump(mode="json", exclude_none=True),
                "granted_ms": NOW * 1000,
                "kid": kid(SUE),
                "nonce": granted.jti,
                "signature": standing,
            }
        ],
        "keys": [
            *(
                {
                    "kid": kid(key),
                    "principal": who,
                    "public_key": jwk(key),
                    "passkey": None,
                    "revoked_ms": None,
                }
                for who, key in keys
            ),
            {
                "kid": BOB.kid,
                "principal": "bob",
                "public_key": BOB.jwk,
                "passkey": {
                    "credential_id": b64(BOB.credential_id),
                    "rp_id": BOB.rp_id,
                    "device_bound": False,
                },
                "revoked_ms": None,
            },
        ],
        "signer": jwk(EVA),
    }


def with_signature(body: Receipt, key: Ed25519PrivateKey = EVA, **changes: Any) -> Receipt:
    """Return a receipt that somebody signs, whatever is in it."""
    body = {name: one for name, one in body.items() if name != "signature"}
    body["signer"] = jwk(key)
    newest = body["events"][-1]
    named = {"run_id": body["run_id"], "seq": newest["seq"], "head": newest["hash"]}
    whose = {"aud": f"surehand:{body['tenant']}", "sub": "eva", "iat": NOW + 60}
    claims = ReceiptClaims(**{**whose, **named, "content": digest(body), **changes})
    return {**body, "signature": sign(key, claims)}


def as_file(receipt: Receipt) -> bytes:
    return canonical_json(receipt) + b"\n"


RIGHT: Final = as_file(with_signature(evidence()))


@dataclass(frozen=True)
class Broken:
    """A file that is refused, and what is said of it."""

    content: bytes
    reason: str


def parsed() -> Receipt:
    return copy.deepcopy(json.loads(RIGHT))


def altered(change: Callable[[Receipt], Any]) -> bytes:
    """Return the receipt with a change that its signature does not cover."""
    receipt = parsed()
    change(receipt)
    return as_file(receipt)


def forged(change: Callable[[Receipt], Any], key: Ed25519PrivateKey = EVA, **claims: Any) -> bytes:
    """Return the same with hashes and signature that fit: whoever signs it lies."""
    receipt = evidence()
    change(receipt)
    chained(receipt["events"], receipt["run_id"])
    return as_file(with_signature(receipt, key, **claims))


def event(receipt: Receipt, type_: str, step: str | None = None, at: int = 0) -> dict[str, Any]:
    of = [e for e in receipt["events"] if e["type"] == type_ and step in (None, e["step_id"])]
    return cast(dict[str, Any], of[at])


def drop(receipt: Receipt, type_: str, step: str | None = None) -> None:
    receipt["events"].remove(event(receipt, type_, step))


def swap_decisions(receipt: Receipt) -> None:
    """Move ann's decision to the call that bob was asked about."""
    ann, bob = receipt["decisions"][:2]
    ann["signature"], bob["signature"] = bob["signature"], ann["signature"]
    ann["nonce"], bob["nonce"] = bob["nonce"], ann["nonce"]


def move_decision(receipt: Receipt) -> None:
    one = receipt["decisions"][0]
    one |= {"approval_id": f"{RUN}/mail/1", "params_hash": hash_of("mail")}
    event(receipt, "decision.accepted", "refund")["body"]["approval_id"] = f"{RUN}/mail/1"


def other_key(receipt: Receipt) -> None:
    receipt["keys"][0]["public_key"] = jwk(MALLORY)


def own_key(receipt: Receipt) -> None:
    """Decide in bob's name with a key that nobody has registered for him."""
    one = receipt["decisions"][0]
    one |= {"kid": kid(MALLORY), "signature": by_key(MALLORY, "refund", "ann")}
    event(receipt, "decision.accepted", "refund")["body"]["kid"] = kid(MALLORY)
    mallorys = {**receipt["keys"][0], "kid": kid(MALLORY), "public_key": jwk(MALLORY)}
    receipt["keys"].append({**mallorys, "principal": "mallory"})


def look_alike(receipt: Receipt) -> None:
    """Have one person count as two, by letters that look the same."""
    event(receipt, "approval.requested", "refund")["body"]["quorum"] = 2
    for who in ("\uff41nn",):
        second = voted("refund", who, kid(ANN), "signed")
        at = receipt["events"].index(event(receipt, "approval.approved", "refund"))
        receipt["events"].insert(at, second)
        signature = by_key(ANN, "refund", who)
        receipt["decisions"].append(decided("refund", who, kid(ANN), signature))
        receipt["keys"].append({**receipt["keys"][0], "principal": who})


def by_button(receipt: Receipt, assurance: str) -> None:
    """Have ann's decision made by a button in a chat, for which the page's key vouches."""
    one = receipt["decisions"][0]
    claims = ChatClaims(**claims_of("refund", "ann"), account="slack:T1:U1")
    one |= {"signature": sign(MALLORY, claims), "kid": kid(MALLORY), "assurance": assurance}
    pages = {"kid": kid(MALLORY), "public_key": jwk(MALLORY), "principal": "chat"}
    receipt["keys"].append({**receipt["keys"][0], **pages})
    said = event(receipt, "decision.accepted", "refund")["body"]
    said |= {"kid": kid(MALLORY), "proof": "chat"}
    event(receipt, "approval.requested", "refund")["body"]["assurance"] = assurance


def by_chat(receipt: Receipt) -> None:
    """Have the page's key sign the decision as if it were an approver's."""
    by_button(receipt, "chat")
    one, said = receipt["decisions"][0], event(receipt, "decision.accepted", "refund")["body"]
    one |= {"approver": "chat", "nonce": "a-nonce-for-refund-chat"}
    one["signature"] = by_key(MALLORY, "refund", "chat")
    said["approver"] = "chat"


def unproven(receipt: Receipt, kid_: str | None) -> None:
    """Have ann's decision be one that nobody has signed, where that is enough."""
    one = receipt["decisions"][0]
    one |= {"signature": None, "nonce": None, "verified": False, "assurance": "open", "kid": kid_}
    event(receipt, "decision.accepted", "refund")["body"]["verified"] = False
    event(receipt, "approval.requested", "refund")["body"]["assurance"] = "open"


def b64_json(value: Any) -> str:
    return b64(as_json(value))


def with_header(token: str, **members: Any) -> str:
    head, claims, mark = token.split(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return f"{b64_json({**header, **members})}.{claims}.{mark}"


def unsigned(receipt: Receipt) -> None:
    receipt["signature"] = with_header(receipt["signature"], alg="none").rpartition(".")[0] + "."


def confused(receipt: Receipt) -> None:
    """Sign with HS256, and the public key as the secret."""
    head, claims, _ = with_header(receipt["signature"], alg="HS256").split(".")
    secret = canonical_json(receipt["signer"])
    mark = hmac.new(secret, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    receipt["signature"] = f"{head}.{claims}.{b64(mark)}"


def unsigned_decision(receipt: Receipt) -> None:
    one = receipt["decisions"][0]
    one["signature"] = with_header(one["signature"], alg="none")


def other_challenge(receipt: Receipt) -> None:
    receipt["decisions"][1]["signature"] = by_passkey("mail", "bob", jti="another-nonce-of-his")


def text(find: bytes, replace: bytes) -> bytes:
    assert RIGHT.count(find) >= 1, find
    return RIGHT.replace(find, replace, 1)


NOT_CANONICAL: Final = "it is not written as receipts are (RFC 8785)"
CHANGED: Final = "it is not what was signed: something was changed"
UNSIGNED: Final = forged(lambda receipt: unproven(receipt, None))
#: A right one, with a decision from a chat.
FROM_CHAT: Final = forged(lambda receipt: by_button(receipt, "chat"))
BROKEN: Final[dict[str, Broken]] = {
    "cut at the end": Broken(
        altered(lambda r: r["events"].pop()), "the chain ends at 25, but event 26 was"
    ),
    "cut at the start": Broken(altered(lambda r: r["events"].pop(0)), "event 1: missing"),
    "nothing left": Broken(altered(lambda r: r["events"].clear()), "it has no events"),
    "an event changed": Broken(
        altered(lambda r: r["events"][3].update(type="approval.void")), "event 4: was changed"
    ),
    "rewritten": Broken(
        altered(lambda r: (drop(r, "run.failed"), chained(r["events"]))), "event 26 was recorded"
    ),
    "added": Broken(
        altered(lambda r: (r["events"].append({"type": "x", "body": {}}), chained(r["events"]))),
        "event 27: was added after the receipt was signed",
    ),
    "a decision left out": Broken(altered(lambda r: r["decisions"].pop(0)), CHANGED),
    "an event of another run": Broken(
        forged(lambda r: r.update(run_id="acme/r-2"), run_id=RUN),
        "receipt of another run, acme/refund-1",
    ),
    "another tenant": Broken(forged(lambda r: None, aud="surehand:other"), "is for another tenant"),
    "decisions swapped": Broken(forged(swap_decisions), "nothing proves decision"),
    "a decision moved": Broken(forged(move_decision), "the signature is for another approval"),
    "a key swapped": Broken(forged(other_key), "the signature is made with another key"),
    "a key of one's own": Broken(forged(own_key), f"ann has no key {kid(MALLORY)}"),
    "a revoked key": Broken(
        forged(lambda r: r["keys"][0].update(revoked_ms=1)), f"key {kid(ANN)} was revoked"
    ),
    "one person twice": Broken(forged(look_alike), "was given by 1 of 2 people"),
    "a late signature": Broken(
        forged(lambda r: r["decisions"][0].update(at_ms=(NOW + 301) * 1000)), "has expired"
    ),
    "a decision forgotten": Broken(
        forged(lambda r: r["decisions"].pop(0)),
        "the signature of decision acme/refund-1#refund.ann is",
    ),
    "a decision that no event tells of": Broken(
        forged(lambda r: drop(r, "decision.accepted", "refund")), "but no event tells of it"
    ),
    "another outcome": Broken(
        forged(lambda r: r["decisions"][0].update(outcome="reject")),
        "is another in the ledger's row",
    ),
    "a key where a passkey was asked for": Broken(
        forged(
            lambda r: event(r, "approval.requested", "refund")["body"].update(assurance="passkey")
        ),
        "have to be signed by a passkey",
    ),
    "a button where a signature was asked for": Broken(
        forged(lambda r: by_button(r, "signed")), "was given by 0 of 1 people"
    ),
    "a button of nobody's": Broken(
        forged(lambda r: (by_button(r, "chat"), r["keys"].pop())), f"chat has no key {kid(MALLORY)}"
    ),
    "a decision by the key of the pages": Broken(
        forged(by_chat), "keys of chat sign presses in a chat, and nothing else"
    ),
    "another gesture": Broken(forged(other_challenge), "its signature is for something else"),
    "another scope": Broken(
        forged(lambda r: r["standing"][0]["scope"].update(when="amount <= 500")),
        "its signature is for something else",
    ),
    "a standing approval of another tool": Broken(
        forged(lambda r: event(r, "approval.requested", "fee")["body"].update(tool="bank.all")),
        "its standing approval is for another tool",
    ),
    "another starter": Broken(
        forged(lambda r: r["start"].update(started_by="bob")), "tells of another start"
    ),
    "a claim without its approval": Broken(
        forged(lambda r: drop(r, "approval.consumed", "refund")), "was claimed without its approval"
    ),
    "a claim of other params": Broken(
        forged(
            lambda r: event(r, "effect.claimed", "mail")["body"].update(params_hash=hash_of("x"))
        ),
        "was claimed with other params than approved",
    ),
    "an approval used late": Broken(
        forged(lambda r: event(r, "approval.requested", "fee")["body"].update(expires_ms=1)),
        "was used after it had expired",
    ),
    "an effect committed twice": Broken(
        forged(lambda r: r["events"].insert(8, copy.deepcopy(event(r, "effect.committed")))),
        "was committed twice",
    ),
    "a member of no form": Broken(
        forged(lambda r: event(r, "approval.requested", "fee")["body"].pop("params_hash")),
        "has not the form that it should have",
    ),
    "a claim of no params": Broken(
        forged(lambda r: event(r, "effect.claimed", "mail", -1)["body"].pop("params_hash")),
        "has not the form that it should have",
    ),
    "no time that there is": Broken(
        forged(
            lambda r: r["events"].append(
                {"type": "run.erased", "at_ms": 9 * 10**15, "body": {"actor": "x"}}
            )
        ),
        "has not the form that it should have",
    ),
    "an unsigned decision with a key": Broken(
        forged(lambda r: unproven(r, kid(ANN))), "it is not signed"
    ),
    "a member too many": Broken(
        altered(lambda r: r.update(note="fine")), "has not exactly the members"
    ),
    "another type": Broken(
        altered(lambda r: r["decisions"][0].update(verified=1)), "verified is of another type"
    ),
    "another format": Broken(altered(lambda r: r.update(format="x")), "its format is not"),
    "no algorithm": Broken(altered(unsigned), "the signature's algorithm is not EdDSA"),
    "HS256 by the public key": Broken(altered(confused), "the signature's algorithm is not EdDSA"),
    "a decision without algorithm": Broken(
        forged(unsigned_decision), "the signature's algorithm is not EdDSA"
    ),
    "a key that anybody signs for": Broken(
        altered(lambda r: r["signer"].update(x=b64(b"\1" + b"\0" * 31))), "anybody can sign for"
    ),
    "a name twice": Broken(
        text(b'"tenant":"acme"', b'"tenant":"acme","tenant":"acme"'), NOT_CANONICAL
    ),
    "blanks": Broken(text(b'"tenant":', b'"tenant": '), NOT_CANONICAL),
    "an escape": Broken(text(b'"tenant":"acme"', b'"tenant":"\\u0061cme"'), NOT_CANONICAL),
    "a number in another form": Broken(text(b'"share":0.25', b'"share":0.250'), NOT_CANONICAL),
    "a number that loses digits": Broken(
        text(b'"share":0.25', b'"share":9007199254740993'), "numbers from 2^53 lose digits"
    ),
    "a number that rounds": Broken(
        text(b'"share":0.25', b'"share":0.250000000000000000001'), NOT_CANONICAL
    ),
    "no number": Broken(text(b'"share":0.25', b'"share":NaN'), "it is not JSON"),
    "half a character": Broken(
        text(b'"tenant":"acme"', b'"tenant":"\\ud800"'), "half of a character"
    ),
    "nested too deeply": Broken(
        text(b'"share":0.25', b'"share":' + b"[" * 101 + b"]" * 101), "nested too deeply"
    ),
    "far too deep": Broken(b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    "no UTF-8": Broken(text(b"acme", b"acm\xff"), "it is not JSON"),
    "cut off": Broken(RIGHT[:-10], "it is not JSON"),
    "a list": Broken(b"[]\n", "it has not exactly the members"),
    "nothing": Broken(b"", "it is not JSON"),
    "a mark at the beginning": Broken(b"\xef\xbb\xbf" + RIGHT, "it is not JSON"),
}
