"""What README, pages and reference name is there, and is what the code says now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import meanings, pictures, reference
from surehand.activities.tools.describing import literal_problems
from surehand.activities.tools.toolbox import load_toolbox
from surehand.client.plan_file import load_plan
from surehand.examples.shop.store import Store
from tests import licences
from tests.docs.pages import DOCS, README, ROOT, blocks

LONGEST_README = 150
ROOMS = (
    *("workflows", "process", "activities", "surehand/agents", "client", "cli", "drill"),
    *("examples", "benchmarks", "docs", "tests"),
)
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def titled(page: Path, title: str) -> str:
    """Return the block of a page that is the file of this name."""
    [block] = [block for block in blocks(page) if block.title == title]
    return block.text


def named_in(pattern: str) -> list[tuple[Path, str]]:
    """Return what the pages name in this way, each with its page."""
    found = [(page, re.findall(pattern, page.read_text(encoding="utf-8"))) for page in PAGES]
    return [(page, name) for page, names in found for name in names]


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LONGEST_README


def test_the_tools_that_are_shown_are_a_file_that_loads() -> None:
    shown = titled(DOCS / "howto" / "write-a-tool.md", "my_tools.py")

    assert shown == (ROOT / "examples" / "bank_tools.py").read_text(encoding="utf-8")
    assert load_toolbox(["surehand.examples.bank_tools"]).names() == ["bank.cancel", "bank.refund"]


def test_the_plan_that_is_shown_is_valid_and_fits_the_example_shops_tools(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(titled(DOCS / "howto" / "write-a-plan.md", "first.yaml"), encoding="utf-8")
    toolbox = load_toolbox(["surehand.examples.shop.tools"])

    for step in load_plan(str(file), []).steps:
        tool = toolbox.get(step.tool)
        assert tool is not None, step.tool
        assert list(literal_problems(tool, step)) == []


def test_each_example_refunds_its_own_order(tmp_path: Path) -> None:
    tutorial = tmp_path / "tutorial.yaml"
    tutorial.write_text(titled(DOCS / "tutorial.md", "tutorial.yaml"), encoding="utf-8")
    with Store(tmp_path / "shop.sqlite").transaction() as shop:
        rows = shop.execute("SELECT order_id FROM orders WHERE status = 'paid'")
        paid = {row["order_id"] for row in rows}

    orders: list[str] = []
    for file in (tutorial, *sorted((ROOT / "examples").glob("*.yaml"))):
        given = load_plan(str(file), []).input
        named = given.get("orders", [given.get("order_id")])
        orders += [one for one in named if isinstance(one, str) and one in paid]

    assert len(orders) == 4
    assert len(set(orders)) == len(orders)


def test_every_file_of_the_repository_that_a_page_names_is_there() -> None:
    named = [
        *named_in(r"`((?:tests|examples|workflows|activities|cli|docs|deploy)/[\w./-]*)`"),
        *named_in(r"`([A-Z]+\.md|[\w-]+\.yml|\.[\w.]+/?[\w]*example)`"),
    ]

    assert [(page.name, name) for page, name in named if not (ROOT / name).exists()] == []


def test_every_module_that_a_page_names_by_the_end_of_its_path_is_there() -> None:
    files = [
        *ROOT.glob("surehand/*.py"),
        *(f for room in ROOMS for f in (ROOT / room).rglob("*.py")),
    ]
    there = [f"/{file.relative_to(ROOT)}" for file in files]

    assert [
        (page.name, name)
        for page, name in named_in(r"`((?:\w+/)+\w+\.py)")
        if not any(file.endswith(f"/{name}") for file in there)
    ] == []


def test_every_page_that_a_page_links_to_is_there() -> None:
    linked = named_in(r"\]\((?!https?:)([^)#]+)")

    assert [(page.name, link) for page, link in linked if not (page.parent / link).exists()] == []


def test_every_how_to_page_can_be_found() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    assert [str(page) for page in pages if str(page) not in listed] == []


def test_each_attack_that_a_page_lists_is_a_test() -> None:
    page = (DOCS / "guarantees" / "data.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\S+)::(test_\w+)`", page)

    assert len(named) >= 20
    assert [
        name
        for file, name in named
        if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ] == []


@pytest.mark.parametrize("number", range(1, 7))
def test_a_guarantees_page_names_every_file_that_is_marked_as_its_proof(number: int) -> None:
    page = (DOCS / "guarantees" / f"g{number}.md").read_text(encoding="utf-8")
    marked = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if f'guarantee("G{number}")' in file.read_text(encoding="utf-8")
    ]

    assert marked
    assert [file for file in marked if file not in page] == []


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_what_the_code_says_now(name: str) -> None:
    file = reference.REFERENCE / f"{name}.md"

    assert file.read_text(encoding="utf-8") == reference.page(name), "make reference"


def test_every_file_of_the_reference_is_written_from_the_code() -> None:
    files = {file.stem for file in reference.REFERENCE.glob("*.md")}

    # What `wire` says is proven by a program that was written from it (tests/e2e/test_wire.py).
    # People write `receipts`, too: it is the form of a file, and not the code's.
    assert files == {*reference.PAGES, "wire", "receipts"}


def test_a_verb_that_nobody_has_described_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: shapes for name, shapes in meanings.SHAPES.items() if name != "resolve"}
    monkeypatch.setattr(meanings, "SHAPES", known)

    with pytest.raises(reference.Undescribed, match="resolve"):
        reference.page("commands")


def test_an_event_that_nobody_has_described_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: text for name, text in meanings.EVENTS.items() if name != "effect.claimed"}
    monkeypatch.setattr(meanings, "EVENTS", known)

    with pytest.raises(reference.Undescribed, match=r"effect\.claimed"):
        reference.page("events")


def test_the_demos_picture_is_what_the_demo_prints() -> None:
    assert pictures.PICTURE.read_text(encoding="utf-8") == pictures.draw_demo(), "make reference"


# What the image has inside may be passed on.
def test_each_package_of_the_image_has_a_licence_that_is_allowed() -> None:
    assert len(dict(licences.packages())) > 50
    assert licences.refused() == {}


def test_an_allowed_licence_that_no_package_has_is_allowed_no_more() -> None:
    had = " ".join(dict(licences.packages()).values()).split()
    assert set(had) >= licences.ALLOWED


@pytest.mark.parametrize(
    ("told", "is_refused"),
    [
        ("License-Expression: AGPL-3.0-only", True),
        ("License-Expression: MIT AND GPL-3.0-only", True),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", True),
        ("License: All rights reserved", True),
        ("Summary: says nothing", True),
        ("License-Expression: GPL-3.0-only OR MIT", False),
        ("Classifier: License :: OSI Approved :: BSD License", False),
    ],
)
def test_a_package_whose_licence_nobody_has_allowed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str, is_refused: bool
) -> None:
    package = tmp_path / "surely_new-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.4\nName: surely-new\n{told}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lock = tmp_path / "lock"
    lock.write_text("surely-new==1.0 \\\n    --hash=sha256:00\n")

    assert bool(licences.refused(lock)) is is_refused
