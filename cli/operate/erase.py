"""``erase``: destroying a run's key.

An administrator's verb: on PostgreSQL only the role that owns the ledger's tables may.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import administration
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import RunErased
from surehand.cli.verb.text import counted
from surehand.process.exits import WrongUse

#: Characters of why a run is erased: they stand in its chain for good.
LONGEST: Final = 500


async def erase(
    caller: options.Actor,
    run: options.Run,
    reason: options.Reason = "",
) -> Reply:
    """Destroy the key of a run that has ended: nobody reads again what it has sent and kept.

    That is its history, its part of the ledger, its artifacts, and those of its child runs. Its
    events stay, and prove what has happened. Its business keys stay, and protect its effects.

    Example: python starter.py erase refund-1 --reason "request 4711"
    """
    from surehand.activities.ledger.runs import erasure

    if len(reason) > LONGEST:
        raise WrongUse(f"--reason: at most {LONGEST} characters")
    run_id, by = caller.run_id(run), caller.settings.user
    async with administration(caller.tenant, forgets=True) as tx:
        try:
            done = erasure.erase(tx, run_id, by=by, because=reason)
        except erasure.NotErasable as error:
            raise WrongUse(str(error)) from error
    shown = RunErased(run_id=run_id, erased_by=by, reason=reason, **asdict(done))
    more = f" and {counted(len(done.runs) - 1, 'child run')}" if len(done.runs) > 1 else ""
    lines = [
        f"Run {run_id}{more} erased: nobody can read what it has sent and kept.",
        f"Kept: its events, and the business keys of {counted(done.effects, 'effect')}.",
        "Workers that have read it just now remember its key for a minute. Backups of the ledger"
        " have it wrapped until they are gone.",
    ]
    return Reply(shown, lines)
