"""Settles effects in doubt that their own run is not settling; never calls a write forward (G2).

A run settles its own entries. What is left over (a terminated run, a run that waits for something
else, a worker that never came back) is found by the reaper: the outside system is asked, and what
it cannot tell goes to a human.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import structlog
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from surehand.activities.effects.leases import free_leases
from surehand.activities.effects.prepare import bare_request
from surehand.activities.effects.recorder import Done, SaidNo
from surehand.activities.effects.write import CallResult, EffectCall
from surehand.activities.ledger.core.store import LedgerUnavailable, Transaction
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects import reconcile as stale_rows
from surehand.activities.ledger.effects.interventions import open_intervention
from surehand.activities.ledger.steps.entries import Asked, Barred, Entry
from surehand.activities.tools.tool import explain
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.effects import Reconciled

log = structlog.get_logger()


class CannotSettle(Exception):
    """The outside system cannot be asked about an entry; the message says why."""


async def settle_entry(
    worker: WorkerContext, entry: Entry, attempt: Attempt, user: str
) -> tuple[CallResult, ChainHead | None]:
    """Find out whether an effect in doubt happened, without ever calling it forward.

    ``entry`` is under our fencing token. Raises ``CannotSettle``; and ``ApplicationError`` if it
    cannot be known yet.
    """
    tool = worker.toolbox.get(entry.tool)
    if tool is None:
        raise CannotSettle(f"tool {entry.tool!r} is not loaded any more")
    try:
        params = tool.validate(entry.params)
    except Exception as error:  # a validator of the user's own may raise anything
        why = explain(error) if isinstance(error, ValidationError) else repr(error)
        raise CannotSettle(f"its params do not fit the tool now: {why}") from error
    request = await worker.ledger.with_keys(
        lambda: bare_request(worker, entry, tool, entry.params, attempt, key=entry.key, user=user),
        entry.params,
    )
    effect = EffectCall(worker, tool, params, replace(request, undoes=entry.undoes))
    return await effect.reconcile(entry, forward=False), effect.head


async def settle_stale(
    worker: WorkerContext,
    tenant: str,
    is_alive: Callable[[str], Awaitable[bool]],
    *,
    quiet: timedelta,
    limit: int,
    after: str | None = None,
) -> Reconciled:
    """Settle a page of a tenant's stale entries, and return what became of them.

    It also frees the resources that dead calls have left behind. Raises ``LedgerUnavailable`` and
    ``RPCError``: what is settled stays settled. ``is_alive`` says whether a run is still open at
    the Temporal server, ``quiet`` how long an entry is left to its own run first, and ``after`` is
    what the page before has returned as ``next``.
    """
    counts: Counter[str] = Counter()
    entries = await worker.ledger.transact(tenant, stale_rows.stale_entries, quiet, limit, after)
    for seen in entries:
        try:
            outcome = await _reap(worker, seen, is_alive)
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
    following = stale_rows.place_of(entries[-1]) if len(entries) == limit else None
    return Reconciled.model_validate(
        {"looked_at": looked_at, "freed": freed, "next": following, **counts}
    )


async def _reap(
    worker: WorkerContext, seen: Entry, is_alive: Callable[[str], Awaitable[bool]]
) -> str | None:
    """Settle a stale entry and return what became of it; ``None``: somebody was quicker."""
    tool = worker.toolbox.get(seen.tool)
    if tool is not None and tool.lookup is None and await is_alive(seen.run_id):
        # Only calling again could settle it, and that is for its own run to do.
        return "waiting"
    entry = await worker.ledger.transact(seen.tenant, stale_rows.take_over, seen)
    if entry is None:
        return None
    reaper = f"reaper:{uuid.uuid4().hex}"
    # No attempt of the step: its rows tell of its own attempts only.
    attempt = Attempt(number=0, activity_key=reaper, holder=reaper)
    try:
        result, _ = await settle_entry(worker, entry, attempt, "reaper")
    except CannotSettle as error:
        outcome = await _ask_human(worker, entry, str(error))
    except ApplicationError as error:
        log.info("effect.not_settled_yet", entry_id=entry.entry_id, reason=error.message)
        outcome = "waiting"
    else:
        match result:
            case Done():
                outcome = "committed"
            case Barred() | SaidNo():
                outcome = "not_applied"
            case Asked():
                outcome = "asked"
            case _:
                raise AssertionError(f"a reconciliation ended as {result!r}")
    log.info("effect.reaped", entry_id=entry.entry_id, outcome=outcome)
    return outcome


async def _ask_human(worker: WorkerContext, entry: Entry, why: str) -> str:
    question = f"{entry.tool} {entry.key}: {why.rstrip('.')}. Did it happen?"

    def ask(tx: Transaction) -> str:
        if not outcomes.still_ours(tx, entry):
            return "waiting"  # for whoever has taken it over meanwhile
        open_intervention(tx, entry, question, rule="unknown")
        return "asked"

    return await worker.ledger.transact(entry.tenant, ask)
