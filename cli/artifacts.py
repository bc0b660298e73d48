"""``artifacts``: the large values of a run, listed and fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotFound, OutputLost
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, open_artifacts, read_settings, translated
from cli.shapes import LedgerRows

ARTIFACTS_EXAMPLE: Final = "Example: python starter.py artifacts refund-1 --to folder/"

_COLUMNS: Final = ("artifact_id", "step_id", "bytes", "type", "uri")


def artifacts(
    run: options.Run,
    artifact: Annotated[
        str | None, typer.Argument(metavar="ARTIFACT", help="Only this one, by its id or sha256.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write them into this folder, as STEP-ID.json each."),
    ] = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Show the values over 8 KiB that a run has kept; one named is written to stdout, or `--to`."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.reads import artifacts_of
        from workflows.contracts import Artifact

        run_id = find_run_id(caller.settings.tenant, run)
        settings = read_settings()
        async with ledger_of(settings) as ledger:
            rows = await artifacts_of(ledger, caller.settings.tenant, run_id)
            if artifact is not None:
                wanted = artifact.removeprefix("sha256:")
                rows = [row for row in rows if wanted in (row["artifact_id"], row["sha256"])]
                if not rows:
                    raise NotFound(f"run {run_id} has no artifact {artifact!r}")
            if artifact is None and to is None:
                return _list(caller, run_id, rows)
            store = open_artifacts(settings, ledger)
            for row in rows:
                reference = Artifact.model_validate(row)
                with translated():
                    content = await store.read_bytes(caller.settings.tenant, reference)
                if to is None:
                    sys.stdout.buffer.write(content)
                else:
                    row["file"] = str(_write(to, row, content))
        if to is not None:
            _tell(caller, run_id, rows)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def _list(caller: Caller, run_id: str, rows: list[dict[str, Any]]) -> int:
    if caller.printer.json_output:
        caller.printer.document(LedgerRows(run_id=run_id, rows=rows))
    elif not rows:
        caller.printer.say("No artifacts: no value of this run is over 8 KiB")
    else:
        caller.printer.table(
            [name.removesuffix("_id") for name in _COLUMNS],
            [[str(row[name]) for name in _COLUMNS] for row in rows],
        )
    return ExitCode.DONE


def _write(folder: Path, row: dict[str, Any], content: bytes) -> Path:
    path = folder / f"{row['step_id']}-{row['artifact_id']}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise OutputLost(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _tell(caller: Caller, run_id: str, rows: list[dict[str, Any]]) -> None:
    if caller.printer.json_output:
        caller.printer.document(LedgerRows(run_id=run_id, rows=rows))
        return
    for row in rows:
        caller.printer.say(f"{row['file']}  {row['bytes']} bytes, digest verified")
