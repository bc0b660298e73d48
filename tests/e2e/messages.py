"""What people and systems send to a run, and what they are answered."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.runs import OutsideEvent
from surehand.workflows.contracts.steering import AnswerInterrupts, Verb
from tests.e2e.runs import Run


async def answered(run: Run, **answer: Any) -> str:
    sent = AnswerInterrupts(**{"actor": "ann", **answer})
    return str((await run.handle.execute_update("answer", sent))["message"])


async def told(run: Run, verb: Verb, message: Message) -> str:
    answer = await run.handle.execute_update(verb, message)
    return str(answer["message"])


async def refusal(run: Run, verb: Verb, message: Message) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await told(run, verb, message)
    return str(error.value.cause)


def event(id_: str, payload: Any = None, about: str = "order-7") -> OutsideEvent:
    return OutsideEvent(actor="dhl", name="returned", about=about, event_id=id_, payload=payload)
