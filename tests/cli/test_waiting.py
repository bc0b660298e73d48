"""Lines with commands that people paste."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from surehand.cli.verb.waiting import request_lines, waiting_lines
from surehand.client.connection import Connection
from surehand.process.connect import Target
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.states import Waiting
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plan.policy import Requirement


def connection(tenant: str) -> Connection:
    target = Target(address="localhost:7233", namespace="default", options={})
    settings = ClientSettings(tenant=tenant, user="uma", task_queue="q", ui_url="http://ui")
    return Connection(cast(Any, None), target, settings)


UMA = connection("default")
COMMAND = re.compile(r"python starter\.py ([^`\n]+)")


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

    pasted = [shlex.split(line) for line in lines[::2]]
    outcomes = ["happened", "not-happened", "call-off", "compensated", "undo", "give-up"]
    assert pasted == [
        ["python", "starter.py", "resolve", "iv-1", outcome, "--run", "refund-1"]
        for outcome in outcomes
    ]


@pytest.mark.parametrize(
    "kind",
    ["approval", "intervention", "permission", "pause", "question", "event", "budget", "failure"],
)
def test_whatever_a_run_waits_for_its_commands_name_the_tenant_and_are_lines_of_their_own(
    kind: Any,
) -> None:
    waiting = Waiting(kind=kind, id="refund[0].1", step_id="refund[0]", question="Why?")

    lines = "\n".join(waiting_lines(connection("acme"), "acme/refund-1", waiting))

    pasted = [shlex.split(line) for line in COMMAND.findall(lines)]
    assert pasted
    assert all(words[-2:] == ["--tenant", "acme"] for words in pasted)
    assert "#" not in lines
    assert "refund[0].1=" not in lines or "'refund[0].1=VALUE'" in lines  # a glob to some shells


def test_what_to_do_about_a_terminated_run_names_the_tenant() -> None:
    told = connection("acme").what_to_do("acme/refund-1")

    verbs = [words.split()[0] for words in COMMAND.findall(told)]
    assert verbs == ["effects", "unwind", "reconcile"]
    assert all(words.endswith("--tenant acme") for words in COMMAND.findall(told))
