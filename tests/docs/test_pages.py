"""What pages say can be done as it stands, and names what is there."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from surehand.process.children import clean_environment
from surehand.process.dev_server import DevServer, free_ports
from tests.docs.pages import DOCS, README, ROOT, RUN, SHOWN, Block, blocks, script
from tests.docs.quick_starter import QUICK, quick_starter
from tests.shop_process import ShopProcess
from tests.watched_server import WatchedServer
from tests.worker_process import WorkerProcess

#: Seconds; the longest page drills a step twice.
LIMIT_S = 540
#: Blocks that cannot be run here. A new one is a decision.
NOT_RUN = 40
RUN_IT = DOCS / "howto" / "run-it.md"
#: The wheel is installed already.
ALREADY_DONE = {
    "python3 -m venv .venv": ":",
    "source .venv/bin/activate": ":",
    "pip install surehand": ":",
}
ALL = [block for page in RUN for block in blocks(page)]


def place(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


@pytest.fixture(scope="module")
def server(temporal_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Temporal for the pages alone: `pending` lists all runs that its server has.

    An idle server costs a hundredth of a core: it ends with the last page.
    """
    log = tmp_path_factory.mktemp("temporal") / "log"
    watched = WatchedServer(temporal_cli, log)
    yield watched.server
    watched.close()


@pytest.fixture(scope="module")
def home(
    sqlite_template: Path, wheel_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Where their reader's worker runs, with the ledger of all of them and the example plans."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".surehand").mkdir()
    shutil.copy(sqlite_template, folder / ".surehand" / "ledger.sqlite")
    copies = [str(wheel_programs / "python"), "-m", "surehand.examples"]
    subprocess.run(copies, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def common(server: DevServer, running_shop: ShopProcess, home: Path) -> dict[str, str]:
    """What the reader has exported, as run-it.md says, and where server and shop listen here."""
    exported = re.findall(r'^export (\w+)="?(.*?)"?$', RUN_IT.read_text(), re.MULTILINE)
    ports = {"TEMPORAL_ADDRESS": server.address, "SHOP_URL": running_shop.url}
    return {name: value.replace("$PWD", str(home)) for name, value in exported} | ports


@pytest.fixture(scope="module")
def worker(common: dict[str, str], home: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(common, home) as process:
        yield process.wait_ready()


def read(
    page: Path,
    folder: Path,
    programs: Path,
    environment: dict[str, str],
    replaced: dict[str, str],
    quick: str = "",
) -> None:
    """Do what a page says, from its first line to its last, with what was installed."""
    file = folder / "page.sh"
    file.write_text(script(page, {**ALREADY_DONE, **replaced}, quick), encoding="utf-8")
    path = f"{programs}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    # Several write at its end, each by itself.
    with (folder / "page.log").open("a+", encoding="utf-8") as log:
        with subprocess.Popen(
            ["bash", str(file)],
            cwd=folder,
            env=clean_environment(environment) | {"PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell:
            try:
                code: int | str = shell.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = f"none after {LIMIT_S} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)  # what it has left in the background
        log.seek(0)
        said = log.read()
    assert code == 0 and said.endswith("--- the end\n"), f"exit code {code}\n{said[-6000:]}"


#: Pages that start a server, a shop and a worker themselves.
ALONE = (README, DOCS / "tutorial.md", RUN_IT, DOCS / "howto" / "mcp.md")


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("page", [p for p in RUN if p not in ALONE], ids=lambda page: page.stem)
@pytest.mark.usefixtures("worker")
def test_what_a_page_says_can_be_done_as_it_stands(
    page: Path, tmp_path: Path, common: dict[str, str], home: Path, wheel_programs: Path
) -> None:
    for name in (".surehand", "examples"):
        (tmp_path / name).symlink_to(home / name)
    metrics, health, receiver, desk, mail = free_ports(5)
    own = {
        "http://127.0.0.1:8090": common["SHOP_URL"],
        "127.0.0.1:9464": f"127.0.0.1:{metrics}",
        "127.0.0.1:9465": f"127.0.0.1:{health}",
        "127.0.0.1:4318": f"127.0.0.1:{receiver}",
        "http://127.0.0.1:8091": f"http://127.0.0.1:{desk}",
        "examples.support --db": f"examples.support --port {desk} --smtp-port {mail} --db",
    }
    places = {"SUPPORT_URL": f"http://127.0.0.1:{desk}", "SUPPORT_SMTP": f"127.0.0.1:{mail}"}
    with quick_starter(tmp_path) as variables:
        read(page, tmp_path, wheel_programs, common | places | variables, own, QUICK)


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("page", ALONE, ids=lambda page: page.stem)
@pytest.mark.usefixtures("temporal_cli")
def test_pages_work_on_a_machine_where_nothing_runs(
    page: Path, tmp_path: Path, wheel_programs: Path
) -> None:
    port, shop = free_ports(2)
    environment = {"TEMPORAL_ADDRESS": f"127.0.0.1:{port}", "SHOP_URL": f"http://127.0.0.1:{shop}"}
    serves = "python -m surehand.examples.shop"
    own = {
        "surehand server &": f"surehand server --port {port} --ui-port 0 &",
        f"{serves} --db": f"{serves} --port {shop} --db",
        "http://127.0.0.1:8090": f"http://127.0.0.1:{shop}",
    }
    read(page, tmp_path, wheel_programs, environment, own)


@pytest.mark.timeout(LIMIT_S + 60)
def test_every_block_is_of_a_kind_that_is_run_or_says_why_not() -> None:
    runs = ("bash", "yaml", "python", "toml", "json")
    unknown = [place(b) for b in ALL if not b.not_run and b.language not in (*runs, *SHOWN)]
    nameless = [
        place(b) for b in ALL if b.language in ("python", "toml") and not (b.title or b.not_run)
    ]

    assert unknown == []
    assert nameless == [], "name the file that it is: ```python title=..."


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_list_of_how_to_pages_has_each_of_them_by_its_title() -> None:
    pages = [page for page in (DOCS / "howto").glob("*.md") if page.name != "index.md"]
    titles = {page.read_text(encoding="utf-8").partition("\n")[0][2:]: page for page in pages}
    index = (DOCS / "howto" / "index.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)) == (
        {(title, page.name) for title, page in titles.items()}
    )


@pytest.mark.timeout(LIMIT_S + 60)
def test_no_block_of_a_page_is_overlooked() -> None:
    for page in RUN:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(blocks(page)) * 2 == len([line for line in lines if line[:3] == "```"]), page


@pytest.mark.timeout(LIMIT_S + 60)
def test_blocks_that_cannot_be_run_are_counted() -> None:
    not_run = [f"{place(block)}: {block.not_run}" for block in ALL if block.not_run]

    assert len(not_run) == NOT_RUN, "\n".join(not_run)


@pytest.mark.timeout(LIMIT_S + 60)
def test_each_block_can_be_read_as_what_it_is() -> None:
    unreadable = []
    for block in ALL:
        if not block.not_run:
            try:
                parse(block)
            except (yaml.YAMLError, ValueError, SyntaxError) as error:
                unreadable.append(f"{place(block)}: {error}")

    assert unreadable == []


def parse(block: Block) -> None:
    match block.language:
        case "yaml":
            yaml.safe_load(block.text)
        case "json":
            for line in block.text.splitlines():
                json.loads(line)
        case "python":
            ast.parse(block.text)


ROOMS: Final = (
    "workflows",
    "activities",
    "surehand/agents",
    "process",
    "client",
    "cli",
    "drill",
    "benchmarks",
)
#: What a programmer knows, or the command line has as a verb.
_KNOWN: Final = """
activity ai app base benchmark canonical change child children cipher cli client clock
connect connection context core data deletion demo describe dev display doctor engine env
environment exit file harness health history identity json key langchain langgraph lifecycle loop
maintenance mcp migrate migration model name oidc openai option page people plain plugin prepare
printer process program pydantic question read reconcile record recorder render report row rule run
runner scheduler schema serve server settings sign signature simulate start stat statement
store surehand table telemetry text tool trace transaction view worker workflow write
"""
KNOWN: Final = frozenset(_KNOWN.split())


def words() -> dict[str, str]:
    """Return the words of names, each with a file that has it."""
    found: dict[str, str] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "versions" in path.parts or path.stem.startswith("__"):
                continue
            for part in path.relative_to(ROOT).with_suffix("").parts:
                for word in part.split("_"):
                    found.setdefault(word, str(path.relative_to(ROOT)))
    return found


def stems(word: str) -> set[str]:
    """Return a word, and what it may be a form of."""
    found = {word, word.removesuffix("s"), word.removesuffix("es")}
    found |= {
        one.removesuffix(end) + more
        for one in tuple(found)
        for end, more in (
            ("ing", ""),
            ("ing", "e"),
            ("ed", ""),
            ("ed", "e"),
            ("ie", "y"),
            ("ies", "y"),
        )
        if one.endswith(end)
    }
    return found


def test_each_word_of_a_file_s_name_is_in_the_glossary_or_known() -> None:
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8").lower()
    listed = " ".join(re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE))
    told = set(re.findall(r"[a-z]+", listed)) | KNOWN

    unknown = {word: file for word, file in words().items() if not stems(word) & told}
    assert unknown == {}, "add these words to docs/glossary.md"


def test_no_known_word_is_kept_that_no_name_has() -> None:
    used = {stem for word in words() for stem in stems(word)}

    assert KNOWN - used == set()
