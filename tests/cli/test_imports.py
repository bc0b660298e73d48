"""Starting and steering runs needs ``workflows/`` only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from surehand.client.messages import new_key
from tests.cli.starter import REFUND, ROOT

#: The other room, and what it would bring along.
HEAVY = ("surehand.activities", "sqlalchemy", "alembic", "structlog", "httpx")

_LOADED = """
import json, sys
from surehand.process.exits import leave
from surehand.starter import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
print(json.dumps(sorted(sys.modules)))
leave(0)
"""


def loaded_by(*lines: list[str], warnings: str = "default") -> set[str]:
    """Return the modules that command lines load, one after the other."""
    ended = subprocess.run(
        [sys.executable, "-W", warnings, "-c", _LOADED, json.dumps(lines)],
        env={**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["principal", "--help"], ["pendign"]])
def test_help_loads_no_verb(arguments: list[str]) -> None:
    loaded = loaded_by(arguments)

    assert "surehand.cli.app" in loaded
    assert not loaded.intersection({"temporalio", "surehand.cli.options", "surehand.client"})


def test_a_verb_loads_no_other_ones() -> None:
    loaded = loaded_by(["pending"])

    assert "surehand.cli.approvals" in loaded
    common = {"app", "approvals", "options", "printer", "render", "shapes"}
    verbs = {one for one in loaded if re.match(r"surehand\.(drill|cli\.)", one)}
    assert verbs == {f"surehand.cli.{one}" for one in common}
    assert "temporalio.worker" not in loaded  # a third of the SDK; for plugins only


def test_starting_and_steering_runs_imports_nothing_of_the_other_room() -> None:
    loaded = loaded_by(
        ["start", "--help"],
        ["start", REFUND],
        ["plan", "check", REFUND],
        ["list"],
        ["show", "r"],
        ["pending"],
        ["approve", "r/s/1", "--params-hash", "x"],
        ["cancel", "r"],
        ["resolve", "i", "happened"],
    )

    assert "surehand.workflows" in loaded
    assert not loaded.intersection({*HEAVY, "joserfc", "cryptography"})


def test_signing_imports_nothing_of_the_other_room_and_warns_of_nothing(tmp_path: Path) -> None:
    new_key(key := tmp_path / "ana.pem")
    about = ["r/s/1", "--params-hash", f"sha256:{'0' * 64}"]
    loaded = loaded_by(["sign", *about, "--key", str(key)], warnings="error")

    assert "joserfc" in loaded
    assert not loaded.intersection(HEAVY)
