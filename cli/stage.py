"""The demo's stage: embedded server, ledger, shop and workers, all in one temporary folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.children import Child
from cli.exits import NotReachable
from cli.temporal_cli import CliMissing, find_cli
from devserver import DevServer, DevServerFailed

ROOT: Final = Path(__file__).parent.parent


@dataclass(frozen=True)
class Stage:
    """Everything that runs, and the environment in which a worker finds it."""

    folder: Path
    database_url: str
    shop_url: str
    web_ui: str
    environment: dict[str, str]

    def worker(self, name: str, *, crash_at: str = "") -> Child:
        """Start a worker; with ``crash_at`` it kills itself there."""
        drill = {"SUREHAND_CRASH_AT": crash_at} if crash_at else {}
        return _child(self.folder, self.environment | drill, name, "worker")

    def shop_counts(self) -> dict[str, int]:
        """Return how many effects the shop itself has counted, by kind."""
        # No proxy: the shop is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.shop_url}/admin/counts", timeout=10) as response:
            counts: dict[str, int] = json.load(response)
        return counts


@contextmanager
def set_up(say: Callable[[str], None]) -> Iterator[Stage]:
    """Start server, ledger and shop; stop them all and remove the folder on every way out.

    The folder stays when the block fails: its logs say why.

    Args:
        say: Told what is being waited for.

    Raises:
        NotReachable: Something did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="surehand-demo-"))
    with ExitStack() as running:
        try:
            yield _started(folder, running, say)
        except Exception:
            say(f"What happened is in the logs in {folder}")
            raise
        except BaseException:  # Ctrl-C: nobody will read them
            running.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, running: ExitStack, say: Callable[[str], None]) -> Stage:
    try:
        cli = find_cli(log=say)
        database_url = f"sqlite+aiosqlite:///{folder / 'ledger.db'}"
        environment = _clean_environment() | {"SUREHAND_DATABASE_URL": database_url}
        say("Starting the example shop, a ledger (SQLite) and an embedded Temporal server")
        shop_arguments = ("examples.shop", "--port", "0", "--db", str(folder / "shop.db"))
        shop = running.enter_context(_child(folder, environment, "shop", *shop_arguments))
        migration = running.enter_context(
            _child(folder, environment, "migrate", "activities.ledger.migrate")
        )
        server = DevServer.start(
            cli=cli, db_file=folder / "temporal.db", log_file=folder / "temporal.log"
        )
        running.callback(server.stop)
    except (CliMissing, DevServerFailed) as error:
        raise NotReachable(str(error)) from error
    shop_url = shop.wait_for(lambda: _announced(shop.output()))
    migration.wait_for(lambda: migration.returncode == 0)
    return Stage(
        folder=folder,
        database_url=database_url,
        shop_url=shop_url,
        web_ui=server.ui_url or "",
        environment=environment
        | {
            "TEMPORAL_ADDRESS": server.address,
            "SUREHAND_TOOL_MODULES": "examples.shop.tools",
            "SUREHAND_ARTIFACTS": str(folder / "artifacts"),
            "SHOP_URL": shop_url,
        },
    )


def _clean_environment() -> dict[str, str]:
    """Return the environment without settings of the user's own, which the demo must not touch."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SUREHAND_", "TEMPORAL_"))
    }
    return kept | {
        "PYTHONPATH": str(ROOT),
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _child(folder: Path, environment: dict[str, str], name: str, *arguments: str) -> Child:
    # The folder is also the working directory, so that no .env of the user's is read.
    command = [sys.executable, "-m", *arguments]
    return Child(command, environment=environment, folder=folder, name=name)


def _announced(output: str) -> str | None:
    found = re.search(r"listening on (http://\S+)", output)
    return found[1] if found else None
