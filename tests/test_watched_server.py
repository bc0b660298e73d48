"""What the tests do about a Temporal server that lives and answers nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watched_server import SUSPECT, WatchedServer


@pytest.fixture
def watched(temporal_cli: Path, tmp_path: Path) -> Iterator[WatchedServer]:
    server = WatchedServer(temporal_cli, tmp_path / "log")
    yield server
    server.close()


def freeze(watched: WatchedServer) -> None:
    """Have its process answer nothing; what SQLite does to it cannot be had at will."""
    os.kill(watched.server.pid, signal.SIGSTOP)


def test_a_silent_server_is_replaced_on_its_port_and_says_so(watched: WatchedServer) -> None:
    silent = watched.server
    freeze(watched)
    watched.replace_if_silent()
    assert watched.server.pid != silent.pid
    assert watched.server.address == silent.address
    assert not silent.running
    assert [silent.address in line for line in watched.replaced] == [True]
    watched.replace_if_silent()  # the new one answers
    assert len(watched.replaced) == 1


def test_a_suspect_line_in_its_log_has_a_silent_server_replaced(
    watched: WatchedServer, tmp_path: Path
) -> None:
    silent = watched.server
    freeze(watched)
    with (tmp_path / "log").open("ab") as log:
        log.write(b'msg="Operation failed" error="GetNamespace operation failed. Error ' + SUSPECT)
    silent.wait(within=60)
    watched.close()  # waits for the replacement
    assert len(watched.replaced) == 1


def test_a_server_that_answers_is_kept_whatever_its_log_says(watched: WatchedServer) -> None:
    kept = watched.server
    watched.replace_if_silent()
    assert watched.server is kept
    assert watched.replaced == []
