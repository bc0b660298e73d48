"""Where drills happen: a Temporal server, ledgers, and workers that belong to one case each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from surehand.activities.ledger.core.migrate import require_head
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.worker.settings import load_settings
from surehand.process import ROOT
from surehand.process.children import Child, fork_server, python
from surehand.process.dev_server import CliMissing, DevServer, DevServerFailed, find_cli
from surehand.process.exits import NotReachable, WrongUse

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
    "SETTINGS",  # what it says is in the environment already
)
#: What a worker says once it takes work.
READY: Final = "worker.ready"
#: Settings that name a server; without them the drill starts its own.
_NAMES_A_SERVER: Final = ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE")


@dataclass(frozen=True)
class Environment:
    """A running server, and a migrated ledger to copy."""

    folder: Path
    temporal: Mapping[str, str]
    """The settings that lead to the server."""
    embedded: bool
    web_ui: str
    template: Path
    database: str | None
    """A ledger that all cases share; ``None``: each has a file of its own."""

    def variables(self, user: Mapping[str, str]) -> dict[str, str]:
        """Return the workers' variables: the user's own, with those of this environment.

        Raises:
            WrongUse: They name no tools.
        """
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

    def keep(self) -> None:
        """Let the folder stay: its ledgers and logs say why."""
        _keep_mark(self.folder).touch()

    async def check(self) -> None:
        """See that the shared ledger can be used.

        Raises:
            SettingsError: It is not the URL of a ledger.
            LedgerUnavailable: It cannot be reached.
            DatabaseBehind: It is not migrated.
        """
        if self.database is not None:
            load_settings({"SUREHAND_DATABASE_URL": self.database}, Path(os.devnull))
            async with open_ledger(self.database) as ledger:
                require_head(ledger.engine)

    def case_folder(self, name: str) -> Path:
        """Return a new folder for one case."""
        folder = self.folder / name
        folder.mkdir()
        return folder

    def ledger(self, folder: Path) -> str:
        """Return the URL of the ledger of the case in this folder."""
        if self.database is not None:
            return self.database
        shutil.copy(self.template, folder / "ledger.db")
        return f"sqlite:///{folder / 'ledger.db'}"


def require_tools(variables: Mapping[str, str]) -> None:
    """See that variables name tools; asked before anything is started.

    Raises:
        WrongUse: They do not.
    """
    if not variables.get("SUREHAND_TOOL_MODULES"):
        raise WrongUse("no tools to drill: set SUREHAND_TOOL_MODULES to the modules with yours")


def worker(variables: Mapping[str, str], folder: Path, name: str, **settings: str) -> Child:
    """Start a worker of one case; settings by their names without prefix."""
    own = {f"SUREHAND_{key.upper()}": value for key, value in settings.items()}
    log = folder / f"{name}.log"
    module = "surehand.worker"
    environment = {**variables, **own}
    return Child(python(module), environment=environment, log=log, server=fork_server(module))


def _keep_mark(folder: Path) -> Path:
    return folder / "keep"


def _remove(folder: Path) -> None:
    if not _keep_mark(folder).exists():
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def prepared(
    variables: Mapping[str, str], *, database: str | None, say: Callable[[str], None]
) -> Iterator[Environment]:
    """Start what a drill needs; stop it all and remove the folder on every way out.

    Args:
        variables: The user's own; it may name a Temporal server.
        database: A migrated ledger for all cases, or ``None``.
        say: Told what is being waited for.

    Raises:
        NotReachable: Something did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="surehand-drill-"))
    with ExitStack() as running:
        running.callback(_remove, folder)
        template = folder / "template.db"
        if database is None:
            settings = {"SUREHAND_DATABASE_URL": f"sqlite:///{template}"}
            clean = {k: v for k, v in variables.items() if not k.startswith("SUREHAND_")}
            migrating = running.enter_context(
                Child(
                    python("surehand.cli.operate.migrate"),
                    environment={**clean, **settings, "PYTHONPATH": str(ROOT)},
                    log=folder / "migrate.log",
                )
            )
            migrating.wait_done()
        temporal, web_ui, embedded = _server(variables, folder, running, say)
        yield Environment(
            folder=folder,
            temporal=temporal,
            embedded=embedded,
            web_ui=web_ui,
            template=template,
            database=database,
        )


def _server(
    variables: Mapping[str, str], folder: Path, running: ExitStack, say: Callable[[str], None]
) -> tuple[dict[str, str], str, bool]:
    """Return the settings that lead to a server, its Web UI, and whether it is our own."""
    if any(variables.get(name) for name in _NAMES_A_SERVER):
        own = {k: v for k, v in variables.items() if k.startswith("TEMPORAL_")}
        return own, variables.get("TEMPORAL_UI_URL", ""), False
    try:
        cli = find_cli(log=say)
        # In memory it takes half the processor's time, and nobody needs its state later.
        server = DevServer.start(cli=cli, log_file=folder / "temporal.log")
    except (CliMissing, DevServerFailed) as error:
        raise NotReachable(str(error)) from error
    running.callback(server.kill)
    named = {
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "default",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
    return named, server.ui_url or "", True
