"""Lines with commands that people paste."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surehand.cli.verb.waiting import request_lines, waiting_lines
from surehand.client.connection import Connection
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.states import Waiting
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plan.policy import Requirement

UMA = cast(
    Connection,
    SimpleNamespace(
        settings=SimpleNamespace(user="uma", tenant="default"), temporal_options=lambda: []
    ),
)


def request(requested_by: str, **requirement: Any) -> ApprovalRequest:
    return ApprovalRequest(
        approval_id="refund-1/refund/1",
        step_id="refund",
        tool="payments.refund",
        version="1",
        params={},
        params_hash="sha256:1",
        description="Refund",
        requested_by=requested_by,
        expires_at=datetime(2027, 1, 1, tzinfo=UTC),
        undo="",
        requirements=(Requirement(**requirement),),
    )


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (request("uma"), "uma"),
        (request("bob", four_eyes=True), "uma"),
        (request("uma", four_eyes=True), YOUR_NAME),
        (request("bob", roles=("finance",)), YOUR_NAME),
    ],
)
def test_a_signal_line_names_as_approver_only_whose_yes_may_count(
    asked: ApprovalRequest, named: str
) -> None:
    *_, line = request_lines(UMA, "refund-1", asked)

    *_, decision = shlex.split(line)
    assert json.loads(decision)["approver"] == named


def test_what_a_human_can_say_of_a_doubt_is_a_line_each_that_can_be_pasted() -> None:
    doubt = Waiting(kind="intervention", id="iv-1", step_id="refund", question="Did it?")

    _, *lines = waiting_lines(UMA, "refund-1", doubt)

    pasted = [shlex.split(line, comments=True) for line in lines]
    outcomes = ["happened", "not-happened", "call-off", "compensated", "undo", "give-up"]
    assert pasted == [
        ["python", "starter.py", "resolve", "iv-1", outcome, "--run", "refund-1"]
        for outcome in outcomes
    ]
