"""Parked runs survive a deploy: histories of real runs replay with the code of today.

``python -m tests.record_histories`` has recorded them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import NondeterminismError

from surehand.agents.calls import PASSED_THROUGH, load_agents
from surehand.agents.model_run import ModelRun
from surehand.examples.late_orders import LateOrders
from surehand.process.blobs import Blobs
from surehand.worker import OwnWorkflowRunner, workflow_runner
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.run.agent_run import AgentRun
from tests.record_histories import FOLDER, SCENES

HISTORIES = sorted(FOLDER.glob("*.json"))


def history_of(text: str) -> WorkflowHistory:
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


def replayer(
    converter: DataConverter | None = None, own: OwnWorkflowRunner | None = None
) -> Replayer:
    """Return what replays histories; ``converter``: of those that are encrypted."""
    load_agents(("tests.variants.model",))
    return Replayer(
        workflows=[AgentRun, ModelRun, LateOrders],
        workflow_runner=workflow_runner(PASSED_THROUGH),
        unsandboxed_workflow_runner=own or OwnWorkflowRunner(),
        data_converter=converter or data_converter(lambda: Blobs("memory:///"), waits=True),
        # On a busy machine one activation may take more than the two seconds of its detection of
        # deadlocks; how fast a history replays is not asked here.
        debug_mode=True,
    )


class Remembering(OwnWorkflowRunner):
    """Remembers what it has made."""

    def __init__(self) -> None:
        self.made = list[WorkflowInstance]()

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        self.made.append(super().create_instance(det))
        return self.made[-1]


def test_every_scene_has_a_recorded_history() -> None:
    assert {path.stem for path in HISTORIES} >= SCENES.keys()


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path) -> None:
    await replayer().replay_workflow(history_of(path.read_text()))


async def test_a_history_that_today_does_not_lead_to_is_noticed() -> None:
    text = (FOLDER / "completed.json").read_text()
    changed = text.replace('"name": "close_run"', '"name": "end_somehow"')
    assert changed != text
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history_of(changed))


async def test_no_thread_that_has_run_a_workflow_of_ours_is_interrupted_later() -> None:
    own = Remembering()
    await replayer(own=own).replay_workflow(history_of((FOLDER / "completed.json").read_text()))
    assert [instance.get_thread_id() for instance in own.made] == [None]
