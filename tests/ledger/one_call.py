"""Writes that are recorded as one call of PostgreSQL, or by the general way: told alike."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import select, text

from surehand.activities.effects.next_claim import Ahead, Next
from surehand.activities.effects.prepare import PreparedCall
from surehand.activities.effects.recorder import Recorder
from surehand.activities.ledger.core.schema import metadata
from surehand.activities.ledger.core.tables import effects, runs
from surehand.activities.ledger.effects import claims, one_call
from surehand.activities.ledger.effects.one_call import Outcome, Recorded
from surehand.activities.ledger.history.audit import verify_chain
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, ClaimResult, Entry
from surehand.activities.tools.answers import Dedupes
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.tools import ToolCall
from tests.ledger.attempts import Provider
from tests.ledger.scene import LEASE, SPEC, WINDOW, Scene

#: Different wherever it is told.
_OWN: Final = ("tenant_id", "previous", "hash", "head")
#: How long something lasts, and no time.
_LASTING: Final = ("lease_ms", "timeout_ms", "settle_ms", "window_ms")
#: Times of an entry that count from its first claim.
_FROM_CLAIM: Final = ("lease_until_ms", "deadline_ms", "first_call_ms")
_IN_EVENTS: Final = {"expires_ms", "took_ms"}
#: What the scene counts its holders by.
_COUNTED: Final = re.compile(r":\d+$")
_ENTRY: Final = re.compile(r"\b(ef|iv)-([0-9a-f]{24})")
#: In which tables a tenant has rows.
_THERE: Final = text(
    " UNION ALL ".join(
        f"SELECT '{table.name}' AS name"
        f" WHERE EXISTS (SELECT FROM {table.name} WHERE tenant_id = :tenant)"
        for table in metadata.sorted_tables
        if "tenant_id" in table.c
    )
)


@dataclass
class Following(Ahead):
    """A batch whose next write is known."""

    next: Next

    def find(self, output: Any) -> Next | None:
        """Return it."""
        return self.next


def recorder(scene: Scene, request: ClaimRequest) -> Recorder:
    """Return what records one attempt at a write."""
    loaded = Provider([None]).tool(name=request.tool, dedupes=Dedupes(window=WINDOW))
    worker = WorkerContext(scene.ledger, Toolbox([]), scene.artifacts, Crash(), LEASE, LEASE / 3)
    return Recorder(worker, loaded, request)


async def claim(scene: Scene, request: ClaimRequest) -> ClaimResult:
    """Claim as a worker does: in one call, where that is a way."""
    mine = recorder(scene, request)
    claimed = await mine.claim_in_one_call()
    if claimed is not None:
        return claimed
    return await mine.in_ledger(lambda tx: claims.claim(tx, request))


async def commit(
    scene: Scene,
    request: ClaimRequest,
    entry: Entry,
    receipt: Any = "r-1",
    following: ClaimRequest | None = None,
) -> Claimed | None:
    """Commit as a worker does, and return the claim of what follows, if it was made."""
    mine, ahead = recorder(scene, request), None
    if following is not None:
        ahead = _ahead(mine.worker, following)
    await mine.commit(entry, receipt, ahead=ahead)
    return None if ahead is None or ahead.begun is None else ahead.begun.claimed


def _ahead(worker: WorkerContext, request: ClaimRequest) -> Following:
    call = ToolCall(
        tenant=request.tenant,
        run_id=request.run_id,
        step_id=request.step_id,
        plan_version=1,
        user=request.user,
        tool=SPEC.model_copy(update={"name": request.tool}),
        params={},
    )
    next_ = Next(call, cast(PreparedCall, None), request)
    attempt = Attempt(request.attempt, request.activity_key, request.holder)
    return Following(worker, attempt, lambda _: None, next_)


async def call(
    scene: Scene, run_id: str, outcome: Outcome | None, following: ClaimRequest | None
) -> Recorded | None:
    """Make the one call, and nothing if something is in the way."""
    return await scene.ledger.call(
        scene.tenant, lambda tx: one_call.record_write(tx, run_id, outcome, following)
    )


def outcome(request: ClaimRequest, entry: Entry, receipt: Any = "r-1") -> Outcome:
    """Return that an effect happened."""
    return Outcome(request, entry, Kept(receipt))


def told(scene: Scene) -> dict[str, list[str]]:
    """Return all rows of a tenant that has any, without what is another tenant's there.

    Times are told by what they count from, numbers of commits by their order.
    """
    with scene.tx() as tx:
        numbers = tx.all(
            select(effects.c.commit_no)
            .where(effects.c.tenant_id == tx.tenant, effects.c.commit_no.is_not(None))
            .order_by(effects.c.commit_no)
        )
        order = {row["commit_no"]: place for place, row in enumerate(numbers, start=1)}
        there = {row["name"] for row in tx.all(_THERE.bindparams(tenant=tx.tenant))}
        found = {
            table.name: tx.all(select(table).where(table.c.tenant_id == tx.tenant))
            for table in metadata.sorted_tables
            if table.name in there
        }
    names = _names(found.get(effects.name, []))
    return {
        name: sorted(
            _alike(scene, names, json.dumps(_told(row, order), default=repr)) for row in rows
        )
        for name, rows in found.items()
    }


def _told(row: Mapping[str, Any], order: Mapping[int, int]) -> dict[str, Any]:
    alike = {name: value for name, value in row.items() if name not in _OWN}
    for name, value in alike.items():
        if value is None or name in _LASTING:
            continue
        if name in _FROM_CLAIM and row.get("fencing_token") == 1 and not row["epoch"]:
            alike[name] = value - row["claimed_ms"]
        elif name.endswith("_ms"):
            alike[name] = "a time"
        elif name == "body":
            alike[name] = {**value, **dict.fromkeys(_IN_EVENTS & value.keys(), "a time")}
        elif name == "commit_no":
            alike[name] = order[value]
        elif name == "content":
            alike[name] = "kept"  # sealed, it is other bytes each time
        elif name == "holder":
            alike[name] = _COUNTED.sub("", value)
    return alike


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return entries of whichever tenant by what they are of; an undo's key has another entry."""
    keys = {
        row["entry_id"][3:]: f"({row['tool']} {row['key']} {row['generation']})" for row in rows
    }
    return {name: _named(keys, key) for name, key in keys.items()}


def _named(names: Mapping[str, str], said_: str) -> str:
    return _ENTRY.sub(lambda found: f"{found[1]} {names.get(found[2], found[2])}", said_)


def _alike(scene: Scene, names: Mapping[str, str], said_: str) -> str:
    return _named(names, said_).replace(scene.tenant, "the tenant")


def said(scene: Scene, result: ClaimResult | Exception | None) -> tuple[str, str]:
    """Return what a claim has found, or how it has failed, in words of whichever tenant."""
    words = getattr(result, "reason", getattr(result, "question", ""))
    if isinstance(result, Exception):
        words = str(result).splitlines()[0]
    return type(result).__name__, _alike(scene, _names(scene.rows(effects)), words)


def check_chains(scene: Scene) -> None:
    """Make sure that each run's chain holds, and ends where the run's row says."""
    for run in scene.rows(runs):
        head = ChainHead(seq=run["seq"], hash=run["head"])
        chain = scene.events(run["run_id"])
        assert verify_chain(chain, [head]) is None
        assert len(chain) == run["seq"]
