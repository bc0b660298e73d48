"""What the starter's live tests run against: server, shop, and a worker process of their own."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from surehand.process.dev_server import DevServer
from tests.cli.starter import Run, Starter, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess


@pytest.fixture(scope="session")
def settings(
    temporal_server: DevServer,
    running_shop: ShopProcess,
    sqlite_template: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    """The environment that starter and worker share."""
    file = tmp_path_factory.mktemp("starter") / "ledger.db"
    shutil.copy(sqlite_template, file)
    return {
        "TEMPORAL_ADDRESS": temporal_server.address,
        "SUREHAND_DATABASE_URL": f"sqlite:///{file}",
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools,surehand.examples.bank_tools",
        "SUREHAND_TASK_QUEUE": f"starter-{uuid.uuid4().hex[:8]}",
        "SUREHAND_USER": "ana",
        "SHOP_URL": running_shop.url,
        "BANK_FILE": str(file.with_name("bank.sqlite")),
        "SUREHAND_ARTIFACTS": str(file.with_name("artifacts")),
    }


@pytest.fixture(scope="session")
def worker(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    with WorkerProcess(settings, tmp_path_factory.mktemp("worker")) as process:
        yield process.wait_ready()


@pytest.fixture
def starter(settings: dict[str, str], worker: WorkerProcess, tmp_path: Path) -> Starter:
    return Starter(settings, tmp_path)


@pytest.fixture
def offline(settings: dict[str, str], tmp_path: Path) -> Starter:
    """``python starter.py`` with a server, and no worker on its task queue."""
    return Starter({**settings, "SUREHAND_TASK_QUEUE": nobody()}, tmp_path)


@pytest.fixture
def verbs(
    settings: dict[str, str], worker: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Verbs:
    return Verbs(settings, tmp_path, monkeypatch)


@pytest.fixture
def lonely(settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs in this process with a server, and no worker on their task queue."""
    return Verbs({**settings, "SUREHAND_TASK_QUEUE": nobody()}, tmp_path, monkeypatch)


@pytest.fixture
def new_run(verbs: Verbs, shop: ShopProcess) -> Callable[..., Run]:
    """Starts the refund of a new order; returns once it waits for its approval."""

    def start(*options: str) -> Run:
        run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
        ended = verbs(*run.start, "--wait", *options)
        assert ended.code == 10, ended
        return run

    return start


def nobody() -> str:
    """A task queue that no worker polls."""
    return f"nobody-{uuid.uuid4().hex[:8]}"
