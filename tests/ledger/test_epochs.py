"""G1 after a restore: what the ledger has forgotten is looked up, or asked about, before a call."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    effects,
    interventions,
    limit_uses,
    quota_usage,
)
from surehand.activities.ledger.core.transaction import GENESIS
from surehand.activities.ledger.effects import claims, epochs, outcomes, reconcile
from surehand.activities.ledger.effects.epochs import EpochError
from surehand.activities.ledger.history.audit import RecordedHead, without_forgotten
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Barred,
    Claimed,
    ClaimRequest,
    Doubtful,
    Held,
    OverLimit,
)
from surehand.activities.tools.tool import Found, NotFound, ToolContext
from surehand.verify import verify_chain
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import forward_key, provider_key, step_key
from tests.ledger import databases
from tests.ledger.attempts import Payment, Provider, effect_call, request_for
from tests.ledger.databases import Database
from tests.ledger.people import administration
from tests.ledger.quotas import limited
from tests.ledger.scene import (
    AT_ONCE,
    LEASE_OVER,
    OTHER_RUN,
    RUN,
    SETTLE,
    STEP,
    TIMEOUT,
    WINDOW,
    Scene,
)
from tests.ledger.test_limits import use
from tests.ledger_databases import DATABASES

pytestmark = pytest.mark.guarantee("G1")

LOOKUP: Final = {"recovery": Recovery.LOOKUP}
HUMAN: Final = {"recovery": Recovery.HUMAN, "settle": None}
DEDUPES: Final = {"recovery": Recovery.DEDUPES, "window": WINDOW, "settle": None}
TRANSACTIONAL: Final = {"recovery": Recovery.TRANSACTIONAL, "settle": None}
_numbers = itertools.count(1)


@dataclass
class Restorable:
    """A ledger of its own that is backed up, and restored to that."""

    database: Database
    copy_of: Callable[[Database], Database]
    opened: ExitStack = field(default_factory=ExitStack)

    def scene(self, database: Database) -> Scene:
        """Open a ledger, with the rights that each statement needs: what is tested is none."""
        ledger = Ledger(make_engine(database.url))
        self.opened.callback(ledger.close)
        return Scene(ledger, "default")

    def begin(self) -> Scene:
        scene = self.scene(self.database)
        scene.open_run(RUN)
        return scene

    def restored(self, scene: Scene, since: Callable[[Scene], object], *, ago: timedelta) -> Scene:
        """Back it up, let something happen, restore it, and open the epoch of that.

        Args:
            scene: The ledger as it is backed up.
            since: What happens, and is forgotten.
            ago: How long ago it was backed up, as whoever restores it says.
        """
        scene.ledger.engine.dispose()
        copy = self.copy_of(self.database)
        since(scene)
        again = self.scene(copy)
        with administration(again) as tx:
            epochs.begin_epoch(tx, tx.now_ms - int(ago / AT_ONCE), "oscar")
        return again


@pytest.fixture(params=DATABASES)
def restorable(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restorable]:
    """A ledger on each database."""
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("restorable")
        template = request.getfixturevalue("sqlite_template")
        file = folder / "ledger.db"
        file.write_bytes(template.read_bytes())

        def copied(of: Database) -> Database:
            copy = folder / f"copy-{next(_numbers)}.db"
            with sqlite3.connect(make_url(of.url).database or "") as connection:
                connection.execute("VACUUM INTO ?", [str(copy)])
            return databases.sqlite(copy)

        one = Restorable(databases.sqlite(file), copied)
    else:
        server = request.getfixturevalue("postgres_server")
        ledgers = request.getfixturevalue("postgres_ledgers")

        def copied(of: Database) -> Database:
            name, copy = make_url(of.url).database, f"copy_{next(_numbers)}"
            server.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{name}"')
            worker = make_url(of.url).set(database=copy).render_as_string(False)
            return databases.postgresql(server, worker)

        one = Restorable(databases.postgresql(server, ledgers.create()), copied)
    with one.opened:
        yield one


def restored_after(
    restorable: Restorable,
    before: Callable[[Scene], object],
    since: Callable[[Scene], object],
    ago: timedelta = timedelta(minutes=1),
) -> Scene:
    scene = restorable.begin()
    before(scene)
    return restorable.restored(scene, since, ago=ago)


def nothing(scene: Scene) -> None:
    pass


@pytest.mark.in_turns
@pytest.mark.parametrize("how", [LOOKUP, HUMAN])
def test_a_forgotten_key_is_in_doubt(restorable: Restorable, how: dict[str, Any]) -> None:
    scene = restored_after(restorable, nothing, lambda scene: scene.committed(scene.call(**how)))

    result = scene.claim(scene.call(**how))

    assert isinstance(result, Doubtful)
    assert result.entry.unknown_because.startswith("the ledger was restored")
    (doubt,) = scene.events(type_="effect.in_doubt")
    assert doubt["body"]["rule"] == "restored"
    assert scene.events(type_="effect.claimed") == []


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("how", "minutes", "found"),
    [(HUMAN, None, Claimed), (DEDUPES, 61, Doubtful), (TRANSACTIONAL, 1, Claimed)],
    ids=["without an epoch", "dedupes no more", "transactional"],
)
def test_a_forgotten_effect_is_called_again_only_if_that_is_harmless(
    restorable: Restorable, how: dict[str, Any], minutes: int | None, found: type[object]
) -> None:
    since, ago = (lambda scene: scene.committed(scene.call(**how))), timedelta(minutes=minutes or 1)
    scene = restored_after(restorable, nothing, since, ago)
    if minutes is None:
        closed_by_owner(scene)

    assert isinstance(scene.claim(scene.call(**how)), found)


def closed_by_owner(scene: Scene) -> None:
    with administration(scene) as tx:
        epochs.close_epoch(tx, "oscar")


def test_a_provider_that_knows_the_key_is_called_again(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing, ago=timedelta(minutes=59))

    entry = scene.claimed(scene.call(**DEDUPES))

    assert entry.unproven and entry.provider_key == provider_key(
        "default", entry.tool, entry.key, 1
    )
    (again,) = scene.events(type_="effect.reconciled")
    assert again["body"]["rule"] == "dedupes"


def test_a_forgotten_call_counts_once_against_the_quota(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing, ago=timedelta(minutes=59))
    call = scene.call(**DEDUPES)
    limited(scene, effects_per_hour=0)
    assert isinstance(scene.claim(call), OverQuota)

    limited(scene, effects_per_hour=5)
    scene.failed(call)
    scene.claimed(scene.call(**DEDUPES, attempt=2), after=LEASE_OVER)

    assert [row["used"] for row in scene.rows(quota_usage, kind="effects")] == [1]


def test_a_forgotten_call_counts_for_its_limits(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing, ago=timedelta(minutes=59))

    assert isinstance(scene.claim(scene.call(**DEDUPES, uses=(use("101"),))), OverLimit)
    scene.claimed(scene.call(**DEDUPES, uses=(use("100"),)))

    assert [row["amount"] for row in scene.rows(limit_uses)] == [100_000_000]


def test_a_forgotten_call_that_is_only_looked_up_counts_for_its_limits(
    restorable: Restorable,
) -> None:
    scene = restored_after(restorable, nothing, nothing)

    assert isinstance(scene.claim(scene.call(uses=(use("90"),))), Doubtful)
    scene.open_run("new", started_at=datetime.now(UTC) + timedelta(seconds=1))
    own = forward_key(step_key("new", STEP))
    later = scene.call(run_id="new", key=own, uses=(use("11"),))
    assert isinstance(scene.claim(later), OverLimit)


def failed(scene: Scene) -> None:
    scene.failed(scene.call())


def compensated(scene: Scene) -> None:
    scene.compensated(scene.call(run_id=OTHER_RUN))


def claimed(scene: Scene) -> None:
    scene.claimed(scene.call(lease=AT_ONCE))


def unasked(scene: Scene) -> None:
    scene.claimed(scene.call(lease=AT_ONCE, observes=True))


def in_doubt(scene: Scene) -> None:
    scene.in_doubt(scene.call())


@pytest.mark.in_turns
@pytest.mark.parametrize("before", [failed, compensated, claimed, unasked, in_doubt])
def test_an_entry_that_was_there_at_the_instant_may_have_been_called_since(
    restorable: Restorable, before: Callable[[Scene], None]
) -> None:
    def both(scene: Scene) -> None:
        scene.open_run(OTHER_RUN)
        before(scene)

    scene = restored_after(restorable, both, nothing)

    result = scene.claim(scene.call(attempt=2), timedelta(seconds=1))

    assert isinstance(result, Doubtful)
    assert result.entry.observed == {"answer": "forgotten"}
    with scene.tx(timedelta(seconds=1)) as tx:
        after = reconcile.after_not_found(tx, scene.call(attempt=2), result.entry, forward=True)
    assert isinstance(after, Held), "a call of just before the restore may still arrive"


def test_not_found_waits_for_forgotten_calls(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    request = scene.call()
    result = scene.claim(request)
    assert isinstance(result, Doubtful)

    def looked(after: timedelta) -> object:
        with scene.tx(after) as tx:
            return reconcile.after_not_found(tx, request, result.entry, forward=True)

    assert isinstance(looked(TIMEOUT + SETTLE - timedelta(seconds=5)), Held)
    assert isinstance(looked(TIMEOUT + SETTLE + timedelta(seconds=1)), Claimed)


def test_what_was_settled_in_the_epoch_is_not_in_doubt_again(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    first = scene.claim(scene.call())
    assert isinstance(first, Doubtful)
    with scene.tx() as tx:
        reconcile.settle_not_applied(tx, first.entry, "lookup_not_found")

    assert isinstance(scene.claim(scene.call(attempt=2)), Claimed)


def test_a_run_started_after_the_restore_calls_at_once(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    scene.open_run("new", started_at=datetime.now(UTC) + timedelta(seconds=1))
    own = forward_key(step_key("new", STEP))

    assert isinstance(scene.claim(scene.call(**HUMAN, run_id="new", key=own)), Claimed)
    business = scene.call(**HUMAN, run_id="new", step_id="other", key="refund:order-7")
    assert isinstance(scene.claim(business), Doubtful)
    begun_before = scene.call(**HUMAN, key=forward_key(step_key(RUN, STEP)))
    assert isinstance(scene.claim(begun_before), Doubtful)


def test_a_step_that_is_barred_is_not_put_in_doubt(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    scene.begin_undo()

    assert isinstance(scene.claim(scene.call()), Barred)
    assert scene.rows(effects) == []


def test_a_forgotten_approval_allows_no_call_before_a_lookup(restorable: Restorable) -> None:
    approved: list[ClaimRequest] = []
    scene = restored_after(
        restorable,
        lambda scene: approved.append(scene.approved(scene.call())),
        lambda scene: scene.committed(approved[0]),
    )
    assert scene.row(approvals)["consumed_entry"] is None

    assert isinstance(scene.claim(approved[0]), Doubtful)
    assert scene.row(approvals)["consumed_entry"] is None


def test_an_undo_that_was_made_since_the_instant_is_looked_up_first(restorable: Restorable) -> None:
    entries = []
    scene = restored_after(
        restorable,
        lambda scene: entries.append(scene.committed(scene.call())),
        lambda scene: scene.commit(scene.undo(entries[0]), scene.claimed(scene.undo(entries[0]))),
    )
    undo = scene.undo(entries[0])

    result = scene.claim(undo)

    assert isinstance(result, Doubtful)
    assert scene.entry(entries[0].entry_id).state == "compensating"
    scene.commit(undo, result.entry, "found")
    assert scene.entry(entries[0].entry_id).state == "compensated"


def test_an_undo_of_what_was_made_after_the_restore_is_not_in_doubt(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    scene.open_run("new", started_at=datetime.now(UTC) + timedelta(seconds=1))
    own = scene.call(**HUMAN, run_id="new", key=forward_key(step_key("new", STEP)))
    made = scene.committed(own)
    request = scene.call()
    doubtful = scene.claim(request)
    assert isinstance(doubtful, Doubtful)
    with scene.tx() as tx:
        found = {"rule": "lookup", "answer": "found"}
        assert outcomes.commit_effect(tx, request, doubtful.entry, Kept("r-0"), evidence=found)

    assert isinstance(scene.claim(scene.undo(made, **HUMAN)), Claimed)
    assert isinstance(scene.claim(scene.undo(doubtful.entry, **HUMAN)), Doubtful)


def test_only_heads_of_the_forgotten_time_are_no_break(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    with scene.tx() as tx:
        (epoch,) = epochs.list_epochs(tx)
        events, _, head = chain_of(tx, RUN)
    ahead = ChainHead(seq=9, hash=GENESIS)

    def judged(head: ChainHead, at_ms: int) -> tuple[bool, int]:
        kept, forgotten = without_forgotten(events, [RecordedHead(head, at_ms)], [epoch])
        return verify_chain(events, kept) is None, forgotten

    assert judged(head, epoch.restored_to_ms + 1) == (True, 0)
    assert judged(ahead, epoch.restored_to_ms + 1) == (True, 1)
    assert judged(ahead, epoch.restored_to_ms - 1) == (False, 0)
    assert judged(ahead, epoch.opened_ms + 1) == (False, 0)


def test_a_claim_ahead_leaves_forgotten_effects_alone(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)

    with scene.tx() as tx:
        assert claims.claim_at_once(tx, scene.call()) is None
    assert scene.rows(effects) == []


def test_resource_tokens_go_past_the_forgotten_ones(restorable: Restorable) -> None:
    given: list[int] = []

    def leased(scene: Scene) -> None:
        given.append(scene.hold("account:7").fencing_token)

    def twice(scene: Scene) -> None:
        leased(scene)
        leased(scene)

    scene = restored_after(restorable, leased, twice)
    leased(scene)
    closed_by_owner(scene)
    leased(scene)

    assert given == sorted(set(given))


@dataclass
class Shop(Provider):
    """A provider that can be asked what it was paid."""

    paid: dict[str, str] = field(default_factory=dict)

    async def pay(self, params: Payment, ctx: ToolContext) -> Any:
        """Take a payment, every time."""
        self.paid[ctx.idempotency_key] = "r-1"
        return await super().pay(params, ctx)

    async def find(self, params: Payment, ctx: ToolContext) -> Found | NotFound:
        """Say what was paid."""
        found = self.paid.get(ctx.idempotency_key)
        return NotFound() if found is None else Found(found)


async def test_a_forgotten_effect_is_found_and_not_made_again(restorable: Restorable) -> None:
    shop = Shop(["r-1"])
    refund = shop.tool(lookup=shop.find, settle=SETTLE)
    scene = restorable.begin()
    copied = restorable.copy_of
    scene.ledger.engine.dispose()
    copy = copied(restorable.database)
    await effect_call(scene, refund, request_for(scene, refund)).run()
    restorable.copy_of = lambda _: copy
    scene = restorable.restored(scene, nothing, ago=timedelta(minutes=1))

    result = await effect_call(scene, refund, request_for(scene, refund)).run()

    assert isinstance(result, Done) and result.receipt == "r-1"
    assert len(shop.keys) == 1, "the effect was made again"
    await scene.audited()
    recovered = scene.events(type_="recovery.verified")[-1]["body"]
    assert "broken" not in recovered


async def test_a_human_is_asked_where_nothing_can_be_looked_up(restorable: Restorable) -> None:
    shop = Shop(["r-1"])
    refund = shop.tool(recovery="human")
    scene = restored_after(restorable, nothing, nothing)

    result = await effect_call(scene, refund, request_for(scene, refund)).run()

    assert isinstance(result, Asked)
    assert "the ledger was restored, and has forgotten" in result.question
    assert shop.keys == []
    assert scene.row(interventions)["state"] == "open"


def test_an_epoch_is_opened_once_and_not_in_the_future(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)
    closed_by_owner(scene)

    def refused(work: Callable[[Transaction], object]) -> str:
        with pytest.raises(EpochError) as found, administration(scene) as tx:
            work(tx)
        return str(found.value)

    def twice(tx: Transaction) -> None:
        assert epochs.begin_epoch(tx, tx.now_ms, "oscar").number == 2
        epochs.begin_epoch(tx, tx.now_ms, "oscar")

    assert "still to come" in refused(
        lambda tx: epochs.begin_epoch(tx, tx.now_ms + 60_000, "oscar")
    )
    assert "epoch 2 is open already" in refused(twice)
    assert "no epoch is open" in refused(lambda tx: epochs.close_epoch(tx, "oscar"))


@pytest.mark.postgres
@pytest.mark.parametrize("restorable", ["postgresql"], indirect=True)  # which has roles
def test_workers_neither_open_nor_close_an_epoch(restorable: Restorable) -> None:
    scene = restored_after(restorable, nothing, nothing)

    for work in (
        lambda tx: epochs.close_epoch(tx, "mallory"),
        lambda tx: tx.insert_row(
            epochs.epochs, number=9, restored_to_ms=1, opened_ms=2, opened_by="m"
        ),
    ):
        with pytest.raises(DBAPIError, match="permission denied"), scene.tx() as tx:
            work(tx)
