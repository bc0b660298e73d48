"""The tools of all benchmarks.

`world`: tools to be killed in, one for each way in which a tool can recover. `quick`: a step of
them costs what its protection costs. The refund's are as the shop's are, but for the shop: they
answer at once, with the keys, lookups, undos and the approval of ``examples/refund.yaml``.

The outside world is a file of lines, ``BENCHMARK_WORLD``: who called, when, and whether that
changed anything. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from sqlalchemy import text
from temporalio import activity

from surehand.activities.tools.tool import Dedupes, Found, NotFound, Tool, ToolContext
from surehand.activities.tools.toolbox import READ, WRITE, tool
from surehand.examples.shop import tools as shop
from surehand.examples.shop.params import (
    CalculateParams,
    Line,
    Mailed,
    MailParams,
    Order,
    OrderParams,
    Refund,
    Refundable,
    RefundParams,
    Restocked,
    RestockParams,
)
from surehand.workflows.plan.policy import ApprovalPolicy

#: What the transactional tool writes to, beside the ledger's own tables.
TABLE: Final = "CREATE TABLE bookings (run TEXT NOT NULL)"
_BOOK: Final = text("INSERT INTO bookings (run) VALUES (:run)")
#: The provider forgets keys after a day.
_KEYS_KEPT: Final = Dedupes(timedelta(hours=24))

#: Deadline and settle time of the tool with a lookup: those of the example shop.
LOOKUP_DEADLINE: Final = timedelta(seconds=5)
LOOKUP_SETTLE: Final = timedelta(seconds=1)
#: Of the quick tools: short enough for a call inside the workflow task, if the mode allows it.
_QUICK: Final = timedelta(seconds=5)


class Call(BaseModel):
    """Params of the tools of the world."""

    first_takes: float = 0
    """Seconds that the first call takes to answer, after it has arrived."""


def calls(world: Path) -> list[dict[str, Any]]:
    """Return what has arrived in the world so far: run, step, key, at, pid, applied."""
    if not world.exists():
        return []
    return [json.loads(line) for line in world.read_text(encoding="utf-8").splitlines()]


def _arrived(key: str) -> bool:
    return any(call["key"] == key for call in calls(_world()))


async def _arrive(params: Call, ctx: ToolContext, *, dedupes: bool = True) -> dict[str, JsonValue]:
    """Write down that a call has arrived, and answer it."""
    key = ctx.idempotency_key or f"{ctx.run_id}:{ctx.step_id}"  # a read has none
    first = not _arrived(key)
    call: dict[str, Any] = {
        "run": ctx.run_id,
        "step": ctx.step_id,
        "key": key,
        "at": time.monotonic(),
        "pid": os.getpid(),
        "applied": first or not dedupes,
    }
    with _world().open("a", encoding="utf-8") as world:
        world.write(f"{json.dumps(call)}\n")
    if first:
        await asyncio.sleep(params.first_takes)
    return {"at": call["at"]}


def _world() -> Path:
    return Path(os.environ["BENCHMARK_WORLD"])


@tool(
    "world.sign_off",
    effect=WRITE,
    dedupes=_KEYS_KEPT,
    irreversible=True,
    approval=ApprovalPolicy(expires_in=timedelta(hours=1)),
)
async def sign_off(params: Call, ctx: ToolContext) -> JsonValue:
    """Write down when an approved call arrives, and nothing else: there are a thousand of them."""
    at = time.monotonic()
    with _world().open("a", encoding="utf-8") as world:
        world.write(f"{json.dumps({'run': ctx.run_id, 'at': at})}\n")
    return at


@tool("world.read", effect=READ)
async def read(params: Call, ctx: ToolContext) -> JsonValue:
    """Read something."""
    return await _arrive(params, ctx)


@tool("world.put", effect=WRITE, dedupes=_KEYS_KEPT, irreversible=True)
async def put(params: Call, ctx: ToolContext) -> JsonValue:
    """Change something; the same key changes nothing the second time."""
    return await _arrive(params, ctx)


@tool("world.book", effect=WRITE, transactional=True, irreversible=True)
async def book(params: Call, ctx: ToolContext) -> JsonValue:
    """Write a row into the ledger's database."""
    assert ctx.session is not None
    await ctx.session.execute(_BOOK, {"run": ctx.run_id})
    return await _arrive(params, ctx)


async def find_order(params: Call, ctx: ToolContext) -> Found | NotFound:
    """Ask whether an order has arrived."""
    return Found({}) if _arrived(ctx.idempotency_key) else NotFound()


@tool(
    "world.order",
    effect=WRITE,
    timeout=LOOKUP_DEADLINE,
    lookup=find_order,
    settle=LOOKUP_SETTLE,
    irreversible=True,
)
async def order(params: Call, ctx: ToolContext) -> JsonValue:
    """Change something; every call does so again."""
    return await _arrive(params, ctx, dedupes=False)


@tool(
    "world.put_approved",
    effect=WRITE,
    dedupes=_KEYS_KEPT,
    irreversible=True,
    approval=ApprovalPolicy(expires_in=timedelta(hours=1)),
)
async def put_approved(params: Call, ctx: ToolContext) -> JsonValue:
    """Change something that somebody has approved."""
    return await _arrive(params, ctx)


class Quick(BaseModel):
    """Params of a call that succeeds at once."""

    takes: float = 0
    """Seconds that the call takes."""


async def answer(takes: float) -> dict[str, JsonValue]:
    """Return when the call began, by the machine's monotonic clock."""
    at = time.monotonic()
    if takes:
        await asyncio.sleep(takes)
    return {"at": at}


@tool("quick.read", effect=READ, timeout=_QUICK)
async def read_quickly(params: Quick, ctx: ToolContext) -> JsonValue:
    """Read nothing."""
    return dict(await answer(params.takes))


@tool("quick.write", effect=WRITE, timeout=_QUICK, dedupes=_KEYS_KEPT, irreversible=True)
async def write_quickly(params: Quick, ctx: ToolContext) -> JsonValue:
    """Change nothing."""
    return dict(await answer(params.takes))


@tool(
    "quick.leased",
    effect=WRITE,
    timeout=_QUICK,
    dedupes=_KEYS_KEPT,
    irreversible=True,
    resource=lambda params: "room-1",
)
async def write_leased(params: Quick, ctx: ToolContext) -> JsonValue:
    """Change nothing, holding a resource that is free."""
    return dict(await answer(params.takes))


class Paid(Quick):
    """Params of a call that limits may be for."""

    customer: str
    amount: int = 1


@tool("quick.free", effect=WRITE, timeout=_QUICK, dedupes=_KEYS_KEPT, irreversible=True)
async def pay_freely(params: Paid, ctx: ToolContext) -> JsonValue:
    """Change nothing."""
    return dict(await answer(params.takes))


@tool("quick.limited", effect=WRITE, timeout=_QUICK, dedupes=_KEYS_KEPT, irreversible=True)
async def pay_within_limits(params: Paid, ctx: ToolContext) -> JsonValue:
    """Change nothing, within ten limits."""
    return dict(await answer(params.takes))


_PAID: Final = Decimal("120.00")


@activity.defn
async def order_of(params: OrderParams) -> Order:
    """Return an order that was paid."""
    return Order(
        order_id=params.order_id,
        status="paid",
        currency="EUR",
        paid=_PAID,
        refunded=Decimal(0),
        customer_email="customer@example.com",
        lines=(Line(sku="mug-blue", quantity=2), Line(sku="tea-green", quantity=1)),
    )


@activity.defn
async def refundable_of(params: CalculateParams) -> Refundable:
    """Return what was paid."""
    return Refundable(amount=params.paid)


@activity.defn
async def refund_of(params: RefundParams) -> Refund:
    """Pay nothing back."""
    return Refund(
        refund_id=f"refund-{params.order_id}",
        order_id=params.order_id,
        amount=params.amount,
        currency=params.currency,
    )


@activity.defn
async def restock_of(params: RestockParams) -> Restocked:
    """Put nothing back."""
    number = f"restock-{params.order_id}"
    return Restocked(restock_id=number, order_id=params.order_id, lines=params.lines)


@activity.defn
async def mail_of(params: MailParams) -> Mailed:
    """Send nothing."""
    return Mailed(mail_id=f"mail-{params.order_id}", to=params.to)


#: What Temporal alone calls for a refund.
REFUND_CALLS: Final = (order_of, refundable_of, refund_of, restock_of, mail_of)


def _answer_at_once(one: Tool, answer: Any) -> Tool:
    async def fn(params: Any, ctx: ToolContext) -> Any:
        return await answer(params)

    return replace(one, fn=fn)


read_order: Final = _answer_at_once(shop.read_order, order_of)
calculate_refund: Final = _answer_at_once(shop.calculate_refund, refundable_of)
refund: Final = _answer_at_once(shop.refund, refund_of)
restock: Final = _answer_at_once(shop.restock, restock_of)
send_mail: Final = _answer_at_once(shop.send_mail, mail_of)
# Named by what would undo a refund and a restock; nothing is undone here.
cancel_refund: Final = shop.cancel_refund
undo_restock: Final = shop.undo_restock
