"""The designs of Atomix's experiments, on real workers that are killed, and a real shop.

``atomix.yaml`` says what was changed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, Final

import pytest

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.steering import CancelRun
from tests.e2e.papers import FAILS
from tests.e2e.runs import decision_on
from tests.e2e.stage import Stage
from tests.proof.cells import (
    KINDS,
    SEED,
    TIMES,
    TOOLS,
    Cell,
    Show,
    assert_kept,
    call,
    dying_workers,
    happened,
    people,
    seldom,
    shop_of,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.fixture
def database() -> str:
    return "sqlite"


def judge(cell: Cell, show: Show, **more: Any) -> dict[str, Any]:
    return cell.judge(show, **{"wrong": 0, "listed": 0} | more)


DISTURBED: Final = [{"fail": fail} for fail in ("before", "after", "drop_before", "drop_after")]


@pytest.mark.parametrize("p", [*seldom(0.0, 0.1), 0.3, *seldom(0.5)])
async def test_faults_double_and_lose_nothing(stage: Stage, show: Show, p: float) -> None:
    draw, kills = random.Random(f"{SEED} {p}"), round(10 * p)
    endpoints = ("restocks", "restocks.lookup", "mails", "refunds")
    with shop_of(stage, **dict.fromkeys(endpoints, (p, DISTURBED))) as shop:
        stage = replace(stage, shop=shop)
        cells = [
            Cell(stage, shop, {"test": "E3.5", "cell": f"p = {p}"}, kind, (at,), kills=kills)
            for kind, (_, at) in KINDS.items()
        ]
        for cell in cells:
            for _ in range(3 * TIMES):
                its = [shop.new_order() for _ in range(10)]
                cell.orders += its
                await cell.start(*(call(cell.kind, order) for order in its))
        async with (
            dying_workers(stage, kills, draw),
            people(cells[2].runs, stage, lambda order: happened(shop, "refunds", order)),
        ):
            await asyncio.gather(*(cell.end() for cell in cells))
        for cell in cells:
            assert_kept(judge(cell, show))
            assert cell.state() == {"completed"}


POINTS: Final = {
    "P1": CrashPoint.BEFORE_CLAIM,
    "P2": CrashPoint.AFTER_CLAIM,
    "P3": CrashPoint.AFTER_CALL,
    "P4": CrashPoint.AFTER_OUTCOME,
}


@pytest.mark.parametrize("point", [*seldom("P1", "P2"), "P3", *seldom("P4")])
async def test_kills_at_each_point_block_nothing(stage: Stage, show: Show, point: str) -> None:
    """A worker dies at the point of one run's call, and wherever those before it are then."""

    async def kill(cell: Cell) -> None:
        own, tool = cell.stage, KINDS[cell.kind][0]
        async with people(cell.runs, own, lambda order: happened(shop, cell.endpoints[0], order)):
            for _ in range(5 * TIMES):
                cell.orders.append(order := shop.new_order())
                with own.worker(crash_at=f"{tool}:{POINTS[point]}@{order}", **TOOLS) as doomed:
                    await asyncio.to_thread(doomed.wait_ready)
                    await cell.start(call(cell.kind, order))
                    await asyncio.to_thread(doomed.wait_killed)
                    cell.kills += 1
            async with dying_workers(own, 0, random.Random()):
                await cell.end()

    with shop_of(stage) as shop:
        cells, labels = [], {"test": "E5-B3", "cell": f"{point}: {POINTS[point]}"}
        for kind, (_, at) in KINDS.items():
            queue, folder = f"{stage.task_queue}-{kind}", stage.folder / kind
            own = replace(stage, shop=shop, task_queue=queue, folder=folder)
            cells.append(Cell(own, shop, labels, kind, (at,)))
        await asyncio.gather(*map(kill, cells))
        for cell in cells:
            assert_kept(judge(cell, show))
            assert cell.state() == {"completed"}


SOURCES: Final = (
    *seldom("tool failure", "losing speculation"),
    "stale read",
    *seldom("veto", "timeout"),
)


@pytest.mark.parametrize("source", SOURCES)
async def test_an_irreversible_effect_is_made_only_by_who_goes_on(
    stage: Stage, show: Show, source: str
) -> None:
    """Each pair: a run whose abort comes right before its mail, and one that has no abort."""

    async def play(cell: Cell, aborted: bool, order: str, body: str) -> None:
        bad = shop.new_order(status="shipped" if aborted else "paid")
        before = [call("nothing", bad, tool="pay.right")] if source == "tool failure" else []
        tool = "mail.as_it_is" if source == "stale read" else "mail.send"
        soon = "2s" if source == "timeout" and aborted else "10m"
        mail = call("key", order, tool=tool, approval={"expires_in": soon})
        mail["params"]["body"] = body
        run = await cell.start(*before, mail)
        if aborted and source in ("tool failure", "timeout"):
            return
        request = await run.asks()
        if aborted and source == "losing speculation":
            await winner[order].wait()
        if aborted and source == "stale read":
            shop.edit_order(order, status="refunded")
        veto = {"outcome": "reject"} if aborted and source == "veto" else {}
        await run.send(decision_on(request, **veto))
        if aborted and source == "stale read":
            await run.asks(but=request)
            await run.handle.signal("cancel", CancelRun(actor="oscar"))
        if not aborted and source == "losing speculation":
            await run.result()
            winner[order].set()

    winner: dict[str, asyncio.Event] = {}
    with shop_of(stage) as shop:
        stage = replace(stage, shop=shop)
        cells = [
            Cell(
                stage,
                shop,
                {"test": "E4", "cell": f"{source}: {how}"},
                "key",
                ("mails",),
                kills=TIMES,
            )
            for how in ("goes on", "aborted")
        ]
        async with dying_workers(stage, TIMES, random.Random(f"{SEED} {source}")):
            playing = []
            for _ in range(10 * TIMES):
                order = shop.new_order()
                other = order if source == "losing speculation" else shop.new_order()
                winner[order] = asyncio.Event()
                cells[0].orders.append(order)
                cells[1].orders.append(other)
                playing += [play(cells[0], False, order, "yes"), play(cells[1], True, other, "no")]
            await asyncio.gather(*playing)
            await asyncio.gather(*(cell.end() for cell in cells))
        with shop.database() as connection:
            leaked = connection.execute(
                "SELECT count(*) FROM effects WHERE endpoint = 'mails'"
                " AND json_extract(body, '$.body') = 'no'"
            ).fetchone()[0]
        assert_kept(judge(cells[0], show))
        assert_kept(judge(cells[1], show, lost=0, wrong=leaked))
        assert cells[0].state() == {"completed"}
        assert cells[1].state() == {"cancelled" if source == "stale read" else "failed"}


#: What an undo meets: for all requests of its key, or for the first one.
UNDOING: Final = {
    "refund fails": ("key", [{"fail": "before"}]),
    "rate limit": ("first", [{"retry_after": 1}]),
    "window closed": ("key", [{"fail": "before", "status": 409}]),
}


@pytest.mark.parametrize("p", [0.1, *seldom(0.3)])
@pytest.mark.parametrize("mode", [*seldom("refund fails", "rate limit"), "window closed"])
async def test_a_failing_undo_is_reported_as_it_is(
    stage: Stage, show: Show, mode: str, p: float
) -> None:
    of, faults = UNDOING[mode]
    with shop_of(stage, of, refund_cancellations=(p, faults)) as shop:
        stage = replace(stage, shop=shop)
        cell = Cell(
            stage, shop, {"test": "E7", "cell": f"{mode}, p = {p}"}, "lookup", ("refunds",), kills=1
        )
        for _ in range(10 * TIMES):
            cell.orders.append(order := shop.new_order())
            booked = call("lookup", order, id="book")
            await cell.start(booked, call("nothing", order, tool="pay.right"), FAILS)
        async with (
            dying_workers(stage, 1, random.Random(f"{SEED} {mode} {p}"), retries_in_doubt="1s,1s"),
            people(cell.runs, stage, lambda step: "give_up"),
        ):
            await cell.end()
        stands, listed = shop.standing("refunds"), set[str]()
        for result, order in zip(cell.results, cell.orders, strict=True):
            if result is not None and result.uncompensated:
                assert [one.tool for one in result.uncompensated] == ["pay.right"]
                listed.add(order)
        undone = shop.applied("refund_cancellations")
        row = judge(
            cell,
            show,
            **{"doubled": sum(n - 1 for n in undone.values()), "listed": len(listed)},
            wrong=len(stands ^ listed) + len(shop.standing("restocks")),
        )
        # Whatever fails for good is a human's, and the human has given up.
        assert_kept(row, **{"in doubt": len(listed)})
        assert (mode == "rate limit") <= (not listed)
        assert cell.state() == {"failed"}


#: A tool whose declaration is wrong, what it says, and what comes of it: failing closed, or open.
DECLARED: Final = {
    "pay.right": ("nothing wrong", "closed"),
    "pay.broad": ("key of all customers", "closed"),
    "pay.no_undo": ("no undo declared", "closed"),
    "pay.worded": ("key of the words", "doubled"),
    "pay.keyless": ("no key", "doubled"),
    "pay.not_idempotent": ("dedupes, and does not", "doubled"),
    "pay.no_read": ("a read, and writes", "doubled"),
    "pay.blind": ("lookup finds nothing", "doubled"),
    "pay.undone_by_nothing": ("undo undoes nothing", "wrong"),
}


@pytest.mark.parametrize("fails", ["closed", *seldom("open")])
async def test_a_wrong_declaration_fails_closed_or_is_believed(
    stage: Stage, show: Show, fails: str
) -> None:
    """Each call's first answer is lost."""
    number = 10 * TIMES
    with shop_of(stage, "first", refunds=(1, [{"fail": "drop_after"}])) as shop:
        stage = replace(stage, shop=shop)
        cells = {}
        for tool, (said, comes) in DECLARED.items():
            if (comes == "closed") is not (fails == "closed"):
                continue
            cells[tool] = cell = Cell(
                stage, shop, {"test": "E10", "cell": said}, "lookup", ("refunds",)
            )
            undone = [FAILS] if "undo" in tool else []
            for at in range(number):
                cell.orders.append(order := shop.new_order())
                for again in range(1 + (tool in ("pay.worded", "pay.keyless"))):
                    step = call("nothing", order, tool=tool)
                    step["params"]["reason"] = f"words {at}.{again}"
                    await cell.start(step, *undone)
        async with dying_workers(stage, 0, random.Random()):
            await asyncio.gather(*(cell.end() for cell in cells.values()))
        for tool, cell in cells.items():
            comes = DECLARED[tool][1]
            completed = sum(one is not None and one.state == "completed" for one in cell.results)
            left = sum(len(one.uncompensated) for one in cell.results if one is not None)
            stands = shop.standing("refunds") & set(cell.orders)
            wrong = len(stands) - left if "undo" in tool else 0
            made = sum(shop.applied("refunds")[one] > 0 for one in cell.orders)
            lost = max(min(completed, number) - made, 0)
            row = judge(cell, show, listed=left, wrong=wrong, lost=lost)
            assert_kept(row, **({} if comes == "closed" else {comes: number}))
            if tool == "pay.broad":
                assert completed == 1 and len(stands) == 1
            if tool == "pay.no_undo":
                assert left == number
