"""What the image has inside may be passed on."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import licences


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
