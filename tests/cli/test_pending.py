"""Lines with commands that people paste."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from rich.live import Live
from rich.spinner import Spinner
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli.dev import tell_new
from surehand.cli.printer import Printer
from surehand.cli.render import commands_of, open_lines, request_lines, waiting_lines
from surehand.cli.show import LiveWatch
from surehand.cli.steering import given
from surehand.client.client import Looked, SilentRun
from surehand.client.connection import Connection
from surehand.process.connect import Target
from surehand.process.exits import ExitCode, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.states import RunState, Waiting
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plan.policy import Requirement


def connection(tenant: str) -> Connection:
    target = Target(address="localhost:7233", namespace="default", options={})
    settings = ClientSettings(tenant=tenant, user="uma", task_queue="q", ui_url="http://ui")
    return Connection(cast(Any, None), target, settings)


UMA = connection("default")
COMMAND = re.compile(r"python starter\.py ([^`\n]+)")


def request(*excluded: str, **requirement: Any) -> ApprovalRequest:
    return ApprovalRequest(
        approval_id="refund-1/refund/1",
        step_id="refund",
        tool="payments.refund",
        version="1",
        params={},
        params_hash="sha256:1",
        description="Refund",
        requested_by="bob",
        excluded=excluded,
        expires_at=datetime(2027, 1, 1, tzinfo=UTC),
        undo="",
        requirements=(Requirement(**requirement),),
    )


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (request(), "uma"),
        (request("bob", four_eyes=True), "uma"),
        (request("bob", "uma", four_eyes=True), YOUR_NAME),
        (request(roles=("finance",)), YOUR_NAME),
    ],
)
def test_a_signal_line_names_as_approver_only_whose_yes_may_count(
    asked: ApprovalRequest, named: str
) -> None:
    *_, line = request_lines(UMA, "refund-1", asked)

    *_, decision = shlex.split(line)
    assert json.loads(decision)["approver"] == named


def test_what_waits_in_a_child_run_is_answered_there_by_its_own_name() -> None:
    inside = {"step_id": "pay/order", "question": "no such order", "run_id": "p~pay"}
    failure = Waiting(kind="failure", id="order", **inside)
    doubt = Waiting(kind="intervention", id="iv-1", **inside)

    _, resume, _ = waiting_lines(UMA, "p", failure)
    _, resolve, *_ = waiting_lines(UMA, "p", doubt)

    assert shlex.split(resume)[2:] == ["resume", "p~pay", "--step", "order"]
    assert shlex.split(resolve)[2:] == ["resolve", "iv-1", "happened", "--run", "p~pay"]


@pytest.mark.parametrize("undo", [["undo"], []], ids=["can be undone", "cannot be undone"])
def test_what_a_human_can_say_of_a_doubt_is_a_line_each_that_can_be_pasted(undo: list[str]) -> None:
    said = {"id": "iv-1", "step_id": "refund", "question": "Did it?"}
    doubt = Waiting(kind="intervention", can_undo=bool(undo), **said)

    _, *lines = waiting_lines(UMA, "refund-1", doubt)

    pasted = [shlex.split(line) for line in lines[::2]]
    outcomes = ["happened", "not-happened", "call-off", "compensated", *undo, "give-up"]
    assert pasted == [
        ["python", "starter.py", "resolve", "iv-1", outcome, "--run", "refund-1"]
        for outcome in outcomes
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "approval",
        "intervention",
        "permission",
        "pause",
        "question",
        "event",
        "budget",
        "failure",
        "quota",
    ],
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


def test_where_decisions_are_signed_each_command_names_a_key_and_none_goes_around_it() -> None:
    asked = request("bob").model_copy(update={"assurance": Assurance.SIGNED})

    commands = commands_of(UMA, "refund-1", asked)

    assert set(commands) == {"approve", "reject", "edit", "sign"}
    assert all(line.endswith("--key KEYFILE") for line in commands.values())
    assert "temporal" not in "".join(request_lines(UMA, "refund-1", asked))


@pytest.mark.parametrize("assurance", [Assurance.PASSKEY, Assurance.DEVICE_PASSKEY])
def test_where_a_passkey_has_to_sign_it_is_said_and_no_command_is_shown(
    assurance: Assurance,
) -> None:
    asked = request("bob").model_copy(update={"assurance": assurance})

    assert commands_of(UMA, "refund-1", asked) == {}
    lines = "\n".join(request_lines(UMA, "refund-1", asked))
    assert "decisions  have to be signed by a passkey" in lines
    assert not COMMAND.findall(lines)


def result(*waiting: Waiting) -> RunResult:
    return RunResult(
        run_id="refund-1", state=RunState.WAITING_APPROVAL, steps=[], waiting_for=list(waiting)
    )


def test_who_waits_sees_the_params_of_what_is_asked_and_its_own_commands() -> None:
    asked = request("bob").model_copy(
        update={"assurance": Assurance.SIGNED, "params": {"amount": "5"}}
    )
    waiting = Waiting(kind="approval", id=asked.approval_id, step_id="refund", question="Refund")

    lines = "\n".join(map(str, open_lines(UMA, result(waiting), [asked])))

    assert '"amount": "5"' in lines
    assert "--key KEYFILE" in lines and "temporal workflow signal" not in lines


def test_what_is_asked_again_is_told_again_and_what_still_waits_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = Waiting(kind="failure", id="refund", step_id="refund", question="no money")
    printer, told = Printer(json_output=False), set[tuple[str, str, str]]()
    for waiting in ([failed], [failed], [], [failed]):
        view = RunView.model_construct(result=result(*waiting), pending=[])
        told = tell_new(printer, UMA, Looked([view], []), told)
    silent = SilentRun(run_id="refund-1", task_queue="q", state="", open_items=0, reason="nobody")
    told = tell_new(printer, UMA, Looked([], [silent]), told)
    tell_new(printer, UMA, Looked([view], []), told)

    assert capsys.readouterr().out.count("has failed: no money") == 2


def test_a_step_that_fails_again_at_a_terminal_is_told_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = Waiting(kind="failure", id="refund", step_id="refund", question="no money")
    spinner = Spinner("dots")
    printer = Printer(json_output=False)
    watch = LiveWatch(printer, UMA, Live(spinner, console=printer.console), spinner)
    for waiting in ([failed], [failed], [], [failed]):
        watch.show(RunView.model_construct(result=result(*waiting), pending=[]))

    assert capsys.readouterr().out.count("has failed: no money") == 2


@pytest.mark.parametrize("status", [RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.INTERNAL])
def test_a_servers_trouble_is_no_mistake_of_ours(status: RPCStatusCode) -> None:
    with pytest.raises(SurehandError) as refused, UMA.translated("refund-1"):
        raise RPCError("namespace rate limit exceeded", status, b"")

    assert refused.value.code is ExitCode.NOT_REACHABLE


# What is typed after ``answer``: ids with values, or one value.


ASKED = {"why.1", "pay/why.1"}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (["sent twice"], {"answer": "sent twice"}),
        (["a=b"], {"answer": "a=b"}),
        (["7"], {"answer": 7}),
        (["why.1=yes"], {"answers": {"why.1": "yes"}}),
        (["pay/why.1=because", "why.1=[1]"], {"answers": {"pay/why.1": "because", "why.1": [1]}}),
    ],
)
def test_an_answer_is_for_the_question_that_it_names_or_the_only_one(
    typed: list[str], sent: dict[str, object]
) -> None:
    assert given(typed, ASKED) == sent


@pytest.mark.parametrize("typed", ["whi.1=yes", "why.2=yes", "pay/whi.1=yes", "ship[0].1=yes"])
def test_an_id_of_no_question_is_no_value_of_another_one(typed: str) -> None:
    with pytest.raises(WrongUse, match="does not begin with the id of a question"):
        given([typed], ASKED)
