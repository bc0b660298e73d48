"""What a run carries into its next execution: every part of it, or it says here why not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, cast

import pytest

from workflows.amending import Amending
from workflows.approvals import Delivery, Gate
from workflows.asking import Asking
from workflows.book import Book, Question
from workflows.budget import Spending, Spent
from workflows.calling import Calling
from workflows.carrying import MOST_LISTED, MOST_OUTPUTS, carry_book, restore_book
from workflows.contracts import (
    Amend,
    ApprovalRequest,
    ApprovalState,
    Carried,
    ChainHead,
    Decision,
    EffectView,
    Interrupt,
    InterruptKind,
    IssuedToken,
    PauseRun,
    Progress,
    RefusedSignal,
    ResumeRun,
    StartRun,
    StepState,
    TimelineLine,
    TopUp,
    Verdict,
    VerdictCode,
)
from workflows.desk import Desk
from workflows.helm import Answer, Helm
from workflows.interrupts import Interrupts
from workflows.outside import Outside
from workflows.plan import Plan
from workflows.saga import Saga

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
#: Of which a new execution has its own, or which is empty where a run can continue as new.
NOT_CARRIED: Final[dict[str, set[str]]] = {
    "Book": {
        *("request", "gate", "saga"),  # the start's own, or with parts of their own
        *("final_effects", "more_effects", "uncompensated"),  # of its end
        *("ended", "compensating", "error", "more_uncompensated"),  # of its end
        *("reports", "sending"),  # of child runs under way: there are none
        "amending",  # told by the next plan
        *("cancel", "stopping", "closing", "output"),  # of its end
        "edited",  # a model is told as soon as the step has ended
        *("stale", "held"),  # a run does not continue while reads are made again
        "given_up",  # the same, of a stretch
        "lost",  # a call is under way as long as it is set
        "interrupts",  # told by the progress of the steps that ask
    },
    "Gate": {"run_id", "delivered_to", "inbox", "places"},
    "Saga": set(),
    "Helm": {
        *("_book", "_call", "_refuse", "_verbs", "_ready", "inbox", "forward"),
    },
    "Desk": {"_book", "_call", "_gate", "_helm", "_changed", "_busy"},
    "Interrupts": {
        *("_book", "_children", "_call", "_helm", "_changed"),
        "_found",  # of the one answer that the desk is about to follow
        "_opening",  # a call is under way as long as there is one
    },
    "Outside": {"_book", "_interrupts", "_helm", "_changed"},
    "Spending": {"_book", "_changed", "_limits"},
    "Amending": {"_book", "_call", "_desk", "_unwinding", "_children", "_tools", "_heard"},
    "Calling": {
        *("_book", "_call", "_tools", "_facts", "_spending", "_mode"),
        *("_ahead", "_uncertain", "_written"),  # all is in history, and has had its turn
        *("_stretching", "_stretches"),  # named after the execution, too
    },
    "Asking": {"_book", "_desk", "_call", "_changed"},
}


class NoHandlers(Helm):
    """A helm outside of a workflow: it takes no verbs."""

    def take(self, *_: Any, **__: Any) -> None:
        """Take none."""


def fresh(plan: Plan) -> dict[str, Any]:
    """Return the parts of a run that has just begun."""
    request = StartRun(run_id="r", tenant="default", user="uma", plan=plan)
    book = Book(request, NOW, Gate("r", "w2"), Saga())
    none = cast(Any, None)
    helm = NoHandlers(book, none, none)
    desk = Desk(book, none, helm, none)
    interrupts = Interrupts(book, none, helm, none, none)
    parts = (
        *(book, book.gate, book.saga, helm, desk, interrupts),
        Outside(book, helm, interrupts, none),
        Spending(book, helm, none),
        Amending(book, none, helm, desk, none, none, {}, lambda: True),
        Asking(book, desk, none, none),
        Calling(book, none, {}, {}, none),
    )
    return {type(part).__name__.replace("NoHandlers", "Helm"): part for part in parts}


def plan(steps: int = 3) -> Plan:
    return Plan.model_validate([{"id": f"s{n}", "tool": "t"} for n in range(steps)])


def request(number: int, step_id: str = "s1") -> ApprovalRequest:
    return ApprovalRequest(
        approval_id=f"r/{step_id}/{number}",
        step_id=step_id,
        tool="t",
        version="1",
        params={},
        params_hash="h",
        description="d",
        requested_by="uma",
        expires_at=NOW,
        undo="",
    )


def filled() -> dict[str, Any]:
    """Return parts each of whose fields differs from that of a fresh run, where it is carried."""
    parts = fresh(plan())
    decision = Decision(approval_id="r/s2/1", params_hash="h", outcome="approve", approver="ann")
    effect = EffectView(
        entry_id="e", tool="t", key="k", generation=1, state="committed", step_id="s0"
    )
    book: Book = parts["Book"]
    book.set_step("s0", StepState.SUCCEEDED, output={"a": 1}, made_by="other")
    book.set_step("s1", StepState.WAITING_APPROVAL)
    book.started_at = datetime(2025, 1, 1, tzinfo=UTC)
    book.begun = {"s1": NOW}
    book.effects = {"e": effect}
    book.questions = {"i": Question("i", "s1", "?")}
    book.timeline.append(TimelineLine(at=NOW, text="x"))
    book.refused_signals.append(RefusedSignal(at=NOW, name="n", reason="r"))
    book.head = ChainHead(seq=3, hash="h")
    book.plan_version, book.resumed, book.more_steps, book.amending = 2, 1, 4, True
    book.ways = {"s1": ResumeRun(actor="a")}
    book.paused = PauseRun(actor="a")
    book.token = IssuedToken(user="a", public_key={}, expires_at=NOW, calls="c")
    book.calls = {"s1": "h"}
    book.unheard = {"s1"}
    book.read_at = {"s0": NOW}
    asked = Interrupt(interrupt_id="s1.1", step_id="s1", kind=InterruptKind.ASK, question="?")
    book.progress = {"s1": Progress(interrupt=asked, asks=True)}
    book.lives, book.replays = ("w0",), True
    gate: Gate = parts["Gate"]
    gate.held = [Delivery("d", decision)]
    gate.pending = {"r/s1/2": request(2)}
    gate.states = {"r/s1/2": ApprovalState.PENDING, "r/s1/1": ApprovalState.REJECTED}
    gate.settled = {"r/s1/1": request(1)}
    held = Verdict(decision_id="d", approval_id="r/s2/1", code=VerdictCode.HELD, message="m")
    gate._deliveries.restore({"content": "d"}, {"d": held})
    gate.accepted, gate._verified = {"r/s1/1": decision}, {"r/s1/1"}
    saga: Saga = parts["Saga"]
    for step_id in ("s0", "s1", "s2"):
        saga.register(step_id)
    saga.committed("s0", "e")
    saga.found("s1", "f")
    saga.relies("s3", "g")
    saga.ended("s2", "r~s2", completed=True)
    parts["Helm"]._deliveries.restore({"c": "a"}, {"a": Answer(True, "m")})
    parts["Desk"].to_undo, parts["Desk"]._settled = {"i": "ann"}, {"j"}
    parts["Interrupts"]._asked["s1"] = 1
    parts["Interrupts"]._answers = {"s1.1": "yes"}
    parts["Outside"]._kept = {("e", "k"): deque([1, {"a": 2}])}
    parts["Outside"]._ids = {"e1": None}
    parts["Spending"].spent = Spent(1, 2, Decimal("0.5"))
    parts["Spending"]._more = TopUp(actor="plan", steps=4)
    parts["Amending"]._next = Amend(actor="a", plan=plan(2), based_on=2)
    parts["Asking"]._editors = {"s1": ("eve",)}
    parts["Asking"]._unanswered["s1"] = 3
    parts["Calling"]._used = {"s1": 2}
    return parts


def carried(parts: dict[str, Any], settled: set[str], facts: dict[str, Any]) -> Carried:
    """Return what the parts carry, as another execution reads it."""
    fields = carry_book(parts["Book"], settled, facts, "w1") | parts["Gate"].carry({"s0"})
    for name, part in parts.items():
        if name not in ("Book", "Gate", "Saga"):
            fields |= part.carry()
    return Carried.model_validate_json(Carried(**fields).model_dump_json())


def restored(found: Carried) -> dict[str, Any]:
    parts = fresh(plan())
    restore_book(parts["Book"], found)
    for name, part in parts.items():
        if name not in ("Book", "Saga"):
            part.restore(found)
    return parts


@pytest.mark.parametrize("name", NOT_CARRIED)
def test_every_field_of_a_part_is_carried_or_said_not_to_be(name: str) -> None:
    parts = filled()
    before, begun = vars(parts[name]), vars(fresh(plan())[name])
    after = vars(restored(carried(parts, {"s0"}, {"s0": {"a": 1}}))[name])
    for field in before.keys() - NOT_CARRIED[name]:
        assert before[field] != begun[field], f"{name}.{field}: fill it here, or say why not"
        wanted = ("w1", "w0") if field == "lives" else before[field]
        assert after[field] == wanted, f"{name}.{field} is lost"


def test_every_field_that_is_carried_is_filled_by_some_part() -> None:
    found = carried(filled(), {"s0"}, {"s0": "not its output"})
    empty = [name for name in Carried.model_fields if not getattr(found, name)]
    assert empty == ["settled", "tools", "code"]  # the run's own, not of a part


@pytest.mark.parametrize(
    ("output", "fact"),
    [({"a": 1}, {"a": 1}), (None, {"rejected": {"reason": "no"}}), ("x" * 9000, "x" * 9000)],
)
def test_what_steps_ahead_refer_to_travels_whatever_its_size(output: Any, fact: Any) -> None:
    parts = fresh(plan())
    parts["Book"].set_step("s0", StepState.SUCCEEDED, output=output)
    found = carried(parts, {"s0"}, {"s0": fact})

    facts = restore_book(fresh(plan())["Book"], found)

    assert facts["s0"] == fact


def test_what_a_read_that_may_be_made_again_was_made_of_travels_whatever_its_size() -> None:
    # s2 is ahead and refers to the read s1 only, which was made of what s0 has returned.
    chain = Plan.model_validate(
        [
            {"id": "s0", "tool": "t"},
            {"id": "s1", "tool": "t", "params": {"x": "${s0}"}},
            {"id": "s2", "tool": "t", "params": {"x": "${s1}"}},
        ]
    )
    large = "x" * MOST_OUTPUTS
    parts = fresh(chain)
    book: Book = parts["Book"]
    for step_id in ("s0", "s1"):
        book.set_step(step_id, StepState.SUCCEEDED, output=large + step_id)
    book.read_at = {"s1": NOW}
    found = carried(parts, {"s0", "s1"}, {step: large + step for step in ("s0", "s1")})

    facts = restore_book(fresh(chain)["Book"], found)

    assert facts == {"s0": large + "s0", "s1": large + "s1"}


def many(count: int, output: Callable[[int], Any]) -> dict[str, Any]:
    parts = fresh(plan())
    book: Book = parts["Book"]
    book.set_step("s0", StepState.SUCCEEDED)
    view = book.steps["s0"]
    for n in range(count):
        id_ = f"s0[{n}]"
        book.steps[id_] = view.model_copy(update={"id": id_, "output": output(n)})
        parts["Saga"].committed(id_, f"ef-{n:024}")
    return parts


def test_of_ten_thousand_steps_the_newest_are_carried_and_all_that_is_to_be_undone() -> None:
    parts = many(10_000, lambda n: {"text": "x" * 8000})

    found = carried(parts, {"s0"}, {})

    assert len(found.model_dump_json()) < 3_000_000
    assert len(found.steps) == 3 + MOST_LISTED
    assert found.more_steps == 10_000 - MOST_LISTED
    # All that is to be undone is known, whether it is listed or not.
    assert len(restored(found)["Saga"].steps()) == 10_000
