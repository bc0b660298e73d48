"""The reaper: settles entries that nobody else is settling; it never calls a write forward (G2).

A run settles its own entries. What is left over (a terminated run, a run that waits for something
else, a worker that never came back) is found here: the outside system is asked, and what it cannot
tell goes to a human.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from surehand.activities.effects.leases import free_leases
from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.effects.write import CannotSettle, settle
from surehand.activities.ledger.core.store import LedgerUnavailable, Transaction
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects import reconcile as stale_rows
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.steps.entries import Asked, Barred, Entry
from surehand.activities.worker.attempt import Attempt
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.effects import Reconciled

log = structlog.get_logger()


async def settle_stale(
    worker: WorkerContext,
    tenant: str,
    alive: Callable[[str], Awaitable[bool]],
    *,
    quiet: timedelta,
    limit: int,
    after: str | None = None,
) -> Reconciled:
    """Settle a page of a tenant's stale entries, and return what became of them.

    It also frees the resources that dead calls have left behind.

    Args:
        worker: Its ledger and its tools.
        alive: Whether a run of that id is still open at the Temporal server.
        quiet: How long an entry is left to its own run first.
        limit: Most entries of a page.
        after: What the page before has returned as ``next``.

    Raises:
        LedgerUnavailable: The database is away; what is settled stays settled.
        RPCError: The Temporal server is away.
    """
    counts: Counter[str] = Counter()
    entries = await worker.ledger.transact(tenant, stale_rows.stale_entries, quiet, limit, after)
    for seen in entries:
        try:
            outcome = await _reap(worker, seen, alive)
        except (LedgerUnavailable, RPCError):
            raise
        except Exception:
            # Whatever is wrong with this one, those behind it are come to.
            log.exception("effect.reap_failed", entry_id=seen.entry_id)
            outcome = "waiting"
        if outcome is not None:
            counts[outcome] += 1
            worker.metrics.stale(seen.tool, outcome)
    looked_at, freed = counts.total(), await free_leases(worker.ledger, tenant)
    following = stale_rows.place(entries[-1]) if len(entries) == limit else None
    return Reconciled.model_validate(
        {"looked_at": looked_at, "freed": freed, "next": following, **counts}
    )


async def _reap(
    worker: WorkerContext, seen: Entry, alive: Callable[[str], Awaitable[bool]]
) -> str | None:
    """Settle a stale entry and return what became of it; ``None``: somebody was quicker."""
    tool = worker.toolbox.get(seen.tool)
    if tool is not None and tool.lookup is None and await alive(seen.run_id):
        # Only calling again could settle it, and that is for its own run to do.
        return "waiting"
    entry = await worker.ledger.transact(seen.tenant, stale_rows.take_over, seen)
    if entry is None:
        return None
    outcome = await _settle(worker, entry)
    log.info("effect.reaped", entry_id=entry.entry_id, outcome=outcome)
    return outcome


async def _settle(worker: WorkerContext, entry: Entry) -> str:
    reaper = f"reaper:{uuid.uuid4().hex}"
    # No attempt of the step: its rows tell of its own attempts only.
    attempt = Attempt(number=0, activity_key=reaper, holder=reaper)
    try:
        result, _ = await settle(worker, entry, attempt, "reaper")
    except CannotSettle as error:
        return await _ask(worker, entry, str(error))
    except ApplicationError as error:
        log.info("effect.not_settled_yet", entry_id=entry.entry_id, reason=error.message)
        return "waiting"
    match result:
        case Done():
            return "committed"
        case Barred() | SaidNo():
            return "not_applied"
        case Asked():
            return "asked"
        case _:
            raise AssertionError(f"a reconciliation ended as {result!r}")


async def _ask(worker: WorkerContext, entry: Entry, why: str) -> str:
    question = f"{entry.tool} {entry.key}: {why}. Did it happen?"

    def ask(tx: Transaction) -> str:
        if not outcomes.still_ours(tx, entry):
            return "waiting"  # for whoever has taken it over meanwhile
        open_intervention(tx, entry, question, rule="unknown")
        return "asked"

    return await worker.ledger.transact(entry.tenant, ask)
