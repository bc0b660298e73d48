"""The embedded server: found where it is, built once, back after a kill, gone with its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from temporalio.client import Client

from surehand.cli import app
from surehand.process import dev_server
from surehand.process.dev_server import (
    CLI_MODULE,
    CLI_VERSION,
    CliMissing,
    DevServer,
    DevServerFailed,
    find_cli,
)
from surehand.process.exits import ExitCode, WrongUse
from tests.watched_server import SUSPECT, WatchedServer

ROOT = Path(__file__).parent.parent

# Stands in for Go: "builds" the CLI slowly enough that a second process must wait, and counts.
FAKE_GO = """#!/bin/sh
echo "$*" >> "$BUILDS"
/bin/sleep 0.5
printf '#!/bin/sh\\n' > "$GOBIN/temporal"
/bin/chmod +x "$GOBIN/temporal"
"""
BROKEN_GO = """#!/bin/sh
echo "go: downloading" >&2
echo "go: no space left on device" >&2
exit 1
"""


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on PATH, an empty cache and no network."""
    monkeypatch.delenv("TEMPORAL_CLI_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # The discard port: refused at once.
    return tmp_path


def print_cli() -> subprocess.CompletedProcess[str]:
    """``surehand server --print-cli`` in a process of its own, with the environment of this one."""
    command = [sys.executable, str(ROOT / "starter.py"), "server", "--print-cli"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_the_cli_is_found_before_it_is_built(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a machine that has it everywhere
    program(bare / "bin/go", FAKE_GO)
    cached = program(bare / f"cache/surehand/temporal-{CLI_VERSION}")
    on_path = program(bare / "bin/temporal")
    named = program(bare / "elsewhere/my-temporal")
    monkeypatch.setenv("TEMPORAL_CLI_PATH", str(named))

    # Then each place counts only when those before it are empty
    assert find_cli() == named
    monkeypatch.delenv("TEMPORAL_CLI_PATH")
    assert find_cli() == on_path
    on_path.unlink()
    assert find_cli() == cached
    assert not (bare / "builds").exists()
    cached.unlink()
    assert find_cli() == cached
    assert (bare / "builds").read_text().splitlines() == [f"install {CLI_MODULE}"]


def test_a_missing_named_cli_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare / "bin/temporal")
    monkeypatch.setenv("TEMPORAL_CLI_PATH", str(bare / "typo"))
    with pytest.raises(CliMissing, match=r"TEMPORAL_CLI_PATH=.*typo is not a program"):
        find_cli()


def test_two_processes_build_the_cli_once(bare: Path) -> None:
    program(bare / "bin/go", FAKE_GO)
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: print_cli(), range(2)))
    expected = f"{bare}/cache/surehand/temporal-{CLI_VERSION}\n"
    assert [(done.returncode, done.stdout) for done in both] == [(0, expected)] * 2
    assert len((bare / "builds").read_text().splitlines()) == 1
    # And nothing half-built is left beside it
    assert not list((bare / "cache/surehand").glob("incoming-*"))


def test_without_any_cli_one_line_says_what_is_missing_and_what_to_do(bare: Path) -> None:
    done = print_cli()
    assert done.returncode == 4
    assert done.stdout == ""
    progress, last = done.stderr.splitlines()
    assert progress.startswith("No Temporal CLI on this machine")
    assert last.startswith("The Temporal CLI is missing") and "TEMPORAL_CLI_PATH" in last


def test_a_failed_build_names_its_reason_and_leaves_the_cache_empty(bare: Path) -> None:
    program(bare / "bin/go", BROKEN_GO)
    done = print_cli()
    assert done.returncode == 4
    assert "(go: no space left on device)" in done.stderr.splitlines()[-1]
    assert [path.suffix for path in (bare / "cache/surehand").iterdir()] == [".lock"]


@pytest.mark.parametrize("where", ["file", "none"])
def test_a_cache_that_cannot_be_made_is_one_line(
    bare: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "file":
        (bare / "cache").write_text("")
    else:  # a user of a container whom no file knows
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: Path("~nobody-of-that-name").expanduser())
    with pytest.raises(CliMissing, match=r"cannot be kept here .*TEMPORAL_CLI_PATH"):
        find_cli()


def test_a_port_that_cannot_be_is_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["server", "--port", "99999"]) == ExitCode.WRONG_USE
    assert "--port': Input should be less than or equal to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "port"),
    [("127.0.0.1:7233", 7233), ("localhost:1", 1), ("[::1]:7233", None), ("there:7233", None)],
)
def test_the_server_listens_where_it_binds(address: str, port: int | None) -> None:
    assert dev_server.local_port(address) == port


@pytest.mark.parametrize("address", ["localhost:abc", "127.0.0.1:70000", "localhost:0"])
def test_an_address_here_whose_port_cannot_be_is_named(address: str) -> None:
    with pytest.raises(WrongUse, match=f"{address} is not a host:port"):
        dev_server.local_port(address)


@pytest.fixture(scope="module")
def server(temporal_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    server = DevServer.start(db_file=tmp_path_factory.mktemp("server") / "temporal.db")
    yield server
    server.stop()


@pytest.mark.usefixtures("temporal_cli")
async def test_a_killed_server_goes_on_with_its_runs_on_the_same_port(tmp_path: Path) -> None:
    # Given a run that nobody works on yet
    file = tmp_path / "temporal.db"
    first = DevServer.start(db_file=file, ui_port=None)
    try:
        client = await Client.connect(first.address)
        await client.start_workflow("Parked", id="parked", task_queue="nobody")
    finally:
        first.kill()

    # When the server is killed and started again
    second = DevServer.start(db_file=file, port=first.port, ui_port=None)
    try:
        # Then the client that was connected before finds the run
        description = await client.get_workflow_handle("parked").describe()
        assert description.workflow_type == "Parked"
        assert second.address == first.address
    finally:
        second.stop()


@pytest.mark.parametrize("option", ["--port", "--ui-port"])
def test_a_taken_port_is_named_with_its_option(server: DevServer, option: str) -> None:
    taken = {"port": server.port} if option == "--port" else {"ui_port": server.port}
    with pytest.raises(
        WrongUse, match=rf"Port {server.port} on 127\.0\.0\.1 is taken: .* {option} "
    ):
        DevServer.start(**taken)


def test_the_server_takes_the_port_at_which_its_clients_will_look_for_it(
    server: DevServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"localhost:{server.port}")

    assert dev_server.serve() == ExitCode.WRONG_USE

    assert f"Port {server.port} on 127.0.0.1 is taken" in capsys.readouterr().err


def test_waiting_for_a_server_returns_once_it_serves(
    temporal_cli: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given somebody who waits, and has looked in vain
    monkeypatch.setenv("TEMPORAL_CLI_PATH", str(temporal_cli))
    [port] = dev_server.free_ports(1)
    looked: list[bool] = []
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            dev_server.wait_until_serving,
            temporal_cli,
            f"127.0.0.1:{port}",
            meanwhile=lambda: looked.append(True),
        )
        while not looked:
            assert not waiting.done()
        # When the server starts
        server = DevServer.start(port=port, ui_port=None)
        try:
            # Then the wait ends, and the next one at once
            waiting.result(timeout=60)
            wait = [sys.executable, str(ROOT / "starter.py"), "server", "--wait"]
            assert subprocess.run([*wait, "--port", str(port)], timeout=60).returncode == 0
            monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{port}")
            assert subprocess.run(wait, timeout=60).returncode == 0
        finally:
            server.stop()


def test_whoever_waits_is_told_what_for_and_that_it_is_the_server_that_was_named(
    temporal_cli: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_CLI_PATH", str(temporal_cli))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(dev_server, "START_TIMEOUT", 0.2)
    monkeypatch.setattr(dev_server, "SILENT_FOR", 0.0)
    monkeypatch.setattr(dev_server.signal, "signal", lambda *_: None)  # the tests' own stay

    assert dev_server.serve(wait=True) == 4

    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("Waiting for the Temporal server on 127.0.0.1:1")
    assert "127.0.0.1:1 did not answer" in last


def test_a_server_that_lost_a_port_starts_again(temporal_cli: Path, tmp_path: Path) -> None:
    unlucky, lost = tmp_path / "temporal", tmp_path / "lost"
    once = 'echo "bind: address already in use" >&2; exit 1'
    unlucky.write_text(
        f'#!/bin/sh\n[ "$1" != server ] || [ -e {lost} ] || {{ touch {lost}; {once}; }}\n'
        f'exec {temporal_cli} "$@"\n'
    )
    unlucky.chmod(0o755)
    [port] = dev_server.free_ports(1)

    server = DevServer.start(port=port, ui_port=None, cli=unlucky)
    try:
        assert lost.exists()
        assert server.port == port
    finally:
        server.stop()


@pytest.mark.usefixtures("temporal_cli")
def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DevServerFailed, match="unable to open database file"):
        DevServer.start(db_file=Path("/proc/nowhere.db"), log_file=tmp_path / "log")


@pytest.mark.usefixtures("temporal_cli")
def test_the_server_ends_when_its_parent_is_killed() -> None:
    # Given a program that started a server
    script = (
        "from surehand.process.dev_server import DevServer;"
        " print(DevServer.start().port, flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        port = int(one.stdout.readline())
        # When it is killed
        one.send_signal(signal.SIGKILL)
    # Then the server goes too
    deadline = time.monotonic() + 60
    while answers(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# What the tests do about a Temporal server that lives and answers nothing.


@pytest.fixture
def watched(temporal_cli: Path, tmp_path: Path) -> Iterator[WatchedServer]:
    server = WatchedServer(temporal_cli, tmp_path / "log")
    yield server
    server.close()


def test_a_silent_server_with_a_suspect_log_is_replaced_on_its_port_and_says_so(
    watched: WatchedServer, tmp_path: Path
) -> None:
    silent = watched.server
    watched.replace_if_silent()
    assert (watched.server, watched.replaced) == (silent, [])  # it answers

    os.kill(silent.pid, signal.SIGSTOP)  # what SQLite does to it cannot be had at will
    with (tmp_path / "log").open("ab") as log:
        log.write(b'msg="Operation failed" error="GetNamespace operation failed. Error ' + SUSPECT)
    while not watched.replaced:
        time.sleep(0.1)
    watched.replace_if_silent()  # the new one answers
    assert not silent.running
    assert watched.server.pid != silent.pid
    assert watched.server.address == silent.address
    assert [silent.address in line for line in watched.replaced] == [True]
