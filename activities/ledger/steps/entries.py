"""Ledger entries as values: what a claim asks for and what it may find.

Effects are undone by the number of their commit, last first, over all runs of a tree. It is the
database's own: what is called after another effect was recorded has the greater number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from surehand.activities.ledger.halts import Halted
from surehand.activities.ledger.limits import LimitUse, PolicyUse
from surehand.activities.ledger.quotas import OverQuota
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.workflows.contracts.approvals import Assurance, Scope
from surehand.workflows.contracts.base import ForeignContent
from surehand.workflows.contracts.effects import EffectView, UndoSpec
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import provider_key
from surehand.workflows.plan.policy import ApprovalPolicy, Requirement

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Transaction

#: PostgreSQL's sequence. Two commits at once may get their numbers in either order.
SEQUENCE: Final = "effects_commit_no"


class next_commit_no(FunctionElement[int]):
    """The next number, to be set by an ``UPDATE`` of ``effects``."""

    type = BigInteger()
    inherit_cache = True


@compiles(next_commit_no, "postgresql")
def _on_postgresql(element: next_commit_no, compiler: Any, **how: Any) -> str:
    return f"nextval('{SEQUENCE}')"


@compiles(next_commit_no, "sqlite")
def _on_sqlite(element: next_commit_no, compiler: Any, **how: Any) -> str:
    # A transaction is the only writer.
    newest = "SELECT max(every.commit_no) FROM effects AS every"
    return f"(coalesce(({newest} WHERE every.tenant_id = effects.tenant_id), 0) + 1)"


#: Among an entry's failures: its repeats fail for good, so its first call has to be settled first.
NO_MORE_REPEATS = "no_more_repeats"

#: What stands in an entry until its lookup by state has been asked: before that nothing is called.
UNASKED: Final = {"answer": "unasked"}

#: What stands in the entry of an undo after that, if its ``only_if`` has allowed it.
ALLOWED: Final = {"answer": "allowed"}

#: The answer that stands in an entry which was put in doubt because the ledger was restored.
FORGOTTEN: Final = "forgotten"

#: Why an entry is in doubt whose attempt has died.
LEASE_OVER: Final = "its lease ran out before an outcome was recorded"


def milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))


def entry_id_for(tenant: str, tool: str, key: str, generation: int) -> str:
    """Return the id of the entry of one generation of a business key."""
    # 96 bits of the provider key: unique far beyond any ledger's size.
    return "ef-" + provider_key(tenant, tool, key, generation)[3:27]


@dataclass(frozen=True)
class Covered:
    """That a call lies within a scope, and what it adds to the sum, if that is limited."""

    amount: Decimal | None = None


#: Says whether the scope of a standing approval covers a call.
Covers = Callable[[Scope], Covered | None]


@dataclass(frozen=True)
class Asking:
    """What policies ask for before a call."""

    gated: bool
    requirements: tuple[Requirement, ...]
    standing: bool
    proof: Assurance


#: The identity of an entry whose content is gone: nobody guesses by it what the params were.
NO_IDENTITY: Final = ""


@dataclass(frozen=True)
class ClaimRequest:
    """Everything a claim is bound to."""

    tenant: str
    run_id: str
    step_id: str
    user: str
    tool: str
    tool_version: str
    key: str
    params: dict[str, Any]
    identity_hash: str
    params_hash: str
    holder: str
    """Unique to this attempt."""
    activity_key: str
    """Shared by the attempts of one Temporal activity, of which one runs at a time."""
    attempt: int
    timeout: timedelta
    lease: timedelta
    recovery_limit: timedelta
    """How long an outcome may be missing, beyond the time in which a lookup proves nothing, before
    calling again is no way to settle it any more."""
    recovery: Recovery
    settle: timedelta | None = None
    """How long after the deadline a lookup's "not found" proves nothing; ``None``: for ever."""
    window: timedelta | None = None
    """How long after the first call another one, with the same key, may begin."""
    gated: bool = False
    approval_id: str | None = None
    requirements: tuple[Requirement, ...] = ()
    """Votes that the policies ask for now; the approval's row knows what they asked for then."""
    assurance: Assurance = Assurance.OPEN
    """What has to prove each vote, as this worker sees it; the row may be stricter."""
    standing: bool = True
    """Whether the policies let standing approvals count now."""
    proof: Assurance = Assurance.OPEN
    """What the policies want to prove each vote now."""
    if_foreign: Asking | None = None
    """What they ask for where the run has read content from outside; ``None``: the same."""
    foreign: bool = False
    """Whether the call itself brings in such content."""
    covers: Covers = field(default=lambda _: None, compare=False)
    """Which of them do, by this call's own tool and params."""
    precondition: str | None = None
    """Digest of what the tool's precondition says now."""
    permissions: frozenset[str] = frozenset()
    """What the acting user must be allowed now."""
    drift: str | None = None
    """Why a forward call is not allowed any more; what is settled is still returned."""
    undo: UndoSpec | None = None
    """How its effect would be undone by this worker; ``None``: it has none, or undoes another."""
    undoes: str | None = None
    """The entry this call compensates."""
    instead_of: str | None = None
    """How this undo differs from the one that its original's entry has kept."""
    also_known_by: tuple[str, ...] = ()
    """Other identity hashes that its entry may have: it may be from before runs had keys."""
    observes: bool = False
    """Whether the tool's lookup is asked before the call: it goes by the state of the world."""
    batch: str | None = None
    """The token of the batch that it is made in (``ledger/steps/acting.py``)."""
    execution: str | None = None
    """The execution of the run that makes it; ``None``: it is made for the run from outside."""
    within: str | None = None
    """The run that undoes it, where it is a child run's: the execution is that run's then."""
    uses: tuple[LimitUse, ...] = ()
    """What it adds to the tenant's limits."""
    policy: PolicyUse | None = None
    """What a policy of the user's own is asked about it."""
    first_attempt: int = 1
    """The step's attempt that this activity began with: of a pause people are told once."""

    @property
    def facts(self) -> dict[str, str]:
        """What a policy of the user's own is told in any case, and its answer is bound to."""
        tool = {"tool": self.tool, "tool_version": self.tool_version}
        where = {"tenant": self.tenant, "run": self.run_id, "step": self.step_id}
        return {**where, **tool, "user": self.user, "params_hash": self.params_hash}

    def in_run(self, *, foreign: bool) -> ClaimRequest:
        """Return the call with what is asked for in a run that has, or has not, such content."""
        if not foreign or self.if_foreign is None:
            return self
        asking = self.if_foreign
        return replace(
            self,
            gated=asking.gated,
            requirements=asking.requirements,
            standing=asking.standing,
            proof=asking.proof,
        )

    def is_same(self, identity_hash: str) -> bool:
        """Return whether an entry is of the same tool and params."""
        return identity_hash in (self.identity_hash, *self.also_known_by)

    @property
    def content(self) -> ForeignContent:
        """What the call brings in, where it brings in any from outside."""
        return ForeignContent(tool=self.tool, step_id=self.step_id)

    @property
    def acting_run(self) -> str:
        """The run whose execution makes it."""
        return self.within or self.run_id

    @property
    def step_attempt(self) -> StepAttempt:
        """What the step's own row tells of this attempt."""
        return StepAttempt(self.run_id, self.step_id, self.attempt, self.tool, self.params)


@dataclass(frozen=True)
class Entry:
    """A row of ``effects``."""

    entry_id: str
    tenant: str
    tool: str
    tool_version: str
    key: str
    generation: int
    identity_hash: str
    params: dict[str, Any]
    run_id: str
    step_id: str
    state: str
    fencing_token: int
    holder: str | None
    activity_key: str | None
    lease_until_ms: int | None
    lease_ms: int
    deadline_ms: int | None
    timeout_ms: int
    settle_ms: int | None
    window_ms: int | None
    """For how long its provider recognises what was called; ``None``: it was not asked to."""
    first_call_ms: int | None
    epoch: int
    """The epoch of its first claim, or of its doubt because of a restore; 0: none was open."""
    claimed_ms: int
    recovering_ms: int | None
    unproven: bool
    failures: dict[str, int]
    observed: Any
    """What a lookup by state has said before the newest call; ``None``: it is no such tool's."""
    receipt: Any
    foreign_receipt: bool
    """Whether the receipt is content from outside: by the tool, or by the lookup that found it."""
    answer: Any
    commit_no: int | None
    undo: dict[str, Any] | None
    """The ``UndoSpec`` of its newest claim, or the one that a human has agreed to since."""
    undoes: str | None
    left_because: str | None
    content_deleted_ms: int | None
    """When what it carried was deleted."""
    calls: int
    """How often it was called, or put in doubt in the place of a first call."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Entry:
        return cls(
            tenant=row["tenant_id"],
            **{name: row[name] for name in cls.__dataclass_fields__ if name != "tenant"},
        )

    @classmethod
    def find(cls, tx: Transaction, statement: Any) -> Entry | None:
        """Return the first entry that a statement reads or writes; ``None``: it has none."""
        row = tx.one(statement)
        return None if row is None else cls.from_row(row)

    @property
    def provider_key(self) -> str:
        """The opaque key that the outside system deduplicates on."""
        return provider_key(self.tenant, self.tool, self.key, self.generation)

    @property
    def observed_answer(self) -> str | None:
        """What stands in it as the answer of a lookup before the newest call."""
        return (self.observed or {}).get("answer")

    @property
    def reported_failure(self) -> str | None:
        """How the outside system has said that the call failed, unless it happened all the same."""
        reported: str | None = (self.answer or {}).get("reported_failure")
        return reported

    @property
    def unknown_because(self) -> str:
        """Why nobody knows whether it has happened, as one clause."""
        if self.reported_failure is not None:
            return "that leaves its outcome unknown"
        if self.observed_answer == FORGOTTEN:
            return "the ledger was restored, and has forgotten whether it was called"
        return "a crash left its outcome unknown"

    @property
    def is_being_undone(self) -> bool:
        """Whether its undo has begun, and was not given up."""
        return self.state == "compensating" and self.left_because is None

    def view(self, *, state: str | None = None) -> EffectView:
        """Return the entry as people see it."""
        state = state or self.state
        stands = self.undoes is None and state not in ("failed", "compensated")
        return EffectView(
            entry_id=self.entry_id,
            tool=self.tool,
            key=self.key,
            generation=self.generation,
            state=state,
            step_id=self.step_id,
            undoes=self.undoes,
            reason=self.left_because if stands else None,
        )

    def tell(self, tx: Transaction, type_: str, **body: Any) -> None:
        """Add an event about this entry to the chain of the run that owns it."""
        about = {"entry_id": self.entry_id, "tool": self.tool}
        tx.event(self.run_id, type_, step_id=self.step_id, **about, **body)

    def counted_failures(self) -> dict[str, int]:
        """Return the failures by class."""
        return {name: count for name, count in self.failures.items() if name != NO_MORE_REPEATS}

    def recovers_too_long(self, limit: timedelta, now_ms: int) -> bool:
        """Return whether its outcome is missing for longer than may be.

        The time in which a lookup proves nothing comes on top of the limit. So is one whose
        recovery began later than now: the clock was set back, and nobody knows how long it takes.
        """
        if self.recovering_ms is None:
            return False
        longest = milliseconds(limit) + self.timeout_ms + (self.settle_ms or 0)
        return not 0 <= now_ms - self.recovering_ms <= longest

    def owned_by(self, run_id: str, step_id: str) -> bool:
        return (self.run_id, self.step_id) == (run_id, step_id)


@dataclass(frozen=True)
class OfEntry:
    """What became of an entry."""

    entry: Entry


@dataclass(frozen=True)
class NotClaimed:
    """Why a call is not made."""

    reason: str


class Claimed(OfEntry):
    """The lease is ours: call the tool."""


class Committed(OfEntry):
    """It happened already: the recorded receipt wins."""


class Answered(OfEntry):
    """The tool has answered this step with no."""


class Doubtful(OfEntry):
    """The outcome is unknown; the entry is in doubt under our fencing token: reconcile."""


@dataclass(frozen=True)
class Asked(OfEntry):
    """A human has been asked about this entry."""

    intervention_id: str
    question: str
    rule: str = ""
    """Why; empty: nobody knows whether its call has happened."""


@dataclass(frozen=True)
class Held:
    """Somebody else is on it, or may be."""

    wait: timedelta
    settling: bool = False
    """Whether an earlier call may still arrive."""


class Mismatch(NotClaimed):
    """The key is taken by a call with other params, or the approval is for another call."""


class ApprovalRefused(NotClaimed):
    """No usable approval; nothing was claimed."""


class Forbidden(NotClaimed):
    """The acting user may not make this call now; nothing was claimed."""


@dataclass(frozen=True)
class OverLimit(NotClaimed):
    """It would be over a limit; nothing was claimed."""

    limit: str
    ask: ApprovalPolicy | None
    """Who can let it through; ``None``: nobody."""


class Drifted(NotClaimed):
    """The tool is not the recorded one; nothing was claimed."""


@dataclass(frozen=True)
class Barred(NotClaimed):
    """This step may not apply its effect any more."""

    called_off: bool = False
    """A human has said so, and that it has not happened."""


ClaimResult = (
    Claimed
    | Committed
    | Answered
    | Held
    | Doubtful
    | Asked
    | Mismatch
    | ApprovalRefused
    | Forbidden
    | Barred
    | Drifted
    | OverLimit
    | OverQuota
    | Halted
)
