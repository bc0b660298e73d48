"""The operator verbs' way to the ledger and the tools; imports ``activities/`` when it is opened.

The other room's errors become exit codes here and nowhere else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from cli.exits import NotFound, NotReachable, WrongUse

if TYPE_CHECKING:
    from activities.artifacts import ArtifactStore
    from activities.ledger.store import Ledger, Transaction
    from activities.settings import Settings
    from activities.toolbox import Toolbox


@contextmanager
def translated() -> Iterator[None]:
    """Turn what ``activities/`` raises into one line with the right exit code."""
    from activities.artifacts import ArtifactsMisconfigured, ArtifactUnavailable
    from activities.ledger.migrate import DatabaseBehind
    from activities.ledger.store import LedgerUnavailable, RunNotFound
    from activities.settings import SettingsError
    from activities.toolbox import ToolboxError

    try:
        yield
    except RunNotFound as error:
        raise NotFound(f"run not found: {error.run_id}") from error
    except (LedgerUnavailable, DatabaseBehind, ArtifactUnavailable) as error:
        raise NotReachable(str(error)) from error
    except (SettingsError, ToolboxError, ArtifactsMisconfigured) as error:
        raise WrongUse(str(error)) from error


def read_settings() -> Settings:
    """Return the worker's settings.

    Raises:
        WrongUse: One is unknown, missing or wrong.
    """
    from activities.settings import load_settings

    with translated():
        return load_settings()


def read_toolbox(settings: Settings) -> Toolbox:
    """Return the tools that a worker with these settings would load.

    Raises:
        WrongUse: A tool module cannot be used.
    """
    from activities.toolbox import load_toolbox

    with translated():
        return load_toolbox(settings.tool_modules)


def notifiers_of(settings: Settings) -> str:
    """Return in one line the notifiers that a worker with these settings would load.

    Raises:
        WrongUse: One is unknown, or one of its settings is missing or wrong.
    """
    from activities.notifiers import NotifiersMisconfigured, load_notifiers, where

    try:
        return where(load_notifiers(settings))
    except NotifiersMisconfigured as error:
        raise WrongUse(str(error)) from error


def open_artifacts(settings: Settings, ledger: Ledger) -> ArtifactStore:
    """Return the store of large values.

    Raises:
        WrongUse: Its URL cannot be used.
    """
    from activities.artifacts import ArtifactStore

    with translated():
        return ArtifactStore(settings.artifacts, ledger, largest_inline=settings.largest_inline)


@asynccontextmanager
async def ledger_of(settings: Settings, patience: timedelta | None = None) -> AsyncIterator[Ledger]:
    """Open the ledger; its errors inside the block become the starter's.

    Args:
        settings: Where it is.
        patience: How long a statement may take, if not the usual time.

    Raises:
        NotReachable: The database is away, or not migrated.
        NotFound: There is no such run in this tenant.
    """
    from activities.ledger.engine import PATIENCE
    from activities.ledger.migrate import require_head
    from activities.ledger.server import require_fit
    from activities.ledger.store import open_ledger

    _log_to_stderr()
    url, channels, limit = settings.database_url, settings.notify, patience or PATIENCE
    with translated():
        async with open_ledger(url, channels=channels, patience=limit) as ledger:
            await require_fit(ledger.engine, fsync_off=settings.fsync_off == "allow")
            await require_head(ledger.engine)
            yield ledger


@asynccontextmanager
async def administration(tenant: str) -> AsyncIterator[Transaction]:
    """Open a transaction that changes who may decide: all of it is written, or nothing.

    Raises:
        WrongUse: The change cannot be made, or not with this role of the database.
        NotReachable: The database is away, or not migrated.
    """
    from activities.ledger import administration as transactions
    from activities.ledger.principals import PrincipalError

    async with ledger_of(read_settings()) as ledger:
        try:
            async with transactions.administration(ledger, tenant) as tx:
                yield tx
        except PrincipalError as error:
            raise WrongUse(str(error)) from error


def _log_to_stderr() -> None:
    """Keep the ledger's own log out of stdout, and to what a person has to know."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
