"""``event``, ``top-up`` and ``amend``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from cli import options
from cli.answering import json_of
from cli.caller import Caller, perform
from cli.editing import diff
from cli.exits import WrongUse
from cli.ids import find_run_id
from cli.planfile import load_plan
from cli.steering import composed, say, steer
from workflows.contracts import Amend, OutsideEvent, TopUp, Verb
from workflows.plan import Plan

EVENT_EXAMPLE = "Example: python starter.py event refund-1 returned --about order-7 --id dhl-9"
TOP_UP_EXAMPLE = "Example: python starter.py top-up refund-1 --steps 20 --money 5"
AMEND_EXAMPLE = "Example: python starter.py amend refund-1 refund-v2.yaml --reason 'other way'"


def event(
    run: options.Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As the waiting step names it.")],
    event_id: Annotated[
        str, typer.Option("--id", help="Of the event itself: the same one again is ignored.")
    ],
    about: Annotated[str, typer.Option("--about", help="What it is about: the step's `key`.")] = "",
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="The step's output.")
    ] = None,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Tell a run of something that has happened outside; kept until a step waits for it."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        sent = composed(
            OutsideEvent,
            actor=caller.settings.user,
            reason=reason,
            name=name,
            key=about,
            event_id=event_id,
            # An event is used once: nothing is guessed.
            payload=None if payload is None else json_of(payload, "--payload is no JSON"),
        )
        return say(caller, run_id, await steer(caller, run_id, Verb.EVENT, sent, leave=leave))

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def top_up(
    run: options.Run,
    steps: Annotated[int, typer.Option("--steps", min=0, help="More tool calls.")] = 0,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="More tokens.")] = 0,
    money: Annotated[str, typer.Option("--money", help="More money, such as 2.50.")] = "0",
    time: Annotated[
        timedelta | None,
        typer.Option("--time", parser=options.duration, metavar="DURATION", help="More time."),
    ] = None,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Give a run more budget; one that was paused for it goes on."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        sent = composed(
            TopUp,
            actor=caller.settings.user,
            reason=reason,
            steps=steps,
            tokens=tokens,
            money=money,
            time=time or timedelta(0),
        )
        return say(caller, run_id, await steer(caller, run_id, Verb.TOP_UP, sent, leave=leave))

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def amend(
    run: options.Run,
    plan: options.PlanFile,
    changes: options.Changes = None,
    drops: Annotated[
        list[str] | None,
        typer.Option(
            "--drop", metavar="STEP", help="A step whose effect stands, and that is left out."
        ),
    ] = None,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Give a run another plan: what is done stays, what waits is asked anew."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        view = await (await caller.server()).view(run_id)
        document = load_plan(plan, changes or [])
        if not document.input:
            document = document.model_copy(update={"input": view.plan.input})
        lines = diff(_shown(view.plan), _shown(document))
        if not lines:
            raise WrongUse(f"{plan}: this is the plan that the run has")
        for line in lines:
            caller.printer.say(line)
        sent = composed(
            Amend,
            actor=caller.settings.user,
            reason=reason,
            plan=document,
            based_on=view.plan_version,
            drops=tuple(drops or ()),
        )
        return say(caller, run_id, await steer(caller, run_id, Verb.AMEND, sent))

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def _shown(plan: Plan) -> dict[str, Any]:
    return plan.model_dump(mode="json", exclude_defaults=True)
