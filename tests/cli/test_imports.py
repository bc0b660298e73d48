"""Starting and steering runs needs ``workflows/`` only."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.starter import REFUND, ROOT

#: The other room, and what it would bring along.
HEAVY = ("surehand.activities", "sqlalchemy", "alembic", "structlog", "httpx")

_LOADED = """
import json, sys
from surehand.process.ending import leave
from surehand.starter import run
run(json.loads(sys.argv[1]))
print(json.dumps(sorted(sys.modules)))
leave(0)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "--help"],
        ["start", REFUND],
        ["plan", "check", REFUND],
        ["list"],
        ["show", "r"],
        ["pending"],
        ["approve", "r/s/1", "--params-hash", "x"],
        ["cancel", "r"],
        ["resolve", "i", "happened"],
    ],
    ids=" ".join,
)
def test_starting_and_steering_runs_imports_nothing_of_the_other_room(
    arguments: list[str],
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LOADED, json.dumps(arguments)],
        env={**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = set(json.loads(ended.stdout.splitlines()[-1]))
    assert "surehand.workflows" in loaded
    assert not loaded.intersection(HEAVY)
