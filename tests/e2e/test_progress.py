"""How far a long call has come: told to people, and to the attempt after one that was killed."""

from __future__ import annotations

import pytest

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.history.reads import artifacts_of
from surehand.activities.ledger.history.rebuilding import checkpoint_at
from surehand.client.outcome import call_progress
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.values import Artifact
from surehand.workflows.plan.plan import Plan
from tests.e2e.runs import Run, step, until
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES
from tests.variants.long import PAGES

LONG = "tests.variants.long"


async def progress(run: Run) -> dict[str, object]:
    """Return what the run's calls have told, as the server knows it."""
    return (await call_progress(await run.handle.describe())).by_step


@pytest.mark.parametrize(
    ("tool", "durability"),
    [("pages.read", "sync"), ("pages.write", "sync"), ("pages.write", "exit")],
)
async def test_the_attempt_after_a_killed_one_hears_how_far_it_has_come(
    stage: Stage, tool: str, durability: str
) -> None:
    plan = Plan.model_validate({"steps": [{"tool": "pages.count"}, {"id": "it", "tool": tool}]})
    with stage.worker(tool_modules=LONG) as doomed:
        run = await stage.start(plan, durability=durability)
        await until(lambda: progress(run), lambda told: told == {"it": PAGES})
        doomed.kill()
    with stage.worker(tool_modules=LONG):
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert step(result, "it").output == {"went_on_from": PAGES}


@pytest.mark.parametrize("database", DATABASES)
async def test_a_long_call_leaves_its_progress_in_the_ledger_from_time_to_time(
    stage: Stage,
) -> None:
    plan = Plan.model_validate({"steps": [{"id": "it", "tool": "pages.write"}]})
    with stage.worker(tool_modules=LONG, checkpoint_every="1s") as doomed:
        run = await stage.start(plan)
        await until(lambda: progress(run), lambda told: told == {"it": PAGES})
        # The second one: it is not only done once.
        told = await until(
            lambda: stage.events(run, "step.progress"), lambda events: len(events) >= 2
        )
        doomed.kill()
    then = await stage.ledger.transact(stage.tenant, checkpoint_at, run.run_id, told[0]["seq"])
    [sha256] = {event["body"]["progress"].removeprefix("sha256:") for event in told}
    [kept] = await stage.ledger.transact(stage.tenant, artifacts_of, run.run_id)
    store = ArtifactStore(str(stage.folder), stage.ledger, largest_inline=1024)
    content = await store.read(stage.tenant, run.run_id, Artifact.model_validate(kept))
    with stage.worker(tool_modules=LONG):
        await run.result()

    assert (content, kept["sha256"]) == (PAGES, sha256)
    assert then.progress == {"it": f"sha256:{sha256}"}
    assert then.pending_side_effects == ["it"]
