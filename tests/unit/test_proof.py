"""``docs/proof.md`` has each requirement of its sources, and claims what tests can take away."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.proof.__main__ import PAGE, Row, judge_row, load_suites, render

TESTS: Final = Path(__file__).parents[1]
#: How many requirements each section has, in the commits that the files name.
AISVS: Final = {
    "9.1": 3, "9.2": 10, "9.3": 8, "9.4": 4, "9.5": 6, "9.6": 3,
    "12.1": 4, "12.2": 6, "12.3": 4, "12.4": 3, "12.5": 4,
}  # fmt: skip
IDS: Final = {
    "OWASP AISVS 1.0": {"10.4.8"}
    | {f"{section}.{n + 1}" for section, count in AISVS.items() for n in range(count)},
    "AGT ADR-0030": {str(n + 1) for n in range(11)},
    "AgentAck": {f"ACK00{n + 1}" for n in range(9)},
    "Atomix": {"E3.5", "E4", "E5-B3", "E7", "E10-closed", "E10-open"},
    "agent-framework #3938": {"Killed in flight"},
    "call4agents": {"300 orders", "the same without"},
    "EMILIA": {
        *(
            "texts",
            "numbers",
            "names",
            "unsafe numbers",
            "malformed text",
            "fractions",
            "NUL",
            "depth",
        )
    },
    "AAIS": {
        *(f"Core.{n + 1}" for n in range(6)),
        *(f"Durable.{n + 1}" for n in range(5)),
        "Secure",
    },
    "ACRFence": {"Action Replay", "Authority Resurrection", "Keys of words"},
    "Temporal Actions": {"write", "approved write", "turn"},
    "Linearisability": {"claims", "leases", "approvals", "halts", "undos"},
}


def defined(file: str) -> set[str]:
    """Return the tests of a file, those of a class with its name before them."""
    found = set[str]()
    for node in ast.parse((TESTS / file).read_text("utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else ()
        names = {getattr(one, "name", "") for one in inside}
        found |= {f"{getattr(node, 'name', '')}::{name}" for name in names}
        found.add(getattr(node, "name", ""))
    return found


def test_each_requirement_of_a_source_has_its_row() -> None:
    found = {suite.name: [row.id for row in suite.rows] for suite in load_suites()}
    known = {name: set(ids) for name, ids in found.items()}
    del known["MCP conformance"]  # its test compares them with the suite itself
    assert known == IDS
    assert all(len(ids) == len(set(ids)) for ids in found.values())


def test_each_row_names_tests_that_exist_or_says_why_it_is_not_met() -> None:
    for suite in load_suites():
        for row in suite.rows:
            assert row.tests or row.claim != "met", row.id
            assert not (row.not_met and row.not_ours), row.id
            for name in row.tests:
                file, _, test = name.partition("::")
                assert test.rpartition("::")[2].startswith("test_"), name
                assert test in defined(file), name


def table_behind(text: str, part: str) -> list[dict[str, str]]:
    """Return the rows of the table behind a text; none, if the text is not there."""
    lines = part.partition(f"\n{text}\n\n")[2].strip().splitlines()
    head, _, *rows = [re.findall(r"[^|]+", line) for line in lines] or ([], [])
    return [
        {name.strip(): one.strip() for name, one in zip(head, row, strict=True)} for row in rows
    ]


def test_the_page_was_written_from_these_rows() -> None:
    page, suites = PAGE.read_text("utf-8"), load_suites()
    [run] = re.findall(r"^Run on .*$", page, flags=re.MULTILINE)
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    results = {
        (suite.name, row_id): result
        for suite, part in zip(suites, parts, strict=True)
        for row_id, result in re.findall(r"^\| ([\w./ -]+) \|.*?\*\*(.*?)\*\*", part, re.MULTILINE)
    }
    figures = {
        suite.stem: table_behind(suite.columns, part)
        for suite, part in zip(suites, parts, strict=True)
        if suite.columns
    }
    assert render(suites, results, figures, run) == page
    assert "failed" not in results.values()
    for suite in suites:
        for row in suite.rows:
            assert results[suite.name, row.id] in (row.claim, "not run")


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ({"met"}, {"met"}, "met"),
        ({"met", "failed"}, {"met"}, "failed"),
        ({"met"}, {"met", "not run"}, "not run"),
        ({"failed"}, {"not run"}, "failed"),
        ({"met"}, None, "not run"),
    ],
)
def test_a_row_is_met_only_if_each_case_of_each_test_has_passed(
    first: set[str], second: set[str] | None, result: str
) -> None:
    row = Row(id="1", says="", tests=("e2e/test_a.py::test_one", "e2e/test_a.py::B::test_two"))
    ended = {"tests.e2e.test_a.test_one": first}
    if second is not None:
        ended["tests.e2e.test_a.B.test_two"] = second
    assert judge_row(row, ended) == result
    unmet = row.model_copy(update={"not_met": "not built"})
    assert judge_row(unmet, ended) == ("failed" if result == "failed" else "not met")
