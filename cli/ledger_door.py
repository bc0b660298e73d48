"""The operator verbs' way to the ledger and the tools; imports ``activities/`` when it is opened.

The other room's errors become exit codes here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from surehand.cli.printer import Reply, compact, table_or
from surehand.cli.shapes import LedgerRows
from surehand.process.exits import NoSuchRun, NotFound, NotReachable, WrongUse
from surehand.workflows.payload_codec import KeyErased, NotDecrypted

if TYPE_CHECKING:
    from surehand.activities.artifacts import ArtifactStore
    from surehand.activities.ledger.core.store import Ledger, Transaction
    from surehand.activities.run_keys import LedgerKeys
    from surehand.activities.tools.toolbox import Toolbox
    from surehand.activities.worker.settings import Settings
    from surehand.workflows.payload_codec import Encryption


@contextmanager
def translated() -> Iterator[None]:
    """Turn what ``activities/`` raises into one line with the right exit code."""
    from surehand.activities.artifacts import ArtifactsMisconfigured, ArtifactUnavailable
    from surehand.activities.ledger.core.migrate import DatabaseBehind
    from surehand.activities.ledger.core.store import LedgerUnavailable, RunNotFound
    from surehand.activities.ledger.core.transaction import NoKeys
    from surehand.activities.ledger.retention.hiding import RunHidden
    from surehand.activities.tools.toolbox import ToolboxError
    from surehand.activities.worker.settings import SettingsError
    from surehand.workflows.payload_codec import StoreUnavailable

    try:
        yield
    except RunHidden as error:
        raise NoSuchRun(str(error)) from error
    except RunNotFound as error:
        raise NoSuchRun(f"run not found: {error.run_id}") from error
    except (LedgerUnavailable, DatabaseBehind, ArtifactUnavailable) as error:
        raise NotReachable(str(error)) from error
    except StoreUnavailable as error:
        raise NotReachable(f"the artifact store: {error}") from error
    except KeyErased as error:
        raise NotFound(str(error)) from error
    except NotDecrypted as error:
        raise NotReachable(str(error)) from error
    except (SettingsError, ToolboxError, ArtifactsMisconfigured, NoKeys) as error:
        raise WrongUse(str(error)) from error


def read_settings() -> Settings:
    """Return the worker's settings."""
    from surehand.activities.worker.settings import load_settings

    with translated():
        return load_settings()


def read_toolbox(settings: Settings) -> Toolbox:
    """Return the tools that a worker with these settings would load."""
    from surehand.activities.mcp.tools import mcp_tools
    from surehand.activities.tools.toolbox import load_toolbox

    with translated():
        return load_toolbox(settings.tool_modules, mcp_tools(settings.mcp))


def notifiers_of(settings: Settings) -> str:
    """Return in one line the notifiers that a worker with these settings would load."""
    from surehand.activities.notifiers import NotifiersMisconfigured, load_notifiers, where

    try:
        return where(load_notifiers(settings))
    except NotifiersMisconfigured as error:
        raise WrongUse(str(error)) from error


def open_artifacts(settings: Settings, ledger: Ledger) -> ArtifactStore:
    """Return the store of large values."""
    from surehand.activities.artifacts import ArtifactStore

    with translated():
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
    from surehand.activities.ledger.people import principals as transactions
    from surehand.activities.ledger.people.principals import PrincipalError

    async with ledger_of(read_settings()) as ledger:
        try:
            with transactions.open_administration(ledger, tenant) as tx:
                yield tx
        except PrincipalError as error:
            raise WrongUse(str(error)) from error
        if forgets:
            await asyncio.to_thread(forget_log, ledger.engine)


def rows_reply(
    run_id: str | None, columns: Sequence[str], rows: list[dict[str, Any]], nothing: str
) -> Reply:
    """Return rows of the ledger, of which people see some columns."""
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
