"""Resource leases: calls that name the same resource never overlap, whichever tools they are of.

A row is one resource of a tenant. It stays when the resource is free, so that its fencing token
grows with each lease. Renewal, release and freeing name the token they expect; expiry is judged
by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from surehand.activities.ledger.core.statements import OfRow, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import leases
from surehand.activities.ledger.effects.epochs import least_token
from surehand.activities.ledger.steps.entries import milliseconds


@dataclass(frozen=True)
class LeaseRequest:
    """Asks for the resources of one call."""

    tenant: str
    run_id: str
    step_id: str
    tool: str
    resources: tuple[str, ...]
    """Sorted and without doubles: the one order in which everybody locks them."""
    holder: str
    """Unique to this attempt."""
    attempt: int
    lease: timedelta


@dataclass(frozen=True)
class Lease(OfRow):
    """One resource, held under a fencing token."""

    resource: str
    run_id: str
    step_id: str
    tool: str
    holder: str | None
    fencing_token: int

    @property
    def held(self) -> dict[str, Any]:
        """What its row has to be that is still its call's own."""
        token = {"resource": self.resource, "fencing_token": self.fencing_token}
        return {**token, "holder": self.holder}

    def tell_lease(self, tx: Transaction, type_: str, **more: Any) -> None:
        """Add an event about it to the chain of its run."""
        about: dict[str, Any] = {"tool": self.tool, "fencing_token": self.fencing_token}
        step = {"step_id": self.step_id, "resource": self.resource}
        tx.event(self.run_id, type_, **step, **about, **more)


@dataclass(frozen=True)
class Busy:
    """Somebody else holds one of the resources; none was acquired."""

    resource: str
    run_id: str
    step_id: str

    def __str__(self) -> str:
        return f"resource {self.resource!r} is held by step {self.step_id} of run {self.run_id}"

    def tell_busy(self, tx: Transaction, type_: str, request: LeaseRequest, **more: Any) -> None:
        """Add an event about it to the chain of the run that waits."""
        held_by = {"run_id": self.run_id, "step_id": self.step_id}
        about = {"resource": self.resource, "tool": request.tool, "held_by": held_by}
        more = {"attempt": request.attempt, **about, **more}
        tx.event(request.run_id, type_, step_id=request.step_id, **more)


def acquire_resources(
    tx: Transaction, request: LeaseRequest, waited: timedelta | None = None
) -> tuple[Lease, ...] | Busy:
    """Acquire all the resources of a call, or none: who waits holds nothing.

    A later attempt of the step that holds a resource takes it over at once, because Temporal has
    given the earlier one up. That one may still be calling, so others are kept out until its lease
    would have run out, even if the resource is released before.

    ``waited`` says how long this attempt has waited; ``None`` at its first try, which records a
    wait.
    """
    for resource in request.resources:
        tx.lock_resource(resource)
    rows = tx.all(
        rows_of(leases)
        .where(leases.c.resource.in_(request.resources))
        .order_by(leases.c.resource)
        .with_for_update()
    )
    tx.tick()
    found = {row["resource"]: _cut_implausible(tx, row) for row in rows}
    for resource in request.resources:
        row = found.get(resource)
        if row is None or _is_own(request, row):
            continue
        if max(row["lease_until_ms"] or 0, row["others_after_ms"]) > tx.now_ms:
            busy = Busy(resource, row["run_id"], row["step_id"])
            if waited is None:
                busy.tell_busy(tx, "resource.waited", request)
            return busy
    return tuple(
        [_take_resource(tx, request, name, found.get(name), waited) for name in request.resources]
    )


def _cut_implausible(tx: Transaction, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose times were cut, if they are of a clock that was set back since."""
    longest = tx.now_ms + row["lease_ms"]
    times = ("lease_until_ms", "others_after_ms")
    cut = {name: longest for name in times if (row[name] or 0) > longest}
    if cut:
        lease = Lease.from_row(row)
        tx.execute(update_rows(leases, **lease.held).values(cut))
        lease.tell_lease(
            tx, "clock.set_back", evidence=", ".join(cut), action="cut_to_what_it_can_be"
        )
    return {**row, **cut}


def _is_own(request: LeaseRequest, row: Mapping[str, Any]) -> bool:
    return (row["run_id"], row["step_id"]) == (request.run_id, request.step_id)


def _take_resource(
    tx: Transaction,
    request: LeaseRequest,
    resource: str,
    row: Mapping[str, Any] | None,
    waited: timedelta | None,
) -> Lease:
    token, others_after_ms, rule = least_token(tx), 0, None
    lease_ms = milliseconds(request.lease)
    if row is not None:
        token, others_after_ms = max(token, row["fencing_token"] + 1), row["others_after_ms"]
        # An attempt that lost the answer to its own request has called nothing under it.
        if row["holder"] not in (None, request.holder):
            others_after_ms = max(others_after_ms, row["lease_until_ms"])
            rule = "taken_over" if _is_own(request, row) else "expired"
        if others_after_ms > tx.now_ms:
            lease_ms = max(lease_ms, row["lease_ms"])
    lease = Lease(resource, request.run_id, request.step_id, request.tool, request.holder, token)
    values = {
        **vars(lease),
        "lease_until_ms": tx.now_ms + milliseconds(request.lease),
        "lease_ms": lease_ms,
        "others_after_ms": others_after_ms,
        "acquired_ms": tx.now_ms,
    }
    if row is None:
        tx.insert_row(leases, **values)
    else:
        touched = tx.execute(update_rows(leases, **Lease.from_row(row).held).values(values))
        assert touched == 1, "the resource is locked by this transaction"
    waited_ms = None if waited is None else milliseconds(waited)
    attempt = request.attempt
    lease.tell_lease(tx, "resource.acquired", attempt=attempt, rule=rule, waited_ms=waited_ms)
    return lease


def renew_resources(tx: Transaction, held: Sequence[Lease], limit: timedelta) -> bool:
    """Extend a call's leases; ``False`` when one of them is not its own any more."""
    until_ms = tx.now_ms + milliseconds(limit)
    return all(
        tx.execute(update_rows(leases, **lease.held).values(lease_until_ms=until_ms))
        for lease in held
    )


def release_resources(tx: Transaction, held: Sequence[Lease]) -> None:
    """Free a call's resources; one that it has lost stays as it is."""
    for lease in _free(tx, held):
        lease.tell_lease(tx, "resource.released")


def _free(tx: Transaction, held: Sequence[Lease]) -> list[Lease]:
    """Free resources and return those that were held until now."""
    free = {"holder": None, "lease_until_ms": None}
    return [one for one in held if tx.execute(update_rows(leases, **one.held).values(free))]


def find_lost_resources(tx: Transaction, held: Sequence[Lease]) -> list[str]:
    """Return the resources that are not a call's own any more, or whose lease is over."""
    alive = leases.c.lease_until_ms > tx.now_ms
    own = {
        one.resource: rows_of(leases, leases.c.resource, **one.held).where(alive) for one in held
    }
    return [resource for resource, query in own.items() if not tx.has(query)]


def record_busy_resource(
    tx: Transaction, request: LeaseRequest, busy: Busy, waited: timedelta
) -> None:
    """Record that an attempt has waited for a resource in vain."""
    busy.tell_busy(tx, "resource.refused", request, waited_ms=milliseconds(waited))


def free_expired(tx: Transaction, limit: int) -> int:
    """Free resources whose lease ran out and return how many, at most ``limit`` of them.

    Nobody waits for this: who wants such a resource takes it. It fences out a holder that comes
    back, and lets people see that the resource is free.
    """
    rows = tx.all(
        rows_of(leases)
        .where(leases.c.holder.is_not(None), leases.c.lease_until_ms <= tx.now_ms)
        .order_by(leases.c.resource)
        .limit(limit)
        # Somebody is taking it just now: it needs no freeing.
        .with_for_update(skip_locked=True)
    )
    for lease in _free(tx, [Lease.from_row(row) for row in rows]):
        lease.tell_lease(tx, "resource.freed")
    return len(rows)
