"""G1 and G2: a write that is recorded in one call is recorded as by the general way, or not at all.

Each of these plays twice: for a tenant whose ledger has the call, and for one whose ledger has not.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Select, event, make_url, text, update
from sqlalchemy.sql import visitors
from structlog.testing import capture_logs
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.core.store import Ledger, Transaction, open_ledger
from surehand.activities.ledger.core.tables import effects, quota_usage, runs, steps
from surehand.activities.ledger.effects import (
    claim_entry,
    claims,
    epochs,
    one_call,
    outcomes,
    run_tree,
)
from surehand.activities.ledger.effects.claim_entry import Seen
from surehand.activities.ledger.effects.one_call import Outcome
from surehand.activities.ledger.migrations import one_call as functions
from surehand.activities.ledger.quotas.limits import take_turn
from surehand.activities.ledger.steps import batches, executions, foreign
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.batches import Holding
from surehand.activities.ledger.steps.entries import Asking, Claimed, ClaimRequest, Entry
from surehand.activities.ledger.steps.executions import ActsElsewhere
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.foreign import ForeignContent
from surehand.workflows.contracts.quotas import Quota
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import NotCanonical, params_hash
from tests.ledger import databases
from tests.ledger.databases import Database, until_one_waits
from tests.ledger.one_call import call, check_chains, claim, commit, outcome, recorder, said, told
from tests.ledger.people import administration
from tests.ledger.quotas import in_one_hour, limited, used
from tests.ledger.scene import LARGEST_INLINE, OTHER_RUN, RUN, STEP, WINDOW, Scene
from tests.ledger_databases import PostgresLedgers
from tests.postgres_server import SUPERUSER, PostgresServer
from tests.property.search import search
from tests.run_keys import AllKnown, encrypted
from tests.unit.values import json_objects, json_values

pytestmark = [pytest.mark.postgres, pytest.mark.guarantee("G1")]

BATCH: Final = Holding(1, "first", 1, "a")
ODD_RUN: Final = 'r"\\ü\n{}'
#: What JSON carries and its readers get wrong.
ODD: Final[dict[str, Any]] = {
    "nul": {"a": "\x00", "\x00": 1},
    "unicode": {"ä\u2028": '\U0001f600\u0007"\\/', "": "é"},
    "numbers": {"big": 2**53 - 1, "least": 5e-324, "long": 0.30000000000000004, "e": 1e-7},
    "empty": {"list": [], "object": {}, "text": "", "none": None, "false": False},
    "sealed marker": {"$sealed": ["run-1", "AAAA"]},
    "plain marker": {"$plain": {"$plain": {"$sealed": 1}}},
    "text of JSON": {"a": '{"b": "\\u0000"}', "b": "null"},
    "nested": {"a": [[[{"b": [{"c": [None, [True, 1, "1", 1.5]]}]}]]]},
}
#: Columns of a committed write that hold people's values.
SEALED: Final = ("effects.params", "effects.receipt", "steps.input", "steps.output")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Twins:
    """Two tenants to whom the same happens."""

    quick: Scene
    """Its ledger records plain writes in one call."""
    general: Scene
    """Its ledger has no such call."""

    def both(self) -> tuple[Scene, Scene]:
        return self.quick, self.general

    def alike(self) -> None:
        """Make sure that the rows of both are the same, and their chains whole."""
        for scene in self.both():
            check_chains(scene)
        assert told(self.quick) == told(self.general)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer, postgres_ledgers: PostgresLedgers) -> Database:
    """One of its own: epochs are a whole ledger's."""
    return databases.postgresql(postgres_server, postgres_ledgers.create())


@pytest.fixture(scope="module")
async def ledgers(database: Database) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """The ledger as it is, and without its calls."""
    async with open_ledger(database.url) as quick, open_ledger(database.url) as general:
        general.one_call = False
        quick.keys = general.keys = AllKnown() if encrypted() else None
        yield quick, general


@pytest.fixture(scope="module")
async def sealed_ledgers(database: Database) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """The same with the keys of runs."""
    async with open_ledger(database.url) as quick, open_ledger(database.url) as general:
        general.one_call = False
        quick.keys = general.keys = AllKnown()
        yield quick, general


@pytest.fixture
def twins(ledgers: tuple[Ledger, Ledger]) -> Twins:
    return born(ledgers)


@pytest.fixture
def quick(twins: Twins) -> Scene:
    return twins.quick


@pytest.fixture(scope="module")
async def other(database: Database) -> AsyncIterator[Ledger]:
    """Another worker's."""
    async with open_ledger(database.url) as ledger:
        yield ledger


def born(ledgers: tuple[Ledger, Ledger], run_id: str = RUN) -> Twins:
    """Return tenants nobody else has, each with one open run."""
    number = next(_numbers)
    quick, general = (Scene(ledger, f"twin-{number}-{n}") for n, ledger in enumerate(ledgers))
    for scene in (quick, general):
        scene.open_run(run_id)
    return Twins(quick, general)


# What is recorded


def _is_canonical(value: Any) -> bool:
    try:
        params_hash("tool", "1", {"": value})
    except NotCanonical:
        return False
    return True


@dataclass(frozen=True)
class Write:
    """One plain write of a script."""

    changes: dict[str, Any]
    receipt: Any
    ends: bool
    """Whether its outcome is recorded, too."""
    joins: bool
    """Whether it is claimed with the outcome before it, if there is one."""


_values = json_values.filter(_is_canonical)
_params = json_objects.filter(_is_canonical)
_names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
#: No machine is so busy that one of these is over.
_times = st.integers(10**6, 10**9).map(lambda ms: timedelta(milliseconds=ms))
_writes = st.builds(
    Write,
    st.fixed_dictionaries(
        {
            "step_id": _names,
            "key": _names,
            "params": _params,
            "tool": st.sampled_from(["payments.refund", "mail.send"]),
            "activity_key": _names,
            "attempt": st.integers(1, 3),
            "lease": _times,
            "timeout": _times,
            "execution": st.sampled_from(["first", None]),
            "batch": st.sampled_from([BATCH.token, None]),
            "observes": st.booleans(),
            "settle": st.none() | _times,
            "window": st.none() | _times,
            "recovery": st.sampled_from([Recovery.LOOKUP, Recovery.DEDUPES, Recovery.HUMAN]),
            "approval_id": st.sampled_from([None, "run-1/s/1"]),
            "also_known_by": st.sampled_from([(), ("sha256:1",)]),
            "foreign": st.sampled_from([False, False, True]),
        }
    ),
    _values,
    st.booleans(),
    st.booleans(),
)
_scripts = st.lists(_writes, min_size=1, max_size=4)
_runs = st.sampled_from([RUN, ODD_RUN])


async def play(
    scene: Scene, run_id: str, script: list[Write], most: int | None = None
) -> list[Any]:
    """Claim and commit as a script says, and return what was found and recorded.

    Args:
        scene: The tenant's part.
        run_id: The run of all writes.
        script: The writes.
        most: How many effects an hour the tenant's quota allows.
    """
    found, before = list[Any](), None
    with scene.tx() as tx:
        batches.begin(tx, run_id, BATCH)
    for number, write in enumerate(script):
        request = scene.call(run_id=run_id, **{"holder": f"holder {number}", **write.changes})
        if before is not None and not write.joins:
            found.append(await recorded(scene, before, None))
            before = None
        claimed = None if before is None else await recorded(scene, before, request)
        if claimed is None:
            claimed = await begun(scene, request, most)
        found.append(said(scene, claimed))
        before = None
        if isinstance(claimed, Claimed) and write.ends:
            before = Outcome(request, claimed.entry, Kept(write.receipt))
    if before is not None:
        await recorded(scene, before, None)
    return found


async def begun(scene: Scene, request: ClaimRequest, most: int | None) -> Any:
    """Claim in one call, if nobody has had the key and the quota leaves room; else find out."""
    if scene.ledger.one_call:
        there = scene.rows(effects)
        fresh = (request.tool, request.key) not in {(row["tool"], row["key"]) for row in there}
        made = await call(scene, request.run_id, None, request)
        assert (made is not None) is (fresh and (most is None or len(there) < most))
        if made is not None:
            assert made.commit_no is None
            return checked(scene, made.claimed)
    return await scene.ledger.transact(scene.tenant, claims.claim, request)


async def recorded(scene: Scene, done: Outcome, following: ClaimRequest | None) -> Any:
    """Record an outcome, and claim what follows if nobody has had its key."""
    run_id = done.request.run_id
    if scene.ledger.one_call and done.is_plain:
        made = await call(scene, run_id, done, following)
        assert made is not None
        assert made.commit_no == scene.row(effects, entry_id=done.entry.entry_id)["commit_no"]
        return checked(scene, made.claimed)

    def both(tx: Transaction) -> Claimed | None:
        assert outcomes.commit(tx, done.request, done.entry, done.receipt) is not None
        return None if following is None else claims.claim_at_once(tx, following)

    return await scene.ledger.transact(scene.tenant, both)


def checked(scene: Scene, claimed: Claimed | None) -> Claimed | None:
    """Make sure that what a claim returns is what is stored."""
    if claimed is not None:
        assert claimed.entry == scene.entry(claimed.entry.entry_id)
    return claimed


@search(20, functions=True)
@given(script=_scripts, run_id=_runs)
async def test_random_writes_leave_the_same_rows_and_whole_chains_on_both_ways(
    ledgers: tuple[Ledger, Ledger], script: list[Write], run_id: str
) -> None:
    twins = born(ledgers, run_id)

    found = [await play(scene, run_id, script) for scene in twins.both()]

    assert found[0] == found[1]
    twins.alike()


@search(20, functions=True)
@given(script=_scripts, most=st.integers(0, 4))
async def test_as_many_random_writes_begin_as_a_quota_allows_and_count_alike_on_both_ways(
    ledgers: tuple[Ledger, Ledger], script: list[Write], most: int
) -> None:
    twins = born(ledgers)
    for scene in twins.both():
        limited(scene, effects_per_hour=most)

    with in_one_hour(twins.quick):
        found = [await play(scene, RUN, script, most) for scene in twins.both()]

        assert found[0] == found[1]
        twins.alike()
        for scene in twins.both():
            begun_ = len(scene.rows(effects))
            assert begun_ <= most
            assert [row["used"] for row in scene.rows(quota_usage)] == [begun_] * bool(begun_)


@search(10, functions=True)
@given(script=_scripts, run_id=_runs)
async def test_sealed_cells_open_to_the_same_values_on_both_ways(
    sealed_ledgers: tuple[Ledger, Ledger], script: list[Write], run_id: str
) -> None:
    twins = born(sealed_ledgers, run_id)

    found = [await play(scene, run_id, script) for scene in twins.both()]

    assert found[0] == found[1]
    twins.alike()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("sealed", [False, True])
async def test_what_is_odd_in_json_is_stored_as_by_the_general_way(
    ledgers: tuple[Ledger, Ledger],
    sealed_ledgers: tuple[Ledger, Ledger],
    odd: str,
    sealed: bool,
) -> None:
    value = ODD[odd]
    twins = born(sealed_ledgers if sealed else ledgers)
    writes = [
        Write({"step_id": name, "key": name, "params": value, "holder": name}, value, True, True)
        for name in ("a", "b")
    ]

    for scene in twins.both():
        await play(scene, RUN, writes)

    twins.alike()
    for row in twins.quick.rows(effects):
        assert (row["params"], row["receipt"], row["state"]) == (value, value, "committed")
    if sealed:
        cells = [cell for scene in twins.both() for cell in stored(scene)]
        assert all(cell.startswith('{"$sealed": ["') for cell in cells)
        assert len(cells) == 16


def stored(scene: Scene) -> list[str]:
    """Return what is to be sealed of a tenant's writes, as it is stored."""
    where = "WHERE tenant_id = :tenant"
    query = " UNION ALL ".join(
        f"SELECT {column}::text FROM {column.partition('.')[0]} {where}" for column in SEALED
    )
    with scene.tx() as tx:
        return list(tx.connection.execute(text(query), {"tenant": scene.tenant}).scalars())


@search(15, functions=True)
@given(said_=st.lists(st.tuples(_runs, st.none() | _names, _values), max_size=6))
async def test_events_of_any_content_are_chained_in_order_run_by_run(
    ledgers: tuple[Ledger, Ledger], said_: list[tuple[str, str | None, Any]]
) -> None:
    # Given what the general way chains, too, by a function of the database
    scene = born(ledgers).quick
    scene.open_run(ODD_RUN)

    with scene.tx() as tx:
        for run_id, step_id, value in said_:
            tx.event(run_id, "test.said", step_id=step_id, value=value)

    check_chains(scene)
    for run_id in (RUN, ODD_RUN):
        mine = [(step, value) for run, step, value in said_ if run == run_id]
        found = scene.events(run_id, "test.said")
        assert [(one["step_id"], one["body"].get("value")) for one in found] == mine


async def test_a_plain_write_is_two_statements_and_in_a_batch_it_is_one(
    quick: Scene, statements: list[str]
) -> None:
    first, second = quick.call(), quick.call(step_id="next", key="next")

    one = await claim(quick, first)
    assert isinstance(one, Claimed)
    two = await commit(quick, first, one.entry, following=second)
    assert two is not None
    await commit(quick, second, two.entry)

    assert [statement.partition("(")[0] for statement in statements] == [
        "SELECT * FROM public.record_write"
    ] * 3


async def test_where_a_quota_counts_it_a_plain_write_is_two_statements_and_in_a_batch_too(
    quick: Scene, statements: list[str]
) -> None:
    limited(quick, effects_per_hour=5, tokens_per_day=5, money_per_day="5")
    first, second = quick.call(), quick.call(step_id="next", key="next")
    statements.clear()

    one = await claim(quick, first)
    assert isinstance(one, Claimed)
    assert await commit(quick, first, one.entry, following=second) is None
    two = await claim(quick, second)
    assert isinstance(two, Claimed)
    await commit(quick, second, two.entry)

    assert [statement.partition("(")[0] for statement in statements] == [
        "SELECT * FROM public.record_write"
    ] * 4


@pytest.fixture
def statements(quick: Scene) -> Iterator[list[str]]:
    """What is asked of the database from now on."""
    asked = list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        asked.append(statement)

    event.listen(quick.ledger.engine, "before_cursor_execute", note)
    yield asked
    event.remove(quick.ledger.engine, "before_cursor_execute", note)


async def test_the_head_and_the_time_that_a_call_returns_are_those_that_it_has_written(
    quick: Scene,
) -> None:
    mine = recorder(quick, quick.call())

    claimed = await mine.claim_in_one_call()

    assert claimed is not None
    run, row = quick.row(runs), quick.row(effects)
    assert mine.head is not None
    assert (mine.head.seq, mine.head.hash) == (run["seq"], run["head"])
    [told_] = quick.events(type_="effect.claimed")
    assert await mine.now_ms() == told_["at_ms"] == row["claimed_ms"] == row["first_call_ms"]
    assert quick.row(steps)["started_ms"] == row["claimed_ms"]


async def test_a_call_tells_of_what_it_has_written_and_of_nothing_else(quick: Scene) -> None:
    request, entry = await in_hand(quick)
    quick.claimed(quick.call(step_id="taken", key="taken"))
    taken, following = quick.call(step_id="late", key="taken"), quick.call()

    with capture_logs() as heard:
        assert await call(quick, RUN, None, taken) is None
        await call(quick, RUN, outcome(request, entry), taken)
        await call(quick, RUN, None, following)

    said_ = [(one["event"], one["step_id"], one["seq"]) for one in heard]
    written = [(one["type"], one["step_id"], one["seq"]) for one in quick.events()]
    assert said_ == written[-2:]
    assert [type_ for type_, *_ in said_] == ["effect.committed", "effect.claimed"]


# What is in the way

#: Prepares what may be in the way of a refund, and returns what is different about its claim.
Prepare = Callable[[Scene], dict[str, Any] | None]
#: Another run's write, whose lease is not over on any machine.
_PAID: Final[dict[str, Any]] = {"run_id": OTHER_RUN, "step_id": "theirs", "lease": WINDOW}


def bar(step_id: str | None) -> Prepare:
    def prepare(scene: Scene) -> None:
        with scene.tx() as tx:
            run_tree.bar(tx, RUN, step_id)

    return prepare


def in_batch(end: Callable[[Transaction], object]) -> Prepare:
    """A batch that something becomes of before its claim."""

    def prepare(scene: Scene) -> dict[str, Any]:
        with scene.tx() as tx:
            batches.begin(tx, RUN, BATCH)
        with scene.tx() as tx:
            end(tx)
        return {"batch": BATCH.token, "execution": "first"}

    return prepare


def acts_elsewhere(scene: Scene) -> dict[str, Any]:
    with scene.tx() as tx:
        executions.take_over(tx, ActsElsewhere(scene.tenant, RUN, "second", "first"))
    return {"execution": "first"}


def untold(scene: Scene) -> None:
    """Undo what this run has replayed."""
    scene.open_run(OTHER_RUN)
    paid = scene.committed(scene.call(**_PAID, key="theirs"))
    scene.claim(scene.call(step_id="replays", key="theirs"))
    scene.begin_undo(OTHER_RUN, "theirs")
    undo = scene.undo(paid)
    scene.commit(undo, scene.claimed(undo))


def known(state: str) -> Prepare:
    """The key in some state, by another run."""

    def prepare(scene: Scene) -> None:
        scene.open_run(OTHER_RUN)
        if state == "partial":
            scene.asked(scene.call(**_PAID), partial=True)
        else:
            STATES[state](scene, scene.call(**_PAID))

    return prepare


#: Each state that an entry may be in, and how it came to be there.
STATES: Final[dict[str, Callable[[Scene, ClaimRequest], object]]] = {
    "claimed": Scene.claimed,
    "committed": Scene.committed,
    "failed": Scene.failed,
    "answered no": Scene.answered_no,
    "in_doubt": Scene.in_doubt,
    "partial": Scene.asked,
    "compensating": Scene.compensating,
    "compensated": Scene.compensated,
}


def limit(**limits: Any) -> Prepare:
    def prepare(scene: Scene) -> None:
        limited(scene, **limits)

    return prepare


def counted(used_: dict[str, int], **limits: Any) -> Prepare:
    """Quotas of which something is used already."""

    def prepare(scene: Scene) -> None:
        limited(scene, **limits)
        used(scene, **used_)

    return prepare


def restored(scene: Scene) -> None:
    with administration(scene) as tx:
        if epochs.current(tx) is None:
            epochs.open_at(tx, tx.now_ms, "oscar")


#: What is in the way of a plain claim, by the fields of ``Seen`` that tell of it.
IN_THE_WAY: Final[dict[str, dict[str, Prepare]]] = {
    "barred": {"step": bar(STEP), "run": bar(None)},
    "overtaken": {
        "revoked": in_batch(lambda tx: batches.revoke(tx, RUN, [BATCH.name])),
        "overtaken": in_batch(lambda tx: batches.begin(tx, RUN, replace(BATCH, scheduled_ms=2))),
        "over": in_batch(
            lambda tx: batches.begin(tx, RUN, replace(BATCH, scheduled_ms=2, number=2))
        ),
    },
    "acting_instead": {"": acts_elsewhere},
    "untold": {"": untold},
    "fresh": {state: known(state) for state in STATES},
    "limited": {
        "no effects": limit(effects_per_hour=0),
        "no effects left": counted({"effects": 2}, effects_per_hour=2),
        "more than all effects": counted({"effects": 3}, effects_per_hour=2),
        "no tokens": limit(tokens_per_day=0),
        "no tokens left": counted({"tokens": 10}, tokens_per_day=10, effects_per_hour=5),
        "no money": limit(money_per_day="0"),
        "no money left": counted({"money": 1_500_000_000}, money_per_day="1.50"),
    },
    "epoch": {"": restored},
    # Of content from outside only what asks for more then; that is no plain request.
    "foreign": {},
}
WAYS: Final = {
    f"{name} {what}".strip(): prepare
    for name, found in IN_THE_WAY.items()
    for what, prepare in found.items()
}


@pytest.fixture
def closes_epochs(twins: Twins) -> Iterator[None]:
    """Close the epoch that a test has opened."""
    yield
    with administration(twins.quick) as tx:
        if epochs.current(tx) is not None:
            epochs.close(tx, "oscar")


def test_whatever_a_claim_looks_at_is_put_in_the_way_of_one_call() -> None:
    assert set(IN_THE_WAY) == {field.name for field in dataclasses.fields(Seen)}


def test_the_key_is_put_in_each_state_that_an_entry_may_have() -> None:
    [allowed] = [
        one for one in effects.constraints if str(one.name or "").endswith("ck_effects_state")
    ]
    states = set(re.findall(r"'(\w+)'", str(allowed.sqltext)))  # type: ignore[attr-defined]
    assert states == set(STATES) - {"answered no"}


def test_one_call_looks_at_what_the_general_way_looks_at() -> None:
    # Given the columns by which each table is asked, in both
    in_call = {
        table: _columns(table, condition)
        for table, condition in re.findall(r"FROM (\w+) WHERE (.*?\))(?=\s*(?:OR|$))", _IN_CALL)
    }
    in_general = dict[str, set[str]]()
    for found in visitors.iterate(claim_entry._LOOK_AROUND):
        if isinstance(found, Select) and found is not claim_entry._LOOK_AROUND:
            [table] = (one.name for one in found.get_final_froms())  # type: ignore[attr-defined]
            in_general.setdefault(table, set()).update(_asked(found))

    # Marks of content from outside matter only to requests that are not plain.
    assert in_general.pop("events") == {"tenant_id", "run_id", "type"}
    assert in_call == in_general


_IN_CALL: Final = " ".join(functions._IN_THE_WAY.split())


def _columns(table: str, condition: str) -> set[str]:
    return {
        name for name in list(effects.metadata.tables[table].c.keys()) if _named(name, condition)
    }


def _named(name: str, text_: str) -> bool:
    return re.search(rf"\b{name}\b", text_) is not None


def _asked(found: Select[Any]) -> set[str]:
    """Return the columns by which a subquery chooses its rows."""
    conditions = [*found._where_criteria]
    if found.get_final_froms()[0].name == "quotas":  # type: ignore[attr-defined]
        conditions += found.selected_columns  # it answers with what is limited
    parts = [part for one in conditions for part in visitors.iterate(one)]
    return {str(part.name) for part in parts if isinstance(part, Column)}


@pytest.mark.usefixtures("closes_epochs")
@pytest.mark.parametrize("way", WAYS)
async def test_what_is_in_the_way_of_a_claim_is_left_to_the_general_way_and_costs_no_outcome(
    twins: Twins, way: str
) -> None:
    claimed = [await in_hand(scene) for scene in twins.both()]
    requests = [prepared(scene, WAYS[way]) for scene in twins.both()]
    assert all(map(one_call.is_plain, requests))

    before = told(twins.quick)
    assert await call(twins.quick, RUN, None, requests[0]) is None
    assert told(twins.quick) == before

    made = await call(twins.quick, RUN, outcome(*claimed[0]), requests[0])
    with twins.general.tx() as tx:
        assert outcomes.commit(tx, *claimed[1], Kept("r-1")) is not None
        assert claims.claim_at_once(tx, requests[1]) is None
    assert made is not None
    assert (made.claimed, made.commit_no is None) == (None, False)
    twins.alike()

    await same_is_said(twins, requests)


def prepared(scene: Scene, prepare: Prepare) -> ClaimRequest:
    """Return the claim of a refund, once something may be in its way."""
    changes = prepare(scene) or {}
    return scene.call(**{"holder": "mine", **changes})


async def in_hand(scene: Scene, **changes: Any) -> tuple[ClaimRequest, Entry]:
    """Claim another write, whose outcome is in hand then."""
    request = scene.call(**{"step_id": "first", "key": "first", "holder": "mine", **changes})
    claimed = await scene.ledger.transact(scene.tenant, claims.claim, request)
    assert isinstance(claimed, Claimed)
    return request, claimed.entry


async def same_is_said(twins: Twins, requests: list[ClaimRequest]) -> list[tuple[str, str]]:
    """Claim as workers do, and make sure that the same is found, or fails, on both ways."""
    found = [
        said(scene, await ended(claim(scene, request)))
        for scene, request in zip(twins.both(), requests, strict=True)
    ]
    assert found[0] == found[1]
    twins.alike()
    return found


async def ended(work: Awaitable[Any]) -> Any:
    """Return what something comes to, or what it raises."""
    try:
        return await work
    except Exception as error:
        return error


def reads_content(scene: Scene) -> None:
    """Let the run read what comes from outside, which asks for nothing more here."""
    with scene.tx() as tx:
        foreign.mark(tx, RUN, [ForeignContent(tool="web.read", step_id="read")])


def unknown_elsewhere(scene: Scene) -> None:
    scene.asked(scene.call(step_id="other", key="other"))


def closed_epoch(scene: Scene) -> None:
    restored(scene)
    with administration(scene) as tx:
        epochs.close(tx, "oscar")


def taken_note(scene: Scene) -> None:
    """Undo what this run has replayed, and have somebody take note."""
    untold(scene)
    with scene.tx() as tx:
        tx.execute(
            update(effects.metadata.tables["interventions"])
            .where(effects.metadata.tables["interventions"].c.tenant_id == tx.tenant)
            .values(state="settled", outcome="compensated", actor="ann", settled_ms=tx.now_ms)
        )


#: What is about, and in nobody's way.
BESIDE: Final[dict[str, Prepare]] = {
    "another step is barred": bar("another"),
    "the batch goes on": in_batch(lambda tx: None),
    "no batch of its own": lambda scene: (in_batch(go_on)(scene), {"batch": None})[1],
    "it acts": lambda scene: {"execution": "first"},
    "made from outside": lambda scene: acts_elsewhere(scene) | {"execution": None},
    "content from outside": reads_content,
    "another question": unknown_elsewhere,
    "somebody has taken note": taken_note,
    "other quotas": limit(open_runs=1, pending_approvals=0, weight=2.0),
    "an effect is left": limit(effects_per_hour=1),
    "an effect more is left": counted({"effects": 4}, effects_per_hour=5),
    "a token is left": counted({"tokens": 9}, tokens_per_day=10),
    "least money is left": counted({"money": 1_499_999_999}, money_per_day="1.50"),
    "of all quotas something is left": counted(
        {"effects": 4, "tokens": 9, "money": 0},
        effects_per_hour=5,
        tokens_per_day=10,
        money_per_day="0.000000001",
    ),
    "what is not limited is used": counted({"tokens": 9, "money": 9}, effects_per_hour=1),
    "an epoch is over": closed_epoch,
    "the key of another tool": lambda scene: scene.committed(scene.call(tool="mail.send")) and None,
}


def go_on(tx: Transaction) -> None:
    batches.begin(tx, RUN, replace(BATCH, scheduled_ms=2))


@pytest.mark.parametrize("what", BESIDE)
async def test_what_is_in_nobodys_way_keeps_no_claim_from_one_call(twins: Twins, what: str) -> None:
    requests = [prepared(scene, BESIDE[what]) for scene in twins.both()]

    made = await call(twins.quick, RUN, None, requests[0])
    assert isinstance(await claim(twins.general, requests[1]), Claimed)

    assert made is not None
    assert checked(twins.quick, made.claimed) is not None
    twins.alike()


async def test_what_is_in_the_way_of_one_tenant_is_in_no_other_ones(
    twins: Twins, database: Database
) -> None:
    mine, theirs = twins.both()
    theirs.claimed(theirs.call())
    for prepare in (bar(None), untold, acts_elsewhere, limit(effects_per_hour=0)):
        prepare(theirs)

    # By a role from which the database hides no tenant: the call has to ask for its own.
    everything = make_url(database.url).set(username=SUPERUSER)
    async with open_ledger(everything.render_as_string(hide_password=False)) as ledger:
        ledger.keys = mine.ledger.keys
        made = await call(Scene(ledger, mine.tenant), RUN, None, mine.call(execution="first"))

    assert made is not None
    assert made.claimed is not None


def asks(scene: Scene) -> dict[str, Any]:
    gated = scene.ask_approval(scene.call())
    return {"gated": True, "approval_id": gated.approval_id}


def asks_if_foreign(scene: Scene) -> dict[str, Any]:
    reads_content(scene)
    return {"if_foreign": Asking(True, (), True, Assurance.OPEN)}


def undoes(scene: Scene) -> dict[str, Any]:
    paid = scene.committed(scene.call())
    return {"undoes": paid.entry_id, "key": f"undo:{paid.entry_id}", "tool": "payments.charge"}


def within(scene: Scene) -> dict[str, Any]:
    """Claim for the execution of another run, where another one acts for its own."""
    acts_elsewhere(scene)
    scene.open_run(OTHER_RUN)
    return {"within": OTHER_RUN, "execution": "first"}


#: What is no plain request.
NOT_PLAIN: Final[dict[str, Prepare]] = {
    "gated": asks,
    "if_foreign": asks_if_foreign,
    "permissions": lambda scene: {"permissions": frozenset({"pay"})},
    "drift": lambda scene: {"drift": "it is version 2 now"},
    "undoes": undoes,
    "within": within,
}


@pytest.mark.parametrize("what", NOT_PLAIN)
async def test_what_asks_for_more_than_its_key_is_claimed_by_the_general_way(
    twins: Twins, what: str
) -> None:
    requests = [prepared(scene, NOT_PLAIN[what]) for scene in twins.both()]
    assert not any(map(one_call.is_plain, requests))

    before = told(twins.quick)
    assert await recorder(twins.quick, requests[0]).claim_in_one_call() is None
    assert told(twins.quick) == before

    await same_is_said(twins, requests)


@pytest.mark.parametrize("what", NOT_PLAIN)
async def test_an_outcome_before_what_asks_for_more_is_recorded_by_the_general_way(
    twins: Twins, what: str
) -> None:
    for scene in twins.both():
        request, entry = await in_hand(scene)
        following = prepared(scene, NOT_PLAIN[what])
        await commit(scene, request, entry, following=following)

    twins.alike()


def test_whatever_a_request_may_ask_for_is_plain_or_is_not() -> None:
    """Each field that a request may leave out is judged: a new one has to be."""
    optional = {
        field.name
        for field in dataclasses.fields(ClaimRequest)
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    }
    of_the_entry = {"settle", "window", "observes", "also_known_by", "approval_id", "undo"}
    looked_at = {"batch", "execution"}
    # What is looked at only where an approval is used, or a user's permissions are.
    of_gated = {"requirements", "assurance", "standing", "proof", "covers", "precondition"}
    # What counts for a key that is there already, for what a pause tells, or for the outcome.
    later = {"withdrawn", "first_attempt", "foreign"}
    # What the claim of an undo tells; none of these is plain.
    of_undos = {"instead_of"}

    assert optional == set(NOT_PLAIN) | of_the_entry | looked_at | of_gated | later | of_undos


async def test_a_later_attempt_claims_by_the_general_way(twins: Twins) -> None:
    requests = [scene.call(attempt=2, holder="mine") for scene in twins.both()]

    assert await recorder(twins.quick, requests[0]).claim_in_one_call() is None
    assert [name for name, _ in await same_is_said(twins, requests)] == ["Claimed"] * 2


async def test_a_run_that_is_not_there_is_refused_on_both_ways(twins: Twins) -> None:
    requests = [scene.call(run_id="nowhere", holder="mine") for scene in twins.both()]

    [(name, _), _] = await same_is_said(twins, requests)

    assert name == "IntegrityError"
    assert all(scene.rows(effects) == [] for scene in twins.both())


#: What a transaction may have locked of a call.
LOCKS: Final[dict[str, Callable[[Transaction], None]]] = {
    "run": lambda tx: tx.lock_run(RUN),
    "step": lambda tx: tx.lock_step(RUN, STEP),
    "key": lambda tx: tx.lock_key("payments.refund", "refund:order-1001"),
    "call": lambda tx: tx.lock_call(RUN, STEP, "payments.refund", "refund:order-1001"),
}


@pytest.mark.parametrize("what", LOCKS)
async def test_what_somebody_has_locked_is_not_waited_for(
    twins: Twins, other: Ledger, what: str
) -> None:
    quick, requests = twins.quick, [scene.call(holder="mine") for scene in twins.both()]
    claimed = [await in_hand(scene) for scene in twins.both()]
    before = told(quick)
    with other.transaction(quick.tenant) as tx:
        LOCKS[what](tx)

        assert await call(quick, RUN, None, requests[0]) is None
        assert told(quick) == before
        made = await call(quick, RUN, outcome(*claimed[0]), requests[0])
    assert made is not None
    assert (made.claimed, made.commit_no is None) == (None, False)
    twins.general.commit(*claimed[1])

    assert [name for name, _ in await same_is_said(twins, requests)] == ["Claimed"] * 2


async def late(quick: Scene, other: Ledger) -> Any:
    """Return what comes of a claim that waits for its tenant's turn, while another one is made."""
    with other.transaction(quick.tenant) as tx:
        take_turn(tx, Quota.EFFECTS)
        waiting = asyncio.create_task(call(quick, RUN, None, quick.call()))
        await until_one_waits(tx)
        first = quick.call(step_id="first", key="first")
        assert isinstance(claims.claim(tx, first), Claimed)
    return await waiting


async def test_a_claim_waits_for_its_tenants_turn_and_counts_after_those_before_it(
    quick: Scene, other: Ledger
) -> None:
    limited(quick, effects_per_hour=2)
    with in_one_hour(quick):
        made = await late(quick, other)
        assert made is not None
        assert checked(quick, made.claimed) is not None
        assert [row["used"] for row in quick.rows(quota_usage)] == [2]


async def test_the_last_effect_of_an_hour_is_that_of_whoever_has_the_turn_first(
    quick: Scene, other: Ledger
) -> None:
    limited(quick, effects_per_hour=1)
    with in_one_hour(quick):
        assert await late(quick, other) is None
        assert [row["step_id"] for row in quick.rows(effects)] == ["first"]


async def test_a_quota_that_changes_counts_from_the_next_call_on(quick: Scene) -> None:
    numbers = itertools.count(1)

    async def begins() -> bool:
        name = f"step-{next(numbers)}"
        return await call(quick, RUN, None, quick.call(step_id=name, key=name)) is not None

    with in_one_hour(quick):
        assert await begins()
        limited(quick, effects_per_hour=1)
        assert [await begins(), await begins()] == [True, False]
        limited(quick, effects_per_hour=2)
        assert [await begins(), await begins()] == [True, False]
        limited(quick, open_runs=1)
        assert await begins()
        limited(quick, effects_per_hour=1)
        assert not await begins()
        assert [row["used"] for row in quick.rows(quota_usage)] == [2]


#: What a transaction may have locked beside a call.
LOCKED_BESIDE: Final[dict[str, Callable[[Transaction], None]]] = {
    "run, shared": lambda tx: tx.share_run(RUN),
    "another run": lambda tx: tx.lock_run(OTHER_RUN),
    "another step": lambda tx: tx.lock_step(RUN, "other"),
    "another key": lambda tx: tx.lock_key("payments.refund", "other"),
    "the key of another tool": lambda tx: tx.lock_key("mail.send", "refund:order-1001"),
}


@pytest.mark.parametrize("what", LOCKED_BESIDE)
async def test_what_is_locked_beside_a_call_is_not_in_its_way(
    quick: Scene, other: Ledger, what: str
) -> None:
    with other.transaction(quick.tenant) as tx:
        LOCKED_BESIDE[what](tx)

        made = await call(quick, RUN, None, quick.call())

    assert made is not None
    assert made.claimed is not None


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_under_another_isolation_level_the_general_way_is_taken(
    database: Database, twins: Twins, level: str
) -> None:
    request, entry = await in_hand(twins.quick)
    await commit(twins.general, *await in_hand(twins.general))
    requests = [scene.call(holder="mine") for scene in twins.both()]
    options = f"-cdefault_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    url = make_url(database.url).update_query_dict({"options": options})
    before = told(twins.quick)
    async with open_ledger(url.render_as_string(hide_password=False)) as strict:
        strict.keys = twins.quick.ledger.keys
        scene = Scene(strict, twins.quick.tenant)

        assert await call(scene, RUN, None, requests[0]) is None
        assert await call(scene, RUN, outcome(request, entry), requests[0]) is None
        assert told(scene) == before

        await commit(scene, request, entry)
        [(name, _), _] = await same_is_said(Twins(scene, twins.general), requests)
    assert name == "Claimed"


# What becomes of an outcome that is not plain


def taken_over(scene: Scene, request: ClaimRequest, entry: Entry) -> None:
    set_effect(scene, entry, fencing_token=entry.fencing_token + 1)


def in_doubt_already(scene: Scene, request: ClaimRequest, entry: Entry) -> None:
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, request, entry, "cut off") is not None


def failed_already(scene: Scene, request: ClaimRequest, entry: Entry) -> None:
    with scene.tx() as tx:
        second = timedelta(seconds=1)
        assert outcomes.fail(tx, request, entry, "transient", "no route", delay=second)


def recovers(scene: Scene, request: ClaimRequest, entry: Entry) -> None:
    set_effect(scene, entry, recovering_ms=entry.claimed_ms)


def committed_already(scene: Scene, request: ClaimRequest, entry: Entry) -> None:
    scene.commit(request, entry)


def set_effect(scene: Scene, entry: Entry, **values: Any) -> None:
    mine = (effects.c.tenant_id == scene.tenant, effects.c.entry_id == entry.entry_id)
    with scene.tx() as tx:
        tx.execute(update(effects).where(*mine).values(**values))


#: What may have become of an entry whose outcome is in hand; whether that is recorded all the same.
MEANWHILE: Final[dict[str, tuple[Callable[[Scene, ClaimRequest, Entry], None], bool]]] = {
    "taken over": (taken_over, False),
    "in doubt": (in_doubt_already, False),
    "failed": (failed_already, False),
    "recovering": (recovers, True),
    "committed": (committed_already, True),
}


@pytest.mark.parametrize("what", MEANWHILE)
async def test_an_outcome_whose_entry_has_changed_meanwhile_is_left_to_the_general_way(
    twins: Twins, what: str
) -> None:
    change, counts = MEANWHILE[what]
    claimed = [await in_hand(scene) for scene in twins.both()]
    requests = [scene.call(holder="mine") for scene in twins.both()]
    for scene, (request, entry) in zip(twins.both(), claimed, strict=True):
        change(scene, request, entry)

    before = told(twins.quick)
    for following in (None, requests[0]):
        assert await call(twins.quick, RUN, outcome(*claimed[0]), following) is None
    assert told(twins.quick) == before

    ends = [
        await ended(commit(scene, *one, following=request))
        for scene, one, request in zip(twins.both(), claimed, requests, strict=True)
    ]
    assert all(isinstance(one, ApplicationError) is not counts for one in ends), ends
    twins.alike()
    # What cannot be recorded as the outcome is kept, once; what follows is claimed with it alone.
    late = twins.quick.events(type_="effect.late_receipt")
    assert len(late) == (0 if counts else 1)
    assert len(twins.quick.events(type_="effect.committed")) == (1 if counts else 0)
    assert len(twins.quick.rows(effects, step_id=STEP)) == (1 if counts else 0)


async def test_an_older_claim_of_an_entry_that_was_called_again_commits_nothing(
    twins: Twins,
) -> None:
    deduped = {"recovery": Recovery.DEDUPES, "window": WINDOW, "activity_key": "the same"}
    claimed = [await in_hand(scene, **deduped) for scene in twins.both()]
    for scene, (request, _) in zip(twins.both(), claimed, strict=True):
        again = scene.claimed(replace(request, attempt=2, holder="another"))
        assert (again.fencing_token, again.unproven) == (2, True)
        assert not outcome(request, again).is_plain

    assert await call(twins.quick, RUN, outcome(*claimed[0]), None) is None
    for scene, one in zip(twins.both(), claimed, strict=True):
        assert isinstance(await ended(commit(scene, *one)), ApplicationError)

    twins.alike()
    assert [row["state"] for row in twins.quick.rows(effects)] == ["claimed"]


async def test_a_write_that_was_called_again_commits_by_the_general_way(twins: Twins) -> None:
    deduped = {"recovery": Recovery.DEDUPES, "window": WINDOW, "activity_key": "the same"}
    for scene in twins.both():
        request, _ = await in_hand(scene, **deduped)
        again = replace(request, attempt=2, holder="another")
        await commit(scene, again, scene.claimed(again), following=scene.call(holder="mine"))

    twins.alike()
    assert sorted(row["state"] for row in twins.quick.rows(effects)) == ["claimed", "committed"]


async def test_a_receipt_that_becomes_an_artifact_is_recorded_by_the_general_way(
    twins: Twins,
) -> None:
    receipt = "x" * (LARGEST_INLINE + 1)
    for scene in twins.both():
        request, entry = await in_hand(scene)
        kept = await scene.artifacts.keep(scene.tenant, RUN, receipt)
        assert not Outcome(request, entry, kept).is_plain
        await commit(scene, request, entry, receipt, following=scene.call(holder="mine"))

    twins.alike()
    [artifact] = twins.quick.rows(effects.metadata.tables["artifacts"])
    assert artifact["sha256"] in str(twins.quick.row(effects, step_id="first")["receipt"])


async def test_what_a_tool_brings_from_outside_marks_its_run_by_the_general_way(
    twins: Twins,
) -> None:
    for scene in twins.both():
        request, entry = await in_hand(scene, foreign=True)
        assert not outcome(request, entry).is_plain
        await commit(scene, request, entry, following=scene.call(holder="mine"))

    twins.alike()
    assert len(twins.quick.events(type_=foreign.MARKED)) == 1


async def test_an_undo_is_committed_by_the_general_way(twins: Twins) -> None:
    for scene in twins.both():
        undo = scene.undo(scene.committed(scene.call()), holder="mine")
        entry = scene.claimed(undo)
        assert not outcome(undo, entry).is_plain
        await commit(scene, undo, entry)

    twins.alike()
    assert {row["state"] for row in twins.quick.rows(effects)} == {"compensated", "committed"}


async def test_the_next_write_of_another_run_is_claimed_by_the_general_way(twins: Twins) -> None:
    for scene in twins.both():
        scene.open_run(OTHER_RUN)
        request, entry = await in_hand(scene)
        following = scene.call(run_id=OTHER_RUN, holder="mine")
        assert await commit(scene, request, entry, following=following) is not None

    twins.alike()


async def test_an_outcome_counts_for_its_own_run_entry_and_tenant_alone(
    twins: Twins, ledgers: tuple[Ledger, Ledger]
) -> None:
    quick, theirs = twins.quick, born(ledgers).quick
    quick.open_run(OTHER_RUN)
    request, entry = await in_hand(quick)
    before = told(quick)

    elsewhere = replace(request, run_id=OTHER_RUN)
    moved = replace(entry, run_id=OTHER_RUN)
    assert await call(quick, OTHER_RUN, outcome(elsewhere, moved), None) is None
    assert await call(theirs, RUN, outcome(request, entry), None) is None
    assert await call(quick, RUN, outcome(request, replace(entry, entry_id="ef-0")), None) is None
    assert told(quick) == before


async def test_an_outcome_in_one_call_ends_its_own_attempt_of_its_step_alone(
    twins: Twins,
) -> None:
    for scene in twins.both():
        for attempt in (1, 2):
            request, entry = await in_hand(scene, attempt=attempt, key=str(attempt))
        await in_hand(scene, step_id="second", key="second")
        await commit(scene, request, entry)

    twins.alike()
    states = {(row["step_id"], row["attempt"]): row["state"] for row in twins.quick.rows(steps)}
    first = {("first", 1): "running", ("first", 2): "succeeded"}
    assert states == first | {("second", 1): "running"}


async def test_a_step_that_is_claimed_again_under_another_key_begins_anew(twins: Twins) -> None:
    for scene in twins.both():
        request, entry = await in_hand(scene)
        await commit(scene, request, entry, {"id": "r-1"})
        again = scene.call(step_id="first", key="another", params={"order": "2"}, holder="mine")
        assert isinstance(await claim(scene, again), Claimed)

    twins.alike()
    [step] = twins.quick.rows(steps)
    assert (step["state"], step["output"], step["ended_ms"]) == ("running", None, None)
