"""``artifacts``: the large values of a run, listed and fetched."""

from __future__ import annotations

import mimetypes
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import (
    ledger_of,
    open_artifacts,
    read_settings,
    rows_reply,
    translated,
)
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import LedgerRows
from surehand.process.exits import ExitCode, NotFound, OutputLost

_COLUMNS: Final = ("artifact_id", "step_id", "bytes", "type", "uri")


async def artifacts(
    caller: options.Onlooker,
    run: options.Run,
    artifact: Annotated[
        str | None, typer.Argument(metavar="ARTIFACT", help="Only this one, by its id or sha256.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write them into this folder, a file each."),
    ] = None,
) -> Reply | ExitCode:
    """Show what a run has kept; one named is written to stdout, or `--to`.

    That is values over 8 KiB, and what tools have written part by part.

    Example: python starter.py artifacts refund-1 --to folder/
    """
    from surehand.activities.ledger.history.reads import artifacts_of
    from surehand.workflows.contracts.artifacts import Artifact

    run_id = caller.run_id(run)
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        rows = await ledger.transact(caller.tenant, artifacts_of, run_id)
        if artifact is not None:
            wanted = artifact.removeprefix("sha256:")
            rows = [row for row in rows if wanted in (row["artifact_id"], row["sha256"])]
            if not rows:
                raise NotFound(f"run {run_id} has no artifact {artifact!r}")
        if artifact is None and to is None:
            nothing = "No artifacts: no value of this run is over 8 KiB"
            return rows_reply(run_id, _COLUMNS, rows, nothing)
        store = open_artifacts(settings, ledger)
        for row in rows:
            reference = Artifact.model_validate(row)
            with translated():
                content = await store.read_bytes(caller.tenant, run_id, reference)
            if to is None:
                sys.stdout.buffer.write(content)
            else:
                row["file"] = str(_write(to, row, content))
    if to is None:
        return ExitCode.DONE
    told = [f"{row['file']}  {row['bytes']} bytes, digest verified" for row in rows]
    return Reply(LedgerRows(run_id=run_id, rows=rows), told)


def _write(folder: Path, row: dict[str, Any], content: bytes) -> Path:
    ending = mimetypes.guess_extension(row["type"].partition(";")[0]) or ".bin"
    path = folder / f"{row['step_id']}-{row['artifact_id']}{ending}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise OutputLost(f"{path}: cannot be written: {error.strerror}") from error
    return path
