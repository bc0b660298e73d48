"""``simulate``: what a plan would do from a moment of a run, with recorded outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import options
from cli.again import changed_plan
from cli.caller import Caller, perform
from cli.exits import ExitCode, WrongUse
from cli.ids import find_run_id
from cli.ledger_door import ledger_of, open_artifacts, read_settings, translated
from cli.plan_shapes import SimulatedStep, Simulation
from cli.simulated import Course, Known
from cli.simulated_calls import WorkerChecks
from cli.simulation import simulate
from cli.toolcheck import named_tools
from workflows.plan import Plan

if TYPE_CHECKING:
    from activities.artifacts import ArtifactStore
    from activities.ledger.recorded import Recording
    from activities.ledger.store import Ledger
    from activities.toolbox import Toolbox

EXAMPLE: Final = "Example: python starter.py simulate refund-1 --from 4 --set input.shelf=B"


def simulate_run(
    run: options.Run,
    seq: Annotated[
        int,
        typer.Option(
            "--from", metavar="SEQ", min=1, help="The event after which the plan goes on."
        ),
    ],
    changes: options.Changes = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Say what a plan would do from an event of a run, from its records: nothing is called."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.rebuilding import NoSuchEvent
        from activities.ledger.recorded import recording_of

        run_id = find_run_id(caller.settings.tenant, run)
        toolbox, settings = named_tools(caller), read_settings()
        async with ledger_of(settings) as ledger:
            try:
                recording = await recording_of(ledger, caller.settings.tenant, run_id, seq)
            except NoSuchEvent as error:
                raise WrongUse(str(error)) from error
            plan = plan_to_simulate(recording, changes, toolbox)
            checks = WorkerChecks(run_id, recording.tools, toolbox)
            store = open_artifacts(settings, ledger)
            with translated():
                course = await _course(caller, ledger, store, recording, plan, checks)
        shown = Simulation(
            run_id=run_id,
            seq=seq,
            plan=plan.name,
            plan_version=recording.plan_version,
            changed=changes or [],
            tools_loaded=toolbox is not None,
            steps=course.steps,
            ends=course.ends,
        )
        _print(caller, shown)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def plan_to_simulate(
    recording: Recording, changes: list[str] | None, toolbox: Toolbox | None
) -> Plan:
    """Return the plan of that moment, with ``--set`` changes.

    Raises:
        WrongUse: Code makes the run's steps, or a change does not fit.
    """
    if recording.plan.code is not None:
        raise WrongUse(
            f"run {recording.run_id} is made by code ({recording.plan.code}): only that knows"
            " what it would do"
        )
    if not changes:
        return recording.plan
    plan = changed_plan(recording.plan, changes)
    if toolbox is not None:
        from activities.describing import describe_plan

        problems = describe_plan(toolbox, plan).problems
        if problems:
            text = "; ".join(f"{one.where}: {one.reason}" for one in problems)
            raise WrongUse(f"--set: the plan does not fit the tools then: {text}")
    return plan


async def _course(
    caller: Caller,
    ledger: Ledger,
    store: ArtifactStore,
    recording: Recording,
    plan: Plan,
    checks: WorkerChecks,
) -> Course:
    """Simulate, look up what turns out to matter, and simulate again until nothing does."""
    from activities.ledger.recorded import KeyEntry, key_entries

    tenant = caller.settings.tenant
    keys: dict[tuple[str, str], KeyEntry | None] = {}
    contents: dict[str, object] = {}
    while True:
        course = simulate(recording, plan, checks, Known(keys, contents))
        if not course.keys and not course.artifacts:
            return course
        keys |= {**dict.fromkeys(course.keys), **await key_entries(ledger, tenant, course.keys)}
        contents |= await store.read_all(tenant, course.artifacts)


def _print(caller: Caller, shown: Simulation) -> None:
    if caller.printer.json_output:
        caller.printer.document(shown)
        return
    say = caller.printer.say
    say(
        f"Plan {shown.plan}, version {shown.plan_version}, from event {shown.seq} of {shown.run_id}"
    )
    if not shown.tools_loaded:
        say("No tools are loaded (SUREHAND_TOOL_MODULES): rules, hashes and keys are not known")
    columns = ("step", "does", "outcome", "why")
    caller.printer.table(
        columns, [[one.id, one.does, one.outcome, _why(one)] for one in shown.steps]
    )
    if shown.ends is not None:
        say(f"It would end there: {shown.ends}")


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
