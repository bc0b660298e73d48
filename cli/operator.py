"""``effects``, ``events``, ``interventions`` and ``tools``: what the ledger and the toolbox say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, OutputLost, WrongUse
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, read_settings, read_toolbox
from cli.questions import resolve_command
from cli.shapes import LedgerRows, ToolList
from cli.signed_export import signed_head
from cli.text import command, compact, counted

EFFECTS_EXAMPLE: Final = "Example: python starter.py effects refund-1"
EVENTS_EXAMPLE: Final = "Example: python starter.py events refund-1 --json"
INTERVENTIONS_EXAMPLE: Final = "Example: python starter.py interventions --open"
TOOLS_EXAMPLE: Final = "Example: python starter.py tools"

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


def effects(
    run: options.Run, tenant: options.Tenant = None, json_output: options.Json = False
) -> int:
    """Show the ledger entries of a run: each effect with key, state and receipt."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.reads import effects_of

        run_id = find_run_id(caller.settings.tenant, run)
        async with ledger_of(read_settings()) as ledger:
            rows = await effects_of(ledger, caller.settings.tenant, run_id)
        return print_rows(caller, run_id, _EFFECT_COLUMNS, rows, "No effects")

    return perform(verb, json_output=json_output, tenant=tenant)


def events(
    run: options.Run,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write them to a file that `audit` verifies.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Sign the export with it; default SUREHAND_KEY."),
    ] = None,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Show the events of a run, as they were chained."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.audit import to_lines
        from activities.ledger.reads import chain_of, events_of

        if key is not None and export is None:
            raise WrongUse("--key signs an export: name its file with --export")
        run_id = find_run_id(caller.settings.tenant, run)
        async with ledger_of(read_settings()) as ledger:
            rows = await events_of(ledger, caller.settings.tenant, run_id)
            chain, _, head = await chain_of(ledger, caller.settings.tenant, run_id)
        if export is None:
            return print_rows(caller, run_id, _EVENT_COLUMNS, rows, "No events")
        signature = signed_head(caller.settings, chain, head)
        try:
            export.write_text(to_lines(chain) + signature, encoding="utf-8")
        except OSError as error:
            raise OutputLost(f"{export}: cannot be written: {error.strerror}") from error
        if json_output:
            caller.printer.document(LedgerRows(run_id=run_id, rows=rows))
        signed = f" signed by {caller.settings.user}" if signature else ""
        signer = ["--signer", "PUBLIC_KEY"] if signature else []
        caller.printer.say(
            f"{counted(len(chain), 'event')} written to {export}, head {head.hash}{signed},"
            f" verify with: {command('audit', '--file', str(export), *signer)}"
        )
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def interventions(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only this run's; default all.")
    ] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those not settled.")] = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Show the questions that only a human can settle."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.reads import interventions_of

        acting_in = caller.settings.tenant
        run_id = None if run is None else find_run_id(acting_in, run)
        async with ledger_of(read_settings()) as ledger:
            rows = await interventions_of(ledger, acting_in, run_id, only_open=only_open)
        code = print_rows(caller, run_id, _INTERVENTION_COLUMNS, rows, "No interventions")
        for row in rows:
            if row["state"] == "open" and not json_output:
                line = resolve_command(acting_in, row["run_id"], row["intervention_id"])
                caller.printer.say(line)
        return code

    return perform(verb, json_output=json_output, tenant=tenant)


def tools(json_output: options.Json = False) -> int:
    """Show the tools that a worker with these settings would load."""

    async def verb(caller: Caller) -> int:
        specs = read_toolbox(read_settings()).specs()
        if json_output:
            caller.printer.document(ToolList(tools=specs))
        elif not specs:
            caller.printer.say("No tools: name their modules in SUREHAND_TOOL_MODULES")
        else:
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
            caller.printer.table(columns, rows)
        return ExitCode.DONE

    return perform(verb, json_output=json_output)


def print_rows(
    caller: Caller,
    run_id: str | None,
    columns: Sequence[str],
    rows: list[dict[str, Any]],
    nothing: str,
) -> int:
    """Print rows of the ledger; returns the exit code."""
    if caller.printer.json_output:
        caller.printer.document(LedgerRows(run_id=run_id, rows=rows))
    elif not rows:
        caller.printer.say(nothing)
    else:
        cells = [
            ["" if row[name] is None else compact(row[name]) for name in columns] for row in rows
        ]
        caller.printer.table([name.removesuffix("_id") for name in columns], cells)
    return ExitCode.DONE
