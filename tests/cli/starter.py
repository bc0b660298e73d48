"""Runs the starter's verbs: in a process of their own, as people do, or quickly in this one.

Most begin as copies of one that has loaded all verbs (``process/children.py``): to load them is
most of what a verb costs. Those that are sent signals or read while they run begin as people's do,
as all do on the pages of the docs that the tests play.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import Client

from surehand.cli import app
from surehand.process.children import Child, ForkServer, clean_environment

ROOT: Final = Path(__file__).parent.parent.parent
REFUND: Final = str(ROOT / "examples" / "refund.yaml")

#: Seconds. No verb but a drill takes longer than 20, also on a loaded machine; a drill of some six
#: runs has taken 105 there, and pytest ends a test after 300.
LIMIT_S: Final = 240.0


@cache
def loaded() -> ForkServer:
    """Return what forks the starter; one is enough, as no verb goes on with another's sets."""
    return ForkServer("tests.cli.loaded_starter")


@dataclass(frozen=True)
class Ended:
    """How a verb ended."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        return json.loads(self.out)

    def line(self) -> str:
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@dataclass(frozen=True)
class Run:
    """A refund of one order."""

    name: str
    order: str

    @property
    def start(self) -> list[str]:
        """The command that starts it, or finds it again."""
        change = f"input.order_id={self.order}"
        return ["start", REFUND, "--run-id", self.name, "--set", change]


class Starter:
    """``python starter.py`` in one environment, in a folder without a ``.env`` file."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment = clean_environment(environment)
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "starter.py"), *arguments]

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a shell starts in its background ignores Ctrl-C, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def child(self, log: Path, *arguments: str, errors: Path | None = None) -> Child:
        """Start a verb, such as one that serves until it is stopped."""
        return Child(
            self.command(*arguments),
            environment=self.environment,
            log=log,
            errors=errors,
            server=loaded(),
        )

    def __call__(self, *arguments: str, limit_s: float = LIMIT_S) -> Ended:
        out, err = (self.folder / f"{uuid.uuid4().hex}.{name}" for name in ("out", "err"))
        with self.child(out, *arguments, errors=err) as process:
            try:
                code = process.wait(limit_s)
            finally:
                process.kill()
        ended = Ended(code, out.read_text(), err.read_text())
        for file in (out, err):
            file.unlink()
        assert "Traceback" not in ended.err, ended.err
        return ended


class Verbs:
    """The same verbs in this process: a tenth of the time, and nothing learnt about its end."""

    def __init__(
        self, environment: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.environment = clean_environment(environment)
        self._folder = folder
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, **settings: str) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        with self._monkeypatch.context() as patch:
            for name in os.environ.keys() - self.environment.keys():
                patch.delenv(name)
            for name, value in {**self.environment, **settings}.items():
                patch.setenv(name, value)
            patch.chdir(self._folder)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = app.run(arguments)
        return Ended(code, out.getvalue(), err.getvalue())

    def asked(self, run: str) -> tuple[str, str, str]:
        """What decides the one request of a run: its id and its hash."""
        [request] = self("show", run, "--json").document()["pending"]
        return request["approval_id"], "--params-hash", request["params_hash"]

    def approve(self, run: str, *options: str) -> None:
        ended = self("approve", *self.asked(run), *options)
        assert ended.code == 0, ended

    def terminate(self, run_id: str) -> None:
        """End a run as somebody does who knows nothing of it."""

        async def by_hand() -> None:
            client = await Client.connect(self.environment["TEMPORAL_ADDRESS"])
            await client.get_workflow_handle(run_id).terminate("by hand")

        asyncio.run(by_hand())
