"""``approvals serve`` and ``approvals link``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import JsonValue

from surehand.cli import options
from surehand.cli.approvals_server.sign_in import (
    DEFAULT_FOLDER,
    LINK_LASTS,
    Links,
    Registered,
    Server,
)
from surehand.cli.halt_calls import read_lifting
from surehand.cli.options import (
    Caller,
    ledger_of,
    open_artifacts,
    option,
    read_settings,
    read_toolbox,
)
from surehand.cli.people import check_name
from surehand.cli.printer import Reply, Shape
from surehand.cli.serving import in_url, parse_address, serve_app
from surehand.process.exits import ExitCode, WrongUse
from surehand.process.settings import PREFIX, is_loopback, load_extra

if TYPE_CHECKING:
    from surehand.activities.worker.settings import Settings
    from surehand.cli.approvals_server.oidc import OidcSignIn

#: By name: a passkey belongs to a name, and no browser makes one for an IP address.
DEFAULT_ADDRESS: Final = "localhost:8082"

_Server = Annotated[Caller, options.Shares(("tenant", "ui_url"))]
State = Annotated[
    Path, option("Where the server leaves word for `link`.", "--state", metavar="FOLDER")
]


class SignInLink(Shape):
    """``approvals link``."""

    link: str
    principal: str
    minutes: int
    """How long it counts, unless it was used."""


async def serve(
    caller: _Server,
    http: Annotated[str, option("Where to listen.", metavar="HOST:PORT")] = DEFAULT_ADDRESS,
    origin: Annotated[
        str | None, option("As browsers reach it, by a proxy that speaks TLS.", metavar="URL")
    ] = None,
    state: State = DEFAULT_FOLDER,
) -> ExitCode:
    """Serve the pages on which approvers see what waits for them, and decide.

    What they decide is signed in their browsers; this server has a key only for votes in a chat. It
    speaks no TLS: put a proxy in front of it if others reach it.

    Example: surehand approvals serve
    """
    address = parse_address("--http", http)
    if origin is None and not is_loopback(address[0]):
        raise WrongUse(
            f"--http {http}: others reach it, so a proxy has to speak TLS: name its address, as"
            " --origin https://approvals.example.com"
        )
    named = None if origin is None else checked_origin(origin)
    from surehand.activities.ledger.people import principals

    settings = read_settings()
    need = "`approvals serve` needs Jinja2"
    loaded = load_extra("surehand.cli.approvals_server.server", "approvals", need)
    schema_of = _find_schemas(caller, settings)
    async with ledger_of(settings) as ledger:

        async def registered(name: str) -> bool:
            return await ledger.transact(caller.tenant, principals.has_principal, name)

        oidc = _find_oidc(settings, caller.tenant, registered)
        chat = None
        if settings.slack_signing_secret.get_secret_value() or settings.chat_key:
            from surehand.cli.approvals_server.chat import chat_of

            chat = chat_of(settings, caller.tenant, registered)
        takes_links = oidc is None or only_here(address[0], named)

        def app_at(url: str) -> Any:
            if address[0] in ("127.0.0.1", "::1"):
                url = url.replace(in_url(address[0]), "localhost")
            server = Server.new(named or url, caller.tenant, takes_links=takes_links)
            server.write(state)
            caller.printer.warn(f"approvals at {server.origin} (Ctrl-C ends it)")
            made = loaded.ApprovalsServer(
                ledger=ledger,
                connect=caller.client,
                tenant=caller.tenant,
                links=Links(server),
                schema_of=schema_of,
                oidc=oidc,
                chat=chat,
                artifacts=cache(lambda: open_artifacts(settings, ledger)),
                read_lifting=lambda: read_lifting(settings),
            )
            return made.app(server.origin)

        await serve_app(app_at, "--http", address)
    return ExitCode.DONE


def _find_oidc(settings: Settings, tenant: str, registered: Registered) -> OidcSignIn | None:
    """Return how people sign in by an identity provider; ``None``: none is set."""
    if not settings.oidc_issuer:
        return None
    need = f"{PREFIX}OIDC_ISSUER needs Authlib"
    loaded = load_extra("surehand.cli.approvals_server.oidc", "approvals", need)
    found: OidcSignIn = loaded.oidc_of(settings, tenant, registered)
    return found


def only_here(host: str, origin: str | None) -> bool:
    """Return whether this machine alone reaches the pages: so that links count beside a provider.

    Whoever reads the server's folder makes links in any name. Where others come by an identity
    provider, that would be a second way past it. Behind a proxy on the same machine they do, too.
    """
    return is_loopback(host) and (origin is None or is_loopback(urlsplit(origin).hostname or ""))


def link(caller: options.Actor, state: State = DEFAULT_FOLDER) -> Reply:
    """Print a link that signs you in at the approvals server once, within ten minutes.

    Whoever has it looks at what waits, in that name. Deciding takes a key besides.

    Example: surehand approvals link --as ann
    """
    name = check_name(caller.settings.user)
    server = Server.read(state)
    if not server.takes_links:
        raise WrongUse(f"{server.origin} takes no links: people sign in with an identity provider")
    if server.tenant != caller.tenant:
        raise WrongUse(f"the server at {server.origin} is for tenant {server.tenant}")
    made = server.link(name, time.time())
    minutes = int(LINK_LASTS.total_seconds()) // 60
    shown = SignInLink(link=made, principal=name, minutes=minutes)
    return Reply(shown, [made, f"It signs {name} in once, within {minutes} minutes."])


def checked_origin(text: str) -> str:
    """Return an origin as browsers name it: with TLS, or on this machine."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    whole = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not host or not whole:
        raise WrongUse(f"--origin {text}: it looks like https://approvals.example.com")
    if parts.scheme == "http" and not is_loopback(host):
        raise WrongUse(f"--origin {text}: others reach it, so it has to be https://")
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{in_url(host)}{'' if port in (None, usual) else f':{port}'}"


def _find_schemas(caller: Caller, settings: Settings) -> Callable[[str, str], JsonValue]:
    """Return what knows the params of tools, as far as their modules are installed here."""
    try:
        toolbox = read_toolbox(settings.tool_modules, settings.mcp)
    except WrongUse as error:
        caller.printer.warn(f"params are edited without their tools' forms: {error}")
        return lambda tool, version: None

    def schema_of(name: str, version: str) -> JsonValue:
        tool = toolbox.get(name)
        fits = tool is not None and tool.version == version
        return tool.definition().params_schema if tool is not None and fits else None

    return schema_of
