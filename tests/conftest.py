"""What the tests run against: real servers, one set for each process of pytest-xdist.

A service that cannot be had skips the tests that need it, with the reason; where ``CI=true`` it
fails them. No test passes when its server is missing.

A test's tier follows from what it asks for. One that needs a Temporal server, PostgreSQL or a
browser, or is marked ``slow``, is in ``make test-all`` only; ``fast`` has it in ``make test``, too.
So are all tests of some folders, which ``make test`` does not even load.
"""

from __future__ import annotations

import base64
import gc
import os
import shutil
import sys
import time
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest
import structlog
from sqlalchemy import Engine, event
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.worker.watchdog import Watchdog
from surehand.process.dev_server import CliMissing, DevServer, find_cli
from tests import tenant_guard
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import PostgresMissing, PostgresServer
from tests.run_keys import encrypted
from tests.shop_process import ShopProcess
from tests.support_process import SupportProcess
from tests.watched_server import WatchedServer

#: Who asks for one of these, also through another fixture, needs a Temporal server, a browser, or
#: programs that serve MCP: each call of theirs is a process that loads the SDK.
SERVERS: Final = {"temporal_cli", "browser", "mcp_shop"}
#: One key-encryption key, for tests.
KEYS: Final = "tests=" + base64.b64encode(b"k" * 32).decode()
#: Marks of what is in ``make test-all`` only.
FULL: Final = ("slow", "postgres", "property", "cluster", "exhaustive")
#: Whose tests all are: ``make test`` does not load them.
FULL_FOLDERS: Final = {
    Path(__file__).parent / name for name in ("browser", "cluster", "oidc", "property")
}
#: Which have tests that take half a minute and more. Each process begins with some of them: one
#: that is begun last holds up the end of the whole run.
LONGEST: Final = tuple(
    Path(__file__).parent / name
    for name in (
        "ledger/test_query_plans.py",
        "drill",
        "docs/test_pages.py",
        "test_benchmarks.py",
        "test_package.py",
        "mcp/test_real_servers.py",
        "proof/history",
        "property",
    )
)
#: When the last test may begin, in seconds since 1970.
UNTIL: Final = "TESTS_UNTIL"
TOO_LATE: Final = "not run, for want of time"
#: All tests that were found, whichever of them are chosen.
FOUND: Final = pytest.StashKey[list[pytest.Item]]()
#: The Temporal server of this process, once a test has asked for it.
WATCHED: Final = pytest.StashKey[WatchedServer]()

# Look for garbage seldom: what is loaded stays, and is much. To freeze it takes less time still;
# older versions of Hypothesis count references, and do not see those of what is frozen.
gc.set_threshold(20_000, 10, 10)


def pytest_configure(config: pytest.Config) -> None:
    """Keep what this run was told from those that its tests start."""
    # xdist's processes read it, too, when they begin; this one plays no test then.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", 0):
        os.environ.pop("PYTEST_ADDOPTS", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load nothing of what ``make test`` leaves out anyway."""
    only_small = config.option.markexpr == "not full"
    return True if only_small and collection_path in FULL_FOLDERS else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are loaded: it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the tests of a tier are chosen
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Mark the tests of the full tier as ``full``, and have processes begin with the longest."""
    config.stash[FOUND] = list(items)
    for item in items:
        if is_full(item):
            item.add_marker(pytest.mark.full)
    yield
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = shared_out(items, processes)


def shared_out(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests so that each process's stretch begins with some of the longest."""
    first = [item for name in LONGEST for item in items if is_below(item.path, name)]
    there = set(first)
    others = [item for item in items if item not in there]
    shared: list[pytest.Item] = []
    for number in range(processes):
        # What xdist gives to the process: as many of those that are left as to each one behind it.
        own = first[number::processes]
        size = (len(items) - len(shared)) // (processes - number)
        taken = max(0, size - len(own))
        shared += [*own, *others[:taken]]
        del others[:taken]
    return [*shared, *others]


def is_below(path: Path, name: Path) -> bool:
    """Return whether a file is this one, or in this folder."""
    return path == name or name in path.parents


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let what failed say if its Temporal server had to be replaced, and replace a silent one."""
    report = yield
    if report.failed and (watched := item.config.stash.get(WATCHED, None)):
        watched.replace_if_silent()
        report.sections += [("Temporal server", line) for line in watched.replaced]
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late; whoever set the time says how much was left out."""
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip(TOO_LATE)


def is_full(item: pytest.Item) -> bool:
    """Return whether a test is in ``make test-all`` only."""
    if not FULL_FOLDERS.isdisjoint(item.path.parents):
        return True
    if item.get_closest_marker("fast"):
        return False
    asked_for = item.fixturenames if isinstance(item, pytest.Function) else ()
    return not SERVERS.isdisjoint(asked_for) or any(map(item.get_closest_marker, FULL))


@pytest.fixture(scope="session", autouse=True)
def called_as_in_a_checkout() -> Iterator[None]:
    """What is printed to be pasted names ``starter.py``, not pytest's program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["starter.py"])
        yield


def missing(what: str) -> NoReturn:
    """Skip the test that needs a service; in CI, where every service has to be, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} (and CI=true: every service has to be here)", pytrace=False)
    pytest.skip(what)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo what a test set for all of the process: the next one may look at its log lines."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def statements_name_their_tenant() -> Iterator[None]:
    """Let no statement of a ledger in this process reach rows of whichever tenant."""
    event.listen(Engine, "before_execute", tenant_guard.before_execute)
    yield
    event.remove(Engine, "before_execute", tenant_guard.before_execute)


@pytest.fixture(autouse=True)
def no_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watchdog watch this process: it would end it, with all that is tested in it."""

    def refuse(self: Watchdog) -> None:
        pytest.fail("a watchdog ends its process: start this worker in one of its own")

    monkeypatch.setattr(Watchdog, "start", refuse)


@pytest.fixture(scope="session")
def temporal_cli() -> Path:
    try:
        return find_cli(log=lambda _: None)
    except CliMissing as error:
        missing(str(error))


@pytest.fixture(scope="session")
def wheel_and_programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from tests.installed_wheel import install_wheel

    folder = tmp_path_factory.getbasetemp()
    shared = "PYTEST_XDIST_WORKER" in os.environ  # each test process has a folder in that of all
    return install_wheel((folder.parent if shared else folder) / "wheel")


@pytest.fixture(scope="session")
def wheel(wheel_and_programs: tuple[Path, Path]) -> Path:
    return wheel_and_programs[0]


@pytest.fixture(scope="session")
def wheel_programs(wheel_and_programs: tuple[Path, Path]) -> Path:
    """The folder with the programs of an environment that has the wheel, and no checkout."""
    return wheel_and_programs[1]


@pytest.fixture(scope="session")
def watched_server(
    temporal_cli: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[WatchedServer]:
    # In memory it takes half the processor's time.
    watched = WatchedServer(temporal_cli, tmp_path_factory.mktemp("temporal") / "log")
    pytestconfig.stash[WATCHED] = watched
    yield watched
    watched.close()


@pytest.fixture(scope="session")
def temporal_server(watched_server: WatchedServer) -> DevServer:
    return watched_server.server


@pytest.fixture(scope="session")
async def client(temporal_server: DevServer) -> Client:
    return await Client.connect(
        temporal_server.address, data_converter=pydantic_data_converter, lazy=False
    )


@pytest.fixture(scope="session")
def running_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopProcess]:
    with ShopProcess(tmp_path_factory.mktemp("shop") / "shop.sqlite") as shop:
        yield shop


@pytest.fixture
def shop(running_shop: ShopProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShopProcess]:
    """The shop, well behaved; the tools of a worker in this process find it."""
    monkeypatch.setenv("SHOP_URL", running_shop.url)
    yield running_shop
    running_shop.clear_faults()


@pytest.fixture(scope="module")
def running_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupportProcess]:
    with SupportProcess(tmp_path_factory.mktemp("support") / "support.sqlite") as desk:
        yield desk


@pytest.fixture
def desk(running_desk: SupportProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupportProcess]:
    """The help desk, well behaved; a worker in this process finds it."""
    for name, value in running_desk.variables.items():
        monkeypatch.setenv(name, value)
    yield running_desk
    running_desk.clear_faults()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.start()
    except PostgresMissing as error:
        missing(str(error))
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_ledgers(postgres_server: PostgresServer) -> PostgresLedgers:
    return PostgresLedgers(postgres_server)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy: migrating takes a second."""
    file = tmp_path_factory.mktemp("ledger") / "template.db"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture
def database() -> str:
    """``sqlite`` or ``postgresql``; tests of both take it from ``DATABASES``."""
    return "sqlite"


@pytest.fixture
def ledger_url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A fresh, migrated ledger, as the workers' role sees it."""
    if database == "postgresql":
        ledgers: PostgresLedgers = request.getfixturevalue("postgres_ledgers")
        return ledgers.create()
    file = tmp_path / "ledger.db"
    shutil.copy(request.getfixturevalue("sqlite_template"), file)
    return f"sqlite:///{file}"


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    async with open_ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def keys() -> str:
    """The key-encryption keys; with ``ENCRYPTED=1`` the end-to-end tests are made with them."""
    return KEYS if encrypted() else ""


@pytest.fixture
def task_queue() -> str:
    return f"queue-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def order_id(shop: ShopProcess) -> str:
    """A paid order that no other test knows."""
    return shop.new_order()
