"""``retry`` and ``fork``: another run that begins from one that there was."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from pydantic import JsonValue

from surehand.cli.runs.follow import follow
from surehand.cli.runs.start import why_waiting
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import Linked as LinkedShape
from surehand.client.plan_file import Draft
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.runs import RunView, is_cut
from surehand.workflows.contracts.starting import Linked
from surehand.workflows.contracts.states import ENDED, RunState, StepState
from surehand.workflows.plan.plan import ITERATION, Plan
from surehand.workflows.plan.validation import ancestors


async def retry(
    caller: options.Sender,
    run: options.Run,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a failed or cancelled run once more, as a new run; what stands is not repeated.

    Example: python starter.py retry refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look(caller, run)
    if view.result.state not in ENDED:
        raise WrongUse(
            f"run {source} is {view.result.state}: it goes on by itself, or with `resume`"
        )
    if view.result.state is RunState.COMPLETED:
        raise WrongUse(f"run {source} has completed: `fork` begins from one of its steps")
    plan = Draft.of(view.plan).amending(view.plan, changes or [])
    return await _start(caller, plan, run_id, Linked(run_id=source), for_user, wait, timeout)


async def fork(
    caller: options.Sender,
    run: options.Run,
    step: Annotated[str, typer.Option("--from", metavar="STEP", help="The first step done anew.")],
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a new run at a step of another one, whose earlier outputs are facts to it.

    Example: python starter.py fork refund-1 --from restock --set input.shelf=B
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look(caller, run)
    linked = Linked(run_id=source, outputs=outputs_before(view, step))
    plan = Draft.of(view.plan).amending(view.plan, changes or [])
    return await _start(caller, plan, run_id, linked, for_user, wait, timeout)


def outputs_before(view: RunView, step_id: str) -> dict[str, JsonValue]:
    """Return the outputs of the steps that have succeeded and do not come after a step.

    Raises:
        WrongUse: There is no such step, or one before it has not succeeded.
    """
    if view.plan.code is not None:
        reason = f"the workflow {view.plan.code} makes the steps of {view.result.run_id}"
        raise WrongUse(f"--from {step_id}: {reason}, so none of them is a place to begin at")
    dependencies = view.plan.dependencies
    if step_id not in dependencies:
        raise WrongUse(f"--from {step_id}: the plan's steps are {', '.join(dependencies)}")
    states = {one.id: one for one in view.result.steps}
    done = (StepState.SUCCEEDED, StepState.SKIPPED)
    open_ = [one for one in ancestors(dependencies, step_id) if states[one].state not in done]
    if open_:
        raise WrongUse(f"--from {step_id}: before it, {', '.join(sorted(open_))} has not succeeded")
    taken = {
        one: states[one].output
        for one in dependencies
        if one != step_id
        and step_id not in ancestors(dependencies, one)
        and states[one].state is StepState.SUCCEEDED
    }
    # Of a list, its items tell.
    undone = {ITERATION.sub("", view.id) for view in view.result.steps if view.undone}
    gone = [one for one in taken if one in undone]
    if gone:
        raise WrongUse(
            f"--from {step_id}: what {', '.join(gone)} did has been undone, so its output is no"
            f" fact any more: begin with --from {gone[0]}"
        )
    cut = [one for one, output in taken.items() if is_cut(output)]
    if cut:
        raise WrongUse(
            f"--from {step_id}: the output of {', '.join(cut)} is too large to be shown, so nobody"
            f" can take it over: begin with --from {cut[0]}"
        )
    return taken


async def _look(caller: Caller, run: str) -> tuple[str, RunView]:
    source = caller.run_id(run)
    connection = await caller.connection()
    await connection.describe(source)
    return source, await connection.view(source)


async def _start(
    caller: Caller,
    plan: Plan,
    name: str | None,
    linked: Linked,
    for_user: str | None,
    wait: bool,
    timeout: timedelta | None,
) -> Reply:
    client = await caller.client()
    run = await client.start(plan, run_id=name, for_user=for_user, linked=linked)
    chosen = run.run_id
    if not run.is_new:
        raise WrongUse(f"run {chosen} exists already")
    if wait:
        return await follow(caller.printer, client.connection, chosen, limit=timeout)
    taken_up = await run.taken_up()  # or it says why it was refused
    connection, taken = client.connection, sorted(linked.outputs)
    silent = "" if taken_up else await why_waiting(connection, await connection.describe(chosen))
    lines = [f"Run {chosen} begins from {linked.run_id}{silent}"]
    lines += [f"  taken over  {', '.join(taken)}"] if taken else []
    return Reply(
        LinkedShape(run_id=chosen, linked=linked.run_id, taken_up=taken_up, taken_over=taken),
        [*lines, f"  look        {caller.settings.command('show', chosen)}"],
    )
