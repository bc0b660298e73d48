"""How an attempt that fails is logged, and how the Rust core's lines come into the same log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from structlog.testing import capture_logs

from surehand.activities.ledger.core.store import LedgerUnavailable
from surehand.activities.worker.attempt import again, stop, tell_failure
from surehand.workflows.errors import ErrorType


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            again(ErrorType.LEASE_HELD, "held", timedelta(seconds=2)),
            {"event": "activity.failed", "log_level": "info", "retry_in": 2.0, "final": False},
        ),
        (
            stop(ErrorType.TOOL_FAILED, "HTTP 422"),
            {"log_level": "warning", "error_type": "ToolFailed", "error": "HTTP 422"},
        ),
        (stop(ErrorType.LEDGER_LOST, "lost"), {"log_level": "error", "error_type": "LedgerLost"}),
        (LedgerUnavailable("away"), {"event": "ledger.unavailable", "error": "away"}),
    ],
)
def test_an_answer_that_was_to_be_expected_is_one_line_without_a_traceback(
    error: Exception, says: dict[str, Any]
) -> None:
    with capture_logs() as lines:
        tell_failure(structlog.get_logger(), error)

    [line] = lines
    assert line.items() >= says.items()
    assert "exc_info" not in line


def test_what_nobody_expected_is_logged_with_its_traceback() -> None:
    error = ZeroDivisionError("a bug")

    with capture_logs() as lines:
        tell_failure(structlog.get_logger(), error)

    [line] = lines
    assert (line["event"], line["exc_info"]) == ("activity.broken", error)


#: The SDK hands over what its core logs; a warning of Python's and a plain line stand beside it.
PROGRAM = """
import logging, types, warnings
from surehand.activities.worker.telemetry import configure_logging
configure_logging("json", "info")
line = types.SimpleNamespace(fields={"retries": 3}, target="temporalio_client")
record = logging.makeLogRecord(
    {"name": "temporalio.core", "levelno": 30, "levelname": "WARNING", "msg": "retrying",
     "temporal_log": line}
)
logging.getLogger("temporalio.core").handle(record)
warnings.warn("soon gone")
logging.getLogger("httpx").warning("slow %s", "shop")
"""


def test_with_json_every_line_is_json_and_the_cores_lines_keep_their_fields() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    core, *others = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (core["event"], core["level"]) == ("retrying", "warning")
    assert (core["retries"], core["target"]) == (3, "temporalio_client")
    assert len(others) == 2
    assert ended.stdout == ""


HIDING = """
import logging
import structlog
from surehand.activities.worker.telemetry import configure_logging
configure_logging("json", "info", lambda text: text.replace("geheim", "***"))
log = structlog.get_logger("surehand.activities.x")
log.warning("refused", url="http://geheim/x", tried=["geheim"], count=3)
logging.getLogger("httpx").warning("POST %s", "http://geheim/x")
try:
    raise ValueError("geheim")
except ValueError:
    log.exception("broken")
"""


def test_a_secret_shows_in_no_line_whoever_logs_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HIDING], capture_output=True, text=True, check=True
    )

    assert "geheim" not in ended.stderr
    ours, library, broken = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (ours["url"], ours["count"]) == ("http://***/x", 3)
    assert library["event"] == "POST http://***/x"
    assert "ValueError: ***" in broken["exception"]


UNREAD = """
import sys
import structlog
from surehand.activities.worker.telemetry import configure_logging
class Told(Exception):
    def __str__(self):
        print("made")
        return ""
configure_logging("console", sys.argv[1])
structlog.get_logger("surehand.activities.x").info("done", exc_info=Told())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("level", "made"), [("info", True), ("warning", False)])
def test_a_line_that_nobody_reads_is_not_made(level: str, made: bool) -> None:
    program = [sys.executable, "-c", UNREAD, level]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)

    assert ("made" in ended.stdout, "done" in ended.stderr) == (made, made)


#: What logs write otherwise than it is: by Python's rules, by JSON's, by URLs'.
PASSWORD = 'it\'s a \\ "Zoë"'
SECRETS = """
import logging, sys
from decimal import Decimal
import structlog
from surehand.activities.worker.settings import Secrets
from surehand.activities.worker.settings import Settings
from surehand.activities.worker.telemetry import configure_logging
url, secret, format_ = sys.argv[1:]
settings = Settings(tool_modules=("a",), database_url=url)
configure_logging(format_, "info", Secrets.of(settings).hide)
log = structlog.get_logger("surehand.activities.x")
log.warning("refused", text=secret, inside={"deep": [secret, (secret,)]}, url=url, at=[1, True])
log.warning("odd", error=ValueError(secret), raw=secret.encode(), shown=repr([repr(secret)]))
logging.getLogger("httpx").warning("POST %r %s", secret, url)
try:
    raise KeyError(secret)
except KeyError:
    log.exception("broken")
"""


@pytest.mark.parametrize(
    ("form", "option"),
    [
        ("json", ""),
        pytest.param("console", "sslpassword", marks=pytest.mark.slow),
        pytest.param("json", "password", marks=pytest.mark.slow),
        pytest.param("console", "passfile", marks=pytest.mark.slow),
    ],
)
def test_a_password_of_the_database_shows_in_no_line_however_it_is_written(
    form: str, option: str
) -> None:
    written = quote(PASSWORD)
    url = (
        f"postgresql://ann@db/x?{option}={written}"
        if option
        else f"postgresql://ann:{written}@db/x"
    )
    program = [sys.executable, "-c", SECRETS, url, PASSWORD, form]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)

    assert "Zo" not in ended.stderr
    assert len(ended.stderr.splitlines()) >= 4
    if form == "json":
        first = json.loads(ended.stderr.splitlines()[0])
        assert first["inside"] == {"deep": ["***", ["***"]]}
        assert first["at"] == [1, True]


def test_a_worker_that_cannot_reach_its_database_does_not_tell_its_password() -> None:
    url = "postgresql://ann@127.0.0.1:1/x?password=geheim&sslmode=disable"
    settings = {
        "SUREHAND_DATABASE_URL": url,
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "surehand.worker", "--check"],
        **{"capture_output": True, "text": True, "env": {**os.environ, **settings}},
    )

    assert "cannot be reached at postgresql" in ended.stderr
    assert "geheim" not in ended.stderr + ended.stdout


@pytest.mark.slow
def test_a_check_says_which_module_of_agents_cannot_be_loaded() -> None:
    settings = {
        "SUREHAND_DATABASE_URL": "sqlite:///none.db",
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
        "SUREHAND_AGENT_MODULES": "no_such_agents",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "surehand.worker", "--check"],
        **{"capture_output": True, "text": True, "env": {**os.environ, **settings}},
    )

    assert ended.returncode == 2
    assert "agent module 'no_such_agents' (SUREHAND_AGENT_MODULES)" in ended.stderr
