"""Making a decision, signed where there is a key, and sending it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cli.caller import Caller
from cli.delivery import deliver, say_left
from cli.exits import ExitCode, Refused
from cli.ids import find_approval
from cli.render import verdict_text
from cli.settings import StarterSettings
from cli.signing import USUAL_SIGNATURE, claims_for, read_key, sign
from workflows.contracts import Decision, DecisionOutcome, Verdict, VerdictCode
from workflows.identity import digest
from workflows.names import DECIDE


@dataclass(frozen=True)
class Given:
    """What the command line says of a decision."""

    approval: str
    params_hash: str
    outcome: DecisionOutcome
    reason: str = ""
    params: dict[str, Any] | None = None
    """Of an edit: the params to ask for instead."""

    def decision(
        self, settings: StarterSettings, *, lasts: timedelta = USUAL_SIGNATURE
    ) -> tuple[str, Decision]:
        """Return the run's id and the decision, signed if the settings name a key.

        Raises:
            WrongUse: The approval id or the key cannot be used.
            NotFound: It is another tenant's.
        """
        run_id, approval_id = find_approval(settings.tenant, self.approval)
        decision = Decision(
            approval_id=approval_id,
            params_hash=self.params_hash,
            outcome=self.outcome,
            approver=settings.user,
            reason=self.reason,
            params=self.params,
        )
        if settings.key is None:
            return run_id, decision
        key, now = read_key(settings.key), int(time.time())
        edited = None if self.params is None else digest(self.params)
        claims = claims_for(decision, settings.tenant, run_id, now, lasts=lasts, edited=edited)
        return run_id, decision.model_copy(update={"signature": sign(key, claims)})


async def send(caller: Caller, run_id: str, decision: Decision, *, leave: bool) -> int:
    """Send a decision and say what became of it.

    Raises:
        Refused: It does not count; with the reason.
    """
    server = await caller.server()
    verdict = await deliver(server, run_id, DECIDE, decision, Verdict, leave=leave)
    if verdict is None:
        return say_left(caller, run_id)
    if verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
        if caller.printer.json_output:
            caller.printer.document(verdict)
            caller.printer.warn(verdict.message)
            return ExitCode.WRONG_USE
        raise Refused(f"{decision.approval_id}: {verdict.message} ({verdict.code})")
    if caller.printer.json_output:
        caller.printer.document(verdict)
    else:
        caller.printer.say(f"{decision.approval_id}: {verdict_text(verdict)}")
    return ExitCode.DONE
