"""The reference pages are what the code says now, and leave out nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import licences, meanings, pictures, reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_what_the_code_says_now(name: str) -> None:
    file = reference.REFERENCE / f"{name}.md"

    assert file.read_text(encoding="utf-8") == reference.page(name), "make reference"


def test_every_file_of_the_reference_is_written_from_the_code() -> None:
    files = {file.stem for file in reference.REFERENCE.glob("*.md")}

    assert files == set(reference.PAGES)


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


def test_the_fields_of_an_event_are_those_that_the_code_writes() -> None:
    events = reference.written_events()

    assert {"entry_id", "tool", "fencing_token", "params_hash"} <= events["effect.claimed"]
    assert {"entry_id", "tool", "made_by"} <= events["effect.replayed"]


def test_the_demos_picture_is_what_the_demo_prints() -> None:
    assert pictures.PICTURE.read_text(encoding="utf-8") == pictures.picture(), "make reference"


# What the image has inside may be passed on.


def test_each_package_of_the_image_has_a_licence_that_is_allowed() -> None:
    assert len(dict(licences.packages())) > 50
    assert licences.refused() == {}


def test_an_allowed_licence_that_no_package_has_is_allowed_no_more() -> None:
    had = " ".join(dict(licences.packages()).values()).split()
    assert licences.ALLOWED.keys() <= set(had)


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
