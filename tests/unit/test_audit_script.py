""".ci/audit believes no service that knows nothing.

A program stands for pip-audit: no service with advisories can be had wherever tests run.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = '{"dependencies": [{"name": "jinja2", "vulns": [{"id": "PYSEC-2014-8"}]}]}'
#: What it answers a mirror's user, who is told nothing of anything.
NOTHING: Final = '{"dependencies": [{"name": "jinja2", "skip_reason": "not found on PyPI"}]}'


@pytest.mark.parametrize(
    ("of_control", "of_lock", "advisories", "ends_with", "says"),
    [
        (FOUND, 0, "", 0, "Advisories of pypi"),
        (FOUND, 1, "", 1, "Advisories of pypi"),
        (NOTHING, 0, "", 0, "NOTHING WAS AUDITED"),
        (NOTHING, 0, "required", 1, "NOTHING WAS AUDITED"),
    ],
)
def test_a_service_that_misses_what_is_known_audits_nothing(
    tmp_path: Path, of_control: str, of_lock: int, advisories: str, ends_with: int, says: str
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *requirements-runtime.lock*) exit {of_lock};; esac\n'
        f"echo '{of_control}'\n"
    )
    program.chmod(0o700)

    done = subprocess.run(
        [ROOT / ".ci/audit", program],
        env={**os.environ, "ADVISORIES": advisories},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, says in done.stdout) == (ends_with, True), done.stdout
