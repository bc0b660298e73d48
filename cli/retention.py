"""``retention`` and ``erase``: hiding and deleting what is old, holding a run, destroying its key.

On PostgreSQL by roles of their own: the workers' role deletes nothing.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, BinaryIO, Final
from urllib.parse import quote

import typer
from temporalio.service import RPCError, RPCStatusCode

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.audit import (
    NotAnExport,
    read_export,
    signature_line,
    verify_chain,
    verify_signature,
    write_lines,
)
from surehand.activities.ledger.retention import hiding
from surehand.activities.ledger.retention.deletion import CHECKPOINTS, Content, Exported
from surehand.activities.ledger.retention.hiding import (
    NotPermitted,
    Policy,
    explain_refusal,
    parse_kept,
)
from surehand.activities.ledger.runs import keys
from surehand.activities.retention import Files, Retention, Round
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.audit import FILE_LINE, FoundInFile, read_content, signed_head, why_unproven
from surehand.cli.options import (
    Caller,
    administration,
    ledger_of,
    open_artifacts,
    read_settings,
    translated,
)
from surehand.cli.printer import Lines, Reply, Shape, counted
from surehand.client.messages import public_jwk, read_key, sign
from surehand.process.exits import ExitCode, NotReachable, OutputLost, WrongUse
from surehand.process.files import make_folder, replace_whole, replacing
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ContentClaims, audience
from surehand.workflows.contracts.base import ChainHead


class RetentionReport(Shape):
    """``retention``: what a round has done, or would do."""

    applied: bool
    round: Round


class RetentionSwitched(Shape):
    """``retention --keep`` and ``--release``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    held: bool


class RunErased(Shape):
    """``erase``."""

    run_id: str
    runs: list[str]
    """The run, and its child runs."""
    erased_by: str
    reason: str
    artifacts: int
    effects: int
    """Those whose business keys are kept."""


#: Runs of each sort that people are named; all are in the document.
_MOST_NAMED: Final = 20


async def retention(
    caller: options.Sender,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; without, it is only said what would be done.")
    ] = False,
    every: Annotated[
        timedelta | None, options.lasting("--every", "Do it so often, until this process is ended.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export what goes before it goes, signed.")
    ] = None,
    no_export: Annotated[
        bool, typer.Option("--no-export", help="Delete without an export.")
    ] = False,
    keep: Annotated[
        str | None, typer.Option(metavar="RUN", help="Hold a run: show and keep it.")
    ] = None,
    release: Annotated[str | None, typer.Option(metavar="RUN", help="Hold a run no more.")] = None,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    """Hide runs that are kept for longer than SUREHAND_RETENTION says; delete them after a grace.

    Business keys of effects are kept, so nothing is made twice. Artifacts go to which nothing
    refers. A run of which something fails is kept and named, and the others go.

    Example: surehand retention --apply --export exports/ --key retention.key
    """
    acts = apply or every is not None
    if (keep is not None) + (release is not None) + acts > 1:
        raise WrongUse("--keep, --release, and --apply or --every are different things: name one")
    if not acts and (export is not None or no_export):
        raise WrongUse("--export and --no-export are for --apply and --every")
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        with _explain_refusals(ledger):
            if keep is not None or release is not None:
                return await _switch_hold(caller, ledger, keep, release, reason)
            if export is not None and caller.settings.key is None:
                raise WrongUse("exports are signed: name your key (--key, or SUREHAND_KEY)")
            exports = None if export is None else Exports(caller.settings, export.absolute())
            made = await _make_retention(caller, settings, ledger, exports)
            made = replace(made, unexported=no_export)
            if not acts:
                return _reply(caller.settings, made.policy, await made.look(), applied=False)
            if made.policy.kept is not None and export is None and not no_export:
                raise WrongUse(
                    "data would be deleted forever: export it first (--export DIR --key KEY), or"
                    " say --no-export"
                )
            if every is None:
                with translated():
                    return _reply(caller.settings, made.policy, await made.round(), applied=True)
            return await _serve(caller, made, every)


async def _make_retention(
    caller: Caller, settings: Settings, ledger: Ledger, export: Exports | None
) -> Retention:
    connection = await caller.connection()

    async def known(run_id: str) -> bool:
        try:
            await connection.client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise NotReachable(f"the Temporal server: {error}") from error
        return True

    return Retention(
        ledger=ledger,
        artifacts=open_artifacts(settings, ledger),
        tenant=caller.tenant,
        policy=Policy(parse_kept(settings.retention), settings.retention_grace),
        by=caller.settings.user,
        known=known,
        export=None if export is None else export.write,
    )


async def _serve(caller: Caller, made: Retention, every: timedelta) -> ExitCode:
    """Do a round now and then; a signal ends it between two."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    caller.printer.one_a_line = True
    while not ended.is_set():
        try:
            with translated():
                caller.printer.reply(
                    _reply(caller.settings, made.policy, await made.round(), applied=True)
                )
        except NotReachable as error:
            caller.printer.warn(f"{error}; the next round is in {every}")
        try:
            async with asyncio.timeout(every.total_seconds()):
                await ended.wait()
        except TimeoutError:
            continue
    return ExitCode.DONE


async def _switch_hold(
    caller: Caller, ledger: Ledger, keep: str | None, release: str | None, reason: str
) -> Reply:
    run_id, by = caller.run_id(keep or release or ""), caller.settings.user
    try:
        if keep is not None:
            found = await ledger.transact(
                caller.tenant, hiding.hold_run, run_id, by=by, reason=reason
            )
        else:
            found = await ledger.transact(caller.tenant, hiding.release_run, run_id, by=by)
    except hiding.CannotKeep as error:
        raise WrongUse(str(error)) from error
    told = "held: it is shown, and stays until it is released" if keep else "held no more"
    more = f" and {counted(len(found) - 1, 'child run')}" if len(found) > 1 else ""
    switched = RetentionSwitched(run_id=found[0], runs=list(found), held=keep is not None)
    return Reply(switched, f"Run {found[0]}{more} {told}")


@contextmanager
def _explain_refusals(ledger: Ledger) -> Iterator[None]:
    try:
        with explain_refusal(ledger):
            yield
    except NotPermitted as error:
        raise WrongUse(str(error)) from error


def _reply(settings: ClientSettings, policy: Policy, done: Round, *, applied: bool) -> Reply:
    report = RetentionReport(applied=applied, round=done)
    # The gravest has the least number.
    code = min((one.failed for one in done.kept if one.failed), default=ExitCode.DONE)
    return Reply(report, _round_lines(settings, report, anything=policy.kept is not None), code)


def _round_lines(settings: ClientSettings, report: RetentionReport, *, anything: bool) -> Lines:
    done, files = report.round, report.round.files
    if anything or done.hidden or done.deleted or done.kept:
        yield from _lines_of_runs(report)
    else:
        yield "SUREHAND_RETENTION is not set: nothing is hidden, and nothing deleted"
    if files.aside or files.removed or files.back:
        yield (
            f"Files that nothing refers to: {files.aside} set aside,"
            f" {files.removed} removed after a day, {files.back} put back"
        )
    if done.lost:
        lost = counted(done.lost, "file")
        yield f"The artifact store has lost {lost} of what was exported"
    if not report.applied and (done.hidden or done.deleted):
        do = settings.command("retention", "--apply", "--export", "DIR", "--key", "KEY")
        yield f"Do it: {do}, or with --no-export"


def _lines_of_runs(report: RetentionReport) -> Lines:
    told = ("Hidden", "Deleted") if report.applied else ("Would be hidden", "Would be deleted")
    for what, parts in zip(told, (report.round.hidden, report.round.deleted), strict=True):
        yield f"{what}: {counted(len(parts), 'run')}"
        for part in parts[:_MOST_NAMED]:
            yield f"  {part.run_id}{': checkpoints' if part.kind == CHECKPOINTS else ''}"
            yield from (f"    exported to {file}" for file in part.exports)
        if len(parts) > _MOST_NAMED:
            yield f"  and {len(parts) - _MOST_NAMED} more"
    for what, failed in (("Failed, and kept", True), ("Old enough, and kept", False)):
        kept = [one for one in report.round.kept if (one.failed is not None) is failed]
        if kept:
            yield f"{what}: {counted(len(kept), 'run')}"
            yield from (f"  {one.run_id}: {one.why}" for one in kept[:_MOST_NAMED])
        if len(kept) > _MOST_NAMED:
            yield f"  and {len(kept) - _MOST_NAMED} more"


#: Characters of why a run is erased: they stand in its chain forever.
LONGEST: Final = 500


async def erase(caller: options.Actor, run: options.Run, reason: options.Reason = "") -> Reply:
    """Destroy the key of a run that has ended: nobody reads again what it has sent and kept.

    That is its history, its part of the ledger, its artifacts, and those of its child runs. Its
    events stay, and prove what has happened. Its business keys stay, and protect its effects.

    Example: surehand erase refund-1 --reason "request 4711"
    """
    if len(reason) > LONGEST:
        raise WrongUse(f"--reason: at most {LONGEST} characters")
    run_id, by = caller.run_id(run), caller.settings.user
    async with administration(caller.tenant, forgets=True) as tx:
        try:
            done = keys.erase_run(tx, run_id, by=by, because=reason)
        except keys.NotErasable as error:
            raise WrongUse(str(error)) from error
    shown = RunErased(run_id=run_id, erased_by=by, reason=reason, **asdict(done))
    more = f" and {counted(len(done.runs) - 1, 'child run')}" if len(done.runs) > 1 else ""
    lines = [
        f"Run {run_id}{more} erased: nobody can read what it has sent and kept.",
        f"Kept: its events, and the business keys of {counted(done.effects, 'effect')}.",
        "Workers that have read it just now remember its key for a minute. Backups of the ledger"
        " have it wrapped until they are gone.",
    ]
    return Reply(shown, lines)


# Exports of what goes of a run: one JSON object a line, rows of the ledger, then content of the
# artifact store, then the signature over all of that. A file is never written over: by then what
# was in the store may be gone.

#: Bytes that are encoded at once: a multiple of 3, so that the parts are one Base64 text.
_PART: Final = 3 * 256 * 1024
#: Who may read an export: it has what people were not to keep.
_MODE: Final = 0o600


class Exports:
    """Writes signed exports into a folder, and reads each again."""

    def __init__(self, settings: ClientSettings, folder: Path) -> None:
        """Write them there; ``settings``: who signs, for which tenant, and with which key."""
        assert settings.key is not None
        self._settings = settings
        self._key = read_key(settings.key)
        self._folder = folder

    async def write(self, content: Content, files: Files) -> Exported:
        """Export what goes of a run; of a whole run its events, too."""
        made = list[Path]()
        try:
            await asyncio.to_thread(make_folder, self._folder)
            if content.head is not None:
                made.append(await self._write_events(content, content.head))
            file = await self._file_for(content)
            if not file.exists():
                file = await self._write_content(file, content, files)
            if content.kind != CHECKPOINTS:
                made += await asyncio.to_thread(self._list_proven, content)
            elif file.exists():
                made.append(file)
        except OSError as error:
            where = error.filename or self._folder
            raise OutputLost(f"{where}: cannot be exported: {error.strerror}") from error
        return Exported(tuple(map(str, made)), content.digest, content.head)

    async def _write_events(self, content: Content, head: ChainHead) -> Path:
        file = self._folder / f"{quote(content.run_id, safe='~')}.jsonl"
        signed = signed_head(self._settings, content.chain, head)
        text = write_lines(content.chain) + signed
        await asyncio.to_thread(replace_whole, file, text, mode=_MODE)
        await asyncio.to_thread(_verify_events, file, head)
        return file

    async def _file_for(self, content: Content) -> Path:
        """Return the file that has these rows already, or one that is not there yet."""
        for file in self._file_names(content):
            if not file.exists() or await asyncio.to_thread(self._has_content_of, file, content):
                return file
        raise AssertionError("names do not end")

    def _file_names(self, content: Content) -> Iterator[Path]:
        # No run's name has a "+" once it is quoted.
        name = f"{quote(content.run_id, safe='~')}+{content.kind}"
        yield self._folder / f"{name}.jsonl"
        for number in itertools.count(2):
            yield self._folder / f"{name}+{number}.jsonl"

    def _list_proven(self, content: Content) -> list[Path]:
        """Return all exports of a kind: one of before a row changed may be the one with files."""
        there = itertools.takewhile(Path.exists, self._file_names(content))
        return [file for file in there if self._why_unproven(read_content(file), content) is None]

    def _has_content_of(self, file: Path, content: Content) -> bool:
        found = read_content(file)
        same = found.digest_of_rows == content.digest
        return same and self._why_unproven(found, content) is None

    def _why_unproven(self, found: FoundInFile, content: Content) -> str | None:
        return why_unproven(found, content.run_id, content.kind, public_jwk(self._key))

    async def _write_content(self, file: Path, content: Content, files: Files) -> Path:
        """Write an export; returns where it is, or was to be: nothing is written of nothing."""
        first = await anext(files, None)
        if first is None and not content.lines:
            return file
        try:
            with replacing(file, mode=_MODE, new=True) as written:
                hashed = _Hashed(written)
                for line in content.lines:
                    hashed.write(line)
                if first is not None:
                    await asyncio.to_thread(_write_file, hashed, *first)
                async for path, data in files:
                    await asyncio.to_thread(_write_file, hashed, path, data)
                written.write(self._sign_content(content, hashed.digest()))
        except FileExistsError:
            # Another round was faster. Only its file surely has what was in the store.
            file = await self._file_for(content)
        if not file.exists() or not await asyncio.to_thread(self._has_content_of, file, content):
            raise OutputLost(f"{file}: what was written is not what was to be")
        return file

    def _sign_content(self, content: Content, digest: str) -> bytes:
        claims = ContentClaims(
            aud=audience(self._settings.tenant),
            sub=self._settings.user,
            iat=int(time.time()),
            run_id=content.run_id,
            kind=content.kind,
            content=digest,
        )
        return signature_line(sign(self._key, claims)).encode()


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _write_file(to: _Hashed, path: str, data: bytes | None) -> None:
    """Write content of the artifact store as a line; ``None``: that it has lost it."""
    to.write(FILE_LINE + json.dumps(path).encode())
    if data is None:
        to.write(b', "lost": true}\n')
        return
    to.write(b', "base64": "')
    for start in range(0, len(data), _PART):
        to.write(base64.b64encode(data[start : start + _PART]))
    to.write(b'"}\n')


def _verify_events(file: Path, head: ChainHead) -> None:
    try:
        events, token = read_export(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotAnExport) as error:
        raise OutputLost(f"{file}: what was written cannot be read again: {error}") from error
    found = verify_chain(events, [head]) or verify_signature(events, token, None)
    if found is not None or token is None:
        raise OutputLost(f"{file}: what was written is not what was to be: {found}")
