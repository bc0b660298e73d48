"""`start` against a real server and a real worker, mostly in processes of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from surehand.cli import runs
from surehand.cli.runs import KeptRun
from surehand.client import connection
from surehand.workflows.contracts.runs import RunResult
from surehand.workflows.ports import move_timeout
from tests.cli.starter import LIMIT_S, REFUND, ROOT, Ended, Run, Starter, Verbs
from tests.cli.terminal import Terminal
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

NewRun = Callable[..., Run]


@pytest.fixture
def run(shop: ShopProcess) -> Run:
    """A refund that has not been started."""
    return Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())


def test_wait_attaches_to_the_same_run_and_ends_with_its_result(
    starter: Starter, verbs: Verbs, new_run: NewRun, shop: ShopProcess
) -> None:
    run = new_run()
    verbs.approve(run.name)

    ended = starter(*run.start, "--wait", "--json")

    assert ended.code == 0
    document = ended.document()
    assert (document["run_id"], document["state"]) == (run.name, "completed")
    steps = ["order", "amount", "refund", "restock", "mail"]
    assert [step["id"] for step in document["steps"]] == steps
    for step in document["steps"]:
        assert step["state"] == "succeeded"
        assert {"tool", "output", "attempts", "replayed"} <= step.keys()
    tools = ["payments.refund", "inventory.restock", "mail.send"]
    assert [effect["tool"] for effect in document["effects"]] == tools
    assert {"key", "state"} <= document["effects"][0].keys()
    assert document["uncompensated"] == document["waiting_for"] == []
    assert shop.counts(run.order)["refunds"] == 1


async def test_a_short_plan_waits_for_less_time(client: Client, new_run: NewRun) -> None:
    run = await asyncio.to_thread(new_run)

    started = await client.get_workflow_handle(run.name).describe()

    timeout = started.raw_description.execution_config.default_workflow_task_timeout
    assert timeout.ToTimedelta() == move_timeout(5) < move_timeout(1000) / 5


def test_starting_a_run_twice_starts_nothing(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    again = verbs(*run.start)

    assert again.code == 0
    assert f"Run {run.name} exists already; nothing was started" in again.out
    assert "waiting_approval" in again.out


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("--set", "input.order_id=order-1003"), "with another plan or input"),
        (("--for", "bob"), "with another user"),
    ],
)
def test_the_same_run_id_with_another_input_or_user_is_refused(
    verbs: Verbs, new_run: NewRun, other: tuple[str, str], says: str
) -> None:
    run = new_run()

    refused = verbs(*run.start, *other)

    assert refused.code == 2
    assert f"exists already, {says}" in refused.line()


@pytest.mark.parametrize(
    ("wait", "modules"),
    [((), "surehand.examples.shop.tools"), (("--wait",), ""), ((), "not.there")],
)
def test_a_plan_that_does_not_fit_the_tools_is_refused_with_file_and_path(
    verbs: Verbs, run: Run, tmp_path: Path, wait: tuple[str, ...], modules: str
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("- {tool: no.tool}\n- {tool: orders.read, params: {order_id: 5}}\n")

    start = ("start", str(file), "--run-id", run.name, *wait)
    refused = verbs(*start, SUREHAND_TOOL_MODULES=modules)

    assert refused.code == 2
    *elsewhere, unknown, wrong = refused.err.splitlines()
    assert len(elsewhere) == (modules == "not.there")
    assert unknown.startswith(f"surehand: {file}: steps.0 (step1).tool: unknown tool 'no.tool'")
    assert wrong.startswith(f"surehand: {file}: steps.1 (step2).params.order_id: ")
    if modules.startswith("surehand"):  # looked at before anything is started
        assert f"run not found: {run.name}; " in verbs("show", run.name).line()


def test_a_corrected_plan_may_reuse_a_refused_id(verbs: Verbs, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("- {tool: orders.raed, params: {order_id: order-1001}}\n")
    # Nothing is checked here: the run itself finds it out.
    by_worker = {"SUREHAND_TOOL_MODULES": ""}
    assert verbs("start", str(file), "--run-id", run.name, **by_worker).code == 2
    file.write_text("- {tool: orders.read, params: {order_id: order-1001}}\n")

    assert verbs("start", str(file), "--run-id", run.name, "--wait").code == 0

    listed = verbs("list", "--json").document()["runs"]
    assert [one["state"] for one in listed if one["run_id"] == run.name] == ["completed"]


def test_a_time_out_leaves_the_run_alone(offline: Starter, run: Run) -> None:
    ended = offline(*run.start, "--wait", "--timeout", "1s")

    assert ended.code == 124
    assert f"--timeout is over; run {run.name} goes on" in ended.err


def test_ctrl_c_leaves_the_run_alone(offline: Starter, run: Run) -> None:
    with offline.popen(*run.start, "--wait") as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()  # says that no worker answers: from here on it waits

        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=20)

    assert waiting.returncode == 130
    # After two seconds it has said what it waits for.
    assert err.splitlines()[-1:] == [
        f"surehand: run {run.name} goes on: look with `python {ROOT}/starter.py show {run.name}`"
    ]


def test_a_terminal_waits_until_the_end(starter: Starter, verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    terminal = Terminal(starter.command(*run.start, "--wait"), starter.environment, starter.folder)
    terminal.read_until(f"--workflow-id {run.name} --name decide")
    line = f"approve {' '.join(verbs.asked(run.name))}\r\n"
    assert line in terminal.text  # unwrapped: it can be pasted

    verbs.approve(run.name)

    terminal.read_until(f"Run {run.name}: completed")
    assert terminal.end() == 0


def test_every_hint_of_a_tenants_run_names_the_tenant(verbs: Verbs, run: Run) -> None:
    acme = ("--tenant", "acme")

    told = [verbs(*run.start, *acme), verbs(*run.start, *acme), verbs("pause", run.name, *acme)]
    told += [verbs("resume", run.name, *acme), verbs("show", f"{run.name}/no/1", *acme)]
    told += [verbs(*run.start, *acme, "--wait"), verbs("cancel", run.name, *acme)]
    told += [verbs("show", run.name, "--follow", *acme)]
    told += [verbs("retry", run.name, *acme), verbs("interventions", *acme)]

    assert [one.code for one in told] == [0, 0, 0, 0, 2, 10, 0, 30, 0, 0]
    shown = "".join(one.out + one.err for one in told)
    pasted = re.findall(r"python starter\.py [^`\n]+", shown)
    assert len(pasted) > 4
    assert [line for line in pasted if not line.endswith("--tenant acme")] == []


def test_a_run_terminated_early_has_failed(lonely: Verbs, run: Run) -> None:
    assert lonely(*run.start).code == 0
    lonely.terminate(run.name)

    assert [lonely(*run.start, "--wait").code for _ in range(5)] == [20] * 5


# A starter without the workers' artifact store says what it cannot show, and fails over none.
PAGES = 300


@pytest.fixture(scope="module")
def shared(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Settings of a worker whose tools return much, with its artifact store."""
    folder = tmp_path_factory.mktemp("pages")
    own = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"pages-{uuid.uuid4().hex[:8]}",
        "SUREHAND_TOOL_MODULES": "tests.variants.pages",
        "SUREHAND_ARTIFACTS": str(folder / "artifacts"),
    }
    with WorkerProcess(own, folder) as process:
        process.wait_ready()
        yield own


@pytest.fixture
def near(shared: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """A starter that has the workers' artifact store."""
    return Verbs(shared, tmp_path, monkeypatch)


@pytest.fixture
def far(shared: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """A starter on another machine, where nobody has named it."""
    # A crowded machine is slow, not without a worker.
    for module in (runs, connection):
        monkeypatch.setattr(module, "SAID_AFTER", timedelta(seconds=LIMIT_S))
    own = {name: value for name, value in shared.items() if name != "SUREHAND_ARTIFACTS"}
    return Verbs(own, tmp_path, monkeypatch)


def plan(folder: Path, steps: list[dict[str, Any]], **more: Any) -> str:
    file = folder / "plan.json"
    file.write_text(json.dumps({"steps": steps, "durability": "exit", **more}))
    return str(file)


def pages(folder: Path) -> str:
    each = {"id": "pages", "tool": "pages.read", "for_each": "${input.numbers}", "item": "n"}
    step = {**each, "params": {"n": "${n}"}}
    return plan(folder, [step], input={"numbers": list(range(PAGES))})


def large(folder: Path) -> str:
    """Return a plan that is larger than what is sent without a store."""
    return plan(
        folder,
        [{"id": "count", "tool": "pages.count", "params": {"pages": ["x" * 10**6, "y" * 10**5]}}],
    )


def test_a_lost_result_is_told_with_its_place(far: Verbs, near: Verbs, tmp_path: Path) -> None:
    run_id, file = f"run-{uuid.uuid4().hex[:8]}", pages(tmp_path)

    ended = far("start", file, "--run-id", run_id, "--wait")
    again = far("start", file, "--run-id", run_id, "--wait", "--json")
    whole = near("start", file, "--run-id", run_id, "--wait", "--json")

    assert ended.code == again.code == whole.code == 0, (ended, again.err, whole.err)
    assert f"Run {run_id}: completed" in ended.out
    for words in ("in the artifact store", "SUREHAND_ARTIFACTS"):
        assert words in ended.err and words in again.err
    told = KeptRun.model_validate(again.document())
    assert (told.state, told.payload.bytes > PAGES * 8000) == ("completed", True)
    [step, *_] = RunResult.model_validate(whole.document()).steps
    assert len(step.output) == PAGES  # type: ignore[arg-type]


def test_a_view_shows_what_everybody_can_read_of_it(far: Verbs, tmp_path: Path) -> None:
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    far("start", pages(tmp_path), "--run-id", run_id, "--wait")

    shown = far("show", run_id)

    assert shown.code == 0, shown
    assert "pages[299]" in shown.out
    assert shown.err == ""


def test_a_plan_too_large_to_send_is_refused(far: Verbs, near: Verbs, tmp_path: Path) -> None:
    run_id, file = f"run-{uuid.uuid4().hex[:8]}", large(tmp_path)

    refused = far("start", file, "--run-id", run_id)
    taken = near("start", file, "--run-id", run_id, "--wait")
    shown = far("show", run_id)
    document = far("show", run_id, "--json").document()
    checked = far("checkpoint", run_id)

    assert refused.code == 4
    assert "SUREHAND_ARTIFACTS" in refused.line()
    assert taken.code == 0, taken
    assert shown.code == 0
    assert f"Run {run_id}: completed" in shown.out
    assert "in the artifact store" in shown.line()
    assert KeptRun.model_validate(document).state == "completed"
    assert checked.code == 0, checked


STRICT = {"SUREHAND_DECISIONS": "signed"}


@pytest.fixture(scope="module")
def strict(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The environment of a starter elsewhere, whose worker takes only what is signed."""
    own = {**settings, "SUREHAND_TASK_QUEUE": f"strict-{uuid.uuid4().hex[:8]}"}
    with WorkerProcess({**own, **STRICT}, tmp_path_factory.mktemp("strict")) as process:
        process.wait_ready()
        yield own


@pytest.fixture
def signed(strict: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs(strict, tmp_path, monkeypatch)


@pytest.fixture
def somebody(signed: Verbs, tmp_path: Path) -> tuple[str, str]:
    """A registered name, and the file of its key."""
    name, file = f"mallory-{uuid.uuid4().hex[:8]}", str(tmp_path / "own.pem")
    assert signed("principal", "keygen", file).code == 0
    added = signed("principal", "add", name, "--key", f"{file}.pub", "--as", "root")
    assert added.code == 0, added
    return name, file


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


def start(verbs: Verbs, shop: ShopProcess, run_id: str, *options: str, **settings: str) -> Ended:
    change = f"input.order_id={shop.new_order()}"
    return verbs("start", REFUND, "--run-id", run_id, "--set", change, *options, **settings)


def test_an_unsigned_start_is_refused_by_the_worker_and_the_signed_one_has_its_id(
    signed: Verbs, shop: ShopProcess, somebody: tuple[str, str], run_id: str
) -> None:
    name, file = somebody

    for options in ([], ["--wait"]):
        refused = start(signed, shop, run_id, *options)
        assert refused.code == 2
        assert "only signed starts count here: start it with --key" in refused.line()
    stranger = start(signed, shop, run_id, "--as", "ana", "--key", file)
    assert (stranger.code, "ana has no key" in stranger.line()) == (2, True)

    started = start(signed, shop, run_id, "--as", name, "--for", "ana", "--key", file, "--wait")

    assert started.code == 10, started
    assert f"  user     ana, started by {name}, tenant default\n" in signed("show", run_id).out
    request = signed("show", f"{run_id}/refund/1").out
    assert f"  asked by   ana, started by {name}\n" in request


def test_a_run_that_is_begun_from_another_is_signed_as_well(
    signed: Verbs, shop: ShopProcess, somebody: tuple[str, str], run_id: str
) -> None:
    name, file = somebody
    mine = ["--as", name, "--key", file]
    assert start(signed, shop, run_id, *mine, "--wait").code == 10
    assert signed("cancel", run_id, *mine).code == 0
    assert signed("show", run_id, "--follow").code == 30

    for verb in (["retry", run_id], ["fork", run_id, "--from", "refund"]):
        other = [*verb, "--run-id", f"{run_id}-{verb[0]}"]
        unsent = signed(*other, **STRICT)
        assert (unsent.code, "SUREHAND_DECISIONS=signed" in unsent.line()) == (2, True)
        assert signed("show", other[-1]).code == 2
        refused = signed(*other, "--as", name)
        assert (refused.code, "only signed starts count" in refused.line()) == (2, True)
        assert signed(*other, *mine, "--wait").code == 10


def test_where_the_setting_is_known_nothing_unsigned_is_sent(
    signed: Verbs, shop: ShopProcess, run_id: str
) -> None:
    refused = start(signed, shop, run_id, **STRICT)

    assert refused.code == 2
    assert "SUREHAND_DECISIONS=signed" in refused.line() and "--key" in refused.line()
    assert signed("show", run_id).code == 2


def test_nobody_is_no_user_to_start_for(lonely: Verbs, shop: ShopProcess, run_id: str) -> None:
    for name in ("", "u" * 201):
        refused = start(lonely, shop, run_id, "--for", name)
        assert refused.code == 2
        assert "user has to be 1 to 200 characters" in refused.line()
