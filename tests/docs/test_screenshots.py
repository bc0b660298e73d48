"""The pictures of the approvers' pages: each is shown, described, small, and taken by a command."""

from __future__ import annotations

import re

from docs.screenshots import FOLDER, LARGEST, LARGEST_TOGETHER, NAMES, PAGE, file_of
from surehand.cli.approvals_server import pages
from tests.docs.pages import DOCS

_PICTURE = re.compile(r"!\[(.*?)\]\((.+?\.png)\)", re.DOTALL)


def test_each_picture_that_the_page_shows_is_there_is_described_and_is_taken_by_the_command() -> (
    None
):
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
    templates = {file.stem for file in (pages._HERE / "templates").glob("*.html")} - {"base"}

    assert templates == {name.removesuffix("-narrow").replace("-", "_") for name in NAMES}
