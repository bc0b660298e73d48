"""A starter without the workers' artifact store says what it cannot show, and fails over none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surehand.cli.show import KeptRun
from surehand.workflows.contracts.runs import RunResult
from tests.cli.starter import Verbs
from tests.worker_process import WorkerProcess

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


def test_a_run_whose_result_cannot_be_fetched_is_told_with_where_it_is(
    far: Verbs, near: Verbs, tmp_path: Path
) -> None:
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


def test_a_plan_that_is_too_large_to_be_sent_is_refused_in_one_line(
    far: Verbs, near: Verbs, tmp_path: Path
) -> None:
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
