"""Signed exports: of a run's events, and of what goes with a kind of its data.

Of the latter: one JSON object a line, rows of the ledger, then content of the artifact store, then
the signature over all of that. A file is never written over: by then what was in the store may be
gone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from surehand.activities.ledger.history.audit import (
    NotAnExport,
    claims_to_be,
    read_export,
    signature_line,
    verify_chain,
    verify_signature,
    write_lines,
)
from surehand.activities.ledger.people.signatures import BadSignature, verify_token
from surehand.activities.ledger.retention.deletion import Content, Exported
from surehand.activities.retention import Files
from surehand.cli.printer import shown_time
from surehand.cli.shapes import Shape
from surehand.client.messages import public_jwk, read_key, sign
from surehand.process.exits import ExitCode, OutputLost, SurehandError
from surehand.process.files import make_folder, replace_whole, replacing
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ContentClaims, ExportClaims, Signed, audience
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.identity import tenant_of_run


class ExportSignature(Shape):
    """Of an exported file."""

    signer: str
    """As the signature says; what proves it is the key."""
    kid: str
    tenant: str
    signed_at: datetime
    verified: bool
    """False: nobody has named the signer's key (``--signer``), so all of this is only claimed."""


def signed_head(
    settings: ClientSettings, events: Sequence[Mapping[str, Any]], head: ChainHead
) -> str:
    """Return the line that ends a signed export; nothing where no key is named."""
    if settings.key is None:
        return ""

    key = read_key(settings.key)
    found = verify_chain(events, [head])
    if found is not None:
        run_id = str(events[0]["run_id"]) if events else ""
        raise SurehandError(
            f"not signed, and not written: the chain is broken at {found}"
            f" (`{settings.command('audit', run_id)}`)",
            code=ExitCode.BROKEN,
        )
    claims = ExportClaims(
        aud=audience(settings.tenant),
        sub=settings.user,
        iat=int(time.time()),
        run_id=str(events[-1]["run_id"]),
        seq=head.seq,
        head=head.hash,
    )
    return signature_line(sign(key, claims))


def shown_signature(token: str, claims_of: type[Signed], *, verified: bool) -> ExportSignature:
    """Return what a signature of the right form says."""
    kid, claims = claims_to_be(token, claims_of)
    return ExportSignature(
        signer=claims.sub,
        kid=kid,
        tenant=claims.aud.removeprefix(audience("")),
        signed_at=datetime.fromtimestamp(claims.iat, UTC),
        verified=verified,
    )


def signature_text(signature: ExportSignature) -> str:
    """Return in one line who has signed an export, or who is said to have."""
    who = (
        f"{signature.signer} (key {signature.kid}) at {shown_time(signature.signed_at)},"
        f" for tenant {signature.tenant}"
    )
    if signature.verified:
        return f"Signed by {who}: verified."
    return f"Claims to be signed by {who}: NOT verified, name the public key (--signer FILE)."


#: Bytes that are encoded at once: a multiple of 3, so that the parts are one Base64 text.
_PART: Final = 3 * 256 * 1024
#: Who may read an export: it has what people were not to keep.
_MODE: Final = 0o600
_ROW: Final = b'{"row": '
_FILE: Final = b'{"file": '
_SIGNATURE: Final = b'{"signature": '


@dataclass(frozen=True)
class FoundInFile:
    """What a file has."""

    rows: int
    files: int
    digest: str
    """Of all lines above the signature."""
    digest_of_rows: str
    token: str | None

    def told(self) -> str:
        """Return how much it is."""
        return f"{self.rows} rows and {self.files} files"


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
            if content.kind != "checkpoints":
                made += await asyncio.to_thread(self._proven, content)
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
        for file in self._names(content):
            if not file.exists() or await asyncio.to_thread(self._has, file, content):
                return file
        raise AssertionError("names do not end")

    def _names(self, content: Content) -> Iterator[Path]:
        # No run's name has a "+" once it is quoted.
        name = f"{quote(content.run_id, safe='~')}+{content.kind}"
        yield self._folder / f"{name}.jsonl"
        for number in itertools.count(2):
            yield self._folder / f"{name}+{number}.jsonl"

    def _proven(self, content: Content) -> list[Path]:
        """Return all exports of a kind: one of before a row changed may be the one with files."""
        there = itertools.takewhile(Path.exists, self._names(content))
        return [file for file in there if self._why_unproven(read_content(file), content) is None]

    def _has(self, file: Path, content: Content) -> bool:
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
                written.write(self._signature(content, hashed.digest()))
        except FileExistsError:
            # Another round was faster. Only its file surely has what was in the store.
            file = await self._file_for(content)
        if not file.exists() or not await asyncio.to_thread(self._has, file, content):
            raise OutputLost(f"{file}: what was written is not what was to be")
        return file

    def _signature(self, content: Content, digest: str) -> bytes:
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
    to.write(_FILE + json.dumps(path).encode())
    if data is None:
        to.write(b', "lost": true}\n')
        return
    to.write(b', "base64": "')
    for start in range(0, len(data), _PART):
        to.write(base64.b64encode(data[start : start + _PART]))
    to.write(b'"}\n')


def has_content(file: Path) -> bool:
    """Return whether a file is an export of content, and not of events."""
    with file.open("rb") as read:
        return read.read(len(_FILE)).startswith((_ROW, _FILE))


def read_content(file: Path) -> FoundInFile:
    """Return what an export of content has, whatever it is worth."""
    rows = files = 0
    all_, of_rows, token = hashlib.sha256(), hashlib.sha256(), None
    with file.open("rb") as read:
        for line in _without_signature(read):
            if isinstance(line, str):
                token = line
                continue
            all_.update(line)
            if line.startswith(_FILE):
                files += 1
            else:
                rows += 1
                of_rows.update(line)
    digest, digest_of_rows = (f"sha256:{one.hexdigest()}" for one in (all_, of_rows))
    return FoundInFile(rows, files, digest, digest_of_rows, token)


def _without_signature(read: BinaryIO) -> Iterator[bytes | str]:
    """Yield lines as they are, and the last one, if it is a signature, as its token."""
    before: bytes | None = None
    for line in read:
        if before is not None:
            yield before
        before = line
    if before is None:
        return
    try:
        token = json.loads(before)["signature"] if before.startswith(_SIGNATURE) else None
    except (ValueError, KeyError):
        token = None
    yield before if token is None else str(token)


def why_unproven(
    found: FoundInFile, run_id: str | None, kind: str | None, jwk: Mapping[str, Any] | None
) -> str | None:
    """Return why a file is not what was signed; ``None``: it is.

    Args:
        run_id: Whose content it has to be; ``None``: anybody's.
        kind: Which content; ``None``: any.
        jwk: Whose signature it has to be; ``None``: only what it claims is compared.
    """
    if found.token is None:
        return "the export is not signed, or its end was cut off"
    try:
        claims = claims_to_be(found.token, ContentClaims)[1]
        if jwk is not None:
            claims = verify_token(found.token, jwk, ContentClaims)
    except BadSignature as error:
        return str(error)
    if claims.content != found.digest:
        return "it is not the content that was signed"
    if run_id not in (None, claims.run_id):
        return f"the signature is over the export of another run, {claims.run_id}"
    if kind not in (None, claims.kind):
        return f"the signature is over other data, {claims.kind}"
    if claims.aud != audience(tenant_of_run(claims.run_id)):
        return "the signature is for another tenant"
    return None


def _verify_events(file: Path, head: ChainHead) -> None:

    try:
        events, token = read_export(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, NotAnExport) as error:
        raise OutputLost(f"{file}: what was written cannot be read again: {error}") from error
    found = verify_chain(events, [head]) or verify_signature(events, token, None)
    if found is not None or token is None:
        raise OutputLost(f"{file}: what was written is not what was to be: {found}")
