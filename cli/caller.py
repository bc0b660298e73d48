"""Who calls a verb: for whom it acts, where it prints, and which server it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.connect import connect, find_target
from cli.exits import StarterError
from cli.printer import Printer
from cli.settings import StarterSettings, read_environment, starter_settings
from cli.tenant_client import TenantClient


@dataclass(frozen=True)
class Caller:
    """Settings, printer and environment, read once at the start of a verb."""

    settings: StarterSettings
    printer: Printer
    environment: Mapping[str, str]

    async def server(self) -> TenantClient:
        """Return a connected client.

        Raises:
            NotReachable: If no server answers.
        """
        target = find_target(self.environment)
        return TenantClient(await connect(target, quiet=True), target, self.settings)


def perform_sync(
    verb: Callable[[Caller], int],
    *,
    json_output: bool = False,
    tenant: str | None = None,
    user: str | None = None,
    ui_url: str | None = None,
    key: Path | None = None,
) -> int:
    """Run one verb to its end and return its exit code; expected errors are printed.

    Args:
        verb: What to do.
        json_output: Print one JSON document instead of text.
        tenant: From the command line; wins over the settings.
        user: From the command line; wins over the settings.
        ui_url: From the command line; wins over the settings.
        key: From the command line; wins over the settings.
    """
    printer = Printer(json_output=json_output)
    try:
        environment = read_environment()
        settings = starter_settings(environment, tenant=tenant, user=user, ui_url=ui_url, key=key)
        return verb(Caller(settings, printer, environment))
    except StarterError as error:
        printer.error(error)
        return error.code


def perform(
    verb: Callable[[Caller], Coroutine[Any, Any, int]],
    *,
    json_output: bool = False,
    tenant: str | None = None,
    user: str | None = None,
    ui_url: str | None = None,
    key: Path | None = None,
) -> int:
    """Run one async verb; the rest as :func:`perform_sync`."""
    return perform_sync(
        lambda caller: asyncio.run(verb(caller)),
        json_output=json_output,
        tenant=tenant,
        user=user,
        ui_url=ui_url,
        key=key,
    )
