"""A read that is recorded in one call is recorded as by the general way, or by that.

Each of these plays twice: for a tenant whose ledger has the call, and for one whose ledger has not.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import event
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.steps import attempts, batches
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.activities.ledger.steps.batches import Holding
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import READ, tool
from surehand.activities.worker.context import Attempt
from tests.ledger.attempts import read_once
from tests.ledger.databases import Database
from tests.ledger.one_call import check_chains, told
from tests.ledger.quotas import limited, used
from tests.ledger.scene import LARGEST_INLINE, RUN, STEP, Scene
from tests.ledger.test_one_call import ODD
from tests.run_keys import AllKnown, encrypted

pytestmark = [pytest.mark.postgres, pytest.mark.guarantee("G1")]

FIRST: Final = Holding(1, "first", 1, "a")
LATER: Final = Holding(2, "first", 1, "b")
NAME: Final = "payments.look"
_numbers = itertools.count(1)


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass
class Reads:
    """A tool that reads, and what happens while it does."""

    scene: Scene
    answer: Any = "r-1"
    meanwhile: Callable[[Transaction], object] | None = None
    asked: int = 0

    def tool(self, **how: Any) -> Tool:
        async def look(params: Anything, ctx: ToolContext) -> Any:
            self.asked += 1
            if self.meanwhile is not None:
                with self.scene.tx() as tx:
                    self.meanwhile(tx)
            return self.answer

        return tool(NAME, effect=READ, **how)(look)

    async def attempt(
        self,
        number: int = 1,
        *,
        params: dict[str, Any] | None = None,
        batch: str | None = None,
        holder: str = "a",
        **how: Any,
    ) -> Any:
        """Make one attempt, and return its report, or the type of its failure."""
        mine = Attempt(number, "look", f"look:{number}:{holder}", batch=batch)
        try:
            report = await read_once(self.scene, self.tool(**how), mine, params)
        except ApplicationError as error:
            return error.type
        stands = getattr(report.outcome, "replayed", None)
        return report.outcome.kind, getattr(report.outcome, "output", None), stands


@pytest.fixture(scope="module", params=["plain", "sealed"])
async def ledgers(
    postgres_database: Database, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """The ledger as it is, and without its calls."""
    url = postgres_database.url
    async with open_ledger(url) as quick, open_ledger(url) as general:
        general.one_call = False
        sealed = request.param == "sealed" or encrypted()
        quick.keys = general.keys = AllKnown() if sealed else None
        yield quick, general


@pytest.fixture
def twins(ledgers: tuple[Ledger, Ledger]) -> list[Reads]:
    """Two tenants to whom the same happens, each with one open run."""
    number = next(_numbers)
    scenes = [Scene(ledger, f"reader-{number}-{n}") for n, ledger in enumerate(ledgers)]
    for scene in scenes:
        scene.open_run(RUN)
    return [Reads(scene) for scene in scenes]


def alike(twins: list[Reads]) -> None:
    """Make sure that the rows of both are the same, and their chains whole."""
    for one in twins:
        check_chains(one.scene)
    assert told(twins[0].scene) == told(twins[1].scene)


def begun(tx: Transaction, number: int = 1, **changes: Any) -> None:
    """Have somebody begin an attempt at the same read."""
    row = {"holder": f"look:{number}:x", **changes}
    attempts.start(tx, StepAttempt(RUN, STEP, number, NAME, {}, **row))


def answered(tx: Transaction) -> None:
    begun(tx)
    mine = StepAttempt(RUN, STEP, 1, NAME, {}, "look:1:x")
    assert attempts.finish(tx, mine, "succeeded", output="r-0")


def taken_over(tx: Transaction) -> None:
    attempts.take_over(tx, StepAttempt(RUN, STEP, 2, NAME, {}, "look:2:x"))


@pytest.mark.parametrize("odd", ODD)
async def test_a_plain_read_leaves_the_same_rows_on_both_ways(twins: list[Reads], odd: str) -> None:
    found = []
    for one in twins:
        one.answer = ODD[odd]
        found.append(await one.attempt(params=ODD[odd]))
    assert found[0] == found[1]
    assert found[0][0] == "succeeded"
    alike(twins)


async def test_an_answer_that_the_one_call_refuses_is_recorded_by_the_general_way(
    twins: list[Reads], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise RuntimeError("no such function")

    monkeypatch.setattr("surehand.activities.effects.read.one_call.record_read", refuses)
    found = [await one.attempt() for one in twins]

    assert found == [("succeeded", "r-1", False)] * 2
    assert [one.asked for one in twins] == [1, 1]
    alike(twins)


@pytest.mark.parametrize("limits", [{}, {"tokens_per_day": 10, "money_per_day": "0.01"}])
async def test_a_plain_read_is_two_statements_also_where_its_spending_is_limited(
    twins: list[Reads], limits: dict[str, Any]
) -> None:
    quick, made = twins[0], list[str]()
    limited(quick.scene, **limits)
    used(quick.scene, tokens=9, money=9_999_999)

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        made.append(statement.partition("(")[0])

    event.listen(quick.scene.ledger.engine, "before_cursor_execute", note)
    await quick.attempt()
    event.remove(quick.scene.ledger.engine, "before_cursor_execute", note)

    assert made == ["SELECT public.begin_read", "SELECT * FROM public.record_read"]


#: What is there before a read begins, the attempt that begins it, and whether it is asked.
BEFORE: Final[dict[str, tuple[Callable[[Scene], object], int, bool]]] = {
    "an answer of the same attempt": (lambda scene: done(scene, answered), 1, True),
    "an answer that Temporal has not heard of": (lambda scene: done(scene, answered), 2, False),
    "the same attempt, begun": (lambda scene: done(scene, begun), 1, True),
    "an attempt that does not end": (lambda scene: done(scene, begun), 2, True),
    "money that is used up": (lambda scene: limited(scene, money_per_day="0"), 1, False),
    "tokens that are used up": (lambda scene: limited(scene, tokens_per_day=0), 1, False),
    "money of which nothing is left": (lambda scene: spent(scene, money_per_day="0.01"), 1, False),
    "tokens of which none are left": (lambda scene: spent(scene, tokens_per_day=10), 1, False),
    "effects that are limited": (lambda scene: limited(scene, effects_per_hour=0), 1, True),
}


def spent(scene: Scene, **limits: Any) -> None:
    limited(scene, **limits)
    used(scene, tokens=10, money=10_000_000)


def done(scene: Scene, work: Callable[[Transaction], object]) -> None:
    with scene.tx() as tx:
        work(tx)


@pytest.mark.parametrize("what", BEFORE)
async def test_what_is_there_already_is_found_on_both_ways(twins: list[Reads], what: str) -> None:
    prepare, number, asked = BEFORE[what]
    found = []
    for one in twins:
        prepare(one.scene)
        found.append(await one.attempt(number))
        assert one.asked == asked
    assert found[0] == found[1]
    alike(twins)


#: What happens while a read is asked, and whether its answer still counts.
MEANWHILE: Final[dict[str, tuple[Callable[[Transaction], object], bool]]] = {
    "nothing": (lambda tx: None, True),
    "a later attempt takes over": (taken_over, False),
    "a later batch begins": (lambda tx: batches.begin(tx, RUN, LATER), False),
    "the same attempt begins anew": (begun, False),
    "its batch is revoked": (lambda tx: batches.revoke(tx, RUN, [FIRST.name]), False),
}


@pytest.mark.parametrize("what", MEANWHILE)
async def test_an_answer_counts_as_long_as_its_attempt_does_on_both_ways(
    twins: list[Reads], what: str
) -> None:
    happens, counts = MEANWHILE[what]
    found = []
    for one in twins:
        with one.scene.tx() as tx:
            batches.begin(tx, RUN, FIRST)
        one.meanwhile = happens
        found.append(await one.attempt(batch=FIRST.token))
    expected = ("succeeded", "r-1", False) if counts else "LeaseHeld"
    assert found == [expected, expected]
    alike(twins)


async def test_what_a_read_brings_from_outside_marks_its_run_on_both_ways(
    twins: list[Reads],
) -> None:
    for one in twins:
        await one.attempt(foreign=True)
        assert one.scene.events(type_="run.marked_foreign")
    alike(twins)


async def test_an_answer_that_becomes_an_artifact_is_recorded_on_both_ways(
    twins: list[Reads],
) -> None:
    for one in twins:
        one.answer = "x" * (LARGEST_INLINE + 1)
        await one.attempt()
    alike(twins)


async def test_under_another_isolation_level_a_read_takes_the_general_way(
    postgres_database: Database,
) -> None:
    async with open_ledger(postgres_database.url) as ledger:
        scene = Scene(ledger, f"reader-{next(_numbers)}")
        scene.open_run(RUN)

        def serializable(connection: Any, _record: Any) -> None:
            connection.execute("SET default_transaction_isolation = serializable")
            connection.commit()

        event.listen(ledger.engine, "connect", serializable)
        ledger.engine.dispose()
        assert await Reads(scene).attempt() == ("succeeded", "r-1", False)
        check_chains(scene)
