"""The verbs that steer a run, against a real server and a real worker."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from surehand.cli.approvals import PendingList
from surehand.cli.printer import Printer
from surehand.cli.runs import Started
from surehand.cli.steering import RunPaused
from surehand.process.exits import ExitCode
from tests.cli.starter import Run, Verbs
from tests.cli.test_demo import until

NewRun = Callable[..., Run]


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


PLAN = """
name: controls
steps:
  - {id: why, ask: {question: "Why?", answer: {type: string, minLength: 3}}}
  - {id: back, wait: {event: returned, about: order-7}}
  - {id: read, tool: orders.read, params: {order_id: order-404}, on_failure: pause}
  - {id: more, tool: orders.read, params: {order_id: order-1001}}
budget: {steps: 1}
"""


@pytest.fixture
def controlled(verbs: Verbs, tmp_path: Path) -> str:
    """A run that asks, then waits for an event, then fails, then has used up its budget."""
    file = tmp_path / "controls.yaml"
    file.write_text(PLAN)
    started = verbs("start", str(file), "--wait")
    assert started.code == ExitCode.HUMAN_NEEDED
    found = re.search(r"answer (controls-\w+) why\.1=VALUE", started.out)
    assert found is not None, started.out
    return found[1]


def shown(verbs: Verbs, run: str, until: str = "") -> str:
    """Return what is shown of a run, once that is in it."""
    for _ in range(60):  # what was answered has been taken; what follows comes in a moment
        out = str(verbs("show", run).out)
        if until in out:
            break
    return out


def test_the_shown_commands_lead_a_run_to_its_end(verbs: Verbs, controlled: str) -> None:
    assert "why.1=VALUE" in verbs("pending").out
    questions = PendingList.model_validate(verbs("pending", "--json").document()).questions
    assert controlled in [question.run_id for question in questions]
    assert "is too short" in verbs("answer", controlled, "x").line()
    assert "answered why.1" in verbs("answer", controlled, "why.1=sent twice").out
    event = ["event", controlled, "returned", "--about", "order-7"]
    assert "waits for an event" in shown(verbs, controlled, until="waits for an event")
    assert "--payload is no JSON" in verbs(*event, "--id", "e1", "--payload", '{"n": 1').line()
    other = verbs("event", controlled, "retruned", "--about", "order-7", "--id", "e0").out
    assert "is taken, but nothing waits for retruned order-7 now" in other
    assert "(the plan's steps wait for: returned)" in other
    assert "is taken\n" in verbs(*event, "--id", "e1", "--payload", '{"n": 1}').out
    assert "has come before" in verbs(*event, "--id", "e1").out
    look = verbs("show", controlled)
    assert "paused_failure" in look.out and "order-404" in look.out
    retry = ["resume", controlled, "--step", "read", "--set", "order_id=order-1001"]
    assert "going on: read (retry)" in verbs(*retry).out
    assert "still used up" in verbs("top-up", controlled, "--tokens", "5").out
    assert "added" in verbs("top-up", controlled, "--steps", "2").out
    result = verbs("start", "controls.yaml", "--run-id", controlled, "--wait", "--json").document()
    assert result["state"] == "completed"
    assert [view["output"] for view in result["steps"]][:2] == ["sent twice", {"n": 1}]


def test_a_pause_token_resumes_once_for_its_user(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    paused = RunPaused.model_validate(verbs("pause", run.name, "--json").document())
    token = paused.resume_token
    assert "paused_user" in shown(verbs, run.name)

    assert "is ana's" in verbs("resume", run.name, "--token", token, "--as", "eve").line()
    assert "going on" in verbs("resume", run.name, "--token", token).out
    assert "no resume token out" in verbs("resume", run.name, "--token", token).line()
    assert "waiting_approval" in shown(verbs, run.name)


def test_what_is_no_token_is_one_clear_line(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run().name
    for token in ("", "shr1.", "shr1.AAAA", "x" * 5000, "shr1." + "A" * 5000):
        assert "this is no resume token" in verbs("resume", run, "--token", token).line()


def test_a_token_of_another_run_is_named(verbs: Verbs, new_run: NewRun) -> None:
    first, second = new_run(), new_run()
    token = verbs("pause", first.name, "--json").document()["resume_token"]

    said = verbs("resume", second.name, "--token", token)

    assert said.code == ExitCode.WRONG_USE
    assert f"it is for run {first.name}, not for {second.name}" in said.line()


#: What is typed of a run, and what is said of it.
BAD: Final = [
    (["answer", "RUN", "a=1", "b=2"], "does not begin with the id of a question"),
    (["answer", "RUN", "1"], "nothing is asked"),
    (["event", "RUN", "x", "--id", ""], "event_id: must have at least 1 character"),
    (["top-up", "RUN", "--money", "lots"], "money: "),
    (["top-up", "RUN"], "nothing was added"),
    (["resume", "RUN", "--set", "a=1"], "name one step that has failed"),
    (["fork", "RUN", "--from", "nowhere"], "the plan's steps are order"),
    (["fork", "RUN", "--from", "mail"], "has not succeeded"),
    (["retry", "RUN"], "it goes on by itself"),
    (
        ["fork", "RUN", "--from", "order", "--set", "steps.mail.after=[nowhere]"],
        "steps.4 (mail).after: there is no step 'nowhere'",
    ),
]


def test_bad_input_is_one_line_and_changes_nothing(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run().name

    for arguments, says in BAD:
        said = verbs(*(run if one == "RUN" else one for one in arguments))

        assert said.code == ExitCode.WRONG_USE, arguments
        assert says in said.line()
    assert "waiting_approval" in shown(verbs, run)


def test_an_amendment_shows_what_changes(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    plan = json.loads(verbs("show", run.name, "--json").out)["plan"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert "this is the plan that the run has" in verbs("amend", run.name, str(file)).line()

    said = verbs(
        *("amend", run.name, str(file), "--set", "goal=another"),
        *("--set", "steps.mail.params.subject=Sorry"),
    )

    assert '+   "goal": "another",' in said.out and "plan version 2" in said.out
    _, step, changes = said.out.partition("Step mail:\n")
    assert step and '+     "subject": "Sorry",' in changes
    assert "Step refund" not in said.out
    # What was asked of its approver is closed first.
    until(lambda: "plan     refund, version 2: another" in shown(verbs, run.name), "the new plan")


def test_an_amendment_keeps_the_input(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    plan = json.loads(verbs("show", run.name, "--json").out)["plan"]
    given = plan.pop("input")
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**plan, "goal": "another"}))
    assert "${input.order_id}" in file.read_text()

    said = verbs("amend", run.name, str(file))

    assert said.code == 0, said
    now = json.loads(verbs("show", run.name, "--json").out)["plan"]
    assert (now["goal"], now["input"]) == ("another", given)


def test_an_amendment_is_asked_about_on_a_terminal(
    verbs: Verbs, new_run: NewRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    plan = json.loads(verbs("show", run.name, "--json").out)["plan"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**plan, "goal": "another"}))
    monkeypatch.setattr(Printer, "attended", True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))

    said = verbs("amend", run.name, str(file))

    assert f"Go on with this plan in run {run.name}?" in said.out
    assert "Nothing was sent" in said.out
    assert "plan     refund, version 1" in shown(verbs, run.name)
    assert "plan version 2" in verbs("amend", run.name, str(file), "--yes").out


def test_a_step_to_be_looked_at_is_shown_with_its_params(verbs: Verbs, tmp_path: Path) -> None:
    file = tmp_path / "looked_at.yaml"
    file.write_text(
        "[{id: it, tool: orders.read, params: {order_id: order-1001}, interrupt: before}]"
    )

    assert '  about  {"order_id": "order-1001"}' in verbs("start", str(file), "--wait").out


def test_an_edited_amount_is_shown_as_stored(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    [asked] = verbs("show", run.name, "--json").document()["pending"]

    edited = verbs("edit", asked["approval_id"], "--set", "amount=40.00")

    [again] = verbs("show", run.name, "--json").document()["pending"]
    [shown_as] = re.findall(r'\+ +("amount": .*?),?\n', edited.out)
    assert shown_as == f'"amount": {json.dumps(again["params"]["amount"])}'


def test_a_failed_run_is_started_once_more(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    verbs("cancel", run.name)
    verbs("show", run.name, "--follow")

    again = verbs("retry", run.name, "--run-id", f"{run.name}-again", "--wait")

    assert again.code == ExitCode.HUMAN_NEEDED
    assert f"begins from run {run.name}" in shown(verbs, f"{run.name}-again")


def test_a_fork_says_what_it_takes_over(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    said = verbs("fork", run.name, "--from", "amount", "--json")

    fork = Started.model_validate(said.document())
    assert (fork.linked, fork.taken_over) == (run.name, ["order"])
