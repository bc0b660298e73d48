"""``codec serve`` and ``codec token``, and the file of tokens: who may have what decrypted."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import typer

from surehand.cli import options
from surehand.cli.options import keys_of, ledger_of, open_artifacts, read_settings
from surehand.cli.printer import Reply, Shape
from surehand.cli.serving import is_loopback, parse_address, serve_app
from surehand.process.connect import find_target
from surehand.process.exits import ExitCode, WrongUse
from surehand.process.files import stamp_of
from surehand.process.settings import CODEC_TOKEN, KEYS, load_extra
from surehand.workflows.identity import tenant_problem
from surehand.workflows.payload_codec import Store

_LINE: Final = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})\s+(?P<tenants>\S+)\s+(?P<right>\S+)")
_FORM: Final = "sha256:DIGEST TENANT[,TENANT] read|write"
#: Characters of a token that somebody shows.
LONGEST_TOKEN: Final = 400


@dataclass(frozen=True)
class Holder:
    """What whoever holds a token may do."""

    tenants: tuple[str, ...]
    right: Literal["read", "write"]
    """``write``: it may have something encrypted, too."""


class TokenFile:
    """The tokens of a file, by their digests; read again when the file has changed."""

    def __init__(self, file: Path) -> None:
        """Read the file, whose lines ``codec token`` writes."""
        self._file = file
        self._stamp: tuple[int, ...] | None = None
        self._holders = dict[str, Holder]()
        self._read_if_changed()

    def find_holder(self, token: str) -> Holder | None:
        """Return what a token's holder may do; ``None``: it is no token, or not any more."""
        self._read_if_changed()
        # Compared by digest: how long that takes tells nothing of a token.
        return self._holders.get(digest_token(token)) if len(token) <= LONGEST_TOKEN else None

    def _read_if_changed(self) -> None:
        try:
            stamp = stamp_of(self._file)
            if stamp == self._stamp:
                return
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"tokens {self._file} cannot be read: {error}") from error
        holders = dict[str, Holder]()
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                where, match = f"tokens {self._file}, line {number}", _LINE.fullmatch(line)
                if match is None:
                    raise WrongUse(f"{where} is not {_FORM}")
                holders[match["digest"]] = make_holder(match["tenants"], match["right"], where)
        self._stamp, self._holders = stamp, holders


def digest_token(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def write_line(token: str, holder: Holder) -> str:
    return f"sha256:{digest_token(token)} {','.join(holder.tenants)} {holder.right}"


def make_holder(tenants: str, right: str, where: str) -> Holder:
    names = tuple(dict.fromkeys(tenants.split(",")))
    for name in names:
        problem = tenant_problem(name)
        if problem is not None:
            raise WrongUse(f"{where}: tenant {name[:80]!r}: {problem}")
    match right:
        case "read" | "write":
            return Holder(names, right)
    raise WrongUse(f"{where}: right {right[:20]!r}: use read or write")


DEFAULT_ADDRESS: Final = "127.0.0.1:8081"


class NewToken(Shape):
    """``codec token``."""

    token: str
    tenants: list[str]
    right: str


async def serve(
    caller: options.Alone,
    tokens: Annotated[
        Path,
        typer.Option("--tokens", metavar="FILE", help="Who may read: `codec token` makes lines."),
    ],
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen.")
    ] = DEFAULT_ADDRESS,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Where the Web UI is served; several times."),
    ] = None,
) -> ExitCode:
    """Encrypt and decrypt for the Web UI, Temporal's command line, and starters without keys.

    It speaks no TLS: put a proxy in front of it where others reach it.

    Example: surehand codec serve --tokens tokens --origin http://localhost:8233
    """
    address = parse_address("--http", http)
    origins = [_check_origin(text) for text in origin or [caller.settings.ui_url]]
    known = TokenFile(tokens)
    settings, loaded = read_settings(), _load_server()
    async with ledger_of(settings) as ledger:
        keys = keys_of(settings, lambda: ledger)
        if keys is None:
            raise WrongUse(f"there is nothing to decrypt with: set {KEYS}")
        artifacts = open_artifacts(settings, ledger)

        def open_store() -> Store:
            return artifacts.blobs

        made = loaded.CodecServer(
            tokens=known,
            keys=keys,
            open_store=open_store,
            namespace=find_target(caller.environment).namespace,
        )
        app = made.app(origins)

        def app_at(url: str) -> Any:
            caller.printer.warn(f"codec server at {url} (Ctrl-C ends it)")
            if not is_loopback(address[0]):
                caller.printer.warn("it speaks no TLS: a proxy has to, where others reach it")
            return app

        await serve_app(app_at, "--http", address)
    return ExitCode.DONE


def token(
    caller: options.Onlooker,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file of `codec serve --tokens`.")
    ],
    right: Annotated[
        str, typer.Option("--right", help="read, or write: have something encrypted, too.")
    ] = "read",
) -> Reply:
    """Make a token for a tenant: shown once, and only its digest is written.

    Example: surehand codec token tokens --tenant acme --right write
    """
    holder, made = make_holder(caller.tenant, right, "--right"), secrets.token_urlsafe(32)
    try:
        before = file.read_bytes() if file.exists() else b""
        with file.open("a", encoding="utf-8") as written:
            unended = before and not before.endswith(b"\n")
            written.write(("\n" if unended else "") + write_line(made, holder) + "\n")
    except OSError as error:
        raise WrongUse(f"tokens {file} cannot be written: {error.strerror}") from error
    shown = NewToken(token=made, tenants=list(holder.tenants), right=holder.right)
    lines = [
        f"{CODEC_TOKEN}={made}",
        f"It may {holder.right} what is tenant {caller.tenant}'s, and is shown this once.",
    ]
    return Reply(shown, lines)


def _check_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise WrongUse(f"--origin {text}: it looks like https://temporal.example.com")
    return f"{parts.scheme}://{parts.netloc}"


def _load_server() -> ModuleType:
    need = "`codec serve` needs Starlette and uvicorn"
    return load_extra("surehand.cli.codec_server.server", "codec", need)
