"""People are told what happened at least once, by one worker at a time, and of nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from surehand.activities.ledger.outbox import notification_rows as outbox_rows
from surehand.activities.ledger.outbox.notification import (
    Kind,
    MaybeDelivered,
    NotDelivered,
    Notification,
    ReceiverGone,
)
from surehand.activities.ledger.steps.entries import Forbidden
from surehand.activities.notifiers import Webhook, secret_of, url_of
from surehand.activities.outbox import (
    BATCH,
    FIRST_PAUSE,
    GIVE_UP_AFTER,
    LEASE,
    LONGEST_PAUSE,
    Courier,
    pause_after,
)
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, STEP, WINDOW, Scene
from tests.ledger.standing import ask, granted
from tests.ledger.tenant_outbox import (
    RECEIVER,
    Receiver,
    TenantOutbox,
    kill_outbox_on_arrival,
    tenant_outbox,
)
from tests.notifiers.receiver import Receiver as WebhookReceiver
from tests.notifiers.receiver import receiving
from tests.notifiers.samples import approval

HOUR = timedelta(hours=1)
REQUEST = f"{RUN}/{STEP}/1"
#: Longer than any pause after the first failed attempt, and far shorter than the second one.
RETRIED = FIRST_PAUSE * 1.3


@pytest.fixture
async def at_receiver(scene: Scene) -> AsyncIterator[TenantOutbox]:
    async with tenant_outbox(scene) as opened:
        yield opened


async def test_a_repeated_request_is_told_once(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    for _ in range(3):
        here.scene.ask_approval(here.scene.call())

    assert await here.send() == {"sent": 1}
    here.scene.ask_approval(here.scene.call())
    assert await here.send() == {}

    assert here.receiver.told == [(Kind.APPROVAL, REQUEST, 0)]
    [row] = here.rows()
    assert (row["state"], row["attempts"], row["error"]) == ("sent", 1, None)
    assert here.receiver.got[0].delivery_id == row["notification_id"]


async def test_whoever_is_told_gets_the_link_to_the_page_where_it_is_decided(scene: Scene) -> None:
    async with tenant_outbox(scene, approvals_url="https://approvals.example.com") as here:
        here.scene.ask_approval(here.scene.call())
        assert await here.send() == {"sent": 1}

    [told] = here.receiver.got
    assert told.page == f"https://approvals.example.com/approval?{urlencode({'id': REQUEST})}"


async def test_of_a_flood_people_are_told_in_one_line_until_some_is_decided(
    at_receiver: TenantOutbox,
) -> None:
    here, most = at_receiver, outbox_rows.MOST_TOLD
    flood = [
        here.scene.ask_approval(here.scene.call(key=f"k-{n}", step_id=f"s-{n}"))
        for n in range(most + 3)
    ]
    other = here.scene.ask_approval(here.scene.call(key="o", step_id="o", tool="mail.send"))

    await here.send()
    await here.send()

    kinds = Counter(kind for kind, _, _ in here.receiver.told)
    assert kinds == {Kind.APPROVAL: most + 1, Kind.FLOOD: 1}
    assert other.approval_id in [subject for _, subject, _ in here.receiver.told]
    [line] = [one for one in here.receiver.got if one.kind == Kind.FLOOD]
    assert line.title.endswith(
        f"more than {most} calls of payments.refund wait for approval in run {RUN}"
    )
    assert " pending" in line.commands[-1]

    told = {subject for _, subject, _ in here.receiver.told}
    first = next(one for one in flood if one.approval_id in told)
    here.scene.decide(first)
    await here.send(timedelta(minutes=2))
    assert len(here.receiver.told) == most + 3
    for one in flood:
        here.scene.decide(one)
    await here.send(timedelta(minutes=4))
    assert len(here.receiver.told) == most + 3, "of what is decided nobody is told"


async def test_what_is_held_back_delays_nobody_else(at_receiver: TenantOutbox) -> None:
    here, most = at_receiver, outbox_rows.MOST_TOLD
    for number in range(most + 3 * BATCH):
        here.scene.ask_approval(here.scene.call(key=f"k-{number}", step_id=f"s-{number}"))
    second = timedelta(seconds=1)
    mail = here.scene.call(key="o", step_id="o", tool="mail.send")
    other = here.scene.ask_approval(mail, after=second)

    await here.send(after=2 * second)

    assert other.approval_id in [subject for _, subject, _ in here.receiver.told]


async def test_of_what_is_held_back_nobody_is_reminded(at_receiver: TenantOutbox) -> None:
    here, asks = at_receiver, {"expires_in": 8 * HOUR, "remind_every": HOUR}
    for number in range(outbox_rows.MOST_TOLD + 3):
        here.scene.ask_approval(here.scene.call(key=f"k-{number}", step_id=f"s-{number}"), **asks)

    await here.send()
    await here.send(after=1.1 * HOUR)

    told = {kind: {what for one, what, _ in here.receiver.told if one == kind} for kind in Kind}
    assert len(told[Kind.APPROVAL]) == outbox_rows.MOST_TOLD
    assert told[Kind.REMINDER] == told[Kind.APPROVAL]


async def test_what_was_held_back_for_long_is_tried_as_long_as_anything(
    at_receiver: TenantOutbox,
) -> None:
    here, long = at_receiver, GIVE_UP_AFTER * 3
    flood = [
        here.scene.ask_approval(
            here.scene.call(key=f"k-{number}", step_id=f"s-{number}"), expires_in=long
        )
        for number in range(outbox_rows.MOST_TOLD + 1)
    ]
    await here.send()
    await here.send(after=GIVE_UP_AFTER)
    told = {subject for _, subject, _ in here.receiver.told}
    here.scene.decide(next(one for one in flood if one.approval_id in told))
    here.receiver.refuses = NotDelivered("no route")

    later = GIVE_UP_AFTER + timedelta(minutes=2)
    assert await here.send(after=later) == {"failed": 1}
    here.receiver.refuses = None
    assert await here.send(after=later + RETRIED) == {"sent": 1}


def test_of_a_call_that_was_approved_in_advance_nobody_is_told(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    granted(here.scene, "ann", when="amount <= 150", count=5)

    ask(here.scene, "120.00", step_id="small")
    ask(here.scene, "160.00", step_id="large")

    assert [row["step_id"] for row in here.rows()] == ["large"]


async def test_an_intervention_is_told_with_its_question(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    _, intervention = here.scene.asked(here.scene.call())

    assert await here.send() == {"sent": 1}

    [told] = here.receiver.got
    assert (told.kind, told.subject, told.what) == (Kind.INTERVENTION, intervention, "Did it?")
    assert told.commands[1] == f"python starter.py resolve {intervention} OUTCOME --run {RUN} " + (
        f"--tenant {here.scene.tenant}"
    )


async def test_each_permission_pause_is_told_once(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    paused = here.scene.call(permissions=frozenset({"refunds.make"}))
    # An activity that is tried again, and the one after `resume`.
    for request in (
        paused,
        replace(paused, attempt=2),
        replace(paused, attempt=3, first_attempt=3),
    ):
        assert isinstance(here.scene.claim(request), Forbidden)

    assert await here.send() == {"sent": 2}

    assert sorted(here.receiver.told) == [
        (Kind.PERMISSION, f"{RUN}/{STEP}", 1),
        (Kind.PERMISSION, f"{RUN}/{STEP}", 3),
    ]
    assert here.receiver.got[0].what == "ada has no permission refunds.make"


async def test_a_lost_receiver_is_tried_again_by_the_same_id(at_receiver: TenantOutbox) -> None:
    here, ids = at_receiver, set()
    here.scene.ask_approval(here.scene.call())
    here.receiver.refuses = NotDelivered("HTTP 503")

    assert await here.send() == {"failed": 1}
    assert await here.send() == {}, "not before its pause is over"
    assert await here.send(after=RETRIED) == {"failed": 1}
    ids |= {row["notification_id"] for row in here.rows()}
    here.receiver.refuses = None
    assert await here.send(after=RETRIED * 4) == {"sent": 1}

    [row] = here.rows()
    assert (row["state"], row["attempts"], row["error"]) == ("sent", 3, None)
    assert {one.delivery_id for one in here.receiver.got} == ids


def test_pauses_grow_up_to_the_longest_and_are_spread() -> None:
    middle = [pause_after(attempt, 0.5) for attempt in (1, 2, 3, 40, 40_000)]

    assert middle == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4, LONGEST_PAUSE, LONGEST_PAUSE]
    assert pause_after(1, 0) == FIRST_PAUSE * 0.8
    assert pause_after(1, 1) == FIRST_PAUSE * 1.2


async def test_a_receiver_is_left_alone_for_as_long_as_it_says(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call())
    here.receiver.refuses = NotDelivered("HTTP 429", retry_after=timedelta(minutes=30))

    assert await here.send() == {"failed": 1}
    here.receiver.refuses = None

    assert await here.send(after=timedelta(minutes=29)) == {}
    assert await here.send(after=timedelta(minutes=31)) == {"sent": 1}


async def test_what_may_have_arrived_is_sent_seldom(at_receiver: TenantOutbox) -> None:
    here, sent = at_receiver, 0
    here.scene.ask_approval(here.scene.call(), expires_in=GIVE_UP_AFTER * 3)
    here.receiver.refuses = MaybeDelivered("no answer")
    [written] = here.rows()

    later = timedelta(0)
    while here.rows()[0]["state"] == "pending":
        sent += (await here.send(after=later)).total()
        due = here.rows()[0]["due_ms"] - written["written_ms"]
        later = timedelta(milliseconds=due)

    assert 2 < sent <= 16
    assert here.rows()[0]["attempts"] == sent


async def test_after_a_day_it_is_given_up_with_an_error(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call(), expires_in=GIVE_UP_AFTER * 3)
    here.receiver.refuses = NotDelivered("no route", retry_after=GIVE_UP_AFTER * 30)

    assert await here.send() == {"failed": 1}
    assert await here.send(after=GIVE_UP_AFTER * 0.99) == {}
    with capture_logs() as lines:
        assert await here.send(after=GIVE_UP_AFTER) == {"given_up": 1}
    assert await here.send(after=GIVE_UP_AFTER * 2) == {}

    [row] = here.rows()
    assert (row["state"], row["error"]) == ("failed", "no route")
    [event] = here.scene.events(type_="notification.failed")
    assert event["body"]["notification_id"] == row["notification_id"]
    [said] = [line for line in lines if line["log_level"] == "error"]
    assert (said["event"], said["subject"]) == ("notification.given_up", REQUEST)


async def test_what_no_worker_can_send_is_given_up_after_a_day(scene: Scene) -> None:
    async with tenant_outbox(scene, pager=Receiver()) as with_pager:
        with_pager.scene.ask_approval(with_pager.scene.call(), expires_in=GIVE_UP_AFTER * 3)
    async with tenant_outbox(scene) as here:
        assert await here.send() == {"sent": 1}
        assert await here.send(after=GIVE_UP_AFTER * 0.99) == {}
        assert await here.send(after=GIVE_UP_AFTER * 1.01) == {"given_up": 1}

        states = {row["channel"]: row["state"] for row in here.rows()}
    assert states == {RECEIVER: "sent", "pager": "failed"}


async def test_a_gone_receiver_is_asked_again_at_the_next_start(scene: Scene) -> None:
    async with tenant_outbox(scene, Receiver(refuses=ReceiverGone("HTTP 410"))) as here:
        here.scene.ask_approval(here.scene.call())
        with capture_logs() as lines:
            assert await here.send() == {"given_up": 1}
        here.scene.ask_approval(here.scene.call(step_id="mail", key="mail"))
        assert await here.send() == {}

        assert here.receiver.tried == 1
        assert "notifier.disabled" in [x["event"] for x in lines if x["log_level"] == "error"]
    async with tenant_outbox(scene) as restarted:
        assert await restarted.send() == {"sent": 1}
        assert restarted.receiver.told == [(Kind.APPROVAL, f"{RUN}/mail/1", 0)]


async def test_several_workers_share_the_outbox_and_each_row_goes_to_one(scene: Scene) -> None:
    receiver, count = Receiver(), 40
    async with AsyncExitStack() as stack:
        outboxes = [
            await stack.enter_async_context(tenant_outbox(scene, receiver)) for _ in range(4)
        ]
        for number in range(count):
            own = {"step_id": f"s{number}", "key": f"k{number}", "tool": f"tool-{number}"}
            outboxes[0].scene.ask_approval(scene.call(**own))

        sent = await asyncio.gather(*(one.send() for one in outboxes))

        assert sum(sent, Counter()) == {"sent": count}
        assert Counter(one.delivery_id for one in receiver.got).most_common(1)[0][1] == 1
        assert {row["attempts"] for row in outboxes[0].rows()} == {1}


async def test_a_dead_workers_row_is_sent_by_another(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call())
    with here.scene.tx() as tx:
        taken, _, _ = outbox_rows.take_due(tx, RECEIVER, tx.now_ms, limit=9, lease=LEASE)

    assert await here.send() == {}
    here.receiver.refuses = NotDelivered("down")
    assert await here.send(after=LEASE * 1.1) == {"failed": 1}
    # The dead one was only slow: another attempt is not its own to put off.
    with here.scene.tx() as tx:
        assert not outbox_rows.put_off(tx, taken[0], "late", tx.now_ms)
    here.receiver.refuses = None
    assert await here.send(after=LEASE * 2) == {"sent": 1}

    assert [one.model_dump() for one in here.receiver.got] == [taken[0].notification.model_dump()]
    with here.scene.tx() as tx:
        assert not outbox_rows.record_sent(tx, taken[0].notification.delivery_id, tx.now_ms)
    assert [row["state"] for row in here.rows()] == ["sent"]


@pytest.mark.in_turns
@pytest.mark.parametrize("how", ["approve", "reject", "expired", "void", "too late"])
async def test_a_closed_request_is_told_nobody(at_receiver: TenantOutbox, how: str) -> None:
    here = at_receiver
    gated = here.scene.ask_approval(here.scene.call(), remind_every=WINDOW / 4)
    match how:
        case "approve" | "reject":
            assert (here.scene.decide(gated, how)).code == "accepted"
        case "expired" | "void":
            here.scene.close(gated, how, after=WINDOW)
    late = WINDOW if how == "too late" else WINDOW * 0.6

    assert await here.send(after=late) == {"dropped": 1}

    assert here.receiver.tried == 0
    assert [row["state"] for row in here.rows()] == ["void"]


async def test_a_settled_intervention_is_told_nobody(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    _, intervention = here.scene.asked(here.scene.call())
    given_up = Resolution(
        intervention_id=intervention, outcome=ResolutionOutcome.GIVE_UP, actor="olga"
    )
    assert (here.scene.settle(given_up))[0]

    assert await here.send() == {"dropped": 1}
    assert here.receiver.tried == 0


async def test_people_are_reminded_once_an_interval(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call(), expires_in=8 * HOUR, remind_every=HOUR)
    for after in (0.0, 0.9, 1.1, 1.2, 2.1, 8.1):
        await here.send(after=after * HOUR)

    assert here.receiver.told == [
        (Kind.APPROVAL, REQUEST, 0),
        (Kind.REMINDER, REQUEST, 1),
        (Kind.REMINDER, REQUEST, 2),
    ]
    assert here.receiver.got[1].title.startswith("Reminder 1, approval needed")


async def test_a_late_worker_reminds_once(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call(), expires_in=24 * HOUR, remind_every=HOUR)
    await here.send()
    for after in (20.5, 20.9, 21.1):
        await here.send(after=after * HOUR)

    assert [number for _, _, number in here.receiver.told] == [0, 20, 21]


async def test_a_new_reminder_replaces_an_unsent_one(at_receiver: TenantOutbox) -> None:
    here = at_receiver
    here.scene.ask_approval(here.scene.call(), expires_in=24 * HOUR, remind_every=HOUR)
    await here.send()
    here.receiver.refuses = NotDelivered("down")
    for after in (1.1, 2.1, 3.1):
        assert await here.send(after=after * HOUR) == {"reminded": 1, "failed": 1}
    here.receiver.refuses = None
    assert await here.send(after=3.9 * HOUR) == {"sent": 1}

    assert [number for _, _, number in here.receiver.told] == [0, 3]
    assert [row["state"] for row in here.rows()] == ["sent", "void", "void", "sent"]


class Blocks:
    """A notifier that keeps its thread, as one that calls a library without a time-out would."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    async def send(self, notification: Notification) -> None:
        self.let_go.wait()


class Quits:
    """A notifier that tries to end the process."""

    async def send(self, notification: Notification) -> None:
        raise SystemExit(3)


async def test_a_notifier_that_blocks_or_quits_fails_and_the_others_tell(scene: Scene) -> None:
    blocks, limit = Blocks(), timedelta(milliseconds=200)
    async with tenant_outbox(scene, limit=limit, blocks=blocks, quits=Quits()) as here:
        here.scene.ask_approval(here.scene.call())

        outcomes = await asyncio.gather(
            here.outbox.run_once("blocks"), here.outbox.run_once("quits"), here.send()
        )

        assert [+one for one in outcomes] == [{"failed": 1}, {"failed": 1}, {"sent": 1}]
        errors = {row["channel"]: row["error"] for row in here.rows()}
        assert errors == {
            RECEIVER: None,
            "blocks": "it was not sent within 0.2 s",
            "quits": "SystemExit: 3",
        }
        blocks.let_go.set()


async def test_what_did_not_end_in_time_may_have_told_all_the_same() -> None:
    blocks = Blocks()
    courier = Courier("blocks", blocks, timedelta(milliseconds=200))

    with pytest.raises(MaybeDelivered, match="not sent within"):
        await courier.send(approval())

    blocks.let_go.set()
    courier.close()


async def test_what_a_worker_writes_it_sends_at_once_and_it_stops_when_told(scene: Scene) -> None:
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()

    class Bell:
        async def send(self, notification: Notification) -> None:
            loop.call_soon_threadsafe(arrived.set)

    stopping = asyncio.Event()
    async with tenant_outbox(scene, bell=Bell()) as here:
        # An outbox whose loops wait already: nothing but the writing wakes them.
        assert await here.send() == {}
        running = asyncio.create_task(here.outbox.run(stopping))
        await asyncio.sleep(0)
        here.scene.ask_approval(here.scene.call())
        await arrived.wait()
        stopping.set()
        await running
        states = {row["channel"]: row["state"] for row in here.rows()}
    # The other one may have been stopped before its turn: then the next worker sends it.
    assert states["bell"] == "sent"


@pytest.fixture
def webhooks() -> Iterator[WebhookReceiver]:
    with receiving(WebhookReceiver()) as one:
        yield one


@pytest.mark.crash
async def test_what_was_sent_and_not_recorded_is_sent_again_with_its_id_and_recorded_once(
    scene: Scene, database: Database, webhooks: WebhookReceiver, tmp_path: Path
) -> None:
    webhook = Webhook(url_of(webhooks.url), secret_of(webhooks.secret))
    settings = {"database_url": database.url, "notify": "webhook", **webhooks.settings()}
    async with tenant_outbox(scene, webhook=webhook) as here:
        here.scene.ask_approval(here.scene.call())
        await kill_outbox_on_arrival(webhooks, scene.tenant, settings, tmp_path / "outbox.log")
        [row] = [row for row in here.rows() if row["channel"] == "webhook"]
        assert (row["state"], row["attempts"], len(webhooks.got)) == ("pending", 1, 1)

        assert +(await here.outbox.run_once("webhook")) == {}
        here.clock.later = LEASE * 1.1
        assert +(await here.outbox.run_once("webhook")) == {"sent": 1}
        assert +(await here.outbox.run_once("webhook")) == {}

        [row] = [row for row in here.rows() if row["channel"] == "webhook"]
    assert webhooks.ids == [row["notification_id"]] * 2
    assert webhooks.got[0] == webhooks.got[1]
    assert (row["state"], row["attempts"]) == ("sent", 2)
