"""Where drills happen: a Temporal server, ledgers, and workers that belong to one case each."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import Final, Self

from surehand.activities.ledger.core.migrate import migrate, require_head
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.tools.tool import Tool
from surehand.activities.worker.settings import load_settings
from surehand.process import ROOT
from surehand.process.children import Child, fork_server, python
from surehand.process.dev_server import DevServer, find_cli, is_free, local_port
from surehand.process.exits import SurehandError, WrongUse

#: The user's own, which must not reach a worker of the drill.
_OWN: Final = (
    "DATABASE_URL",
    "ARTIFACTS",
    "TASK_QUEUE",
    "BUILD_ID",  # nobody makes a drill's workers current
    "CRASH_AT",
    "CRASH_BY",
    "CRASH_ONCE",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "METRICS",  # several workers at once
    "NOTIFY",  # nobody is to be paged for a drill
)
WORKER: Final = "surehand.worker"
#: What a worker says once it takes work.
READY: Final = "worker.ready"
#: Settings that name a server.
_NAMES_A_SERVER: Final = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE")


@dataclass
class Environment:
    """A running server, and a migrated ledger to copy."""

    folder: Path
    database: str | None
    """A ledger that all cases share; ``None``: each has a file of its own."""
    temporal: Mapping[str, str] = field(default_factory=dict)
    """The settings that lead to the server."""
    embedded: bool = False
    web_ui: str = ""
    kept: bool = False
    """Whether the folder stays: its ledgers and logs say why."""
    loaded: tuple[str, ...] = ()
    """More modules that workers begin with, as copies of a process that has loaded them."""

    @property
    def template(self) -> Path:
        return self.folder / "template.db"

    def make_variables(self, user: Mapping[str, str]) -> dict[str, str]:
        """Return the workers' variables: the user's own, with those of this environment."""
        require_tools(user)
        ours = {f"SUREHAND_{name}" for name in _OWN}
        kept = {key: value for key, value in user.items() if key.upper() not in ours}
        if self.embedded:
            kept = {key: value for key, value in kept.items() if not key.startswith("TEMPORAL_")}
        # Workers run in the case's folder, where no .env is read a second time.
        path = [str(ROOT), str(Path.cwd()), *filter(None, [user.get("PYTHONPATH")])]
        return {
            **kept,
            **self.temporal,
            # One for all cases, by content; the drill reads it, too.
            "SUREHAND_ARTIFACTS": str(self.folder / "artifacts"),
            "PYTHONPATH": os.pathsep.join(path),
        }

    def remove_folder(self) -> None:
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def require_ledger(self) -> None:
        """See that the shared ledger can be used."""
        if self.database is not None:
            load_settings({"SUREHAND_DATABASE_URL": self.database}, Path(os.devnull))
            async with open_ledger(self.database) as ledger:
                require_head(ledger.engine)

    def make_case_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def make_ledger(self, folder: Path) -> str:
        if self.database is not None:
            return self.database
        shutil.copy(self.template, folder / "ledger.db")
        return f"sqlite:///{folder / 'ledger.db'}"


def require_tools(variables: Mapping[str, str]) -> None:
    """See that variables name tools; asked before anything is started."""
    if not variables.get("SUREHAND_TOOL_MODULES"):
        raise WrongUse("no tools to drill: set SUREHAND_TOOL_MODULES to the modules with yours")


def start_worker(
    variables: Mapping[str, str], folder: Path, name: str, *loaded: str, **settings: str
) -> Child:
    """Start a worker of one case; settings by their names without prefix."""
    own = {**variables, **{f"SUREHAND_{key.upper()}": value for key, value in settings.items()}}
    log, server = folder / f"{name}.log", fork_server(WORKER, *loaded)
    return Child(python(WORKER), environment=own, log=log, server=server)


def _is_server_named(variables: Mapping[str, str]) -> bool:
    """Return whether a server is named, and not one of this machine that nobody has started.

    `dev` names its own in the folder's `.env`, and is not there all the time.
    """
    port = local_port(variables.get("TEMPORAL_ADDRESS", ""))
    here_and_down = port is not None and is_free(port)
    return any(variables.get(name) for name in _NAMES_A_SERVER) and not here_and_down


@contextmanager
def prepare_drill(
    variables: Mapping[str, str], *, database: str | None, say: Callable[[str], None]
) -> Iterator[Environment]:
    """Start what a drill needs; stop it all and remove the folder on every way out."""
    environment = Environment(Path(tempfile.mkdtemp(prefix="surehand-drill-")), database)
    with ExitStack() as running:
        running.callback(environment.remove_folder)
        if database is None:
            migrate(f"sqlite:///{environment.template}")
        if _is_server_named(variables):
            named = {k: v for k, v in variables.items() if k.startswith("TEMPORAL_")}
            environment.temporal, environment.web_ui = named, named.get("TEMPORAL_UI_URL", "")
        else:
            # In memory it takes half the processor's time, and nobody needs its state later.
            log = environment.folder / "temporal.log"
            server = DevServer.start(cli=find_cli(log=say), log_file=log)
            running.callback(server.kill)
            environment.embedded, environment.web_ui = True, server.ui_url or ""
            environment.temporal = {
                "TEMPORAL_ADDRESS": server.address,
                "TEMPORAL_NAMESPACE": "default",
                "TEMPORAL_CONFIG_FILE": os.devnull,
            }
        yield environment


#: The longest that a call may take after the deploy.
SHORT_TIMEOUT: Final = timedelta(seconds=2)
_MODULE: Final = "drill_release"


def shorten_tools(modules: Sequence[str]) -> dict[str, Tool]:
    """Return the tools of some modules with shorter timeouts, by names that a module may have."""
    found = {
        id(value): value
        for module in modules
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, Tool)
    }
    return {
        f"tool_{number}": replace(one, timeout=min(one.timeout, SHORT_TIMEOUT))
        for number, one in enumerate(found.values())
    }


#: Seconds between looks at whether a worker has died: the error of a recovery time.
_DEATH_PAUSE: Final = 0.02
#: Seconds that a worker has to end its calls in, once it is thawed.
_THAWED_S: Final = 30.0


@dataclass
class Workers:
    """Workers that share a ledger and a task queue; leaving its ``with`` block kills them."""

    variables: Mapping[str, str]
    folder: Path
    loaded: Sequence[str]
    settings: Mapping[str, str]
    died_at: float | None = None
    """When a worker was seen to be dead or frozen, by this process's monotonic clock."""
    _alive: list[Child] = field(default_factory=list)
    _frozen: list[Child] = field(default_factory=list)
    _started: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._alive, *self._frozen):
            one.kill()

    @property
    def killed(self) -> bool:
        """Return whether a worker has killed or frozen itself, as it was told to."""
        return Path(self.settings["crash_once"]).exists()

    async def start(self, count: int = 1, **changes: str) -> None:
        """Start workers and wait until they take work."""
        settings = {**self.settings, **changes}
        new = []
        for _ in range(count):
            self._started += 1
            name = f"worker-{self._started}"
            new.append(start_worker(self.variables, self.folder, name, *self.loaded, **settings))
            self._alive.append(new[-1])
        for one in new:
            await asyncio.to_thread(one.wait_said, READY)

    async def start_release(self) -> None:
        """Start a worker whose tools have shorter timeouts, and whose lease is shorter."""
        modules = self.variables["SUREHAND_TOOL_MODULES"].split(",")
        (self.folder / f"{_MODULE}.py").write_text(
            "from surehand.drill.environment import shorten_tools\n\n"
            f"globals().update(shorten_tools({[name.strip() for name in modules]!r}))\n",
            encoding="utf-8",
        )
        await self.start(tool_modules=_MODULE, lease="1s")

    async def replace_all(self) -> None:
        """Kill all of them (SIGKILL), then start one more: nothing is left in any memory."""
        gone, self._alive = self._alive, []
        for one in gone:
            one.kill()
        await self.start()

    async def thaw_frozen(self) -> None:
        """Let a frozen worker go on, and end in good order."""
        for one in self._frozen:
            one.signal(Signals.SIGCONT)
            await asyncio.to_thread(one.stop, within=_THAWED_S)

    async def watch_deaths(self) -> None:
        """See the one death that is meant to be; any other is an error."""
        while True:
            if self.settings.get("crash_by") and self.killed and self.died_at is None:
                # Whoever is to be frozen works alone.
                self._frozen, self._alive = self._alive, []
                self.died_at = time.monotonic()
            for one in list(self._alive):
                if one.returncode is None:
                    continue
                meant = one.returncode == -Signals.SIGKILL and self.killed
                if not meant or self.died_at is not None:
                    raise SurehandError(
                        f"{one.log.stem} in {one.log.parent.name} ended by itself with"
                        f" {one.returncode}: {one.last_line()}"
                    )
                self.died_at = time.monotonic()
                self._alive.remove(one)
                one.kill()  # It is dead; nobody has to guard it any more.
            await asyncio.sleep(_DEATH_PAUSE)
