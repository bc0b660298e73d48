"""G6: what happened can be proven: one chain a run, and an audit that names the first break."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from surehand.activities.ledger.core.store import LedgerUnavailable, RunNotFound, open_ledger
from surehand.activities.ledger.core.tables import events, runs
from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.activities.ledger.history.audit import (
    unverified_approvers,
    verify_entries,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.verify import verify_chain, verify_story
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.plan.policy import Requirement
from tests.ledger.databases import Database
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene

pytestmark = pytest.mark.guarantee("G6")
HASHED = ("run_id", "seq", "type", "step_id", "body", "at_ms")


def recomputed(chain: list[dict[str, Any]]) -> str:
    """Return the head of a chain, computed from its contents alone and not by the ledger's code."""
    head = "sha256:" + "0" * 64
    for event in chain:
        content = {name: event[name] for name in HASHED}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        head = "sha256:" + hashlib.sha256(f"{head}\n{canonical}".encode()).hexdigest()
        assert event["hash"] == head, event["seq"]
    return head


def _story(scene: Scene) -> list[dict[str, Any]]:
    """Let a run do a bit of everything, and return its chain."""
    gated = scene.approved(scene.call())
    committed = scene.committed(gated)
    scene.answered_no(scene.call(step_id="mail", key="mail"))
    scene.begin_undo()
    undo = scene.undo(committed)
    scene.commit(undo, scene.claimed(undo))
    return scene.events()


def test_events_are_numbered_without_gaps_and_hash_the_one_before(scene: Scene) -> None:
    chain = _story(scene)

    assert [event["seq"] for event in chain] == list(range(1, len(chain) + 1))
    assert [event["type"] for event in chain] == [
        "run.opened",
        "approval.requested",
        "decision.accepted",
        "approval.approved",
        "approval.consumed",
        "effect.claimed",
        "effect.committed",
        "effect.claimed",
        "effect.answered_no",
        "step.barred",
        "effect.claimed",
        "effect.committed",
        "effect.compensated",
    ]
    assert recomputed(chain) == (scene.row(runs))["head"]


def test_an_event_is_written_only_if_its_transaction_commits(scene: Scene) -> None:
    before = [scene.rows(table) for table in (runs, events)]

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        tx.event(RUN, "test.never")
        tx.write_events()
        raise ZeroDivisionError

    assert [scene.rows(table) for table in (runs, events)] == before


def test_a_change_whose_event_cannot_be_written_is_not_made(scene: Scene) -> None:
    with pytest.raises(RunNotFound), scene.tx() as tx:
        tx.execute(update(runs).where(runs.c.tenant_id == scene.tenant).values(user_id="mallory"))
        tx.event("nobody's run", "test.lost")

    assert (scene.row(runs))["user_id"] == "ada"


def test_a_transaction_returns_the_heads_that_the_rows_have_then(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    with scene.tx() as tx:
        tx.watch(OTHER_RUN)
        tx.event(RUN, "test.first")
        tx.event(RUN, "test.second", step_id="s", number=1)

    assert set(tx.heads) == {RUN, OTHER_RUN}
    for run_id, head in tx.heads.items():
        row = scene.row(runs, run_id=run_id)
        assert (head.seq, head.hash) == (row["seq"], row["head"])
        assert (scene.events(run_id))[-1]["hash"] == head.hash


def test_events_hold_digests_and_references_and_no_params(scene: Scene) -> None:
    secret = "4556-7375-8689-9855"
    request = scene.approved(scene.call(params={"card": secret}))
    entry = scene.claimed(request)
    scene.commit(request, entry, {"card": secret})

    told = json.dumps([event["body"] for event in scene.events()])
    assert secret not in told
    assert request.params_hash in told


def test_unusual_text_in_an_event_is_hashed_as_it_is_stored(scene: Scene) -> None:
    with scene.tx() as tx:
        tx.event(RUN, "test.odd", text='é \U0001f600 \u2028 \x7f "quoted" \\ ', number=2**53 - 1)

    recomputed(scene.events())


@dataclass
class Heard:
    transactions: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def transaction(self, outcome: str, seconds: float) -> None:
        assert seconds > 0
        self.transactions.append(outcome)

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        self.events.append(type_)


async def test_an_observer_hears_of_committed_events_only(database: Database, scene: Scene) -> None:
    heard = Heard()
    async with open_ledger(database.url, heard) as ledger:
        with ledger.transaction(scene.tenant) as tx:
            tx.event(RUN, "test.kept")
        with pytest.raises(ZeroDivisionError), ledger.transaction(scene.tenant) as tx:
            tx.event(RUN, "test.lost")
            raise ZeroDivisionError
        with pytest.raises(LedgerUnavailable), ledger.transaction(scene.tenant):
            raise ConnectionError("cut off")

    assert heard.transactions == ["committed", "rolled_back", "unavailable"]
    assert heard.events == ["test.kept"]


def test_an_events_line_in_the_log_says_where_it_stands_in_its_runs_chain(scene: Scene) -> None:
    with capture_logs() as lines, scene.tx() as tx:
        tx.event(RUN, "test.first")
        tx.event(RUN, "test.second")

    told = [(line["event"], line["run_id"], line["seq"]) for line in lines]
    rows = [(row["type"], RUN, row["seq"]) for row in scene.events()]
    assert told == rows[-2:]


Events = list[dict[str, Any]]


async def told(scene: Scene) -> tuple[Events, Events, ChainHead]:
    """Let a run claim and commit an approved refund, and return what is stored of it."""
    gated = scene.approved(scene.call())
    scene.committed(gated)
    return await scene.ledger.transact(scene.tenant, chain_of, RUN)


def rechained(events: Events) -> Events:
    """Return events with hashes that fit, as a forger would make them."""
    previous = GENESIS
    for seq, event in enumerate(events, start=1):
        event["seq"], event["previous"] = seq, previous
        hashed = {k: event[k] for k in ("run_id", "seq", "type", "step_id", "body", "at_ms")}
        previous = event["hash"] = event_hash(previous, hashed)
    return events


def named(events: Events, type_: str) -> dict[str, Any]:
    return next(event for event in events if event["type"] == type_)


async def test_an_untouched_run_passes(scene: Scene) -> None:
    events, entries, head = await told(scene)

    assert unverified_approvers(events) == [named(events, "decision.accepted")["body"]["approver"]]
    assert verify_chain(events, [head]) is None
    assert verify_story(events) is None
    assert verify_entries(events, entries) is None


async def test_what_was_changed_in_a_chain_or_cut_from_it_is_named(scene: Scene) -> None:
    events, _, head = await told(scene)
    for name in ("type", "body", "at_ms", "step_id", "run_id"):
        forged = copy.deepcopy(events)
        forged[2][name] = {"body": {"x": 1}, "at_ms": 1}.get(name, "forged")
        found = verify_chain(forged)
        assert found is not None and found.seq == 3
    removed, shortened = verify_chain(events[:1] + events[2:]), verify_chain(events[:-1], [head])
    assert removed is not None and removed.seq == 2
    assert shortened is not None and str(head.seq) in shortened.reason

    rewritten = rechained(copy.deepcopy(events[:1] + events[2:]))
    assert verify_chain(rewritten) is None
    # It shows against a head that was recorded elsewhere.
    assert verify_chain(rewritten, [ChainHead(seq=2, hash=events[1]["hash"]), head]) is not None


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("type_", "changes", "reason"),
    [
        ("approval.requested", None, "never asked for"),
        ("approval.approved", None, "no decision approved it"),
        ("approval.consumed", None, "without its approval"),
        ("effect.claimed", None, "without a claim"),
        ("effect.claimed", {"params_hash": "sha256:other"}, "other params than approved"),
        ("approval.requested", {"expires_ms": 1}, "expired"),
        ("approval.requested", {"assurance": "signed"}, "0 of 1"),
    ],
)
async def test_a_story_without_an_event_or_with_a_changed_one_is_named(
    scene: Scene, type_: str, changes: dict[str, Any] | None, reason: str
) -> None:
    events, _, _ = await told(scene)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    if changes is None:
        events = rechained([event for event in events if event["type"] != type_])
    else:
        named(events, type_)["body"].update(changes)

    assert reason in str(verify_story(events))


async def test_an_entry_that_no_event_tells_of_is_named(scene: Scene) -> None:
    events, entries, _ = await told(scene)
    without = [event for event in events if event["type"] != "effect.committed"]

    found = verify_entries(without, entries)

    assert found is not None
    assert entries[0]["entry_id"] in found.reason


async def test_an_entry_with_other_params_than_were_claimed_is_named(scene: Scene) -> None:
    events, entries, _ = await told(scene)

    found = verify_entries(events, [{**entries[0], "params_hash": "sha256:other"}])

    assert found is not None
    assert f"entry {entries[0]['entry_id']} has other params" in found.reason


async def voted(scene: Scene) -> Events:
    """Let a run commit a refund that two have approved, and return its events."""
    two = Requirement(quorum=2)
    gated = scene.ask_approval(scene.call(), requirement=two)
    for approver in ("ann", "bob"):
        scene.decide(gated, approver=approver)
    scene.committed(gated)
    events, _, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    return events


async def test_an_approval_by_fewer_people_than_were_asked_for_is_named(scene: Scene) -> None:
    events = await voted(scene)
    assert verify_story(events) is None
    votes = [event for event in events if event["type"] == "decision.accepted"]

    same = copy.deepcopy(events)
    for event in same:
        if event["type"] == "decision.accepted":
            event["body"]["approver"] = "ann"
    one = [event for event in events if event != votes[0]]
    of_another = copy.deepcopy(events)
    named(of_another, "decision.accepted")["body"]["approval_id"] = "run-1/refund/9"
    rejected = copy.deepcopy(events)
    named(rejected, "decision.accepted")["body"]["outcome"] = "reject"

    for forged in (same, one, of_another, rejected):
        found = verify_story(forged)
        assert found is not None
        assert "1 of 2" in found.reason


async def test_a_waiver_from_before_a_human_was_asked_lets_no_claim_through(scene: Scene) -> None:
    events, _, _ = await told(scene)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    claim = named(events, "effect.claimed")
    waiver = copy.deepcopy(claim)
    waiver["type"] = "approval.waived"
    del claim["body"]["approval_id"]
    without = [event for event in events if not event["type"].startswith(("approval", "decision"))]
    at = without.index(claim)

    assert verify_story([*without[:at], waiver, *without[at:]]) is None
    found = verify_story([events[0], waiver, *events[1:]])

    assert found is not None
    assert "without its approval" in found.reason
