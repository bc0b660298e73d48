"""``codec serve`` and ``codec token``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from surehand.cli import options
from surehand.cli.options import argument, keys_of, ledger_of, open_artifacts, option, read_settings
from surehand.cli.printer import Reply, Shape
from surehand.cli.serving import parse_address, serve_app
from surehand.process.connect import find_target
from surehand.process.exits import ExitCode, WrongUse
from surehand.process.settings import KEYS, is_loopback

DEFAULT_ADDRESS: Final = "127.0.0.1:8081"


class NewToken(Shape):
    """``codec token``."""

    token: str
    tenants: list[str]
    right: str


async def serve(
    caller: options.Alone,
    tokens: Annotated[Path, option("Who may read: `codec token` makes lines.", metavar="FILE")],
    http: Annotated[str, option("Where to listen.", metavar="HOST:PORT")] = DEFAULT_ADDRESS,
    origin: Annotated[
        list[str] | None, option("Where the Web UI is served; several times.", metavar="URL")
    ] = None,
) -> ExitCode:
    """Encrypt and decrypt for the Web UI, Temporal's command line, and programs of other languages.

    It speaks no TLS: put a proxy in front of it where others reach it.

    Example: surehand codec serve --tokens tokens --origin http://localhost:8233
    """
    from surehand.cli.codec_server.server import CodecServer, TokenFile

    address = parse_address("--http", http)
    origins = [_check_origin(text) for text in origin or [caller.settings.ui_url]]
    known = TokenFile(tokens)
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        keys = keys_of(settings, lambda: ledger)
        if keys is None:
            raise WrongUse(f"there is nothing to decrypt with: set {KEYS}")
        artifacts = open_artifacts(settings, ledger)
        made = CodecServer(
            tokens=known,
            keys=keys,
            open_store=lambda: artifacts.blobs,
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
    file: Annotated[Path, argument("FILE", "The file of `codec serve --tokens`.")],
    right: Annotated[str, option("read, or write: have something encrypted, too.")] = "read",
) -> Reply:
    """Make a token for a tenant: shown once, and only its digest is written.

    Example: surehand codec token tokens --tenant acme --right write
    """
    from surehand.cli.codec_server.server import make_holder, write_line

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
        f"Token: {made}",
        f"It may {holder.right} what is tenant {caller.tenant}'s, and is shown this once.",
    ]
    return Reply(shown, lines)


def _check_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise WrongUse(f"--origin {text}: it looks like https://temporal.example.com")
    return f"{parts.scheme}://{parts.netloc}"
