"""The reference pages are what the code says now, and leave out nothing."""

from __future__ import annotations

import pytest

from docs import meanings, pictures, reference


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
