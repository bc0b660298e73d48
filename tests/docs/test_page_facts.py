"""The pictures of the approvers' pages: each is shown, described, small, and taken by a command."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from docs.pictures import FOLDER, LARGEST, LARGEST_TOGETHER, NAMES, PAGE, file_of
from surehand.activities.ledger.core.sealed import Sealed, SealedText
from surehand.activities.ledger.core.tables import metadata
from surehand.cli.approvals_server import pages
from surehand.verify import (
    MOST_DECISIONS,
    PASSKEY_LIST,
    challenge_of,
    judge_file,
    kid_of,
    read_gesture,
)
from surehand.workflows.contracts.approvals import PASSKEY_TYP
from tests import receipts
from tests.docs.pages import DOCS
from tests.passkeys import Authenticator, b64, taken_apart

_PICTURE = re.compile(r"!\[(.*?)\]\((.+?\.png)\)", re.DOTALL)


def test_each_picture_of_a_page_exists_and_is_described() -> None:
    shown = _PICTURE.findall(PAGE.read_text(encoding="utf-8"))

    assert sorted(PAGE.parent / name for _, name in shown) == sorted(map(file_of, NAMES))
    assert sorted(FOLDER.iterdir()) == sorted(map(file_of, NAMES))
    described = [text for text, _ in shown]
    assert len(set(described)) == len(shown)
    assert [text for text in described if len(text.split()) < 5] == []


def test_the_pictures_are_small_enough_to_be_fetched_by_everybody() -> None:
    sizes = {name: file_of(name).stat().st_size for name in NAMES}

    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}
    assert sum(sizes.values()) <= LARGEST_TOGETHER


def test_no_other_page_shows_a_picture_that_no_command_takes() -> None:
    others = [page for page in DOCS.rglob("*.md") if page != PAGE]

    assert [page.name for page in others if _PICTURE.search(page.read_text(encoding="utf-8"))] == []


def test_there_is_a_picture_of_each_page_that_has_a_template() -> None:
    templates = {file.stem for file in (pages._HERE / "templates").glob("*.html")} - {
        "base",
        "_flags",
    }

    assert templates == {name.removesuffix("-narrow").replace("-", "_") for name in NAMES}


# The example of a passkey's proof is what the worker computes, and what its page says.


RECEIPTS: Final = (DOCS / "howto" / "receipts.md").read_text(encoding="utf-8")
PASSKEYS: Final = (DOCS / "guarantees" / "passkeys.md").read_text(encoding="utf-8")


def test_the_example_s_challenges_are_those_that_the_worker_computes() -> None:
    example = PASSKEYS.partition("## An example")[2]
    (one, alone), (second, both), (kid,) = (
        block.splitlines() for block in re.findall(r"```text\n(.*?)```", example, re.DOTALL)[:3]
    )
    other = one.replace('"approve"', '"reject"').replace("a-nonce", "b-nonce")
    made = Authenticator()

    first, last = (read_gesture(made.proof(claims.encode())) for claims in (one, other))

    assert b64(challenge_of(first)) == alone and b64(challenge_of(last)) == second
    for gesture in (first, last):
        listed = replace(gesture, digests=(alone, second))
        assert b64(challenge_of(listed)) == both
    [jwk] = re.findall(r"The key id of `(.+?)`", example)
    assert kid_of(json.loads(jwk)) == kid


def test_the_page_names_the_members_and_the_texts_that_the_worker_goes_by() -> None:
    header, _, _ = taken_apart(Authenticator().proof(b"{}"))

    assert all(f"| `{name}` |" in PASSKEYS for name in [*header, "digests", *Authenticator().file])
    assert f'"{PASSKEY_TYP}"' in PASSKEYS and f'"{PASSKEY_LIST}"' in PASSKEYS
    assert f"2 to {MOST_DECISIONS} digests" in PASSKEYS


def test_a_sealed_column_is_bound_to_its_own_name() -> None:
    for table in metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, Sealed | SealedText):
                assert column.type.column == f"{table.name}.{column.name}"


def test_the_page_of_receipts_shows_what_is_said_of_one(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(receipts.RIGHT)

    code, lines = judge_file(file, {receipts.kid(receipts.EVA)})

    [shown] = re.findall(r"^```text\n(Receipt of .*?)^```$", RECEIPTS, re.MULTILINE | re.DOTALL)
    said = iter(lines)
    assert code == 0
    assert [line for line in shown.splitlines() if line not in said] == []  # some, in their order
