"""What ledger and toolbox say: effects, events, interventions, notifications, tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from surehand.cli.operate.signed_export import signed_head
from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import ledger_of, read_settings, read_toolbox, rows_reply
from surehand.cli.verb.printer import Reply, table_or
from surehand.cli.verb.shapes import LedgerRows, LoadedTool, ToolList
from surehand.cli.verb.text import counted
from surehand.process.exits import OutputLost, WrongUse

_EFFECT_COLUMNS: Final = ("step_id", "tool", "key", "generation", "state", "calls", "error")
_EVENT_COLUMNS: Final = ("seq", "at", "type", "step_id", "body")
_INTERVENTION_COLUMNS: Final = (
    "intervention_id",
    "run_id",
    "step_id",
    "state",
    "question",
    "outcome",
    "actor",
)


async def effects(
    caller: options.Onlooker,
    run: options.Run,
) -> Reply:
    """Show the ledger entries of a run: each effect with key, state and receipt.

    Example: python starter.py effects refund-1
    """
    from surehand.activities.ledger.history.reads import effects_of

    run_id = caller.run_id(run)
    async with ledger_of(read_settings()) as ledger:
        rows = await ledger.transact(caller.tenant, effects_of, run_id)
    return rows_reply(run_id, _EFFECT_COLUMNS, rows, "No effects")


async def events(
    caller: options.Actor,
    run: options.Run,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write them to a file that `audit` verifies.")
    ] = None,
    signing_key: Annotated[
        Path | None,
        typer.Option("--key", help="Sign the export with it; default SUREHAND_KEY."),
    ] = None,
) -> Reply:
    """Show the events of a run, as they were chained.

    Example: python starter.py events refund-1 --json
    """
    from surehand.activities.ledger.history.audit import to_lines
    from surehand.activities.ledger.history.reads import chain_of, events_of

    if signing_key is not None and export is None:
        raise WrongUse("--key signs an export: name its file with --export")
    run_id = caller.run_id(run)
    async with ledger_of(read_settings()) as ledger:
        rows = await ledger.transact(caller.tenant, events_of, run_id)
        chain, _, head = await ledger.transact(caller.tenant, chain_of, run_id)
    if export is None:
        return rows_reply(run_id, _EVENT_COLUMNS, rows, "No events")
    signing = {"key": signing_key or caller.settings.key}
    signature = signed_head(caller.settings.model_copy(update=signing), chain, head)
    try:
        export.write_text(to_lines(chain) + signature, encoding="utf-8")
    except OSError as error:
        raise OutputLost(f"{export}: cannot be written: {error.strerror}") from error
    signed = f" signed by {caller.settings.user}" if signature else ""
    signer = ["--signer", "PUBLIC_KEY"] if signature else []
    # Of the file, which no document tells of.
    caller.printer.say(
        f"{counted(len(chain), 'event')} written to {export}, head {head.hash}{signed},"
        f" verify with: {caller.settings.command('audit', '--file', str(export), *signer)}"
    )
    return Reply(LedgerRows(run_id=run_id, rows=rows), ())


async def interventions(
    caller: options.Onlooker,
    run: options.OnlyRun = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those not settled.")] = False,
) -> Reply:
    """Show the questions that only a human can settle.

    Example: python starter.py interventions --open
    """
    from surehand.activities.ledger.history.reads import interventions_of

    run_id = caller.run_id(run) if run else None
    async with ledger_of(read_settings()) as ledger:
        rows = await ledger.transact(caller.tenant, interventions_of, run_id, only_open=only_open)
    reply = rows_reply(run_id, _INTERVENTION_COLUMNS, rows, "No interventions")
    asked = [
        caller.settings.command(
            "resolve", row["intervention_id"], "OUTCOME", "--run", row["run_id"]
        )
        for row in rows
        if row["state"] == "open"
    ]
    return replace(reply, text=[*reply.text, *asked])


async def tools(
    caller: options.Anybody,
) -> Reply:
    """Show the tools that a worker with these settings would load.

    Example: python starter.py tools
    """
    toolbox = read_toolbox(read_settings())
    specs = toolbox.specs()
    rows = [
        [
            spec.name,
            spec.version,
            spec.effect,
            spec.recovery,
            spec.compensation or ("irreversible" if spec.irreversible else ""),
            "needed" if spec.approval else "",
            spec.description,
        ]
        for spec in specs
    ]
    columns = ("tool", "version", "effect", "recovery", "undone by", "approval", "does")
    nothing = "No tools: name their modules in SUREHAND_TOOL_MODULES, or a file in SUREHAND_MCP"
    shown = [
        LoadedTool(**{**dict(spec), **dict(tool.definition())})
        for spec in specs
        if (tool := toolbox.get(spec.name)) is not None
    ]
    return Reply(ToolList(tools=shown), table_or(columns, rows, nothing))


_COLUMNS: Final = (
    "written_at",
    "kind",
    "subject",
    "channel",
    "state",
    "attempts",
    "due_at",
    "sent_at",
    "error",
)


async def notifications(
    caller: options.Onlooker,
    run: options.OnlyRun = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only what could not be sent, for good or so far.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest.")
    ] = 50,
) -> Reply:
    """Show what people were told and are to be told: due, sent, or not sent and why.

    Example: python starter.py notifications --failed
    """
    from surehand.activities.ledger.history.reads import notifications_of

    run_id = caller.run_id(run) if run else None
    async with ledger_of(read_settings()) as ledger:
        rows = await ledger.transact(
            caller.tenant, notifications_of, run_id, only_failed=failed, limit=limit
        )
    for row in rows:
        if row["state"] != "pending":
            row["due_at"] = None  # nothing follows
    return rows_reply(run_id, _COLUMNS, rows, "No notifications")
