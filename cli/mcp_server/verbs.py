"""``mcp serve``: over stdio to the program that has started it, or over HTTP."""

from __future__ import annotations

import hmac
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from surehand.cli import options
from surehand.cli.mcp_server.runs import ServedPlans, ServedRuns
from surehand.cli.options import Caller
from surehand.cli.serving import Served, in_url, is_loopback, parse_address, serve_apps
from surehand.client.messages import read_key
from surehand.process.exits import ExitCode, WrongUse
from surehand.process.settings import load_extra

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

#: Bytes of a request's body, whatever is in it.
_LARGEST_BODY: Final = 1024 * 1024
#: A shorter token can be guessed.
_SHORTEST_TOKEN: Final = 32

_Server = Annotated[Caller, options.Shares(("user", "key", "tenant", "ui_url"))]
_App = Callable[[Any, Any, Any], Awaitable[None]]


async def serve(
    caller: _Server,
    plans: Annotated[
        Path | None, typer.Option("--plans", metavar="DIR", help="Plans that may be started.")
    ] = None,
    all_runs: Annotated[
        bool,
        typer.Option("--all-runs", help="Show all runs of the tenant; without it only your own."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve over HTTP in place of stdio."),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Variable with the token of --http."),
    ] = None,
) -> ExitCode:
    """Serve runs to an assistant over MCP: it starts, shows, answers and cancels, as you.

    It approves nothing. Over HTTP only this machine is served without a token.

    Example: surehand mcp serve --plans plans
    """
    if http is None and token_env is not None:
        raise WrongUse("--token-env is for --http")
    address = None if http is None else parse_address("--http", http)
    token = None if token_env is None else _token(caller, token_env)
    if address is not None and token is None and not is_loopback(address[0]):
        raise WrongUse(
            f"--http {http}: others reach it, so it needs a token: name its variable (--token-env)"
        )
    if caller.settings.key is not None:
        read_key(caller.settings.key)  # what is wrong with it is said now
    served = ServedPlans.read(plans)
    for file, why in served.left_out.items():
        caller.printer.warn(f"{file} is left out: {why}")
    need = "`mcp serve` needs the MCP SDK"
    sdk = load_extra("surehand.cli.mcp_server.server", "mcp", need)
    server = sdk.make_server(ServedRuns(caller, served, all_runs))
    if address is None:
        # Reading from stdin cannot be interrupted in any other way.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        await server.run_stdio_async()
    else:
        await _serve_http(caller, server, address, token)
    return ExitCode.DONE


def _token(caller: Caller, name: str) -> bytes:
    value = caller.environment.get(name, "")
    if not value:
        raise WrongUse(f"--token-env {name}: {name} is not set")
    if len(value) < _SHORTEST_TOKEN or not value.isascii() or not value.isprintable():
        raise WrongUse(
            f"--token-env {name}: a token has {_SHORTEST_TOKEN} or more ASCII characters; make one:"
            " python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return value.encode()


async def _serve_http(
    caller: Caller, server: MCPServer[Any], address: tuple[str, int], token: bytes | None
) -> None:
    from mcp.server.transport_security import TransportSecuritySettings

    host = address[0]
    loopback = is_loopback(host)
    names = [in_url(host), "127.0.0.1", "localhost", "[::1]"]
    app: _App = server.streamable_http_app(
        stateless_http=True,
        max_request_body_size=_LARGEST_BODY,
        host=host,
        # A page in a browser reaches this machine under a name of its own.
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=loopback,
            allowed_hosts=[f"{name}:*" for name in names],
            allowed_origins=[f"http://{name}:*" for name in names],
        ),
    )

    def app_at(url: str) -> _App:
        caller.printer.warn(f"MCP is served at {url}/mcp (Ctrl-C ends it)")
        if token is None:
            caller.printer.warn(
                f"there is no token: whoever is on this machine acts as {caller.settings.user}"
            )
        return app if token is None else _only_with(token, app)

    await serve_apps(Served(app_at, "--http", address))


def _only_with(token: bytes, app: _App) -> _App:
    expected = b"Bearer " + token

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not hmac.compare_digest(given[0], expected):
                head = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
                await send({"type": "http.response.start", "status": 401, "headers": head})
                await send({"type": "http.response.body", "body": b"a bearer token is needed\n"})
                return
        await app(scope, receive, send)

    return guarded
