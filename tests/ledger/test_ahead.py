"""A batch claims its next write with the outcome of the one before, and calls what it claimed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import make_url, text
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Transaction, open_ledger
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.activities.tools.tool import Dedupes, No, Tool, ToolContext
from surehand.activities.tools.toolbox import READ, WRITE, Toolbox, tool
from surehand.activities.worker.context import WorkerContext, keep_alive
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.tools import Batch, BatchReport, NextStep, ToolCall
from tests.ledger.commit_cutter import CommitCutter, Cut
from tests.ledger.databases import Database
from tests.ledger.scene import OTHER_RUN, RUN, Scene
from tests.postgres_server import PostgresServer

SECOND = timedelta(seconds=1)


class Payment(BaseModel):
    to: str
    note: str = ""


class Ticketed(BaseModel):
    """Params that are others each time they are made."""

    to: str
    ticket: str = Field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class Bank:
    """Counts the payments that it is asked for."""

    asked: list[str] = field(default_factory=list)
    says: dict[str, Any] = field(default_factory=dict)
    meanwhile: dict[str, Any] = field(default_factory=dict)
    """By payment: what happens elsewhere while it is made."""

    async def pay(self, params: Any, ctx: ToolContext) -> Any:
        self.asked.append(params.to)
        if params.to in self.meanwhile:
            self.meanwhile[params.to]()
        return self.says.get(params.to, {"receipt": f"r-{params.to}", "of": params.model_dump()})


@dataclass
class Heard:
    """The effects' events, those of one transaction together."""

    told: list[list[str]] = field(default_factory=lambda: [[]])

    def transaction(self, outcome: str, seconds: float) -> None:
        if self.told[-1]:
            self.told.append([])

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        kind, _, what = type_.partition(".")
        if kind == "effect":
            self.told[-1].append(f"{what} {body['tool'].removeprefix('bank.')}")

    def transactions(self) -> list[str]:
        return [", ".join(one) for one in self.told if one]


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def scene(database: Database, scene: Scene, heard: Heard) -> AsyncIterator[Scene]:
    """Heard while it plays."""
    async with open_ledger(database.url, heard) as ledger:
        yield Scene(ledger, scene.tenant)


def tools_of(bank: Bank) -> list[Tool]:
    async def pay(params: Payment, ctx: ToolContext) -> Any:
        return await bank.pay(params, ctx)

    async def pay_ticketed(params: Ticketed, ctx: ToolContext) -> Any:
        return await bank.pay(params, ctx)

    write: dict[str, Any] = {
        "effect": WRITE,
        "dedupes": Dedupes(timedelta(hours=1)),
        "irreversible": True,
    }
    return [
        tool("bank.pay", **write)(pay),
        tool("bank.named", key=lambda p: p.to, **write)(pay),
        tool("bank.exclusive", resource=lambda p: f"account:{p.to}", **write)(pay),
        tool("bank.ticketed", **write)(pay_ticketed),
        tool("bank.booked", effect=WRITE, transactional=True, irreversible=True)(pay),
        tool("bank.look", effect=READ)(pay),
        tool("bank.doubted", effect=WRITE, recovery="human", irreversible=True)(pay),
    ]


async def play(
    scene: Scene,
    bank: Bank,
    *steps: tuple[str, str],
    environment: ActivityEnvironment | None = None,
    crash: Crash | None = None,
    again: bool = False,
) -> BatchReport:
    """Run a batch of payments: tool and payee of each; a payee is its step's id."""
    toolbox = Toolbox(tools_of(bank))
    context = WorkerContext(
        scene.ledger, toolbox, scene.artifacts, crash or Crash(), 3 * SECOND, SECOND
    )
    specs = {one.name: one for one in toolbox.specs()}
    (first, payee), *following = steps
    batch = Batch(
        number=1,
        first=ToolCall(
            tenant=scene.tenant,
            run_id=RUN,
            step_id=payee,
            plan_version=1,
            user="ada",
            tool=specs[first],
            params={"to": payee},
        ),
        following=[
            NextStep(id=to, tool=name, params={"to": to, **_note(steps, number)})
            for number, (name, to) in enumerate(following)
        ],
        tools=specs,
        facts={},
        again=again,
    )
    report: BatchReport = await (environment or first_execution()).run(
        keep_alive, ToolActivities(context).execute_tools(batch)
    )
    return report


def first_execution() -> ActivityEnvironment:
    """Return the environment of an activity of the run's first execution."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_run_id="first")
    return environment


def _note(steps: tuple[tuple[str, str], ...], number: int) -> dict[str, str]:
    """Params that hang on what the step before has returned."""
    name, before = steps[number]
    return {"note": f"${{{before}.receipt}}"} if name == "bank.pay" else {}


async def test_outcomes_claim_the_next_write(scene: Scene, bank: Bank, heard: Heard) -> None:
    report = await play(scene, bank, ("bank.pay", "a"), ("bank.pay", "b"), ("bank.pay", "c"))

    assert [one.step_id for one in report.steps] == bank.asked == ["a", "b", "c"]
    rows = sorted(scene.rows(effects), key=lambda row: row["commit_no"])
    assert [row["state"] for row in rows] == ["committed"] * 3
    # Each call was made of the receipt before it, and is the one that was claimed.
    assert [row["params"]["note"] for row in rows] == ["", "r-a", "r-b"]
    assert [row["receipt"]["of"] for row in rows] == [row["params"] for row in rows]
    both = "committed pay, claimed pay"
    assert heard.transactions() == ["claimed pay", both, both, "committed pay"]


@pytest.mark.parametrize("next_", ["bank.look", "bank.exclusive", "bank.booked"])
async def test_what_needs_more_than_its_claim_begins_on_its_own(
    scene: Scene, bank: Bank, heard: Heard, next_: str
) -> None:
    report = await play(scene, bank, ("bank.pay", "a"), (next_, "b"), ("bank.pay", "c"))

    assert [one.step_id for one in report.steps] == bank.asked == ["a", "b", "c"]
    assert not any("committed" in one and "claimed" in one for one in heard.transactions())


async def test_a_doubt_for_humans_comes_first(scene: Scene, bank: Bank, heard: Heard) -> None:
    report = await play(scene, bank, ("bank.doubted", "a"), ("bank.named", "b"))

    assert [one.step_id for one in report.steps] == bank.asked == ["a", "b"]
    assert heard.transactions() == [
        *("claimed doubted", "committed doubted"),
        *("claimed named", "committed named"),
    ]


async def test_an_effect_that_is_there_already_is_not_made_again(scene: Scene, bank: Bank) -> None:
    scene.open_run(OTHER_RUN)
    scene.committed(
        scene.call(run_id=OTHER_RUN, tool="bank.named", key="b", params={"to": "b", "note": "r-a"}),
        "theirs",
    )

    report = await play(scene, bank, ("bank.pay", "a"), ("bank.named", "b"))

    assert (bank.asked, report.failed) == (["a"], None)
    assert report.steps[-1].report.outcome.output == "theirs"


async def test_a_step_that_is_undone_meanwhile_is_not_called(scene: Scene, bank: Bank) -> None:
    def undo() -> None:
        scene.begin_undo(step_id="b")

    bank.meanwhile["a"] = undo
    report = await play(scene, bank, ("bank.pay", "a"), ("bank.pay", "b"))

    assert bank.asked == ["a"]
    assert report.failed is not None
    assert report.failed.type == "StepBarred"


async def test_after_a_no_or_a_cancel_nothing_more_is_claimed(scene: Scene, bank: Bank) -> None:
    bank.says["a"] = No("account closed")
    report = await play(scene, bank, ("bank.pay", "a"), ("bank.named", "b"))
    assert [one.step_id for one in report.steps] == bank.asked == ["a"]

    cancelled = first_execution()

    def cancel() -> None:
        cancelled.cancel()

    bank.meanwhile["c"] = cancel
    report = await play(scene, bank, ("bank.pay", "c"), ("bank.named", "d"), environment=cancelled)
    assert [one.step_id for one in report.steps] == ["c"]
    assert bank.asked == ["a", "c"]
    assert {row["step_id"] for row in scene.rows(effects)} == {"a", "c"}


async def test_an_attempt_that_is_fenced_out_claims_nothing_more(scene: Scene, bank: Bank) -> None:
    def take_over() -> None:
        with scene.tx() as tx:
            tx.execute(update_rows(effects).values(fencing_token=effects.c.fencing_token + 1))

    bank.meanwhile["a"] = take_over
    with pytest.raises(ApplicationError, match="has taken this effect over"):
        await play(scene, bank, ("bank.pay", "a"), ("bank.named", "b"))

    assert bank.asked == ["a"]
    assert [row["step_id"] for row in scene.rows(effects)] == ["a"]


async def test_a_claim_that_fails_does_not_cost_the_outcome_before_it(
    scene: Scene, bank: Bank, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stand-in: nothing is known that makes the database refuse this claim alone.
    def refused(tx: Transaction, request: ClaimRequest) -> None:
        tx.execute(text("INSERT INTO nowhere VALUES (1)"))

    monkeypatch.setattr("surehand.activities.effects.recorder.claims.claim_at_once", refused)
    await play(scene, bank, ("bank.pay", "a"), ("bank.named", "b"))

    assert bank.asked == ["a", "b"]
    assert [row["state"] for row in scene.rows(effects)] == ["committed"] * 2
    assert heard.transactions()[1:] == ["committed pay", "claimed named", "committed named"]


@pytest.mark.postgres
async def test_who_holds_the_next_key_is_not_waited_for_with_an_outcome_in_hand(
    postgres_database: Database, bank: Bank, heard: Heard
) -> None:
    # Given somebody who has locked the next call's key, and lets go once the outcome is there
    async with (
        open_ledger(postgres_database.url, heard) as ledger,
        open_ledger(postgres_database.url) as other,
    ):
        scene, held = Scene.begin(ledger, f"held-{uuid.uuid4().hex[:8]}"), ExitStack()
        holder = held.enter_context(other.transaction(scene.tenant))

        def lock() -> None:
            holder.lock_key("bank.named", "b")

        bank.meanwhile["a"] = lock
        playing = asyncio.ensure_future(play(scene, bank, ("bank.pay", "a"), ("bank.named", "b")))
        async with asyncio.timeout(30):
            while heard.transactions()[-1:] != ["committed pay"]:
                await asyncio.sleep(0.01)
        held.close()
        await playing

    assert bank.asked == ["a", "b"]
    assert heard.transactions()[1:] == ["committed pay", "claimed named", "committed named"]


@pytest.mark.postgres
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_claim_whose_answer_was_lost_is_called_as_it_was_claimed(
    postgres_database: Database, postgres_server: PostgresServer, bank: Bank, cut: Cut
) -> None:
    # Given params that are others each time they are made, and a commit nobody has heard of
    with CommitCutter.before(postgres_server.port) as cutter:
        url = make_url(postgres_database.url).set(port=cutter.port)
        async with open_ledger(url.render_as_string(hide_password=False)) as ledger:
            scene = Scene.begin(ledger, f"lost-{uuid.uuid4().hex[:8]}")

            def arm() -> None:
                cutter.arm(cut)

            bank.meanwhile["a"] = arm
            report = await play(scene, bank, ("bank.pay", "a"), ("bank.ticketed", "b"))
            rows = scene.rows(effects)

    assert (cutter.cuts, bank.asked, report.failed) == (1, ["a", "b"], None)
    assert [row["state"] for row in rows] == ["committed"] * 2
    [ticketed] = [row for row in rows if row["tool"] == "bank.ticketed"]
    assert ticketed["receipt"]["of"] == ticketed["params"]


async def test_a_read_keeps_its_age_when_its_batch_runs_again(scene: Scene, bank: Bank) -> None:
    steps = ("bank.look", "a"), ("bank.look", "b")
    first = await play(scene, bank, *steps)
    bank.says["a"] = {"receipt": "newer"}
    second = await play(scene, bank, *steps, again=True)

    assert bank.asked == ["a", "b"]
    told = [[one.report.outcome for one in report.steps] for report in (first, second)]
    assert [one.replayed for one in told[1]] == [True, True]
    assert [(one.output, one.read_ms) for one in told[0]] == [
        (one.output, one.read_ms) for one in told[1]
    ]
    assert all(one.read_ms for one in told[0])
