"""``doctor``: looks at everything a run needs, and says what to do about what is missing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from temporalio.service import RPCError

from cli import options, probes
from cli.caller import Caller, perform
from cli.connect import find_target
from cli.exits import ExitCode, StarterError
from cli.ledger_door import ledger_of, read_settings, read_toolbox
from cli.shapes import Check, DoctorReport
from cli.tenant_client import TenantClient

EXAMPLE: Final = "Example: python starter.py doctor"

#: Leases and approvals are judged by the database's clock, timers by the server's. From here on a
#: person comparing times in logs, ledger and Web UI is misled, and an approval may expire early.
CLOCK_TOLERANCE: Final = timedelta(seconds=2)


def doctor(json_output: options.Json = False) -> int:
    """Check server, namespace, search attributes, worker, database, tools and clocks."""

    async def verb(caller: Caller) -> int:
        checks = [*await _server_checks(caller), *await _database_checks(caller)]
        ok = all(check.ok for check in checks)
        if json_output:
            caller.printer.document(DoctorReport(ok=ok, checks=checks))
        else:
            rows = [[c.name, "ok" if c.ok else "FAIL", c.detail] for c in checks]
            caller.printer.table(("check", "", "found"), rows)
            for check in checks:
                if check.fix:
                    caller.printer.say(f"{check.name}: {check.fix}")
        return ExitCode.DONE if ok else ExitCode.NOT_REACHABLE

    return perform(verb, json_output=json_output)


async def _server_checks(caller: Caller) -> list[Check]:
    try:
        target = find_target(caller.environment)
        server = await caller.server()
    except StarterError as error:
        return [Check(name="server", ok=False, detail=str(error), fix="set TEMPORAL_ADDRESS")]
    found = [Check(name="server", ok=True, detail=f"answers at {target.address}")]
    for name, look in (
        ("namespace", _namespace),
        ("search attributes", _attributes),
        ("worker", _worker),
        ("server clock", _server_clock),
    ):
        found.append(await _looked(name, look, server))
        if name == "namespace" and not found[-1].ok:
            break  # nothing inside it can be asked
    return found


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
    fix = f"temporal operator namespace create --namespace {name}"
    return Check(name="namespace", ok=False, detail=f"{name} does not exist", fix=fix)


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
        fix="temporal operator search-attribute create "
        + " ".join([*server.temporal_options(), added]),
    )


async def _worker(server: TenantClient) -> Check:
    queue = server.settings.task_queue
    workflow, activity = await probes.pollers(server.client, queue)
    if workflow and activity:
        return Check(name="worker", ok=True, detail=f"task queue {queue} is polled")
    return Check(
        name="worker",
        ok=False,
        detail=f"nobody polls the task queue {queue}",
        fix="start one: python worker.py (or set SUREHAND_TASK_QUEUE to the queue it polls)",
    )


async def _server_clock(server: TenantClient) -> Check:
    difference = await probes.clock_difference(server.client)
    if difference is None:
        return Check(name="server clock", ok=True, detail="the server does not tell")
    return _clock("server clock", difference)


async def _database_checks(caller: Caller) -> list[Check]:
    try:
        settings = read_settings()
    except StarterError as error:
        return [Check(name="settings", ok=False, detail=str(error), fix="see .env.example")]
    found = [Check(name="settings", ok=True, detail=f"decisions {settings.decisions}")]
    try:
        async with ledger_of(settings) as ledger:
            before = time.time()
            async with ledger.transaction(caller.settings.tenant) as transaction:
                difference = timedelta(seconds=transaction.now_ms / 1000 - before)
            shown = ledger.engine.url.render_as_string(hide_password=True)
        found.append(Check(name="database", ok=True, detail=f"{shown} is at head"))
        found.append(_clock("database clock", difference))
    except StarterError as error:
        fix = "python -m activities.ledger.migrate (or set SUREHAND_DATABASE_URL)"
        found.append(Check(name="database", ok=False, detail=str(error), fix=fix))
    try:
        names = read_toolbox(settings).names()
        found.append(Check(name="tools", ok=True, detail=", ".join(names) or "none are named"))
    except StarterError as error:
        fix = "set SUREHAND_TOOL_MODULES"
        found.append(Check(name="tools", ok=False, detail=str(error), fix=fix))
    return found


def _clock(name: str, difference: timedelta) -> Check:
    seconds = difference.total_seconds()
    detail = f"{abs(seconds):.2f} s {'ahead of' if seconds >= 0 else 'behind'} this machine's"
    ok = abs(difference) <= CLOCK_TOLERANCE
    return Check(
        name=name, ok=ok, detail=detail, fix="" if ok else "set both clocks by NTP (timedatectl)"
    )
