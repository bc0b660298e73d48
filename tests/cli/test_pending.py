"""What waits for people, and the lines with commands that they paste."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli.approvals import PendingList
from surehand.cli.dev import tell_new
from surehand.cli.printer import Printer
from surehand.cli.render import commands_of, open_lines, request_lines, waiting_lines
from surehand.cli.runs import TimelineWatch
from surehand.cli.steering import read_answers
from surehand.client import outcome
from surehand.client.client import Pending, SilentRun
from surehand.client.connection import Connection
from surehand.process.connect import Target
from surehand.process.dev_server import DevServer
from surehand.process.exits import ExitCode, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.contracts.base import RunState, Waiting
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plan.policy import Requirement
from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess


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
def test_a_signal_line_names_only_voters(asked: ApprovalRequest, named: str) -> None:
    *_, line = request_lines(UMA, "refund-1", asked)

    *_, decision = shlex.split(line)
    assert json.loads(decision)["approver"] == named


def test_what_waits_in_a_child_run_is_answered_there_by_its_own_name() -> None:
    inside = {"step_id": "pay/order", "question": "no such order", "run_id": "p~pay"}
    failure = Waiting(kind="failure", id="order", **inside)
    doubt = Waiting(kind="intervention", id="iv-1", answers=["happened"], **inside)

    _, resume, _ = waiting_lines(UMA, "p", failure)
    _, resolve, *_ = waiting_lines(UMA, "p", doubt)

    assert shlex.split(resume)[2:] == ["resume", "p~pay", "--step", "order"]
    assert shlex.split(resolve)[2:] == ["resolve", "iv-1", "happened", "--run", "p~pay"]


@pytest.mark.parametrize(
    "answers",
    [
        ["happened", "not-happened", "call-off", "compensated", "undo", "give-up"],
        ["compensated", "give-up"],
    ],
    ids=["a call", "an undo that has failed"],
)
def test_what_a_human_can_say_of_a_doubt_is_a_line_each_that_can_be_pasted(
    answers: list[str],
) -> None:
    said = {"id": "iv-1", "step_id": "refund", "question": "Did it?"}
    values = [answer.replace("-", "_") for answer in answers]
    doubt = Waiting(kind="intervention", answers=values, **said)

    _, *lines = waiting_lines(UMA, "refund-1", doubt)

    pasted = [shlex.split(line) for line in lines[::2]]
    assert pasted == [
        ["python", "starter.py", "resolve", "iv-1", outcome, "--run", "refund-1"]
        for outcome in answers
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
def test_every_command_names_the_tenant_on_a_line_of_its_own(kind: Any) -> None:
    said = {"id": "refund[0].1", "step_id": "refund[0]", "question": "Why?"}
    waiting = Waiting(kind=kind, answers=["happened", "give_up"], **said)

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
def test_a_passkey_request_shows_no_command(assurance: Assurance) -> None:
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


def test_news_is_told_again_and_the_rest_once(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Waiting(kind="failure", id="refund", step_id="refund", question="no money")
    printer, told = Printer(json_output=False), set[tuple[str, str, str]]()
    for waiting in ([failed], [failed], [], [failed]):
        view = RunView.model_construct(result=result(*waiting), pending=[])
        told = tell_new(printer, UMA, Pending([view], []), told)
    silent = SilentRun.model_construct(run_id="refund-1")
    told = tell_new(printer, UMA, Pending([], [silent]), told)
    tell_new(printer, UMA, Pending([view], []), told)

    assert capsys.readouterr().out.count("has failed: no money") == 2


def test_a_repeated_failure_is_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Waiting(kind="failure", id="refund", step_id="refund", question="no money")
    watch = TimelineWatch(Printer(json_output=False), UMA)
    for waiting in ([failed], [failed], [], [failed]):
        watch.show(RunView.model_construct(result=result(*waiting), pending=[], timeline=[]))

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
def test_an_answer_fits_one_question(typed: list[str], sent: dict[str, object]) -> None:
    assert read_answers(typed, ASKED) == sent


@pytest.mark.parametrize(
    "typed", ["whi.1=yes", "why.2=yes", "pay/whi.1=yes", "ship[0].1=y", "why=y"]
)
def test_an_id_of_no_question_is_no_value_of_another_one(typed: str) -> None:
    with pytest.raises(WrongUse, match="does not begin with the id of a question"):
        read_answers([typed], ASKED)


TOOL = '''
from pydantic import BaseModel

from surehand import READ, WRITE, OutcomeUnknown, ToolContext, tool


class Letter(BaseModel):
    to: str


@tool("letters.send", effect=WRITE, recovery="human", irreversible=True)
async def send(params: Letter, ctx: ToolContext) -> None:
    """Send a letter by a service that does not answer."""
    raise OutcomeUnknown("the connection was cut")


@tool("letters.read", effect=READ)
async def read(params: Letter, ctx: ToolContext) -> str:
    """Read a letter."""
    return "Dear Ada"
'''
PLANS = {
    "doubt": "- {id: letter, tool: letters.send, params: {to: ada}}\n",
    "waits": "- {id: parcel, wait: {event: parcel.returned, about: order-7}}\n",
    "spends": """
name: spends
budget: {steps: 1}
steps:
  - {id: one, tool: letters.read, params: {to: ada}}
  - {id: two, tool: letters.read, params: {to: bob}}
""",
}


def test_pending_lists_doubts_and_pauses_also_those_of_ended_runs(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doubtful.py").write_text(TOOL)
    tenant = f"t{uuid.uuid4().hex[:8]}"
    own = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"pending-{tenant}",
        "SUREHAND_TENANT": tenant,
        "SUREHAND_TOOL_MODULES": "doubtful",
        "PYTHONPATH": str(tmp_path),
    }
    verbs = Verbs(own, tmp_path, monkeypatch)

    def others() -> list[tuple[str, str]]:
        listed = PendingList.model_validate(verbs("pending", "--json").document())
        return sorted((one.kind, str(one.run_id)) for one in listed.others)

    with WorkerProcess(own, tmp_path / "worker") as worker:
        worker.wait_ready()
        assert "Nothing waits for a person" in verbs("pending").out
        for name, plan in PLANS.items():
            (tmp_path / f"{name}.yaml").write_text(plan)
            started = verbs("start", f"{name}.yaml", "--run-id", name, "--wait")
            assert started.code == 10, started
        assert verbs("pause", "waits", "--reason", "legal").code == 0

        waiting = [
            ("budget", f"{tenant}/spends"),
            ("intervention", f"{tenant}/doubt"),
            ("pause", f"{tenant}/waits"),
        ]
        assert others() == waiting
        shown = verbs("pending").out
        assert (
            f"not-happened --run {tenant}/doubt" in shown
            and f"starter.py resume {tenant}/waits" in shown
        )
        assert f"top-up {tenant}/spends" in shown
        assert "Nothing waits" not in shown
        blind = {**own, "SUREHAND_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"}
        without_ledger = Verbs(blind, tmp_path, monkeypatch)("pending")
        assert without_ledger.code == ExitCode.NOT_REACHABLE
        assert f"starter.py resume {tenant}/waits" in without_ledger.out
        verbs.terminate(f"{tenant}/doubt")
        assert others() == waiting


RECEIPT = '{"refund_id": "refund-7", "order_id": "o", "amount": "120.00", "currency": "EUR"}'


def test_a_human_settles_what_a_crash_left_unknown(
    settings: dict[str, str],
    sqlite_template: Path,
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = shutil.copy(sqlite_template, tmp_path / "ledger.db")
    own = {
        **settings,
        "SUREHAND_DATABASE_URL": f"sqlite:///{ledger}",
        "SUREHAND_TASK_QUEUE": f"resolve-{uuid.uuid4().hex[:8]}",
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_human",
    }
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run("in-doubt", shop.new_order())
    drill = {**own, "SUREHAND_CRASH_AT": "payments.refund:after_call"}
    with WorkerProcess(drill, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        verbs.approve(run.name)
        first.wait_killed()
    with WorkerProcess(own, tmp_path / "second"):
        waiting = verbs(*run.start, "--wait")
        assert waiting.code == 10
        [row] = verbs("interventions", "--open", "--json").document()["rows"]
        intervention = row["intervention_id"]
        pasted = [shlex.split(line) for line in waiting.out.splitlines() if " resolve " in line]
        outcomes = ["happened", "not-happened", "call-off", "compensated", "undo", "give-up"]
        resolve = ["python", "starter.py", "resolve", intervention]
        assert [line[4] for line in pasted if line[:4] == resolve] == outcomes
        line = f"python starter.py resolve {intervention} OUTCOME --run {run.name}"
        assert line in verbs("interventions").out

        of_run = ("--run", run.name)
        broken = verbs("resolve", intervention, "happened", *of_run, "--receipt", "{bad")
        audited = verbs("audit", run.name)
        unknown = verbs("resolve", "iv-none", "happened", *of_run)
        told = ("--evidence", "bank statement")
        mailless = verbs("resolve", intervention, "happened", *of_run, *told)
        settled = verbs(
            *("resolve", intervention, "happened", *of_run, "--as", "bob"),
            *("--evidence", "bank statement", "--receipt", RECEIPT),
        )
        again = verbs("resolve", intervention, "not-happened", *of_run)

        assert (broken.code, audited.code) == (2, 0)
        assert "--receipt must be JSON, such as" in broken.line()
        assert "line 1, column 2" in broken.line()
        assert f"waits for a human: {intervention}" in audited.out
        assert "nobody knows whether it happened: payments.refund (step refund" in audited.out
        assert mailless.code == 2
        assert "step mail takes ${refund.amount} from what this call returned" in mailless.line()
        assert (unknown.code, settled.code, again.code) == (2, 0, 2)
        assert "iv-none" in unknown.line()
        assert verbs(*run.start, "--wait").code == 0
    [row] = verbs("interventions", run.name, "--json").document()["rows"]
    assert (row["state"], row["outcome"], row["actor"]) == ("settled", "happened", "bob")
    assert shop.counts(run.order)["refunds"] == 1


def test_a_human_settles_in_the_ledger_what_a_terminated_run_has_left(
    settings: dict[str, str],
    sqlite_template: Path,
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, unique = shutil.copy(sqlite_template, tmp_path / "ledger.db"), uuid.uuid4().hex[:8]
    own = {
        **settings,
        "SUREHAND_DATABASE_URL": f"sqlite:///{ledger}",
        "SUREHAND_TASK_QUEUE": f"resolve-{unique}",
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_human",
    }
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run(f"left-{unique}", shop.new_order())
    shop.fault("refunds", ignore_keys=True, ignore_lookup=True, fail="drop_after", times=1)
    with WorkerProcess(own, tmp_path / "worker") as worker:
        worker.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        verbs.approve(run.name)
        assert verbs(*run.start, "--wait").code == 10
    verbs.terminate(run.name)
    [row] = verbs("interventions", "--open", "--json").document()["rows"]
    happened = ("resolve", row["intervention_id"], "happened", "--run", run.name, "--as", "bob")
    proof = ("--evidence", "bank statement", "--receipt", RECEIPT)

    assert "Waiting for a human: 1" in verbs("reconcile").out
    assert verbs("reconcile", "--json").document()["for_a_human"] == 1
    without = verbs(*happened, *proof, SUREHAND_DATABASE_URL="")
    assert without.code == 2
    assert "SUREHAND_DATABASE_URL" in without.line()
    stranger = verbs(*happened, *proof, "--tenant", "acme")
    unproven = verbs(*happened)
    settled = [verbs(*happened, *proof, "--json") for _ in range(2)]
    second = verbs("resolve", row["intervention_id"], "not-happened", "--run", run.name)

    assert (stranger.code, unproven.code, second.code) == (2, 2, 2)
    assert "evidence" in unproven.line()
    assert "already settled by bob: happened" in second.line()
    assert [one.code for one in settled] == [0, 0]
    assert "in the ledger" in settled[0].document()["message"]
    [effect] = verbs("effects", run.name, "--json").document()["rows"]
    assert (effect["state"], effect["receipt"]["refund_id"]) == ("committed", "refund-7")
    events = verbs("events", run.name, "--json").document()["rows"]
    [event] = [one["body"] for one in events if one["type"] == "intervention.settled"]
    assert (event["actor"], event["evidence"]) == ("bob", "bank statement")
    assert verbs("audit", run.name).code == 0
    assert "Waiting for a human" not in verbs("reconcile").out


@pytest.fixture
def quick(lonely: Verbs, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs of a tenant of its own, whose runs no worker takes up."""
    monkeypatch.setattr(outcome, "TAKEN_UP_WITHIN", timedelta(seconds=0.1))
    lonely.environment["SUREHAND_TENANT"] = f"t{uuid.uuid4().hex[:8]}"
    return lonely


async def terminated(address: str, verbs: Verbs, *names: str) -> None:
    """End runs in this order, and return once the server lists them so."""
    client = await Client.connect(address)
    tenant = verbs.environment["SUREHAND_TENANT"]
    for number, name in enumerate(names, 1):
        await client.get_workflow_handle(f"{tenant}/{name}").terminate()
        ended = f"Tenant = '{tenant}' AND ExecutionStatus = 'Terminated'"
        while (await client.count_workflows(ended)).count < number:
            pass


def test_open_runs_are_listed_first_then_the_last_ended(
    quick: Verbs, temporal_server: DevServer
) -> None:
    for name in ("first", "second", "third", "goes-on", "last"):
        quick(*Run(name, "order-1").start)
    ends = ("last", "third", "second", "first")
    asyncio.run(terminated(temporal_server.address, quick, *ends))

    def listed(*arguments: str) -> list[str]:
        runs = quick("list", "--json", *arguments).document()["runs"]
        return [run["run_id"].rpartition("/")[2] for run in runs]

    assert listed() == ["goes-on", "first", "second", "third", "last"]
    assert listed("--limit", "1") == ["goes-on"]
    assert listed("--limit", "3") == ["goes-on", "first", "second"]
    assert listed("--state", "terminated", "--limit", "2") == ["first", "second"]
