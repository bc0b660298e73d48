"""The example of a passkey's proof is what the worker computes, and what its page says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from surehand.activities.ledger.people.passkeys import challenge_of, read
from surehand.activities.ledger.people.public_keys import kid_of
from surehand.workflows.contracts.approvals import MOST_DECISIONS, PASSKEY_LIST, PASSKEY_TYP
from tests.docs.pages import DOCS
from tests.passkeys import Authenticator, b64, taken_apart

PAGE: Final = (DOCS / "guarantees" / "passkeys.md").read_text(encoding="utf-8")


def test_the_example_s_challenges_are_those_that_the_worker_computes() -> None:
    example = PAGE.partition("## An example")[2]
    (one, alone), (second, both), (kid,) = (
        block.splitlines() for block in re.findall(r"```text\n(.*?)```", example, re.DOTALL)[:3]
    )
    other = one.replace('"approve"', '"reject"').replace("a-nonce", "b-nonce")
    made = Authenticator()

    first, last = (read(made.proof(claims.encode())) for claims in (one, other))

    assert b64(challenge_of(first)) == alone and b64(challenge_of(last)) == second
    for gesture in (first, last):
        listed = replace(gesture, digests=(alone, second))
        assert b64(challenge_of(listed)) == both
    [jwk] = re.findall(r"The key id of `(.+?)`", example)
    assert kid_of(json.loads(jwk)) == kid


def test_the_page_names_the_members_and_the_texts_that_the_worker_goes_by() -> None:
    header, _, _ = taken_apart(Authenticator().proof(b"{}"))

    assert all(f"| `{name}` |" in PAGE for name in [*header, "digests", *Authenticator().file])
    assert f'"{PASSKEY_TYP}"' in PAGE and f'"{PASSKEY_LIST}"' in PAGE
    assert f"2 to {MOST_DECISIONS} digests" in PAGE
