"""What the verbs of ``principal`` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.caller import Caller
from cli.exits import ExitCode
from cli.shapes import (
    PrincipalChange,
    PrincipalChanged,
    PrincipalHistory,
    PrincipalList,
    PrincipalPart,
    PrincipalShown,
)
from cli.text import command, shown_time

if TYPE_CHECKING:
    from activities.ledger.principals import Principal


def shown(one: Principal) -> PrincipalShown:
    """Return a principal as a document."""
    return PrincipalShown(
        name=one.name,
        roles=sorted(one.roles),
        permissions=sorted(one.permissions),
        keys=list(one.keys),
    )


def tell(
    caller: Caller, now: PrincipalShown, parts: Sequence[PrincipalPart], done: str, unchanged: str
) -> int:
    """Say of each part what became of it, once the transaction is committed."""
    if caller.printer.json_output:
        caller.printer.document(PrincipalChanged(principal=now, parts=list(parts)))
    for part in parts:
        thing = part.kind if part.kind == "principal" else f"{part.kind} {part.what}"
        said = f"{thing} {done}" if part.changed else f"{unchanged.format(thing)}: nothing changed"
        caller.printer.say(f"{now.name}: {said}")
    return ExitCode.DONE


def show_all(caller: Caller, found: list[PrincipalShown]) -> None:
    """Print principals."""
    if caller.printer.json_output:
        caller.printer.document(PrincipalList(principals=found))
    elif not found:
        caller.printer.say(f"No principals: {command('principal', 'add', 'NAME')}")
    else:
        rows = [
            [one.name, *(", ".join(held) for held in (one.roles, one.permissions, one.keys))]
            for one in found
        ]
        caller.printer.table(("principal", "roles", "permissions", "keys"), rows)


def show_history(caller: Caller, past: list[PrincipalChange]) -> None:
    """Print changes of principals."""
    if caller.printer.json_output:
        caller.printer.document(PrincipalHistory(changes=past))
    elif not past:
        caller.printer.say("No changes")
    else:
        rows = [
            [shown_time(one.at), one.principal, one.change, one.what, one.actor] for one in past
        ]
        caller.printer.table(("at", "principal", "change", "what", "by"), rows)
