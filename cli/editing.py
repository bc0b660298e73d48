"""``edit``: asks for other params in the place of those that wait for an approval."""

from __future__ import annotations

import copy
import difflib
import json
from typing import Annotated, Any

import typer

from cli import options
from cli.approvals import Approval
from cli.caller import Caller, perform
from cli.deciding import Given, send
from cli.exits import NotFound, WrongUse
from cli.ids import find_approval
from cli.overrides import OverrideError, assign
from workflows.contracts import DecisionOutcome, as_artifact

EXAMPLE = "Example: python starter.py edit refund-1/refund/1 --set amount=50 --reason 'one item'"


def edit(
    approval: Approval,
    changes: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="A param; may be repeated.")
    ],
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Change the params of a call that waits: the policy looks at them anew, and asks again."""

    async def verb(caller: Caller) -> int:
        run_id, approval_id = find_approval(caller.settings.tenant, approval)
        server = await caller.server()
        await server.open_run(run_id)
        view = await server.view(run_id)
        request = next((r for r in view.pending if r.approval_id == approval_id), None)
        if request is None:
            raise NotFound(f"{approval_id} does not wait; `pending` lists what does")
        if as_artifact(request.params) is not None:
            raise WrongUse(f"{approval_id}: its params are an artifact, too large to edit here")
        params = changed(request.params, changes)
        for line in diff(request.params, params):
            caller.printer.say(line)
        outcome = DecisionOutcome.EDIT
        given = Given(approval, request.params_hash, outcome, reason, params)
        return await send(caller, *given.decision(caller.settings), leave=leave)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def changed(params: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Return the params with the changes made.

    Raises:
        WrongUse: A path leads nowhere, or nothing changes.
    """
    new = copy.deepcopy(params)
    try:
        for change in changes:
            assign(new, change)
    except OverrideError as error:
        raise WrongUse(f"--set {error}") from error
    if new == params:
        raise WrongUse("--set: the params are so already")
    return new


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return how two JSON objects differ, line by line."""
    before, after = (
        json.dumps(content, indent=2, ensure_ascii=False).splitlines() for content in (old, new)
    )
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
