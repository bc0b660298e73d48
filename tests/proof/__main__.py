"""Runs the tests that the rows of ``*.yaml`` name, once, and writes ``docs/proof.md``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "proof.md"
RESULTS: Final = ("met", "not met", "not ours", "failed", "not run")
HEAD: Final = """\
# Tests that others wrote

<!-- Written by `make proof`. Changes made here are lost. -->

Others have written down what a system like this has to prove. Each row is one of their
requirements, in our words, with the tests of ours that prove it. A row is *met* if each of its
tests ran and passed. A row that is *not met* says why; tests beside it prove the part that holds.
*Not ours* is what a layer for actions cannot have.

"""


class Row(BaseModel):
    """A requirement, and what proves it: names of tests below ``tests/``."""

    model_config = ConfigDict(extra="forbid")

    id: str
    level: str = ""
    says: str
    tests: tuple[str, ...] = ()
    note: str = ""
    not_met: str = ""
    not_ours: str = ""

    @property
    def claim(self) -> str:
        return "not met" if self.not_met else "not ours" if self.not_ours else "met"


class Suite(BaseModel):
    """What one source asks for."""

    model_config = ConfigDict(extra="forbid")

    stem: str
    """Of its file; its tests' figures have it, too."""
    name: str
    whose: str
    source: str
    version: str
    size: str
    changed: str
    columns: str = ""
    """What the columns of its figures mean, if its tests show any."""
    rows: tuple[Row, ...]


Figures = dict[str, list[dict[str, Any]]]


def load_suites() -> list[Suite]:
    files = sorted(Path(__file__).parent.glob("*.yaml"))
    told = ({"stem": file.stem, **yaml.safe_load(file.read_text("utf-8"))} for file in files)
    return [Suite.model_validate(one) for one in told]


def run_tests(names: list[str], options: list[str]) -> tuple[dict[str, set[str]], Figures]:
    """Return how the cases of each test ended, by ``tests.folder.file.test``, and their figures."""
    ended: dict[str, set[str]] = {}
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "tests", *names, f"--junitxml={file}", "-q", *options]
        told = {**os.environ, "PROOF_FIGURES": folder}
        if (code := subprocess.run(command, cwd=ROOT, env=told, check=False).returncode) > 1:
            sys.exit(f"pytest has ended with {code}: it has not run all tests")
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            parts = {part.tag for part in case}
            failed = not parts.isdisjoint({"failure", "error"})
            way = "failed" if failed else "not run" if "skipped" in parts else "met"
            name = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"
            ended.setdefault(name, set()).add(way)
        for row in sorted(Path(folder).glob("*.json")):
            figures.setdefault(row.name.partition(".")[0], []).append(json.loads(row.read_text()))
    return ended, figures


def judge_row(row: Row, ended: dict[str, set[str]]) -> str:
    """Return a row's result; one case that has failed, or has not run, takes its claim away."""
    names = [re.sub(r"\.py::|::|/", ".", f"tests/{name}") for name in row.tests]
    ways = set[str]().union(*(ended.get(name, {"not run"}) for name in names))
    if "failed" in ways:
        return "failed"
    return "not run" if "not run" in ways and row.claim == "met" else row.claim


def render(
    suites: list[Suite], results: dict[tuple[str, str], str], figures: Figures, run: str
) -> str:
    """Return the page."""
    lines = [HEAD + run, "", "| source | rows | " + " | ".join(RESULTS) + " |", "|" + " --- |" * 7]
    for suite in suites:
        counts = Counter(results[suite.name, row.id] for row in suite.rows)
        numbers = " | ".join(str(counts[result]) for result in RESULTS)
        lines.append(f"| {suite.name} | {len(suite.rows)} | {numbers} |")
    for suite in suites:
        lines += ["", f"## {suite.name}", "", f"- Whose: {suite.whose}"]
        lines += [f"- Source: <{suite.source}>, {suite.version}", f"- Size: {suite.size}"]
        lines += [f"- Changed, and why: {suite.changed}", ""]
        lines += ["| id | level | requirement | result | why, and tests |", "|" + " --- |" * 5]
        for row in suite.rows:
            why = row.not_met or row.not_ours or row.note
            told = "<br>".join(filter(None, [why, *(f"`{name}`" for name in row.tests)]))
            result = f"**{results[suite.name, row.id]}**"
            lines.append(f"| {row.id} | {row.level} | {row.says} | {result} | {told} |")
        if shown := figures.get(suite.stem):
            lines += ["", suite.columns, "", f"| {' | '.join(shown[0])} |"]
            lines.append("|" + " --- |" * len(shown[0]))
            lines += [f"| {' | '.join(str(value) for value in one.values())} |" for one in shown]
    return "\n".join(lines) + "\n"


def main() -> None:
    suites, began = load_suites(), time.monotonic()
    rows = [(suite.name, row) for suite in suites for row in suite.rows]
    names = sorted({f"tests/{name}" for _, row in rows for name in row.tests})
    ended, figures = run_tests(names, sys.argv[1:])
    results = {(name, row.id): judge_row(row, ended) for name, row in rows}
    head = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True)
    took, day = time.monotonic() - began, time.strftime("%Y-%m-%d", time.gmtime())
    run = f"Run on {day} at commit {head.strip()}: {len(names)} tests in {took:.0f} s."
    PAGE.write_text(render(suites, results, figures, run), encoding="utf-8")
    print(f"{PAGE}: {dict(Counter(results.values()))}")
    sys.exit("failed" in results.values())


if __name__ == "__main__":
    main()
