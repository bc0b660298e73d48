"""``doctor``: looks at everything a run needs, and says what to do about what is missing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from temporalio.service import RPCError

from cli import options, probes
from cli.caller import Caller, perform
from cli.connect import DEFAULT_ADDRESS, find_target
from cli.exits import ExitCode, StarterError
from cli.ledger_door import ledger_of, notifiers_of, read_settings, read_toolbox
from cli.shapes import Check, DoctorReport
from cli.tenant_client import TenantClient
from cli.text import command, counted
from cli.versions import all_versions
from workflows.plain_text import plain

if TYPE_CHECKING:
    from activities.settings import Settings
    from activities.toolbox import Toolbox

EXAMPLE: Final = "Example: python starter.py doctor"

#: Leases and approvals are judged by the database's clock, timers by the server's. From here on a
#: person comparing times in logs, ledger and Web UI is misled, and an approval may expire early.
CLOCK_TOLERANCE: Final = timedelta(seconds=2)

#: Both names of the address at which the embedded server listens.
EMBEDDED: Final = frozenset({DEFAULT_ADDRESS, "127.0.0.1:7233"})
#: Where a ledger is put that has no place yet; beside the embedded server's own file.
LEDGER_FILE: Final = ".surehand/ledger.sqlite"
MIGRATE: Final = "python -m activities.ledger.migrate"
NOT_LOOKED_AT: Final = "not looked at: {} first"


def doctor(json_output: options.Json = False) -> int:
    """Check settings, tools, notifiers, database, server, search attributes, worker, clocks.

    The worker is pinged: a workflow of type Ping, which does nothing, is started on its task queue.
    """

    async def verb(caller: Caller) -> int:
        # In the order in which they are mended: each line below needs those above it.
        checks = [*await _own_checks(caller), *await _server_checks(caller)]
        ok = all(check.ok for check in checks)
        if json_output:
            caller.printer.document(DoctorReport(ok=ok, checks=checks))
        else:
            rows = [[c.name, "ok" if c.ok else "FAIL", c.detail] for c in checks]
            caller.printer.table(("check", "", "found"), rows)
            _say_what_to_do(caller, [check for check in checks if not check.ok])
        return ExitCode.DONE if ok else ExitCode.NOT_REACHABLE

    return perform(verb, json_output=json_output)


def _say_what_to_do(caller: Caller, wrong: list[Check]) -> None:
    if not wrong:
        return
    caller.printer.say()
    caller.printer.say("What to do, in this order:")
    for number, check in enumerate(wrong, 1):
        caller.printer.say(f"{number}. {check.name}: {check.fix}")
        for line in check.commands:
            caller.printer.say(f"     {line}")
    caller.printer.say(f"Then look again: {command('doctor')}")


async def _server_checks(caller: Caller) -> list[Check]:
    address = ""
    try:
        target = find_target(caller.environment)
        address = target.address
        server = await caller.server()
    except StarterError as error:
        return [_no_server(str(error), address), _no_worker(NOT_LOOKED_AT.format("the server"))]
    found = [Check(name="server", ok=True, detail=f"answers at {target.address}")]
    for name, look in (
        ("namespace", _namespace),
        ("search attributes", _attributes),
        ("worker", _worker),
        ("worker versions", _versions),
        ("server clock", _server_clock),
    ):
        found.append(await _looked(name, look, server))
        if name == "namespace" and not found[-1].ok:
            break  # nothing inside it can be asked
    return found


def _no_server(detail: str, address: str) -> Check:
    if address in EMBEDDED:
        fix = "start one here, and wait for it (or set TEMPORAL_ADDRESS to your own)"
        commands = ["python devserver.py &", "python devserver.py --wait"]
    else:
        fix = (
            "start it (the line waits for it), or name another one in TEMPORAL_ADDRESS; without"
            " one it is the embedded server's"
        )
        commands = ["python devserver.py --wait"]
    return Check(name="server", ok=False, detail=detail, fix=fix, commands=commands)


def _no_worker(detail: str) -> Check:
    fix = "start one (or set SUREHAND_TASK_QUEUE to the queue that yours polls)"
    return Check(name="worker", ok=False, detail=detail, fix=fix, commands=["python worker.py &"])


async def _looked(
    name: str, look: Callable[[TenantClient], Awaitable[Check]], server: TenantClient
) -> Check:
    try:
        return await look(server)
    except RPCError as error:
        return Check(name=name, ok=False, detail=error.message, fix="see the server's log")


async def _namespace(server: TenantClient) -> Check:
    name = server.target.namespace
    if await probes.namespace_exists(server.client):
        return Check(name="namespace", ok=True, detail=name)
    line = f"temporal operator namespace create --namespace {shlex.quote(name)}"
    line += f" --address {shlex.quote(server.target.address)}"
    return Check(
        name="namespace",
        ok=False,
        detail=f"{name} does not exist",
        fix="make it (or set TEMPORAL_NAMESPACE to one that exists)",
        commands=[line],
    )


async def _attributes(server: TenantClient) -> Check:
    missing = await probes.missing_attributes(server.client)
    if not missing:
        names = ", ".join(probes.SEARCH_ATTRIBUTES)
        return Check(name="search attributes", ok=True, detail=names)
    added = " ".join(
        f"--name {name} --type {probes.SEARCH_ATTRIBUTES[name][0]}" for name in missing
    )
    return Check(
        name="search attributes",
        ok=False,
        detail=f"missing: {', '.join(missing)}",
        fix="register them",
        commands=[
            " ".join(
                ["temporal operator search-attribute create", *server.temporal_options(), added]
            )
        ],
    )


async def _worker(server: TenantClient) -> Check:
    queue = server.settings.task_queue
    answered = await probes.ping(server.client, queue)
    if answered is not None:
        seconds = answered.total_seconds()
        detail = f"answers on the task queue {queue} (a ping took {seconds:.2f} s)"
        return Check(name="worker", ok=True, detail=detail)
    limit = probes.PING_LIMIT.total_seconds()
    silent = f"none answered a ping on the task queue {queue} within {limit:.0f} s"
    return _no_version(silent, await probes.polling(server.client, queue)) or _no_worker(silent)


def _no_version(silent: str, polling: probes.Polling) -> Check | None:
    """Say so if it is a version that new runs miss; a dead worker counts as seen for minutes."""
    current = polling.current
    others = [build_id for build_id in polling.seen if build_id not in ("", current)]
    commands = [command("versions", "--use", build_id) for build_id in others]
    if current:
        detail = f"{silent}: version {current} is current, and no worker of it answers"
        fix = "start one of that version" + (", or make another one current" if others else "")
        begin = f"SUREHAND_BUILD_ID={shlex.quote(current)} python worker.py &"
        commands = [begin, *commands]
    elif others:
        detail = f"{silent}: workers of version {', '.join(others)} poll it, and none is current"
        fix = "make one current, so that new runs begin on it"
    else:
        return None
    return Check(name="worker", ok=False, detail=detail, fix=fix, commands=commands)


async def _versions(server: TenantClient) -> Check:
    """See that runs which are pinned to a version have workers of it."""
    queue = server.settings.task_queue
    found = (await all_versions(server, queue)).versions
    if not found:
        return Check(name="worker versions", ok=True, detail="none: any worker takes any run")
    seen = (await probes.polling(server.client, queue)).seen
    left = [one for one in found if one.open_runs and one.build_id not in seen]
    if not left:
        texts = [f"{one.build_id} {one.status} ({counted(one.open_runs, 'run')})" for one in found]
        return Check(name="worker versions", ok=True, detail=", ".join(texts))
    waiting = [f"{counted(one.open_runs, 'run')} of version {one.build_id}" for one in left]
    return Check(
        name="worker versions",
        ok=False,
        detail=f"no worker polls for {', '.join(waiting)}",
        fix="start one, or move the runs to the current version (README, Deploy a new version)",
        commands=[
            f"SUREHAND_BUILD_ID={shlex.quote(one.build_id)} python worker.py &" for one in left
        ],
    )


async def _server_clock(server: TenantClient) -> Check:
    difference = await probes.clock_difference(server.client)
    if difference is None:
        return Check(name="server clock", ok=True, detail="the server does not tell")
    return _clock("server clock", difference)


async def _own_checks(caller: Caller) -> list[Check]:
    """Look at what is on this machine: settings, tools, database."""
    try:
        settings = read_settings()
    except StarterError as error:
        first = NOT_LOOKED_AT.format("the settings")
        named = bool(caller.environment.get("SUREHAND_TOOL_MODULES"))
        tools = Check(name="tools", ok=False, detail=first, fix="mend the settings")
        return [
            _wrong_settings(caller, str(error)),
            tools if named else _no_tools(),
            _no_database(first),
        ]
    version = f", worker version {settings.build_id}" if settings.build_id else ""
    found = [Check(name="settings", ok=True, detail=f"decisions {settings.decisions}{version}")]
    found += [_tools(settings), _notifiers(settings)]
    return [*found, *await _database(caller, settings)]


def _wrong_settings(caller: Caller, detail: str) -> Check:
    here = Path.cwd()
    commands = []
    fix = f"mend it in the environment or in {here / '.env'}; the README lists all under Settings"
    if "SUREHAND_DATABASE_URL" not in caller.environment:
        fix = f"name the ledger (or write the line without `export` into {here / '.env'})"
        url = f"sqlite+aiosqlite:///{here / LEDGER_FILE}"
        commands = [f"export SUREHAND_DATABASE_URL={shlex.quote(url)}"]
    return Check(name="settings", ok=False, detail=detail, fix=fix, commands=commands)


def _no_tools() -> Check:
    return Check(
        name="tools",
        ok=False,
        detail="no module is named (SUREHAND_TOOL_MODULES)",
        fix="name the modules with your tools, comma separated; the example shop's (which"
        " `python -m examples.shop &` starts) are",
        commands=["export SUREHAND_TOOL_MODULES=examples.shop.tools"],
    )


def _tools(settings: Settings) -> Check:
    if not settings.tool_modules:
        return _no_tools()
    try:
        toolbox = read_toolbox(settings)
    except StarterError as error:
        fix = (
            "mend what it names; a module that is not found is spelt wrong, or its package has to"
            " be installed in this environment, or the folder it lies in to be on PYTHONPATH"
        )
        return Check(name="tools", ok=False, detail=str(error), fix=fix)
    return Check(name="tools", ok=True, detail="; ".join(_found(toolbox)))


def _found(toolbox: Toolbox) -> list[str]:
    from activities.lookup_keys import lookup_warning

    names = toolbox.names()
    warnings = [lookup_warning(tool) for name in names if (tool := toolbox.get(name))]
    return [", ".join(names), *(f"warning: {one}" for one in warnings if one)]


def _notifiers(settings: Settings) -> Check:
    try:
        detail = notifiers_of(settings)
    except StarterError as error:
        fix = "mend it in the environment or in .env; the README says more under Being told"
        return Check(name="notifiers", ok=False, detail=str(error), fix=fix)
    return Check(name="notifiers", ok=True, detail=detail or "none: nobody is told")


def _no_database(detail: str) -> Check:
    fix = "make or update its tables (or set SUREHAND_DATABASE_URL to the right one)"
    return Check(name="database", ok=False, detail=detail, fix=fix, commands=[MIGRATE])


def _wrong_database(settings: Settings, error: StarterError) -> Check:
    from activities.ledger.server import LedgerUnfit
    from activities.ledger.store import LedgerUnavailable

    away = isinstance(error.__cause__, LedgerUnavailable)
    if isinstance(error.__cause__, LedgerUnfit):
        fix = "put the ledger on a PostgreSQL that keeps what it is told, as the line above says"
        return Check(name="database", ok=False, detail=str(error), fix=fix)
    if settings.database_url.startswith("sqlite") and "database is locked" in str(error):
        return _locked_database(settings, str(error))
    if not away or settings.database_url.startswith("sqlite"):
        return _no_database(str(error))
    fix = "start the server, make the database, or mend SUREHAND_DATABASE_URL"
    return Check(name="database", ok=False, detail=str(error), fix=fix)


def _locked_database(settings: Settings, detail: str) -> Check:
    """Say who holds the one write lock of SQLite: nobody else can write meanwhile."""
    from activities.ledger.lock_holder import file_of, lock_holder

    file = file_of(settings.database_url)
    holder = lock_holder(file)
    if holder is None:
        return Check(
            name="database",
            ok=False,
            detail=f"{detail}; by which process cannot be known from here (another container or"
            " machine, or it has just let go)",
            fix="look again, and where the file's other processes run",
            commands=[f"fuser -v {shlex.quote(str(file))}"],
        )
    commands = [f"kill -KILL {holder.pid}"]
    fix = "wait for it, or end it: what it has not committed is rolled back, nothing else is lost"
    if holder.stopped:
        commands = [f"kill -CONT {holder.pid}", *commands]
        fix = "let it go on, or end it: what it has not committed is rolled back"
    return Check(
        name="database",
        ok=False,
        detail=f"{detail}; its write lock is held by {plain(str(holder))}",
        fix=fix,
        commands=commands,
    )


async def _database(caller: Caller, settings: Settings) -> list[Check]:
    try:
        async with ledger_of(settings) as ledger:
            before = time.time()
            async with ledger.transaction(caller.settings.tenant) as transaction:
                difference = timedelta(seconds=transaction.now_ms / 1000 - before)
            shown = ledger.engine.url.render_as_string(hide_password=True)
    except StarterError as error:
        return [_wrong_database(settings, error)]
    found = Check(name="database", ok=True, detail=f"{shown} is at head")
    return [found, _clock("database clock", difference)]


def _clock(name: str, difference: timedelta) -> Check:
    seconds = difference.total_seconds()
    detail = f"{abs(seconds):.2f} s {'ahead of' if seconds >= 0 else 'behind'} this machine's"
    ok = abs(difference) <= CLOCK_TOLERANCE
    return Check(
        name=name, ok=ok, detail=detail, fix="" if ok else "set both clocks by NTP (timedatectl)"
    )
