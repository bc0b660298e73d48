"""The embedded Temporal server: finds the Temporal CLI, starts and stops its development server.

``surehand server`` serves in the foreground until it is told to stop.
For development, the demo and the tests; a team's own cluster is docker-compose.yml's.

The SDK's ``WorkflowEnvironment.start_local`` does not do: it tells no process id. So a server would
outlive a program that was killed, and no test could kill it. It also takes no second free port when
somebody else has got the first. Only its download of the CLI is used.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from surehand.process.children import Child
from surehand.process.exits import NotReachable, SurehandError, WrongUse
from surehand.workflows.ports import SEARCH_ATTRIBUTES

CLI_VERSION: Final = "1.5.1"
"""Newest release that ``go install`` accepts: later ones have a ``replace`` in their go.mod."""
CLI_MODULE: Final = f"github.com/temporalio/cli/cmd/temporal@v{CLI_VERSION}"

#: Seconds. The download is tens of megabytes. Without a network it fails at once; behind a firewall
#: that drops packets it would hang. Then the build gets its turn.
DOWNLOAD_TIMEOUT: Final = 90.0

_DOWNLOAD: Final = """\
import asyncio, sys
from temporalio.testing import WorkflowEnvironment
async def main():
    server = await WorkflowEnvironment.start_local(download_dest_dir=sys.argv[1])
    await server.shutdown()
asyncio.run(main())
"""
_WHAT_TO_DO: Final = "install it (https://docs.temporal.io/cli) or name it in TEMPORAL_CLI_PATH"


class CliMissing(NotReachable):
    """There is no Temporal CLI and no way to get one; the message says what to do."""


def say(line: str) -> None:
    """Tell the person at the terminal, beside what the command itself prints."""
    print(line, file=sys.stderr, flush=True)


def find_cli(*, log: Callable[[str], object] = say) -> Path:
    """Find the Temporal CLI; download or build it when this machine has none.

    Looked for in this order: ``TEMPORAL_CLI_PATH``, ``temporal`` on PATH, the cache; then the
    SDK's download and a build with Go, both into the cache (once a machine, not once a checkout).
    """
    if named := os.environ.get("TEMPORAL_CLI_PATH"):
        if not _is_program(Path(named)):
            raise CliMissing(f"TEMPORAL_CLI_PATH={named} is not a program that can be run")
        return Path(named).resolve()
    if on_path := shutil.which("temporal"):
        return Path(on_path).resolve()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cached = Path(base, "surehand", f"temporal-{CLI_VERSION}")
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            _fill_cache(cached, log)
    except (OSError, RuntimeError) as error:  # no home, or none that can be written to
        raise CliMissing(
            f"The Temporal CLI is not on PATH and cannot be kept here ({error}); {_WHAT_TO_DO}"
        ) from error
    return cached


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _fill_cache(cached: Path, log: Callable[[str], object]) -> None:
    with open(f"{cached}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log("Another process is getting the Temporal CLI; waiting for it (about 4 minutes)")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if cached.exists():
            return
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix="incoming-") as incoming:
            folder = Path(incoming)
            (_download_cli(folder, log) or _build_cli(folder, log)).rename(cached)


def _download_cli(folder: Path, log: Callable[[str], object]) -> Path | None:
    """The SDK's own download; None when there is no network for it.

    In a separate process, which can be ended at its time limit and keeps to itself what the
    SDK has to say about a missing network.
    """
    log(f"No Temporal CLI on this machine: downloading it (at most {DOWNLOAD_TIMEOUT:.0f} s, once)")
    command = [sys.executable, "-c", _DOWNLOAD, str(folder)]
    try:
        subprocess.run(command, capture_output=True, timeout=DOWNLOAD_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return None
    return next(filter(_is_program, folder.iterdir()), None)


def _build_cli(folder: Path, log: Callable[[str], object]) -> Path:
    go = shutil.which("go")
    if go is None:
        raise CliMissing(
            "The Temporal CLI is missing: it is not on PATH, could not be downloaded, and there"
            f" is no Go to build it with; {_WHAT_TO_DO}"
        )
    log(f"It cannot be downloaded: building it, go install {CLI_MODULE} (about 3 minutes, once)")
    began = time.monotonic()
    # Go refuses GOBIN when it is told to build for another platform than this one.
    environ = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")}
    build = subprocess.run(
        [go, "install", CLI_MODULE],
        env=environ | {"GOBIN": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode != 0:
        reason = (build.stderr.strip().splitlines() or [f"exit code {build.returncode}"])[-1]
        raise CliMissing(
            "The Temporal CLI is missing: it is not on PATH, could not be downloaded, and"
            f" `go install {CLI_MODULE}` failed ({reason}); {_WHAT_TO_DO}"
        )
    log(f"Built the Temporal CLI in {time.monotonic() - began:.0f} s")
    return folder / "temporal"


#: Where Temporal's clients look for a server that nobody has named.
DEFAULT_PORT: Final = 7233
DEFAULT_UI_PORT: Final = 8233
#: How people name the address that the server listens at.
HERE: Final = ("127.0.0.1", "localhost")
_PORTS: Final = range(1, 65536)
#: No system hands these out by itself: what nobody listens on stays free until the server is
#: there, and for the next start, too. Temporal's schema keeps ports in a signed 16-bit column.
_FREE_PORTS: Final = range(10_000, 32_000)
_ADDRESS: Final = re.compile(r".+:(\d{1,5})")
#: How many of them are looked at.
_LOOKS: Final = 1_000
#: Seconds. First starts take 1 to 4 on two busy cores; a broken one ends by itself.
START_TIMEOUT: Final = 60.0
#: Seconds that somebody waits before being told what for.
SILENT_FOR: Final = 2.0
#: Another process can take a free port before the server binds it, and the server looks for ports
#: of its own. Losing one three times in a row means that something else is wrong.
START_TRIES: Final = 3

DYNAMIC_CONFIG: Final = {
    # 20 a second by default, which holds a single run to 12 steps a second.
    "history.transferProcessorMaxPollRPS": "5000",
    "history.timerProcessorMaxPollRPS": "5000",
    # One second by default, the floor of every timer and retry delay.
    "history.timerProcessorMaxTimeShift": '"100ms"',
    # 30 seconds by default, for which a history that is deleted may stay.
    "history.transferProcessorUpdateAckInterval": '"1s"',
    "system.enableActivityEagerExecution": "true",
    # Tenants take turns (workflows/ports.py, fair): otherwise what was queued first goes first.
    "matching.enableFairness": "true",
}


class DevServerFailed(NotReachable):
    """The embedded Temporal server did not start; the message holds its own last words."""


def local_port(address: str) -> int | None:
    """Return the port of an address at which the server can listen; ``None`` if it is elsewhere."""
    return _port_of(address) if address.rpartition(":")[0] in HERE else None


def _port_of(address: str) -> int:
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[1]) not in _PORTS:
        raise WrongUse(f"{address} is not a host:port (TEMPORAL_ADDRESS)")
    return int(found[1])


def free_ports(number: int) -> list[int]:
    """Return ports of this machine that nobody listens on, each once."""
    anywhere = random.sample(_FREE_PORTS, _LOOKS)
    return list(itertools.islice(filter(is_free, anywhere), number))


def is_free(port: int) -> bool:
    with socket.socket() as probe, socket.socket() as caller:
        # As the server does it: connections that are still winding down do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        # On macOS a port can be bound on which another program listens at all addresses.
        return caller.connect_ex(("127.0.0.1", port)) != 0


def _choose_port(wanted: int, option: str = "--port") -> int:
    """A port that nobody listens on: the wanted one, or for 0 any.

    Looked at before the start, because the readiness check would be answered by whoever has it.
    """
    if wanted and not is_free(wanted):
        raise WrongUse(
            f"Port {wanted} on 127.0.0.1 is taken: stop what listens there, or name another"
            f" with {option} (0 takes a free one)"
        )
    return wanted or free_ports(1)[0]


class DevServer(Child):
    """One running embedded server. Start it again with its port and file to go on after a kill."""

    def __init__(self, command: Sequence[str], log: Path, port: int, ui: int | None) -> None:
        super().__init__(command, environment=os.environ, log=log, folder=Path.cwd())
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.ui_url = f"http://127.0.0.1:{ui}" if ui else None

    @classmethod
    def start(
        cls,
        *,
        db_file: Path | None = None,
        port: int = 0,
        ui_port: int | None = 0,
        log_file: Path | None = None,
        cli: Path | None = None,
    ) -> DevServer:
        """Start a server and return once it answers for the namespace ``default``."""
        cli = cli or find_cli()
        for path in (db_file, log_file):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(START_TRIES)):
            chosen = _choose_port(port)
            chosen_ui = None if ui_port is None else _choose_port(ui_port, "--ui-port")
            command = [str(cli), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(chosen)]
            command += ["--ui-port", str(chosen_ui)] if chosen_ui else ["--headless"]
            command += ["--log-level", "warn"]
            if db_file is not None:
                command += ["--db-filename", str(db_file)]
            for key in SEARCH_ATTRIBUTES:
                kind = key.indexed_value_type.name.title()
                command += ["--search-attribute", f"{key.name}={kind}"]
            for setting, value in DYNAMIC_CONFIG.items():
                command += ["--dynamic-config-value", f"{setting}={value}"]
            # One that nobody reads is gone once the server serves.
            with tempfile.NamedTemporaryFile() as unread:
                server = cls(command, log_file or Path(unread.name), chosen, chosen_ui)
                try:
                    wait_until_serving(cli, server.address, meanwhile=server.require_running)
                    return server
                except DevServerFailed as error:
                    ended = not server.running
                    server.kill()
                    if not (left and ended):
                        raise DevServerFailed(f"{error}: {server.last_line()}") from error
                except BaseException:
                    server.kill()
                    raise
        raise AssertionError("the last try returns or raises")

    def require_running(self) -> None:
        if not self.running:
            raise DevServerFailed(f"The Temporal server on {self.address} ended at once")


def wait_until_serving(
    cli: Path, address: str, *, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Ask until runs can be counted by state: frontend, namespace and attributes are there."""
    host, port = address.rpartition(":")[0], _port_of(address)
    ask = ["workflow", "count", "--query", "RunState = 'running'", "--address", address]
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT:
        meanwhile()
        try:
            socket.create_connection((host.strip("[]"), port), timeout=1).close()
            if subprocess.run([cli, *ask], capture_output=True, timeout=5).returncode == 0:
                return
        except (OSError, subprocess.TimeoutExpired):
            pass
        time.sleep(0.02)
    raise DevServerFailed(
        f"The Temporal server on {address} did not answer within {START_TIMEOUT:.0f} s"
    )


def _wait_for_server(cli: Path, port: int | None) -> None:
    """Wait for the server on a port here, or for the one that the environment names."""
    # Late, because starting a server needs none of it.
    from surehand.process.connect import find_target
    from surehand.process.settings import read_environment

    address = f"127.0.0.1:{port}" if port else find_target(read_environment()).address
    patience = time.monotonic() + SILENT_FOR

    def tell() -> None:
        nonlocal patience
        if time.monotonic() > patience:
            say(f"Waiting for the Temporal server on {address}, at most {START_TIMEOUT:.0f} s")
            patience = math.inf

    wait_until_serving(cli, address, meanwhile=tell)


def serve(
    db: Path = Path(".surehand/temporal.db"),
    *,
    port: int | None = None,
    ui_port: int = DEFAULT_UI_PORT,
    print_cli: bool = False,
    wait: bool = False,
) -> int:
    """Serve in the foreground until SIGINT or SIGTERM; returns the exit code.

    Args:
        db: Its file; its log lies beside it.
        port: That of ``TEMPORAL_ADDRESS``, if not given; 0 takes a free one.
        ui_port: That of the Web UI.
        print_cli: Start none: print the path of the Temporal CLI.
        wait: Start none: return once the server on the port, or at ``TEMPORAL_ADDRESS``, serves.
    """

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    server = None
    try:
        cli = find_cli()
        if print_cli:
            print(cli)
            return 0
        if wait:
            _wait_for_server(cli, port)
            return 0
        if port is None:
            # Clients look at TEMPORAL_ADDRESS, if it names this machine.
            from surehand.process.settings import read_sources

            named = read_sources().environment.get("TEMPORAL_ADDRESS", "")
            port = local_port(named) or DEFAULT_PORT
        log_file = db.with_suffix(".log")
        server = DevServer.start(db_file=db, port=port, ui_port=ui_port, log_file=log_file, cli=cli)
        print(f"Temporal {server.address}  Web UI {server.ui_url}  log {log_file}", flush=True)
        code = server.wait()
        say(f"The Temporal server ended by itself with {code}; see {log_file}")
        return 1
    except SurehandError as error:
        say(str(error))
        return error.code
    except KeyboardInterrupt:
        return 0
    finally:
        if server is not None:
            server.stop()
