"""A worker's process: how it loads, logs, keeps time, dies as named, and ends."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from structlog.testing import capture_logs
from temporalio import workflow

from surehand.activities.ledger.core.store import LedgerUnavailable
from surehand.activities.tools.toolbox import ToolboxError, load_workflows
from surehand.activities.worker.context import again, log_failure, stop
from surehand.activities.worker.crash_points import Crash, CrashPoint
from surehand.activities.worker.watchdog import EXIT_CODE, GRACE, Watchdog, grace
from surehand.cli.audit import head_in
from surehand.process import VERSION, clock
from surehand.workflows.contracts.runs import RunResult, StartRun
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import CodeRun
from tests.conftest import missing

#: A worker that is told to end while it loads.
LOADING = """
import asyncio, os, signal
from surehand import worker

async def loads(settings, *, check_only):
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()

worker.serve = loads
raise SystemExit(worker.main([]))
"""


def test_a_worker_that_is_told_to_end_while_it_loads_ends_in_order(tmp_path: Path) -> None:
    settings = {**os.environ, "SUREHAND_DATABASE_URL": f"sqlite:///{tmp_path}/ledger.db"}
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, env=settings, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
def test_an_expected_answer_is_one_line(error: Exception, says: dict[str, Any]) -> None:
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), error)

    [line] = lines
    assert line.items() >= says.items()
    assert "exc_info" not in line


def test_what_nobody_expected_is_logged_with_its_traceback() -> None:
    error = ZeroDivisionError("a bug")

    with capture_logs() as lines:
        log_failure(structlog.get_logger(), error)

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
def test_a_database_password_shows_in_no_line(form: str, option: str) -> None:
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


@workflow.defn(name="LateOrders")
class Impostor(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        raise NotImplementedError


@workflow.defn(name="AgentRun")
class Usurper(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        raise NotImplementedError


def module(name: str, *classes: type) -> str:
    made = ModuleType(name)
    vars(made).update({class_.__name__: class_ for class_ in classes})
    sys.modules[name] = made
    return name


def test_the_workflows_of_a_module_are_found_and_what_it_imports_is_none() -> None:
    assert [class_.__name__ for class_ in load_workflows(["surehand.examples.late_orders"])] == [
        "LateOrders"
    ]


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["no.such"], "'no.such' .* cannot be imported: ModuleNotFoundError"),
        (["surehand.examples.shop.tools"], "'surehand.examples.shop.tools' .* defines no workflow"),
        (
            ["surehand.examples.late_orders", module("acme_flows", Impostor)],
            "'acme_flows' .*: there is a workflow 'LateOrders' already",
        ),
        ([module("acme_runs", Usurper)], "there is a workflow 'AgentRun' already"),
    ],
)
def test_an_unusable_module_is_named(modules: list[str], reason: str) -> None:
    with pytest.raises(ToolboxError, match=reason):
        load_workflows(modules)


def test_a_plan_has_steps_or_the_code_that_makes_them() -> None:
    with pytest.raises(ValueError, match="one of both is enough"):
        Plan.model_validate({"code": "A", "steps": [{"tool": "t"}]})
    assert (
        Plan.model_validate(Plan.model_validate({"code": "A"}).model_dump(mode="json")).steps == ()
    )


def test_a_call_past_its_deadline_is_named_until_it_ends() -> None:
    watchdog = Watchdog()

    with watchdog.watching("early", lambda: 10.0), watchdog.watching("late", lambda: 20.0):
        assert watchdog.overdue(9.9) is None
        assert watchdog.overdue(10.0) == "early"

    assert watchdog.overdue(30.0) is None


def test_a_deadline_that_is_moved_while_the_call_lasts_counts_as_it_stands() -> None:
    watchdog, deadlines = Watchdog(), [10.0]

    with watchdog.watching("renewed", lambda: deadlines[-1]):
        deadlines.append(20.0)
        assert watchdog.overdue(10.0) is None
        assert watchdog.overdue(20.0) == "renewed"


#: Blocks in a call that should have ended, with a log that nobody reads.
_HANGS = """
import os, sys
from surehand.activities.worker.watchdog import Watchdog

os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(4096))
except BlockingIOError:
    os.set_blocking(2, True)
watchdog = Watchdog()
with watchdog.watching("a call", lambda: {deadline}):
    watchdog.start()
    sys.stdin.read()
"""


@pytest.mark.parametrize("deadline", ["0.0", "1 / 0"], ids=["over", "broken"])
def test_a_worker_whose_log_nobody_reads_is_ended_all_the_same(deadline: str) -> None:
    program = [sys.executable, "-c", _HANGS.format(deadline=deadline)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        try:
            assert worker.wait(timeout=30) == EXIT_CODE
        finally:
            worker.kill()


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        (None, GRACE),
        (timedelta(hours=1), GRACE),
        (timedelta(seconds=1), timedelta(milliseconds=500)),
    ],
)
def test_a_grace_ends_before_settling(settle: timedelta | None, expected: timedelta) -> None:
    assert grace(settle) == expected


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has this clock")
def test_the_clock_of_leases_counts_suspension() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock.now()

    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_nothing_that_judges_a_lease_goes_by_another_clock() -> None:
    from surehand.activities.effects import leases, read, write
    from surehand.activities.ledger.core import engine
    from surehand.activities.worker import watchdog

    assert engine.clock is clock
    for module in (write, leases, read, watchdog):
        assert module.clock is clock, module.__name__
        assert "time.monotonic" not in inspect.getsource(module), module.__name__


def test_a_collection_of_garbage_is_not_counted() -> None:
    kept = [[number] for number in range(1_000_000)]
    before, all_before = clock.processor_time(), time.thread_time()
    gc.collect()
    counted, all_of_it = clock.processor_time() - before, time.thread_time() - all_before

    assert len(kept) == 1_000_000
    assert 0 <= counted < all_of_it / 2


def test_on_a_laptop_the_test_is_skipped_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="initdb is nowhere"):
        missing("initdb is nowhere")


def test_in_ci_the_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="initdb is nowhere"):
        missing("initdb is nowhere")


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What would have been killed, with which signal."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    return killed


DEATH = (os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_setting_names_a_tool_and_one_of_its_points(point: CrashPoint) -> None:
    assert Crash.parse(f"payments.refund:{point}") == Crash("payments.refund", point)
    assert Crash.parse(f"a:b@c:{point}@refund") == Crash("a:b@c", point, "refund")


def test_without_a_setting_nothing_ever_dies() -> None:
    crash = Crash.parse("")

    for point in CrashPoint:
        crash.at("", "", point)
        crash.at("payments.refund", "refund", point)


def test_only_the_named_tool_dies_at_the_named_point(kills: list[tuple[int, int]]) -> None:
    crash = Crash.parse("payments.refund:after_call@refund")

    crash.at("mail.send", "refund", CrashPoint.AFTER_CALL)
    crash.at("payments.refund", "refund", CrashPoint.BEFORE_CLAIM)
    crash.at("payments.refund", "refund-2", CrashPoint.AFTER_CALL)
    assert not kills
    crash.at("payments.refund", "refund", CrashPoint.AFTER_CALL)
    assert kills == [DEATH]


def test_of_many_workers_the_first_dies(kills: list[tuple[int, int]], tmp_path: Path) -> None:
    once = str(tmp_path / "crashed")
    first, second = (Crash.parse("mail.send:after_call", once) for _ in range(2))

    for crash in (first, second, first):
        crash.at("mail.send", "mail", CrashPoint.AFTER_CALL)

    assert kills == [DEATH]


async def test_a_call_that_ends_early_dies_at_its_end(kills: list[tuple[int, int]]) -> None:
    with Crash.parse("mail.send:during_call").during("mail.send", "mail"):
        await asyncio.sleep(0)
        assert not kills
    assert kills == [DEATH]


async def test_a_call_that_lasts_dies_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    died = asyncio.Event()
    monkeypatch.setattr(os, "kill", lambda *_: died.set())
    with Crash.parse("mail.send:during_call").during("mail.send", "mail"):
        await died.wait()


@pytest.mark.parametrize(
    "setting",
    ["payments.refund", "payments.refund:later", ":after_call", "payments.refund:after_call@"],
)
def test_what_is_no_point_is_refused_with_the_points_there_are(setting: str) -> None:
    with pytest.raises(ValueError) as refused:
        Crash.parse(setting)

    assert str(refused.value).startswith(f"{setting!r} is not tool:point")
    assert all(point in str(refused.value) for point in CrashPoint)


def test_a_result_of_ours_has_the_head() -> None:
    head = head_in(b'{"head": {"seq": 3, "hash": "sha256:0"}}')

    assert head is not None
    assert (head.seq, head.hash) == (3, "sha256:0")


@pytest.mark.parametrize("data", [b'{"head": "main"}', b'{"head": {"n": 1}}', b"[]", b"\xff"])
def test_a_result_of_an_activity_that_is_not_ours_has_none(data: bytes) -> None:
    assert head_in(data) is None


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [["starter.py", "list"], ["worker.py"], ["-m", "surehand.cli.migrate"]],
    ids=" ".join,
)
def test_a_program_without_packages_says_how_to_get_them(arguments: list[str]) -> None:
    # -S: as an interpreter that has no packages at all.
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("surehand: its packages are not installed for ")
    assert line.endswith("`source .venv/bin/activate`, or `make venv` first")


def test_the_version_is_that_of_the_package() -> None:
    written = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert re.findall(r'^version = "(.+)"', written, flags=re.MULTILINE) == [VERSION]
