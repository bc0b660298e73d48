"""``simulate``: what a plan would do from a moment of a run, with recorded outputs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history.recordings import (
    KeyEntry,
    NoSuchEvent,
    Recording,
    read_key_entries,
    read_recording,
)
from surehand.activities.tools.toolbox import Toolbox
from surehand.cli import options
from surehand.cli.ledger_door import ledger_of, open_artifacts, read_settings, translated
from surehand.cli.options import Caller
from surehand.cli.printer import Lines, Reply, Table
from surehand.cli.simulation import (
    Known,
    Simulated,
    SimulatedStep,
    Simulation,
    WorkerChecks,
    simulate,
)
from surehand.cli.tools import named_tools, problems_of
from surehand.client.plan_file import PlanDraft
from surehand.process.exits import WrongUse
from surehand.workflows.plan.plan import Plan


async def simulate_run(
    caller: options.Onlooker,
    run: options.Run,
    seq: Annotated[
        int,
        typer.Option(
            "--from", metavar="SEQ", min=1, help="The event after which the plan goes on."
        ),
    ],
    changes: options.Changes = None,
) -> Reply:
    """Say what a plan would do from an event of a run, from its records: nothing is called.

    Example: python starter.py simulate refund-1 --from 4 --set input.shelf=B
    """
    run_id = caller.run_id(run)
    toolbox, settings = named_tools(caller), read_settings()
    async with ledger_of(settings) as ledger:
        try:
            recording = await ledger.transact(caller.tenant, read_recording, run_id, seq)
        except NoSuchEvent as error:
            raise WrongUse(str(error)) from error
        plan = plan_to_simulate(recording, changes, toolbox)
        checks = WorkerChecks(run_id, recording.tools, toolbox, ledger.keys)
        store = open_artifacts(settings, ledger)
        with translated():
            found = await _simulated(caller, ledger, store, recording, plan, checks)
    shown = Simulation(
        run_id=run_id,
        seq=seq,
        plan=plan.name,
        plan_version=recording.plan_version,
        changed=changes or [],
        tools_loaded=toolbox is not None,
        steps=found.steps,
        ends=found.ends,
    )
    return Reply(shown, _lines(shown))


def plan_to_simulate(
    recording: Recording, changes: list[str] | None, toolbox: Toolbox | None
) -> Plan:
    """Return the plan of that moment, with ``--set`` changes."""
    if recording.plan.code is not None:
        raise WrongUse(
            f"run {recording.run_id} is made by code ({recording.plan.code}): only that knows"
            " what it would do"
        )
    if not changes:
        return recording.plan
    plan = PlanDraft.of(recording.plan).amending(recording.plan, changes)
    problems = problems_of(toolbox, plan)
    if problems:
        text = "; ".join(f"{one.where}: {one.reason}" for one in problems)
        raise WrongUse(f"--set: the plan does not fit the tools then: {text}")
    return plan


async def _simulated(
    caller: Caller,
    ledger: Ledger,
    store: ArtifactStore,
    recording: Recording,
    plan: Plan,
    checks: WorkerChecks,
) -> Simulated:
    """Simulate, look up what turns out to matter, and simulate again until nothing does."""
    tenant = caller.tenant
    keys: dict[tuple[str, str], KeyEntry | None] = {}
    contents: dict[str, object] = {}
    while True:
        known = Known(keys, contents)
        found = await ledger.with_keys(partial(simulate, recording, plan, checks, known))
        if not found.keys and not found.artifacts:
            return found
        keys |= {
            **dict.fromkeys(found.keys),
            **await ledger.transact(tenant, read_key_entries, found.keys),
        }
        contents |= await store.read_all(tenant, recording.run_id, found.artifacts)


def _lines(shown: Simulation) -> Lines:
    yield (
        f"Plan {shown.plan}, version {shown.plan_version}, from event {shown.seq} of {shown.run_id}"
    )
    if not shown.tools_loaded:
        yield "No tools are loaded (SUREHAND_TOOL_MODULES): rules, hashes and keys are not known"
    rows = [[one.id, one.does, one.outcome, _why(one)] for one in shown.steps]
    yield Table(("step", "does", "outcome", "why"), rows)
    if shown.ends is not None:
        yield f"It would end there: {shown.ends}"


def _why(step: SimulatedStep) -> str:
    parts = [step.why] if step.why else []
    if step.depends_on:
        parts.append(f"depends on {', '.join(step.depends_on)}")
    if step.approval not in (None, "no"):
        needs = step.approval_text or step.approval
        parts.append(f"needs {needs}" if step.approval == "yes" else "may need an approval")
    if step.looked_at:
        parts.append(f"a human looks at it {' and '.join(step.looked_at)}")
    return "; ".join(parts)
