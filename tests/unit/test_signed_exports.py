"""What is signed is the whole of an export: whatever is changed afterwards shows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.activities.ledger.history.audit import (
    NotAnExport,
    read_export,
    signature_line,
    verify_chain,
    verify_signature,
    write_lines,
)
from surehand.client.messages import fresh_claims, sign
from surehand.workflows.contracts.approvals import ExportClaims, Signed, SteeringClaims, audience

Events = list[dict[str, Any]]

ANA = Ed25519PrivateKey.generate()
BOB = Ed25519PrivateKey.generate()


def jwk(key: Ed25519PrivateKey) -> dict[str, Any]:
    return dict(OKPKey.import_key(key.public_key()).as_dict())


def chained(events: Events) -> Events:
    """Return events with hashes that fit, as the ledger makes them, and a forger can."""
    previous = GENESIS
    for seq, event in enumerate(events, start=1):
        event |= {"seq": seq, "previous": previous}
        hashed = {k: event[k] for k in ("run_id", "seq", "type", "step_id", "body", "at_ms")}
        previous = event["hash"] = event_hash(previous, hashed)
    return events


def story(run_id: str = "refund-1") -> Events:
    kinds = ["run.opened", "step.started", "step.succeeded", "run.completed"]
    return chained(
        [
            {"run_id": run_id, "type": kind, "step_id": None, "body": {"n": n}, "at_ms": n}
            for n, kind in enumerate(kinds)
        ]
    )


def claims(events: Events, **changes: Any) -> ExportClaims:
    newest = events[-1]
    members = {
        "aud": audience("default"),
        "sub": "ana",
        "iat": 1_800_000_000,
        "run_id": newest["run_id"],
        "seq": newest["seq"],
        "head": newest["hash"],
    }
    return ExportClaims(**{**members, **changes})


def exported(events: Events, signed: Signed | None = None, key: Ed25519PrivateKey = ANA) -> str:
    return write_lines(events) + signature_line(sign(key, signed or claims(events)))


def refused(text: str, key: Ed25519PrivateKey | None = ANA) -> str | None:
    """Why an export is refused, although its chain holds by itself."""
    events, token = read_export(text)
    assert verify_chain(events) is None
    found = verify_signature(events, token, None if key is None else jwk(key))
    return None if found is None else str(found)


def test_an_export_as_it_was_signed_is_taken() -> None:
    assert refused(exported(story())) is None
    assert refused(exported(story("acme/r"), claims(story("acme/r"), aud="surehand:acme"))) is None


def cut_off(events: Events) -> Events:
    return events[:-1]


def rewritten(events: Events) -> Events:
    events[1]["body"] = {"n": "another"}
    return chained(events)


def lengthened(events: Events) -> Events:
    return chained([*events, {**events[-1], "type": "step.started"}])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut_off, "the chain ends at 3, but event 4 was recorded"),
        (rewritten, "event 4: is not the one that was recorded when it was written"),
        (lengthened, "event 5: was added after the export was signed"),
    ],
)
@pytest.mark.parametrize("key", [ANA, None], ids=["signer named", "signer not named"])
def test_what_was_changed_after_signing_shows_although_its_hashes_fit(
    change: Callable[[Events], Events], reason: str, key: Ed25519PrivateKey | None
) -> None:
    events = story()
    signature = signature_line(sign(ANA, claims(events)))

    assert refused(write_lines(change(copy.deepcopy(events))) + signature, key) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (exported(story(), key=BOB), "the signature is made with another key"),
        (write_lines(story()), "the export is not signed"),
        (
            exported(story(), claims(story("refund-2"))),
            "the signature is over the export of another run, refund-2",
        ),
        (
            exported(story(), claims(story(), aud=audience("acme"))),
            "the signature is for another tenant",
        ),
        (exported(story(), claims(story(), seq=3)), "event 4: was added after the export"),
        (exported(story(), claims(story(), iat=2**52)), "made at no time that there is"),
        (write_lines(story()) + signature_line("a.b"), "not a compact JWS"),
        (
            # Ana's signature over something else is none over an export.
            exported(
                story(),
                SteeringClaims(
                    **fresh_claims("ana", "default", 1), run_id="refund-1", verb="x", content="y"
                ),
            ),
            "type is not surehand-export+jws",
        ),
    ],
)
def test_another_signature_over_an_export_is_refused(text: str, reason: str) -> None:
    assert reason in str(refused(text))


def test_a_signature_whose_claims_were_changed_is_refused() -> None:
    events = story()
    head, _, mark = sign(ANA, claims(events)).split(".")
    _, other, _ = sign(BOB, claims(events[:3])).split(".")

    found = verify_signature(events[:3], f"{head}.{other}.{mark}", jwk(ANA))

    assert str(found) == "the signature does not fit what it signs"


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x1c", "\n"])
def test_what_people_have_written_ends_no_line_of_an_export(mark: str) -> None:
    events = story()
    events[1]["body"] = {"evidence": f"one{mark}two"}

    assert read_export(exported(chained(events)))[0] == events
    assert read_export(write_lines(events))[0] == events


def test_a_signature_stands_at_the_end_and_nowhere_else() -> None:
    text = exported(story())
    line = text.splitlines()[-1]

    for wrong in (f"{line}\n{text}", f"{text}{line}\n"):
        with pytest.raises(NotAnExport):
            read_export(wrong)
    assert json.loads(line).keys() == {"signature"}
