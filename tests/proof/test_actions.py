"""What Temporal Cloud would bill for a run, and for each step more, counted from its history.

``actions.yaml`` says by which page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.plan.plan import Plan
from tests.e2e.model_scripts import MODEL, call, driven, finish
from tests.e2e.plans import mail_step, plan
from tests.e2e.runs import decision_on
from tests.e2e.stage import Stage

pytestmark = pytest.mark.slow

MODES: Final = ("sync", "async", "exit")

#: Steps of a run, and of the run that shows what each more costs.
FEW, MORE = 3, 6


@pytest.fixture
def database() -> str:
    return "sqlite"


#: Events that are one Action each, by what the page calls them.
BILLED: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "start",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upsert",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "signal",
}
#: Events that are none, whatever is in them.
FREE: Final = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED,
    EventType.EVENT_TYPE_TIMER_FIRED,
    EventType.EVENT_TYPE_TIMER_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
}
#: What a workflow task ends with.
ASKED: Final = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_MARKER_RECORDED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_TIMER_CANCELED,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
}


def count_actions(events: Sequence[HistoryEvent]) -> Counter[str]:
    """Return the Actions of a history by kind; an event about which nothing is said is an error."""
    found, marked, before, task = Counter[str](), set[int](), 0, 0
    for event in events:
        kind = event.event_type
        if kind in BILLED:
            found[BILLED[kind]] += 1
        elif kind == EventType.EVENT_TYPE_MARKER_RECORDED:
            marked.add(task)  # however many it has recorded
        elif kind == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            found["retry"] += event.activity_task_started_event_attributes.attempt - 1
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            metered = event.workflow_task_completed_event_attributes.metering_metadata
            found["retry"] += metered.nonfirst_local_activity_execution_attempts
        elif kind == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
            # If nothing has come from outside, its worker has asked for it, because of a query or
            # because it is slow: both are one task.
            task += before not in ASKED
        else:
            assert kind in FREE, EventType.Name(kind)
        before = kind
    found["local"] = len(marked)
    return found


def writes(stage: Stage, folder: Path, number: int, **more: Any) -> Plan:
    orders = [stage.shop.new_order() for _ in range(number)]
    return plan(*({**mail_step(order, "notice"), "id": order, **more} for order in orders))


def approved(stage: Stage, folder: Path, number: int) -> Plan:
    return writes(stage, folder, number, approval={})


def turns(stage: Stage, folder: Path, number: int) -> Plan:
    """Return a goal whose model asks for a write each turn, and then finishes."""
    mails = [mail_step(stage.shop.new_order(), "notice") for _ in range(number)]
    script = [call("mail.send", **mail["params"]) for mail in mails]
    return driven(folder, *script, finish("done"))


#: What a run is made of, and in each mode the Actions of the run itself and of each of its steps.
STEPS: Final = {
    "a write": (writes, {"sync": (6, 1), "async": (6, 0), "exit": (7, 0)}),
    "an approved write": (approved, {"sync": (5, 7), "async": (6, 5), "exit": (6, 5)}),
    "a turn and its write": (turns, {"sync": (8, 2), "async": (8, 2), "exit": (8, 2)}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_costs_no_more_actions_than_recorded(
    stage: Stage, tmp_path: Path, show: Callable[..., None], step: str, mode: str
) -> None:
    make, recorded = STEPS[step]
    own, each = recorded[mode]
    actions, sizes = dict[int, Counter[str]](), dict[int, int]()
    async with stage.worker_here(**MODEL):
        for number in (FEW, MORE):
            run = await stage.start(make(stage, tmp_path, number), durability=mode)
            request: ApprovalRequest | None = None
            for _ in range(number if make is approved else 0):
                request = await run.asks(but=request)
                await run.send(decision_on(request))
            await run.completed()
            described = await run.handle.describe()
            sizes[number] = described.raw_description.workflow_execution_info.history_size_bytes
            actions[number] = count_actions((await run.handle.fetch_history()).events)
    for number, found in actions.items():
        found.pop("retry")
        assert found.total() <= own + each * number, found
    few, more = actions[FEW], actions[MORE]
    show(
        **{"step": step, "mode": mode, f"{FEW} steps": few.total(), f"{MORE} steps": more.total()},
        **{"each more": f"{(more.total() - few.total()) / (MORE - FEW):.3g}"},
        of=", ".join(f"{kind} {number}" for kind, number in sorted(more.items())),
        **{
            f"bytes of {FEW}": sizes[FEW],
            "bytes each more": (sizes[MORE] - sizes[FEW]) // (MORE - FEW),
        },
    )
