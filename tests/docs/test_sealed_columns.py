"""The page says which columns are sealed, and the tables say the same."""

from __future__ import annotations

import re
from typing import Final

from surehand.activities.ledger.core.schema import metadata
from surehand.activities.ledger.core.sealed import Sealed, SealedText
from tests.docs.pages import ROOT

#: Sealed as they are, by whoever writes them: no JSON and no text.
BYTES: Final = {("artifacts", "content"), ("drafts", "tail")}


def test_the_page_lists_every_column_that_is_sealed_and_no_other() -> None:
    page = (ROOT / "docs" / "howto" / "encrypt.md").read_text()
    section = page.partition("## What the ledger seals")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    listed = {(table, column) for table, cell in rows for column in re.findall(r"`(\w+)`", cell)}
    there = {
        (table.name, column.name)
        for table in metadata.sorted_tables
        for column in table.columns
        if isinstance(column.type, Sealed | SealedText)
    }

    assert listed - {("steerings", "outcome")} == there | BYTES


def test_a_sealed_column_is_bound_to_its_own_name() -> None:
    for table in metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, Sealed | SealedText):
                assert column.type.column == f"{table.name}.{column.name}"
