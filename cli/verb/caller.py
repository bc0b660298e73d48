"""Who calls a verb: for whom it acts, where it prints, and which server it reaches."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from surehand.cli.verb.printer import Printer, Reply
from surehand.cli.verb.shapes import Steered
from surehand.client.client import Client
from surehand.client.connection import Connection
from surehand.client.delivery import LEFT
from surehand.client.ids import find_run_id
from surehand.client.run import Run
from surehand.process.connect import Target, client_converter, connect, find_target
from surehand.process.exits import DecisionRefused, ExitCode, Left, SurehandError, WrongUse
from surehand.process.settings import (
    JUDGED_HERE,
    PREFIX,
    ClientSettings,
    client_settings,
    given_sources,
    given_tenant,
    read_environment,
    routed,
)
from surehand.workflows.encryption import Encryption
from surehand.workflows.identity import DEFAULT_TENANT


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
        """Return the tenant that is acted in."""
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
        """Return the full id of a run by what the command line names it.

        Raises:
            WrongUse: It has not the form of a run id.
            NotFound: It is another tenant's.
        """
        return find_run_id(self.tenant, run)

    async def run(self, name: str) -> Run:
        """Return the run that the command line names.

        Raises:
            WrongUse: It has not the form of a run id.
            NotFound: It is another tenant's.
            NotReachable: If no server answers.
        """
        # Before a server is looked for: what cannot be a run needs none.
        run_id = self.run_id(name)
        return (await self.client()).run(run_id)

    async def connection(self, *, silent: bool = False) -> Connection:
        """Return a connected client.

        Args:
            silent: Nobody is told what is waited for.

        Raises:
            NotReachable: If no server answers.
        """
        target = find_target(self.environment)
        converter = client_converter(target, self._encryption(target))
        client = await connect(target, quiet=True, converter=converter)
        tell = (lambda _: None) if silent else self.printer.warn
        return Connection(client, target, self.settings, tell)

    def _encryption(self, target: Target) -> Encryption | None:
        """Return what encrypts by the keys in the ledger, where this verb can have them."""
        if not target.encrypts or not self.has_ledger:
            return None
        from surehand.cli.verb.ledger_door import encryption_of, read_settings

        return encryption_of(read_settings(), self.opened)

    async def client(self) -> Client:
        """Return a connected client, as users' own programs have it.

        Raises:
            NotReachable: If no server answers.
        """
        signed_only = self.environment.get("SUREHAND_DECISIONS") == "signed"
        return Client(await self.connection(), signed_only=signed_only)


def perform(
    verb: Callable[[Caller], Awaitable[Reply | ExitCode] | Reply | ExitCode],
    *,
    json_output: bool = False,
    judged: bool = True,
    **given: Any,
) -> int:
    """Run one verb to its end, print what it answers, and return the exit code.

    Args:
        verb: What to do; it returns an exit code where all is printed already.
        json_output: Print one JSON document instead of text.
        judged: Refuse wrong settings first; a verb that does not, says itself what is wrong.
        given: Settings from the command line; they win over the others.
    """
    printer = Printer(json_output=json_output)
    try:
        with _in_cell_of(given):
            if judged:
                _require_right_settings()
            environment = read_environment()
            caller = Caller(client_settings(environment, **given), printer, environment)
            with caller.opened:
                reply = _done(verb(caller))
    except Left as left:
        told = f"Run {left.run_id}: nobody has answered yet; {LEFT}"
        reply = Reply(Steered(run_id=left.run_id, message=LEFT), told, left.code)
    except DecisionRefused as refused:
        printer.warn(refused.verdict.message if json_output else str(refused))
        reply = Reply(refused.verdict, (), refused.code)
    except SurehandError as error:
        printer.error(error)
        return error.code
    if isinstance(reply, ExitCode):
        return reply
    printer.reply(reply)
    return reply.code


def _in_cell_of(given: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Have a verb that acts in a tenant reach its cell; other ones go by SUREHAND_CELL."""
    if "tenant" not in given:
        return nullcontext()
    own = given_tenant() if given["tenant"] is None else given["tenant"]
    return routed(tenant=own or DEFAULT_TENANT)


def _done(answer: Awaitable[Reply | ExitCode] | Reply | ExitCode) -> Reply | ExitCode:
    return answer if isinstance(answer, Reply | ExitCode) else asyncio.run(_awaited(answer))


async def _awaited(answer: Awaitable[Reply | ExitCode]) -> Reply | ExitCode:
    return await answer


def _require_right_settings() -> None:
    """Refuse settings that a worker would refuse; one that is missing, this verb may not need.

    What judges them knows the other room, so it is asked only where there is something to judge.

    Raises:
        WrongUse: One is unknown or wrong; it is named, with its file.
    """
    sources = given_sources()
    if sources.settings.keys() <= JUDGED_HERE:
        return
    from surehand.activities.worker.settings import (
        SettingsError,
        judge_settings,
        missing_settings,
    )

    try:
        judge_settings(sources, without=missing_settings(sources))
    except SettingsError as error:
        raise WrongUse(str(error)) from error
