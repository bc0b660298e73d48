"""What calls and turns tell while they last: a crash loses nothing of what counts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import drafts
from surehand.activities.ledger.history.reads import artifacts_of
from surehand.activities.ledger.history.recordings import rebuild_checkpoint
from surehand.client.outcome import call_progress
from surehand.workflows.contracts.base import Artifact, RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, step, until
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import reconciled, until_found
from tests.e2e.test_agents import EACH, driven, settings, turns
from tests.variants.agent_scripts import STORY
from tests.variants.long import PAGES
from tests.variants.reports import HEADING, MIDDLE, Report, whole

REPORTS = "tests.variants.reports"


def plan(tool: str, report: Report) -> Plan:
    """Return a read, and the step that writes: so a batch has two."""
    first = {"id": "first", "tool": "report.read", "params": {"lines": 1, "stops": False}}
    writes = {"id": "it", "tool": tool, "params": report.model_dump()}
    return Plan.model_validate({"steps": [first, writes]})


def rows(stage: Stage, run: Run) -> list[dict[str, Any]]:
    with stage.ledger.transaction(stage.tenant) as tx:
        return tx.all(rows_of(drafts, run_id=run.run_id).order_by(drafts.c.step_id))


def written(stage: Stage, run: Run) -> dict[str, int]:
    return {row["step_id"]: row["bytes"] for row in rows(stage, run) if row["ended_ms"] is None}


def of_drafts(stage: Stage) -> list[Path]:
    folder = stage.folder / "artifacts" / stage.tenant / "drafts"
    return list(folder.rglob("*")) if folder.exists() else []


async def told(run: Run) -> dict[str, int]:
    """Return how much the run's calls have written, as the server knows it."""
    return (await call_progress(await run.handle.describe())).bytes_written


async def content(stage: Stage, run: Run, reference: dict[str, Any]) -> bytes:
    """Return what a run's artifact is that an output refers to."""
    store = ArtifactStore(str(stage.folder / "artifacts"), stage.ledger, largest_inline=1024)
    kept = await stage.ledger.transact(stage.tenant, artifacts_of, run.run_id)
    [row] = [one for one in kept if f"sha256:{one['sha256']}" == reference["artifact"]]
    assert (row["type"], row["bytes"]) == (reference["media_type"], reference["bytes"])
    return await store.read_bytes(stage.tenant, run.run_id, Artifact.model_validate(row))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("database", "tool", "durability", "anew"),
    [
        pytest.param("sqlite", "report.read", "sync", False, id="read"),
        pytest.param(
            "postgresql", "report.write", "sync", True, marks=pytest.mark.postgres, id="write_anew"
        ),
        pytest.param("sqlite", "report.write", "exit", False, id="batch"),
    ],
)
async def test_the_attempt_after_a_killed_one_goes_on_from_its_end_or_begins_anew(
    stage: Stage, tool: str, durability: str, anew: bool
) -> None:
    report = Report(anew=anew)
    stood = len(HEADING) + MIDDLE * report.size
    with stage.worker(tool_modules=REPORTS) as doomed:
        run = await stage.start(plan(tool, report), durability=durability)
        await until(lambda: written(stage, run), lambda sizes: sizes.get("it") == stood)
        # People see it meanwhile.
        await until(lambda: told(run), lambda sizes: sizes.get("it") == stood)
        doomed.kill()
    parts = of_drafts(stage)
    with stage.worker(tool_modules=REPORTS):
        result = await run.completed()

    output = step(result, "it").output
    assert output["stood"] == stood
    assert await content(stage, run, output["report"]) == whole(report)
    if not stage.keys:  # otherwise only the run's key makes that digest
        digest = hashlib.sha256(whole(report)).hexdigest()
        assert output["report"]["artifact"] == f"sha256:{digest}"
    assert parts and not of_drafts(stage)
    assert all(row["removed_ms"] and not row["parts"] for row in rows(stage, run))


async def test_20_megabytes_leave_a_small_history_and_no_parts(stage: Stage) -> None:
    report = Report(lines=20, size=1_000_000, stops=False)
    run, result = await stage.play(plan("report.read", report), tool_modules=REPORTS)

    assert result.state is RunState.COMPLETED, result.error
    assert await content(stage, run, step(result, "it").output["report"]) == whole(report)
    found = await run.handle.describe()
    assert found.raw_description.workflow_execution_info.history_size_bytes < 50_000
    assert not of_drafts(stage)


async def test_a_round_removes_the_drafts_of_a_terminated_run(stage: Stage) -> None:
    report = Report()
    with stage.worker(tool_modules=REPORTS) as doomed:
        run = await stage.start(plan("report.read", report))
        await until(lambda: written(stage, run), lambda sizes: len(sizes) == 1 and "it" in sizes)
        await until(lambda: of_drafts(stage), bool)
        doomed.kill()
    await run.handle.terminate()
    async with stage.worker_here(tool_modules=REPORTS):
        await until_found(stage, run)
        await reconciled(stage)

    assert not of_drafts(stage)
    assert [row["removed_ms"] is not None for row in rows(stage, run)] == [True, True]


# How far a long call has come: told to people, and to the attempt after one that was killed.
LONG = "tests.variants.long"


async def progress(run: Run) -> dict[str, object]:
    """Return what the run's calls have told, as the server knows it."""
    return (await call_progress(await run.handle.describe())).by_step


@pytest.mark.parametrize(("tool", "durability"), [("pages.read", "sync"), ("pages.write", "exit")])
async def test_a_later_attempt_hears_its_progress(stage: Stage, tool: str, durability: str) -> None:
    plan = Plan.model_validate({"steps": [{"tool": "pages.count"}, {"id": "it", "tool": tool}]})
    with stage.worker(tool_modules=LONG) as doomed:
        run = await stage.start(plan, durability=durability)
        await until(lambda: progress(run), lambda told: told == {"it": PAGES})
        doomed.kill()
    with stage.worker(tool_modules=LONG):
        result = await run.completed()

    assert step(result, "it").output == {"went_on_from": PAGES}


async def test_a_long_call_leaves_its_progress_in_the_ledger(stage: Stage) -> None:
    plan = Plan.model_validate({"steps": [{"id": "it", "tool": "pages.write"}]})
    with stage.worker(tool_modules=LONG, checkpoint_every="1s") as doomed:
        run = await stage.start(plan)
        await until(lambda: progress(run), lambda told: told == {"it": PAGES})
        # The second one: it is not only done once.
        told = await until(
            lambda: stage.events(run, "step.progress"), lambda events: len(events) >= 2
        )
        doomed.kill()
    then = await stage.ledger.transact(stage.tenant, rebuild_checkpoint, run.run_id, told[0]["seq"])
    [sha256] = {event["body"]["progress"].removeprefix("sha256:") for event in told}
    [kept] = await stage.ledger.transact(stage.tenant, artifacts_of, run.run_id)
    store = ArtifactStore(str(stage.folder), stage.ledger, largest_inline=1024)
    content = await store.read(stage.tenant, run.run_id, Artifact.model_validate(kept))
    with stage.worker(tool_modules=LONG):
        await run.result()

    assert (content, kept["sha256"]) == (PAGES, sha256)
    assert then.progress == {"it": f"sha256:{sha256}"}
    assert then.pending_side_effects == ["it"]


@pytest.mark.crash
@EACH
async def test_a_turn_that_a_kill_has_cut_short_is_asked_again_and_recorded_whole(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    with stage.worker(**settings(framework)) as doomed:
        run = await stage.start(driven(framework, "halting", order_id, count))
        await until(lambda: turns(count) if count.exists() else 0, bool)
        doomed.kill()
    with stage.worker(**settings(framework)):
        result = await run.completed()

    assert (result.output, step(result, "turn-1").output["line"]) == (STORY, STORY)
    assert (step(result, "turn-1").attempts, turns(count)) == (2, 2)
