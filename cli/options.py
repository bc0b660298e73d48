"""What verbs share: who calls them, their options, the way to the ledger, and how one is run.

A verb is a function that returns a reply. Its first parameter is who calls: the type of that says
which of the shared options the verb has. The rest are options and arguments of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    TypeVar,
    get_args,
)

import typer

from surehand.cli.printer import Printer, Reply, Shape, compact, table_or
from surehand.client.client import Client
from surehand.client.connection import LEFT, Connection
from surehand.client.messages import find_run_id
from surehand.client.run import Run as ClientRun
from surehand.process import exits
from surehand.process.connect import client_converter, connect, find_target
from surehand.process.settings import (
    JUDGED_HERE,
    PREFIX,
    ClientSettings,
    client_settings,
    find_tenant,
    read_environment,
    read_sources,
    routed,
)
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.payload_codec import Encryption, KeyErased, NotDecrypted, StoreUnavailable
from surehand.workflows.plan.policy import parse_duration

if TYPE_CHECKING:
    from surehand.activities.artifacts import ArtifactStore
    from surehand.activities.ledger.core.store import Ledger
    from surehand.activities.ledger.core.transaction import Transaction
    from surehand.activities.run_keys import LedgerKeys
    from surehand.activities.tools.toolbox import Toolbox
    from surehand.activities.worker.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


class Steered(Shape):
    """``cancel``, ``resume`` and ``resolve``: the run has taken it."""

    run_id: str
    message: str


@dataclass(frozen=True)
class Caller:
    """Settings, printer and environment, read once at the start of a verb."""

    settings: ClientSettings
    printer: Printer
    environment: Mapping[str, str]
    opened: ExitStack = field(default_factory=ExitStack)
    """What is closed at the end of the verb."""

    @property
    def tenant(self) -> str:
        return self.settings.tenant

    @property
    def has_ledger(self) -> bool:
        """Say whether a ledger is named; most verbs need none."""
        return bool(self.environment.get(f"{PREFIX}DATABASE_URL"))

    @property
    def attended(self) -> bool:
        """Say whether a person is there to be asked, at both ends of the terminal."""
        return self.printer.attended and sys.stdin.isatty() and not self.printer.json_output

    def run_id(self, run: str) -> str:
        return find_run_id(self.tenant, run)

    async def run(self, name: str) -> ClientRun:
        # Before a server is looked for: what cannot be a run needs none.
        run_id = self.run_id(name)
        return (await self.client()).run(run_id)

    async def connection(self, *, silent: bool = False) -> Connection:
        target = find_target(self.environment)
        has_keys = target.encrypts and self.has_ledger
        encryption = encryption_of(read_settings(), self.opened) if has_keys else None
        converter = client_converter(target, encryption)
        client = await connect(target, quiet=True, converter=converter)
        tell = (lambda _: None) if silent else self.printer.warn
        return Connection(client, target, self.settings, tell)

    async def do_transaction(
        self, work: Callable[Concatenate[Transaction, P], T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Do something in one transaction of the tenant's, in a ledger that is opened for it."""
        async with ledger_of(read_settings()) as ledger:
            return await ledger.transact(self.tenant, work, *args, **more)

    async def client(self) -> Client:
        signed_only = self.environment.get("SUREHAND_DECISIONS") == "signed"
        return Client(await self.connection(), signed_only=signed_only)


def perform(
    verb: Callable[[Caller], Coroutine[Any, Any, Reply | exits.ExitCode] | Reply | exits.ExitCode],
    *,
    json_output: bool = False,
    judged: bool = True,
    **given: Any,
) -> int:
    """Run one verb to its end, print what it answers, and return the exit code."""
    printer = Printer(json_output=json_output)
    try:
        with _in_cell_of(given):
            if judged:
                _require_right_settings()
            environment = read_environment()
            caller = Caller(client_settings(environment, **given), printer, environment)
            with caller.opened:
                try:
                    answer = verb(caller)
                    reply = asyncio.run(answer) if isinstance(answer, Coroutine) else answer
                except exits.NoSuchRun as error:
                    known = f"`{caller.settings.command('list')}` lists those there are"
                    raise exits.NoSuchRun(f"{error}; {known}") from error
    except exits.Left as left:
        told = f"Run {left.run_id}: nobody has answered yet; {LEFT}"
        reply = Reply(Steered(run_id=left.run_id, message=LEFT), told, left.code)
    except exits.DecisionRefused as refused:
        printer.warn(refused.verdict.message if json_output else str(refused))
        reply = Reply(refused.verdict, (), refused.code)
    except exits.SurehandError as error:
        printer.error(error)
        return error.code
    if isinstance(reply, exits.ExitCode):
        return reply
    printer.reply(reply)
    return reply.code


def _in_cell_of(given: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Have a verb that acts in a tenant reach its cell; other ones go by SUREHAND_CELL."""
    if "tenant" not in given:
        return nullcontext()
    own = find_tenant() if given["tenant"] is None else given["tenant"]
    return routed(tenant=own or DEFAULT_TENANT)


def _require_right_settings() -> None:
    """Refuse settings that a worker would refuse; one that is missing, this verb may not need.

    What judges them knows the other room, so it is asked only where there is something to judge.
    """
    sources = read_sources()
    if sources.settings.keys() <= JUDGED_HERE:
        return
    from surehand.activities.worker.settings import judge_settings, missing_settings

    judge_settings(sources, without=missing_settings(sources))


def read_duration(text: str) -> timedelta:
    """Return ``90s``, ``10m`` or ``2h`` as a timedelta above zero."""
    try:
        parsed = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from error
    if not isinstance(parsed, timedelta) or parsed <= timedelta(0):
        raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 10m or 2h")
    return parsed


def parse_moment(text: str) -> datetime:
    """Return an instant; a time that does not say its time zone is a ``ValueError``."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def refuse_lone_timeout(wait: bool, timeout: timedelta | None) -> None:
    if timeout is not None and not wait:
        raise exits.WrongUse("--timeout is for --wait")


def option(meaning: str, *names: str, **more: Any) -> Any:
    """Return how a parameter is an option; without a name, the parameter's own is taken."""
    return typer.Option(*names, help=meaning, **more)


def flag(meaning: str, *names: str) -> Any:
    """Return how a parameter is an option without a value; there is no ``--no-...`` of it."""
    return option(meaning, *names)


def argument(metavar: str, meaning: str) -> Any:
    return typer.Argument(metavar=metavar, help=meaning)


def duration_option(meaning: str, **more: Any) -> Any:
    return option(meaning, parser=read_duration, metavar="DURATION", **more)


For = Annotated[str | None, option("Whom the run acts for; default you.", "--for", metavar="USER")]
Reason = Annotated[str, option("Recorded with it.")]
Run = Annotated[str, argument("RUN", "A run's name or full id.")]
PlanFile = Annotated[str, argument("PLAN", "A YAML or JSON file.")]
RunName = Annotated[str | None, option("Name of the new run; default PLAN-NAME-RANDOM.")]
Changes = Annotated[
    list[str] | None,
    option("Change the plan, e.g. input.order_id=order-7.", "--set", metavar="PATH=VALUE"),
]
Wait = Annotated[
    bool, flag("Stay until it ends or, without a terminal, needs a human; the exit code says how.")
]
Leave = Annotated[
    bool, flag("If no worker answers, leave it with the server: it counts once one does.")
]
Timeout = Annotated[timedelta | None, duration_option("Wait at most so long, e.g. 10m.")]
OnlyRun = Annotated[str | None, argument("RUN", "Only this run's; default all.")]
Limit = Annotated[int, option("At most so many runs, those started last.", min=1, max=10_000)]

#: The options that say who calls; each verb has them last, in this order. None has to be given.
_SHARED: Final[dict[str, Any]] = {
    "user": Annotated[
        str | None, option("Who you are; default SUREHAND_USER, else the login name.", "--as")
    ],
    "key": Annotated[Path | None, option("Your private key, to sign with; default SUREHAND_KEY.")],
    "tenant": Annotated[str | None, option("Tenant to act in; default SUREHAND_TENANT.")],
    "ui_url": Annotated[
        str | None, option("Address of the Web UI; default TEMPORAL_UI_URL.", "--ui")
    ],
    "json_output": Annotated[
        bool, flag("Print one JSON document on stdout, all else on stderr.", "--json")
    ],
}


@dataclass(frozen=True)
class Shares:
    """Which of the shared options a verb has."""

    names: tuple[str, ...] = ()
    judged: bool = True
    """Whether wrong settings are refused before it begins."""


#: Who calls a verb that serves until it is ended, and has no document.
Alone = Annotated[Caller, Shares()]
#: Who calls a verb that acts for nobody.
Anybody = Annotated[Caller, Shares(("json_output",))]
#: Who calls a verb of which no setting is asked, or which says itself what is wrong with them.
Unjudged = Annotated[Caller, Shares(("json_output",), judged=False)]
#: Who calls a verb that looks at a tenant.
Onlooker = Annotated[Caller, Shares(("tenant", "json_output"))]
#: Who calls a verb that records who has asked for it.
Actor = Annotated[Caller, Shares(("user", "tenant", "json_output"))]
#: Who calls a verb that sends something, which may be signed.
Sender = Annotated[Caller, Shares(("user", "key", "tenant", "json_output"))]


def command_of(verb: Callable[..., Any]) -> Callable[..., int]:
    """Return a verb as Typer reads it: a function of its own options and those that it shares."""
    caller, *own = inspect.signature(verb, eval_str=True).parameters.values()
    _, shares = get_args(caller.annotation)

    def command(**given: Any) -> int:
        shared = {name: given.pop(name) for name in shares.names}
        return perform(lambda who: verb(who, **given), judged=shares.judged, **shared)

    last = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=declared,
            default=False if get_args(declared)[0] is bool else None,
        )
        for name, declared in _SHARED.items()
        if name in shares.names
    ]
    for one in own:
        kind, *how = get_args(one.annotation)
        if kind is bool and how[0].default is ...:  # where Typer puts the first name
            # Of a flag's own name, Typer would also make one that says no.
            how[0].param_decls = (f"--{one.name.replace('_', '-')}",)
    first = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    command.__signature__ = inspect.Signature([*first, *last])  # type: ignore[attr-defined]
    return command


# The operator verbs' way to the ledger and the tools: `activities/` is imported when it is opened.


class LedgerRows(Shape):
    """``effects``, ``events``, ``interventions``, ``notifications``: rows of the ledger."""

    run_id: str | None
    rows: list[dict[str, Any]]


@contextmanager
def translated() -> Iterator[None]:
    """Give exit codes to what the pure payload codec raises; all other errors have their own."""
    try:
        yield
    except StoreUnavailable as error:
        raise exits.NotReachable(f"the artifact store: {error}") from error
    except KeyErased as error:
        raise exits.NotFound(str(error)) from error
    except NotDecrypted as error:
        raise exits.NotReachable(str(error)) from error


def read_settings() -> Settings:
    from surehand.activities.worker.settings import load_settings

    return load_settings()


def read_toolbox(modules: Sequence[str], mcp: str) -> Toolbox:
    from surehand.activities.mcp.tools import mcp_tools
    from surehand.activities.tools.toolbox import load_toolbox

    return load_toolbox(modules, mcp_tools(mcp))


def open_artifacts(settings: Settings, ledger: Ledger) -> ArtifactStore:
    from surehand.activities.artifacts import ArtifactStore

    return ArtifactStore(settings.artifacts, ledger, largest_inline=settings.largest_inline)


@asynccontextmanager
async def ledger_of(settings: Settings, patience: timedelta | None = None) -> AsyncIterator[Ledger]:
    """Open the ledger; its errors inside the block become the starter's.

    ``patience``: how long a statement may take, if not the usual time.
    """
    from surehand.activities.ledger.core.engine import PATIENCE, require_fit
    from surehand.activities.ledger.core.migrate import require_head
    from surehand.activities.ledger.core.store import open_ledger

    _log_to_stderr()
    url, channels, limit = settings.database_url, settings.notify, patience or PATIENCE
    with translated():
        async with open_ledger(url, channels=channels, patience=limit) as ledger:
            require_fit(ledger.engine, fsync_off=settings.fsync_off == "allow")
            require_head(ledger.engine)
            ledger.keys = keys_of(settings, lambda: ledger)
            ledger.passkey_origins = settings.passkey_origins
            yield ledger


def encryption_of(settings: Settings, opened: ExitStack) -> Encryption | None:
    """Return what encrypts by the keys in the ledger, which is opened once it needs one."""
    from surehand.activities.ledger.core.engine import make_engine
    from surehand.activities.ledger.core.store import Ledger
    from surehand.process.ciphers import RunEncryption

    @cache
    def ledger() -> Ledger:
        _log_to_stderr()
        made = Ledger(make_engine(settings.database_url))
        opened.callback(made.close)
        return made

    keys = keys_of(settings, ledger)
    return None if keys is None else RunEncryption(keys)


def keys_of(settings: Settings, ledger: Callable[[], Ledger]) -> LedgerKeys | None:
    """Return the keys of runs; ``None``: nothing is encrypted."""
    from surehand.activities.run_keys import LedgerKeys

    return LedgerKeys.of(settings.key_encryption_keys.get_secret_value(), ledger)


@asynccontextmanager
async def administration(tenant: str, *, forgets: bool = False) -> AsyncIterator[Transaction]:
    """Open a transaction of an administrator's: all of it is written, or nothing.

    ``forgets``: what it overwrites must not stay in the files of an SQLite database.
    """
    from surehand.activities.ledger.core.engine import forget_log
    from surehand.activities.ledger.people.principals import open_administration

    async with ledger_of(read_settings()) as ledger:
        with open_administration(ledger, tenant) as tx:
            yield tx
        if forgets:
            await asyncio.to_thread(forget_log, ledger.engine)


def rows_reply(
    run_id: str | None, columns: Sequence[str], rows: list[dict[str, Any]], nothing: str
) -> Reply:
    cells = [["" if row[name] is None else compact(row[name]) for name in columns] for row in rows]
    heads = [name.removesuffix("_id") for name in columns]
    return Reply(LedgerRows(run_id=run_id, rows=rows), table_or(heads, cells, nothing))


def _log_to_stderr() -> None:
    """Keep the ledger's own log out of stdout, and to what a person has to know."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
