"""``dev`` and ``init``: a folder to begin with, and server, ledger and worker in one terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from surehand.activities.mcp.server_file import pins_of
from surehand.cli import options
from surehand.cli.options import Caller, option
from surehand.cli.printer import Lines, Printer, Reply, Shape
from surehand.cli.render import open_items
from surehand.client.client import WAITS_FOR_PEOPLE, Pending, look_at_runs
from surehand.client.connection import Connection
from surehand.process import PACKAGE, dev_server
from surehand.process.children import Child, python, settings_of_module
from surehand.process.connect import connect, find_target
from surehand.process.exits import (
    ExitCode,
    NotReachable,
    OutputLost,
    SurehandError,
    WrongUse,
    end_by_signal_in_order,
)
from surehand.process.files import stamp_of
from surehand.process.program import INSTALLED, command, module, program
from surehand.process.settings import ENV_FILE, client_settings, read_environment
from surehand.workflows.contracts.base import RunState
from surehand.workflows.ports import RUN_STATE


class NewProject(Shape):
    """``init``: what was written, and the commands to go on with, in that folder."""

    folder: str
    files: list[str]
    commands: list[str]


#: What lies there is what is written; `env` without its dot, because it is no settings file here.
_TEMPLATE: Final = PACKAGE / "examples" / "project"
#: Each file with what it is, in the order of reading.
_FILES: Final = {
    "refunds.py": "tools: what runs may do",
    "refund.yaml": "a plan: which tools, in which order",
    "test_refund.py": "a test that kills workers in the middle of the plan",
    ".env": "settings",
}
#: The same where an agent chooses the steps.
_AGENT_FILES: Final = {
    "refunds.py": _FILES["refunds.py"],
    "clerk.py": "the agent, with rules in place of a model",
    "clerk.yaml": "a plan whose steps the agent chooses",
    ".env": _FILES[".env"],
}
#: By the name of a framework: where its agent lies, and the extra that it needs.
_AGENTS: Final = {
    "pydantic-ai": ("pydantic_ai.py", "pydantic-ai"),
    "openai": ("openai.py", "openai-agents"),
    "langgraph": ("langgraph.py", "langchain"),
}
_PLAN: Final = "plan"
_QUEUE: Final = "SUREHAND_TASK_QUEUE="


def init(
    caller: options.Unjudged,
    folder: Annotated[
        Path, typer.Argument(help="Where; it is made if need be. Nothing is overwritten.")
    ] = Path(),
    agent: Annotated[
        str,
        option(
            "What chooses the steps: a plan (the default), or an agent of a framework.",
            metavar="|".join((_PLAN, *_AGENTS)),
        ),
    ] = _PLAN,
) -> Reply:
    """Write a tool module, a plan or an agent, and settings to begin with.

    Example: surehand init refunds --agent pydantic-ai
    """
    if agent != _PLAN and agent not in _AGENTS:
        raise WrongUse(f"--agent {agent[:40]!r}: use {', '.join((_PLAN, *_AGENTS))}")
    files = _FILES if agent == _PLAN else _AGENT_FILES
    contents = {folder / name: _read_template(name, folder.resolve().name, agent) for name in files}
    there = [str(path) for path in contents if path.exists() or path.is_symlink()]
    if there:
        raise WrongUse(f"nothing is written, because there is already: {', '.join(there)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise OutputLost(f"{error.filename}: {error.strerror}") from error
    there_too = {"elsewhere": folder != Path()}
    # A checkout has not told pytest of its plugin.
    plugin = "" if program() == INSTALLED else "-p surehand.drill.plugin "
    test = module(f"pytest {plugin}test_refund.py", **there_too)
    name = "refund" if agent == _PLAN else "clerk"
    start = command("start", f"{name}.yaml", "--run-id", f"{name}-1", "--wait", **there_too)
    commands = [command("dev", **there_too), start, *([test] if agent == _PLAN else [])]
    written = NewProject(folder=str(folder), files=list(files), commands=commands)
    return Reply(written, _project_lines(written, files, agent))


def _read_template(name: str, project: str, agent: str) -> str:
    there = f"agents/{_AGENTS[agent][0]}" if name == "clerk.py" else name.removeprefix(".")
    text = (_TEMPLATE / there).read_text(encoding="utf-8")
    if name != ".env":
        return text
    if agent != _PLAN:
        tools = "SUREHAND_TOOL_MODULES=refunds\n"
        text = text.replace(tools, f"{tools}SUREHAND_AGENT_MODULES=clerk\n")
    queue = re.sub(r"[^A-Za-z0-9_.-]+", "-", project).strip("-") or "surehand"
    return text.replace(f"{_QUEUE}surehand", f"{_QUEUE}{queue}")


def _project_lines(written: NewProject, files: Mapping[str, str], agent: str) -> Lines:
    for name, what in files.items():
        yield f"{Path(written.folder, name)!s:<24}  {what}"
    dev, *others = written.commands
    here = [] if written.folder == "." else [f"cd {shlex.quote(written.folder)}"]
    if agent != _PLAN:
        yield ""
        yield f"The agent needs the extra surehand[{_AGENTS[agent][1]}]."
    and_test = "; and the test" if agent == _PLAN else ""
    for headline, commands in (
        ("Server, ledger and worker in this terminal, until Ctrl-C:", [dev]),
        (f"In another one: a run, which waits for an approval{and_test}:", others),
    ):
        yield ""
        yield headline
        yield from (f"  {line}" for line in (*here, *commands))


#: Where server, ledger and worker leave their files.
_FOLDER: Final = Path(".surehand")
#: Of two in one folder, the second would take the server of the first for another project's.
_ALONE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
#: Seconds between two looks, at files and processes and at what waits.
_LOOK: Final = 0.5
#: What is shown: what people do, and events, which whoever develops a plan sends by hand.
_WAITING: Final = (
    f"({WAITS_FOR_PEOPLE} OR {RUN_STATE.name} = '{RunState.WAITING_EVENT}')"
    " AND ExecutionStatus = 'Running'"
)
#: Runs that are looked at for what they wait for.
_MOST: Final = 50


def dev(caller: options.Alone) -> ExitCode:
    """Run server, ledger and worker here; the worker restarts when its code or settings change.

    Example: surehand dev
    """
    end_by_signal_in_order()
    try:
        with ExitStack() as running:
            return _run_all(caller, running)
    except KeyboardInterrupt:  # how it usually ends; by now all of it has
        return ExitCode.DONE


def _run_all(caller: Caller, running: ExitStack) -> ExitCode:
    if "SUREHAND_DATABASE_URL" not in caller.environment:
        init = command("init")
        raise WrongUse(f"no ledger is named: set SUREHAND_DATABASE_URL, or begin with `{init}`")
    _FOLDER.mkdir(exist_ok=True)
    try:
        fcntl.flock(running.enter_context((_FOLDER / "dev.lock").open("w")), _ALONE)
    except BlockingIOError as error:
        raise WrongUse("`dev` runs in this folder already") from error
    caller = _choose_address(caller)
    server = _start_server(caller, running)
    migration = running.enter_context(_child("migrate", "surehand.cli.migrate"))
    caller.printer.say(f"Ledger    {migration.wait_done()}")
    worker = _Worker(caller.printer)
    running.callback(worker.stop)
    return asyncio.run(_watch(caller, server, worker))


async def _watch(caller: Caller, server: dev_server.DevServer | None, worker: _Worker) -> ExitCode:
    asking = asyncio.create_task(_show_waiting(caller))
    named = _files_named(caller.environment)
    seen = await asyncio.to_thread(_stamp_files, named)
    worker.start()
    while server is None or server.running:
        await asyncio.sleep(_LOOK)
        worker.look()
        now = await asyncio.to_thread(_stamp_files, named)
        if now != seen:
            changed = {path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path)}
            names = ", ".join(sorted(map(str, changed)))
            caller.printer.say(f"Changed   {names}: the worker restarts")
            worker.stop()
            worker.start()
            seen = now
        if asking.done():
            asking.result()  # what it has raised
    raise NotReachable(f"the Temporal server ended by itself; see {_FOLDER / 'temporal.log'}")


def _choose_address(caller: Caller) -> Caller:
    """Return the caller with an address of this folder's, if another's server has the usual one."""
    target = find_target(caller.environment)
    if target.options.get("target_host") or dev_server.is_free(dev_server.DEFAULT_PORT):
        return caller
    address = f"127.0.0.1:{dev_server.free_ports(1)[0]}"
    with ENV_FILE.open("a", encoding="utf-8") as file:
        file.write(f"\n# {target.address} was taken.\nTEMPORAL_ADDRESS={address}\n")
    caller.printer.say(f"Address   {address}, written to {ENV_FILE}: {target.address} is taken")
    environment = read_environment()
    return replace(caller, environment=environment, settings=client_settings(environment))


def _start_server(caller: Caller, running: ExitStack) -> dev_server.DevServer | None:
    """Start a server at the address that the settings name; ``None``: there is one."""
    target = find_target(caller.environment)
    address = target.address
    shown = caller.settings.ui_url.partition("//")[2]
    port = dev_server.local_port(address)
    ui_port = dev_server.local_port(shown) or dev_server.DEFAULT_UI_PORT
    taken = port is not None and not dev_server.is_free(port)
    if taken:
        try:
            asyncio.run(connect(target, quiet=True))
        except NotReachable as error:
            remedy = f"set TEMPORAL_ADDRESS=127.0.0.1:{dev_server.free_ports(1)[0]} in {ENV_FILE}"
            raise NotReachable(f"{error}; if another program has that port, {remedy}") from error
    if port is None or taken:
        caller.printer.say(f"Temporal  {address}, which was there")
        return None
    server = dev_server.DevServer.start(
        cli=dev_server.find_cli(log=caller.printer.say),
        db_file=_FOLDER / "temporal.db",
        log_file=_FOLDER / "temporal.log",
        port=port,
        ui_port=ui_port if dev_server.is_free(ui_port) else 0,
    )
    running.callback(server.stop)
    caller.printer.say(f"Temporal  {server.address}, Web UI {server.ui_url}")
    return server


def _child(name: str, module: str) -> Child:
    # In this folder, whose settings and tools are meant.
    settings, log = os.environ | settings_of_module(), _FOLDER / f"{name}.log"
    return Child(python(module), environment=settings, log=log, folder=Path.cwd())


class _Worker:
    """The one worker: what it logs is shown, its end is said.

    It is a process of its own: only a new one loads changed tools for sure.
    """

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._child: Child | None = None
        self._shown = 0
        self._ready = False

    def start(self) -> None:
        self._shown = 0
        self._ready = False
        self._child = _child("worker", "surehand.worker")
        self._printer.say(f"Worker    process {self._child.pid}")

    def stop(self) -> None:
        """End it in good order; no-op when it has ended."""
        if self._child is not None:
            if self._child.running:
                self._printer.say("Worker    is told to end, and waits for calls under way")
            # It ends by itself, in the time that its settings give to calls.
            self._child.stop(within=None)
            self._show_log(self._child)
            self._child = None

    def look(self) -> None:
        """Show what it has logged; say that it has ended, and start it again if it had worked.

        One that cannot begin would not the second time, either: that waits for a change.
        """
        if self._child is None:
            return
        self._show_log(self._child)
        code = self._child.returncode
        if code is None:
            return
        again = self._ready
        self.stop()
        then = "it starts again" if again else "it starts again when a file changes"
        self._printer.warn(f"the worker ended by itself with {code}: {then}")
        if again:
            self.start()

    def _show_log(self, child: Child) -> None:
        running, new = child.running, child.output()[self._shown :]
        whole = new[: new.rfind("\n") + 1] if running else new
        self._shown += len(whole)
        for line in whole.splitlines():
            self._ready = self._ready or "worker.ready" in line
            self._printer.say(f"worker  | {line}", "dim")


async def _show_waiting(caller: Caller) -> None:
    """Show what runs wait for, each thing once, with the commands that answer it."""
    # A worker that restarts is silent for a moment, which is nothing to tell.
    connection = await caller.connection(silent=True)
    told: set[tuple[str, str, str]] = set()
    trouble = ""
    while True:
        try:
            waiting = [run async for run in connection.listed(_WAITING, _MOST)]
            found = await look_at_runs(connection, waiting)
            told = tell_new(caller.printer, connection, found, told)
            trouble = ""
        except SurehandError as error:  # the server is gone for a moment, if it is not ours
            if trouble != str(error):
                trouble = str(error)
                caller.printer.warn(trouble)
        await asyncio.sleep(_LOOK)


def tell_new(
    printer: Printer, connection: Connection, found: Pending, told: set[tuple[str, str, str]]
) -> set[tuple[str, str, str]]:
    """Show what runs wait for and was not told; return what has been told and still waits."""
    silent = {run.run_id for run in found.silent}
    now = {key for key in told if key[0] in silent}
    for view in found.views:
        own = {request.approval_id for request in view.pending}
        for key, lines in open_items(connection, view.result, view.pending):
            if key[1] == "approval" and key[2] not in own:
                continue  # a child run's, which is looked at itself
            now.add(key)
            if key not in told:
                printer.say()
                printer.lines(lines)
    return now


def _files_named(environment: Mapping[str, str]) -> list[Path]:
    """Return the files that a worker reads at its start: limits, MCP servers and their pins."""
    limits, mcp = (environment.get(f"SUREHAND_{name}") for name in ("LIMITS", "MCP"))
    files = [Path(path) for path in (limits, mcp) if path]
    return [*files, pins_of(Path(mcp))] if mcp else files


def _stamp_files(named: Sequence[Path]) -> dict[Path, tuple[int, ...]]:
    """Return when ``.env``, each file named and each Python file below this folder were written.

    Looked at each time: that needs no library, and works where no changes are reported, such
    as on mounted folders. Hidden folders and virtual environments are left out.
    """
    found = [ENV_FILE, *named]
    for folder, folders, files in os.walk("."):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        found += (Path(folder, name) for name in files if name.endswith(".py"))
    stamps = dict[Path, tuple[int, ...]]()
    for path in found:
        with suppress(OSError):  # there is none, or not any more
            stamps[path] = stamp_of(path)
    return stamps
