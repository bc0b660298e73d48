"""``doctor`` and ``settings``: whether all that a run needs is there, and is set."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeWorkerDeploymentRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.engine import (
    LedgerUnavailable,
    LedgerUnfit,
    find_asynchronous_standbys,
    without_passwords,
)
from surehand.activities.ledger.core.migrate import weak_guards
from surehand.activities.ledger.effects.epochs import MEANING, current_epoch
from surehand.activities.mcp.calls import SeenTool
from surehand.activities.notifiers import load_notifiers, where
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.settings import Settings, judge_settings, missing_settings
from surehand.cli import options
from surehand.cli.options import Caller, ledger_of, read_settings, read_toolbox
from surehand.cli.printer import Lines, Reply, Shape, Table
from surehand.cli.tools import warnings_of
from surehand.client.connection import PING_LIMIT, Connection, Polling
from surehand.process.connect import EMBEDDED, find_target
from surehand.process.exits import ExitCode, SurehandError
from surehand.process.program import command, module
from surehand.process.settings import PREFIX, Sources, read_sources
from surehand.workflows.plain_text import counted, plain
from surehand.workflows.ports import IS_RUN, SEARCH_ATTRIBUTES


class Check(Shape):
    """One thing that ``doctor`` looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """What to do; empty when nothing is wrong."""
    commands: list[str] = []
    """The lines that do it, where they are known, ready to paste."""


class DoctorReport(Shape):
    """``doctor``."""

    ok: bool
    checks: list[Check]


class SettingShown(Shape):
    """One setting."""

    name: str
    """In lower case, without prefix."""
    variable: str
    """As the environment and ``.env`` have it."""
    value: Any
    """Null: missing."""
    unit: str
    origin: str
    """``default``, ``environment``, or the file's path."""


class SettingList(Shape):
    """``settings``."""

    settings: list[SettingShown]


#: Passwords in URLs: before the last ``@``, and in the query.
_IN_AUTHORITY: Final = re.compile(r"(://[^/:@?#]*:)[^?#]*@")
_IN_QUERY: Final = re.compile(r"([?&][^=&]*(?:pass|secret|token|key|sig)[^=&]*=)[^&]*", re.I)
_UNITS: Final = {"largest_inline": "bytes"}


def settings(caller: options.Unjudged) -> Reply:
    """Show all settings: value, unit, and origin (default, .env, environment).

    Example: surehand settings --json
    """
    sources = read_sources()
    shown = _list_settings(sources)
    rows = [[one.variable, _setting_text(one), one.origin] for one in shown]
    return Reply(SettingList(settings=shown), [Table(("setting", "value", "origin"), rows)])


def _list_settings(sources: Sources) -> list[SettingShown]:
    missing = missing_settings(sources)
    judged = judge_settings(sources, without=missing)
    rows = []
    for name in Settings.model_fields:
        given = sources.settings.get(name)
        value, unit = _plain_value(None if name in missing else getattr(judged, name))
        rows.append(
            SettingShown(
                name=name,
                variable=f"{PREFIX}{name.upper()}",
                value=value,
                unit=_UNITS.get(name, unit),
                origin="missing" if name in missing else given.origin if given else "default",
            )
        )
    return rows


def _plain_value(value: Any) -> tuple[Any, str]:
    """Return a setting's value as JSON, without passwords, and its unit."""
    if isinstance(value, timedelta):
        return value.total_seconds(), "s"
    if isinstance(value, tuple):
        plain = [_plain_value(one) for one in value]
        return [one for one, _ in plain], plain[0][1] if plain else ""
    if isinstance(value, SecretStr):
        return _hide_secret(value.get_secret_value()), ""
    if isinstance(value, str) and "://" in value:
        return _IN_QUERY.sub(r"\1***", _IN_AUTHORITY.sub(r"\1***@", value)), ""
    return value, ""


def _hide_secret(value: str) -> str:
    """Return a secret as ``***``, or the server's name of a URL that may carry one."""
    parts = urlsplit(value) if "://" in value else None
    return f"{parts.scheme}://{parts.hostname}/***" if parts else "***" if value else ""


def _setting_text(one: SettingShown) -> str:
    if one.value is None:
        return "(must be set)"
    values = one.value if isinstance(one.value, list) else [one.value]
    text = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    return f"{text} {one.unit}".rstrip() if text else ""


#: Leases and approvals are judged by the database's clock. From here on a person comparing times in
#: logs and ledger is misled, and an approval may expire early.
CLOCK_TOLERANCE: Final = timedelta(seconds=2)

#: Where a ledger is put that has no place yet; beside the embedded server's own file.
LEDGER_FILE: Final = ".surehand/ledger.sqlite"
NOT_LOOKED_AT: Final = "not looked at: {} first"


async def doctor(caller: options.Unjudged) -> Reply:
    """Check settings, tools, MCP servers, notifiers, database, Temporal, worker, clock.

    The worker is pinged: a workflow of type Ping, which does nothing, is started on its task queue.

    Example: surehand doctor
    """
    # In the order in which they are mended: each line below needs those above it.
    checks = [*await _own_checks(caller), *await _server_checks(caller)]
    ok = all(check.ok for check in checks)
    code = ExitCode.DONE if ok else ExitCode.NOT_REACHABLE
    return Reply(DoctorReport(ok=ok, checks=checks), _check_lines(checks), code)


def _check_lines(checks: list[Check]) -> Lines:
    rows = [[c.name, "ok" if c.ok else "FAIL", c.detail] for c in checks]
    yield Table(("check", "", "found"), rows)
    wrong = [check for check in checks if not check.ok]
    if not wrong:
        return
    yield ""
    yield "What to do, in this order:"
    for number, check in enumerate(wrong, 1):
        yield f"{number}. {check.name}: {check.fix}"
        yield from (f"     {line}" for line in check.commands)
    yield f"Then look again: {command('doctor')}"


def _right(name: str, detail: str) -> Check:
    return Check(name=name, ok=True, detail=detail)


def _wrong(name: str, detail: str, fix: str, *commands: str) -> Check:
    return Check(name=name, ok=False, detail=detail, fix=fix, commands=list(commands))


async def _server_checks(caller: Caller) -> list[Check]:
    address = ""
    try:
        target = find_target(caller.environment)
        address = target.address
        connection = await caller.connection()
    except SurehandError as error:
        return [_no_server(str(error), address), _no_worker(NOT_LOOKED_AT.format("the server"))]
    found = [_right("server", f"answers at {target.address}")]
    for name, look in (
        ("namespace", _check_namespace),
        ("search attributes", _check_attributes),
        ("worker", _check_worker),
        ("worker versions", _check_versions),
    ):
        found.append(await _run_check(name, look, connection))
        if name == "namespace" and not found[-1].ok:
            break  # nothing inside it can be asked
    return found


def _no_server(detail: str, address: str) -> Check:
    if address in EMBEDDED:
        fix = "start one here, and wait for it (or set TEMPORAL_ADDRESS to your own);"
        fix += f" `{command('dev')}` starts server and worker in one terminal"
        commands = [f"{command('server')} &", command("server", "--wait")]
    else:
        fix = "start it (the line waits for it), or mend TEMPORAL_ADDRESS (unset: a server here)"
        commands = [command("server", "--wait")]
    return _wrong("server", detail, fix, *commands)


def _no_worker(detail: str) -> Check:
    fix = "start one (or set SUREHAND_TASK_QUEUE to the queue that yours polls)"
    return _wrong("worker", detail, fix, f"{command('worker')} &")


async def _run_check(
    name: str, look: Callable[[Connection], Awaitable[Check]], connection: Connection
) -> Check:
    try:
        return await look(connection)
    except RPCError as error:
        return _wrong(name, error.message, "see the server's log")


async def _check_namespace(connection: Connection) -> Check:
    name = connection.target.namespace
    try:
        request = DescribeNamespaceRequest(namespace=name)
        await connection.client.workflow_service.describe_namespace(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    else:
        return _right("namespace", name)
    line = f"temporal operator namespace create --namespace {shlex.quote(name)}"
    line += f" --address {shlex.quote(connection.target.address)}"
    fix = "make it (or set TEMPORAL_NAMESPACE to one that exists)"
    return _wrong("namespace", f"{name} does not exist", fix, line)


async def _check_attributes(connection: Connection) -> Check:
    request = ListSearchAttributesRequest(namespace=connection.client.namespace)
    answer = await connection.client.operator_service.list_search_attributes(request)
    types = answer.custom_attributes
    missing = [k for k in SEARCH_ATTRIBUTES if types.get(k.name) != int(k.indexed_value_type)]
    if not missing:
        names = ", ".join(key.name for key in SEARCH_ATTRIBUTES)
        return _right("search attributes", names)
    added = " ".join(
        f"--name {key.name} --type {key.indexed_value_type.name.title()}" for key in missing
    )
    words = ["temporal operator search-attribute create", *connection.temporal_options(), added]
    detail = f"missing: {', '.join(key.name for key in missing)}"
    return _wrong("search attributes", detail, "register them", " ".join(words))


async def _check_worker(connection: Connection) -> Check:
    queue = connection.settings.task_queue
    answered = await connection.ping_worker(queue)
    if answered is not None:
        seconds = answered.total_seconds()
        detail = f"answers on the task queue {queue} (a ping took {seconds:.2f} s)"
        return _right("worker", detail)
    limit = PING_LIMIT.total_seconds()
    silent = f"none answered a ping on the task queue {queue} within {limit:.0f} s"
    return _no_version(connection, silent, await connection.polling(queue)) or _no_worker(silent)


def _no_version(connection: Connection, silent: str, polling: Polling) -> Check | None:
    """Say so if it is a version that new runs miss; a dead worker counts as seen for minutes."""
    current = polling.current
    others = [build_id for build_id in polling.seen if build_id not in ("", current)]
    commands = [_use_version(connection, build_id) for build_id in others]
    if current:
        detail = f"{silent}: version {current} is current, and no worker of it answers"
        fix = "start one of that version" + (", or make another one current" if others else "")
        begin = f"SUREHAND_BUILD_ID={shlex.quote(current)} {command('worker')} &"
        commands = [begin, *commands]
    elif others:
        detail = f"{silent}: workers of version {', '.join(others)} poll it, and none is current"
        fix = "make one current, so that new runs begin on it"
    else:
        return None
    return _wrong("worker", detail, fix, *commands)


def _use_version(connection: Connection, build_id: str) -> str:
    deployment = ["--deployment-name", connection.settings.deployment_name, "--build-id", build_id]
    words = [*connection.temporal_options(), *deployment, "--yes"]
    return shlex.join(["temporal", "worker", "deployment", "set-current-version", *words])


async def _check_versions(connection: Connection) -> Check:
    """See that runs which are pinned to a version have workers of it."""
    queue, deployment = connection.settings.task_queue, connection.settings.deployment_name
    asked = DescribeWorkerDeploymentRequest(
        namespace=connection.client.namespace, deployment_name=deployment
    )
    try:
        found = await connection.client.workflow_service.describe_worker_deployment(asked)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or error.message.startswith("Namespace "):
            raise
        return _right("worker versions", "none: any worker takes any run")
    open_runs = dict[str, int]()
    for one in found.worker_deployment_info.version_summaries:
        build_id = one.deployment_version.build_id
        counted_runs = await connection.client.count_workflows(
            f"{IS_RUN} AND ExecutionStatus = 'Running' AND TaskQueue = {json.dumps(queue)}"
            f" AND TemporalWorkerDeploymentVersion = '{deployment}:{build_id}'"
        )
        open_runs[build_id] = counted_runs.count
    seen = (await connection.polling(queue)).seen
    left = {one: runs for one, runs in open_runs.items() if runs and one not in seen}
    if not left:
        texts = [f"{one} ({counted(runs, 'run')})" for one, runs in open_runs.items()]
        return _right("worker versions", ", ".join(texts))
    waiting = [f"{counted(runs, 'run')} of version {one}" for one, runs in left.items()]
    return _wrong(
        "worker versions",
        f"no worker polls for {', '.join(waiting)}",
        "start one, or move the runs to the current version (docs/howto/versions.md)",
        *[f"SUREHAND_BUILD_ID={shlex.quote(one)} {command('worker')} &" for one in left],
    )


async def _own_checks(caller: Caller) -> list[Check]:
    """Look at what is on this machine: settings, tools, database."""
    try:
        settings = read_settings()
    except SurehandError as error:
        first = NOT_LOOKED_AT.format("the settings")
        named = bool(caller.environment.get("SUREHAND_TOOL_MODULES"))
        tools = _wrong("tools", first, "mend the settings") if named else _no_tools()
        return [_wrong_settings(caller, str(error)), tools, _no_database(first)]
    version = f", worker version {settings.build_id}" if settings.build_id else ""
    found = [_right("settings", f"decisions {settings.decisions}{version}")]
    tools = _tools(settings)
    found += [tools, *await _mcp_servers(settings, tools), _check_notifiers(settings)]
    return [*found, *await _check_database(caller, settings)]


def _wrong_settings(caller: Caller, detail: str) -> Check:
    here = Path.cwd()
    commands = []
    fix = f"mend it in the environment or in {here / '.env'}; docs/reference/settings.md lists all"
    if "SUREHAND_DATABASE_URL" not in caller.environment:
        fix = f"name the ledger (or write the line without `export` into {here / '.env'})"
        url = f"sqlite:///{here / LEDGER_FILE}"
        commands = [f"export SUREHAND_DATABASE_URL={shlex.quote(url)}"]
    return _wrong("settings", detail, fix, *commands)


def _no_tools() -> Check:
    return _wrong(
        "tools",
        "no module is named (SUREHAND_TOOL_MODULES)",
        "name the modules with your tools, comma separated; the example shop's (which"
        f" `{module('surehand.examples.shop')} &` starts) are",
        "export SUREHAND_TOOL_MODULES=surehand.examples.shop.tools",
    )


def _tools(settings: Settings) -> Check:
    if not settings.tool_modules and not settings.mcp:
        return _no_tools()
    try:
        toolbox = read_toolbox(settings.tool_modules, settings.mcp)
    except SurehandError as error:
        fix = (
            "mend what it names; a module that is not found is spelt wrong, or its package has to"
            " be installed in this environment, or the folder it lies in to be on PYTHONPATH"
        )
        return _wrong("tools", str(error), fix)
    return _right("tools", "; ".join(_found(toolbox)))


def _found(toolbox: Toolbox) -> list[str]:
    names = toolbox.names()
    return [", ".join(names), *(f"warning: {one}" for one in warnings_of(toolbox, names))]


async def _mcp_servers(settings: Settings, tools: Check) -> list[Check]:
    """See that each MCP server of the file answers, and offers what was reviewed."""
    if not settings.mcp:
        return []
    from surehand.activities.mcp.calls import ask_servers
    from surehand.activities.mcp.server_file import McpFileError, read_file

    try:
        reviewed = read_file(Path(settings.mcp))
        offered = await ask_servers(reviewed)
    except McpFileError as error:
        if not tools.ok:
            return []  # which says it
        return [_wrong("MCP servers", str(error), "do what it says")]
    found = []
    for name in reviewed.servers:
        reason = offered.silent.get(name)
        named = [one for one in offered.tools if one.server == name and one.said is not None]
        found.append(_mcp_server(settings, name, reason, named))
    return found


def _mcp_server(settings: Settings, name: str, silent: str | None, tools: list[SeenTool]) -> Check:
    what = f"MCP server {name}"
    if silent is not None:
        fix = f"start it, or mend servers.{name} in {settings.mcp}; its tools fail until then"
        return _wrong(what, f"cannot be asked: {plain(silent)}", fix, command("mcp", "list"))
    wrong = [one for one in tools if one.state != "pinned"]
    if not wrong:
        return _right(what, f"answers; {counted(len(tools), 'tool')}, as reviewed")
    detail = ", ".join(f"{one.full}: {one.state}" for one in wrong)
    fix = "review what it offers now, then pin it; runs that call these tools wait until then"
    pins = [command("mcp", "pin", f"{one.full}@{one.digest}") for one in wrong if one.digest]
    return _wrong(what, plain(detail), fix, command("mcp", "list"), *pins)


def _check_notifiers(settings: Settings) -> Check:
    try:
        detail = where(load_notifiers(settings))
    except SurehandError as error:
        fix = "mend it in the environment or in .env; docs/howto/be-told.md says more"
        return _wrong("notifiers", str(error), fix)
    return _right("notifiers", detail or "none: nobody is told")


def _no_database(detail: str) -> Check:
    fix = "make or update its tables (or set SUREHAND_DATABASE_URL to the right one)"
    return _wrong("database", detail, fix, command("migrate"))


def _wrong_database(settings: Settings, error: SurehandError) -> Check:
    if isinstance(error, LedgerUnfit):
        fix = "put the ledger on a PostgreSQL that keeps what it is told, as the line above says"
        return _wrong("database", str(error), fix)
    if settings.database_url.startswith("sqlite") and "database is locked" in str(error):
        return _locked_database(settings, str(error))
    if not isinstance(error, LedgerUnavailable) or settings.database_url.startswith("sqlite"):
        return _no_database(str(error))
    fix = "start the server, make the database, or mend SUREHAND_DATABASE_URL"
    return _wrong("database", str(error), fix)


def _locked_database(settings: Settings, detail: str) -> Check:
    """Say how to find who holds the one write lock of SQLite: nobody else can write meanwhile."""
    file = shlex.quote(settings.database_url.partition("///")[2].partition("?")[0])
    fix = (
        "find the process that is writing, or was stopped while it wrote (state T): wait for it,"
        " let it go on with `kill -CONT`, or end it; only what it has not committed is rolled back"
    )
    return _wrong("database", detail, fix, f"ps -o pid,stat,args -p $(fuser {file} 2>/dev/null)")


async def _check_database(caller: Caller, settings: Settings) -> list[Check]:
    try:
        async with ledger_of(settings) as ledger:
            before = time.time()
            with ledger.transaction(caller.tenant) as transaction:
                difference = timedelta(seconds=transaction.now_ms / 1000 - before)
                epoch = current_epoch(transaction)
            warnings = weak_guards(ledger.engine)
            losing = find_asynchronous_standbys(ledger.engine)
            shown = without_passwords(ledger.engine.url)
    except SurehandError as error:
        return [_wrong_database(settings, error)]
    warnings += [] if losing is None else [losing]
    if epoch is not None:
        warnings.append(f"epoch {epoch.number} is open: {MEANING}")
    told = "; ".join([f"{shown} is at head", *(f"warning: {one}" for one in warnings)])
    found = _right("database", told)
    seconds = difference.total_seconds()
    ahead = f"{abs(seconds):.2f} s {'ahead of' if seconds >= 0 else 'behind'} this machine's"
    if abs(difference) <= CLOCK_TOLERANCE:
        return [found, _right("database clock", ahead)]
    return [found, _wrong("database clock", ahead, "set both clocks by NTP (timedatectl)")]
