"""``halt``, ``lift`` and ``halts``: stop calls, let them begin again, and see what is under way.

Each is one transaction of the ledger, so they work while Temporal or all workers are down.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from surehand.activities.ledger.approvals.decisions import (
    Lifting,
    lift_halt,
    list_lift_voters,
    vote_for_lift,
)
from surehand.activities.ledger.core.engine import LedgerUnavailable
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.halts import (
    Halt,
    HaltError,
    HaltPolicy,
    find_unknown_scope,
    halt_calls,
    list_halts,
    list_under_way,
    read_entry_states,
    read_halt,
)
from surehand.activities.ledger.people.principals import open_administration
from surehand.activities.limits_file import LimitsError, read_file
from surehand.activities.tools.toolbox import LONGEST_NAME
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.options import Caller, argument, flag, ledger_of, option, read_settings
from surehand.cli.people import read_small
from surehand.cli.printer import Lines, Reply, Shape, Table, shown_time, time_of
from surehand.cli.tools import named_tools
from surehand.client.messages import compose_lift
from surehand.process.exits import NotFound, SurehandError, WrongUse
from surehand.process.program import command
from surehand.workflows.contracts.approvals import Assurance, Decision
from surehand.workflows.plain_text import counted, suggest_name

#: Seconds between two looks at what was under way.
_PAUSE = 0.5
#: How the state of an entry is told, once calls are halted.
_TOLD = {
    "claimed": "under way",
    "in_doubt": "unknown",
    "partial": "unknown",
    "committed": "it happened",
    "failed": "it did not happen",
    "compensating": "it happened, and is being undone",
    "compensated": "it was undone",
}


class CallUnderWay(Shape):
    """A write that a halt covers and that has no outcome yet: it had begun before, or it undoes."""

    entry_id: str
    tool: str
    key: str
    run_id: str
    step_id: str
    undoes: str | None
    """The entry that it undoes; null: it goes forward."""
    state: str


class HaltShown(Shape):
    """A halt, and the writes that it covers and that have no outcome yet."""

    halt: Halt
    scope: str
    """What it stops, in words."""
    params_hash: str
    """What a yes to lifting it is bound to."""
    votes: list[str]
    """Who has said yes to lifting it, marked if nothing proves the name."""
    under_way: list[CallUnderWay]


class HaltList(Shape):
    """``halts``: those that stand, oldest first; with ``--all``, also those that were lifted."""

    halts: list[HaltShown]


async def halt(
    caller: options.Actor,
    reason: options.Reason,
    tool: Annotated[str | None, option("Only calls of this tool.", metavar="TOOL")] = None,
    run: Annotated[
        str | None, option("Only calls of this run and its child runs.", metavar="RUN")
    ] = None,
    undo_too: Annotated[bool, flag("Halt the calls that undo effects, too.")] = False,
    follow: Annotated[
        bool, flag("Stay until no write is under way, and say how each ended.")
    ] = False,
) -> Reply:
    """Stop calls at once: from now on none begins, in any run and on any worker.

    Example: surehand halt --tool payments.refund --reason "refunds go to the wrong account"
    """
    if not reason.strip():
        raise WrongUse("--reason is empty: say why, for whoever is to lift it")
    if tool is not None and not 0 < len(tool) <= LONGEST_NAME:
        raise WrongUse(f"--tool: a tool's name has 1 to {LONGEST_NAME} characters")
    run_id = None if run is None else caller.run_id(run)
    who, settings, policy = caller.settings.user, read_settings(), HaltPolicy()
    try:
        policy = read_file(settings.limits).halts
    except LimitsError as error:  # Whoever halts has no time to mend a file.
        caller.printer.warn(f"{error}: anybody may halt, and the owner of the ledger lifts it")

    def begin(tx: Transaction) -> HaltShown:
        how = (tool, run_id, undo_too, policy)
        return show_halt(tx, halt_calls(tx, who, reason.strip(), *how))

    async with ledger_of(settings) as ledger:
        if tool is not None:
            await _refuse_misspelt(caller, ledger, tool)
        shown = await ledger.transact(caller.tenant, begin)
        with suppress(LedgerUnavailable):  # the halt stands, whatever is known of its scope
            for what in await ledger.transact(caller.tenant, find_unknown_scope, run_id, tool):
                caller.printer.warn(f"the ledger knows no {what}: is that how it is written?")
        if not follow:
            return Reply(shown, _halt_lines(shown))
        caller.printer.lines(_halt_lines(shown))
        open_ = {one.entry_id: one for one in shown.under_way}
        ended = list[CallUnderWay]()
        while True:
            states = await ledger.transact(caller.tenant, read_entry_states, open_)
            for entry_id, state in states.items():
                if state != "claimed":
                    one = open_.pop(entry_id).model_copy(update={"state": state})
                    ended.append(one)
                    caller.printer.say(f"{one.tool} {one.key}: {_TOLD[state]}")
            if not open_:
                break
            await asyncio.sleep(_PAUSE)
    return Reply(shown.model_copy(update={"under_way": ended}), "No write is under way.")


async def _refuse_misspelt(caller: Caller, ledger: Ledger, tool: str) -> None:
    """Refuse what is nearly the name of a tool of this folder, unless calls of it are recorded.

    Tools that cannot be loaded, or are not named here, stop no halt.
    """
    near = ""
    with suppress(SurehandError):
        known = loaded.names() if (loaded := named_tools(caller)) else ()
        near = "" if tool in known else suggest_name(tool, known)
    if near:
        unknown = await ledger.transact(caller.tenant, find_unknown_scope, None, tool)
        if unknown:
            raise WrongUse(f"nothing is halted: there is no tool {tool!r} here{near}")


async def lift(
    caller: options.Sender,
    halt_id: Annotated[str, argument("HALT", "As `halts` shows it.")],
    proof: Annotated[
        Path | None, option("A passkey's proof of your yes, made on a page.", metavar="FILE")
    ] = None,
) -> Reply:
    """Agree to lift a halt. Once all that its policy asks have agreed, an administrator lifts it.

    Example: surehand lift halt-4f1c02aa9b7d
    """
    settings = read_settings()
    lifting = read_lifting(settings)
    try:
        async with ledger_of(settings) as ledger:
            seen = await ledger.transact(caller.tenant, read_halt, halt_id)
            decision = compose_lift(caller.settings, halt_id, seen.params_hash)
            if proof is not None:
                made = read_small(proof, "proof").decode(errors="replace").strip()
                decision = decision.model_copy(update={"signature": made})
            told = await vote_and_lift(ledger, caller.tenant, decision, lifting)
            shown = await ledger.transact(
                caller.tenant, lambda tx: show_halt(tx, read_halt(tx, halt_id))
            )
            return Reply(shown, told)
    except HaltError as error:
        raise NotFound(f"{error}; `{command('halts')}` shows those that stand") from error


def read_lifting(settings: Settings) -> Lifting:
    """Return who lifts halts, as the settings and their file of limits say."""
    return Lifting(read_file(settings.limits).halts.lift, Assurance(settings.decisions))


async def vote_and_lift(
    ledger: Ledger, tenant: str, decision: Decision, lifting: Lifting, *, must_count: bool = False
) -> str:
    """Record a yes, and lift the halt with the last one; return in words what has come of it.

    ``must_count``: whoever sends it proves nothing else. Raises ``HaltError``, and
    ``PrincipalError`` if only the right of the owner is lacking.
    """
    halt_id = decision.approval_id
    lacking = await ledger.transact(tenant, vote_for_lift, decision, lifting, must_count=must_count)
    if lacking is not None:
        return f"{halt_id} stands: so far {lacking}"

    def lift_it() -> Halt:
        with open_administration(ledger, tenant) as tx:
            return lift_halt(tx, halt_id, decision.approver, lifting)

    scope = (await asyncio.to_thread(lift_it)).scope
    return f"{halt_id} ({scope}) is lifted: what has waited goes on within a minute"


async def halts(
    caller: options.Onlooker,
    all_: Annotated[bool, flag("Also those that were lifted.", "--all")] = False,
) -> Reply:
    """Show the halts that stand, and the writes that each covers and that have no outcome yet.

    Example: surehand halts --tenant acme
    """

    def read(tx: Transaction) -> list[HaltShown]:
        return [show_halt(tx, one) for one in list_halts(tx, standing=not all_)]

    shown = await caller.do_transaction(read)
    lines = [line for one in shown for line in _halt_lines(one)]
    return Reply(HaltList(halts=shown), lines or ["No calls are halted."])


def show_halt(tx: Transaction, halt: Halt) -> HaltShown:
    """Return a halt with what it covers that has no outcome yet."""
    found = [] if halt.lifted_ms is not None else list_under_way(tx, halt)
    return HaltShown(
        halt=halt,
        scope=halt.scope,
        params_hash=halt.params_hash,
        votes=list_lift_voters(tx, halt.halt_id),
        under_way=[CallUnderWay(**row) for row in found],
    )


def _halt_lines(shown: HaltShown) -> Lines:
    halt = shown.halt
    when = shown_time(time_of(halt.halted_ms))
    yield f"{halt.halt_id}: {shown.scope}, by {halt.halted_by}, {when}"
    yield f"  {halt.reason}"
    if shown.votes:
        yield f"  yes to lifting it: {', '.join(shown.votes)}"
    if halt.lifted_ms is not None:
        yield f"  lifted by {halt.lifted_by}, {shown_time(time_of(halt.lifted_ms))}"
        return
    undo = "waits, too" if halt.undo_too else "goes on"
    yield f"  No call that it covers begins. What undoes effects {undo}."
    if shown.under_way:
        rows = [[_TOLD[o.state], o.tool, o.key, o.run_id, o.step_id] for o in shown.under_way]
        has = "has" if len(rows) == 1 else "have"
        yield f"  {counted(len(rows), 'write')} {has} no outcome yet:"
        yield Table(("outcome", "tool", "key", "run", "step"), rows)
    yield f"  {command('lift', halt.halt_id)}"
