"""Interventions, compensations and ledger entries as people see them."""

from __future__ import annotations

from enum import StrEnum

from workflows.contracts.base import ChainHead, Json, Message, Text
from workflows.contracts.steering import Steering


class ResolutionOutcome(StrEnum):
    """What a human says happened."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not_happened"
    COMPENSATED = "compensated"
    UNDO = "undo"
    """It happened, at least in part: run the tool's compensation; the step has failed then."""
    GIVE_UP = "give_up"


class Resolution(Steering):
    """Settles an intervention."""

    intervention_id: Text
    outcome: ResolutionOutcome
    evidence: Text = ""
    receipt: Json = None
    """``happened``: what the call would have returned; later steps and the undo may need it."""


class SettleIntervention(Message):
    """Asks the ledger to apply a resolution; idempotent by ``resolution_id``."""

    tenant: str
    run_id: str
    resolution_id: str
    resolution: Resolution


class InterventionSettled(Message):
    """Whether the resolution counted, and why not."""

    accepted: bool
    message: str
    settled: bool = False
    """The intervention is settled now, by this resolution or by an earlier one: the run goes on."""
    head: ChainHead


class FindQuestions(Message):
    """Asks for what a human has to take note of before a run may complete."""

    tenant: str
    run_id: str


class OpenQuestion(Message):
    """An open intervention."""

    intervention_id: str
    step_id: str
    question: str


class QuestionsFound(Message):
    """The open interventions about effects that were undone under the run."""

    questions: list[OpenQuestion]


class Compensate(Message):
    """Undoes what a step of this run has committed, if anything."""

    tenant: str
    run_id: str
    step_id: str
    user: str
    cleanup: bool = False
    """Run the tool's ``cleanup`` instead of its ``compensate``."""
    attempts_before: int = 0
    parent: str | None = None
    """The run that undoes what its child, ``run_id``, has done."""


class CompensationOutcome(StrEnum):
    """How undoing one step ended."""

    COMPENSATED = "compensated"
    NOTHING_TO_UNDO = "nothing_to_undo"
    """No effect of this step is recorded; a late attempt is barred."""
    NOT_OWNED = "not_owned"
    """The effect was made by another run, and only its saga may undo it."""
    UNCOMPENSATED = "uncompensated"
    """Committed and stays: the tool has no way back."""
    HUMAN_NEEDED = "human_needed"


class CompensationReport(Message):
    """How undoing one step ended."""

    outcome: CompensationOutcome
    reason: str = ""
    intervention_id: str | None = None
    head: ChainHead | None = None


class EffectView(Message):
    """A ledger entry as people see it."""

    entry_id: str
    tool: str
    key: str
    generation: int
    state: str
    step_id: str
    undoes: str | None = None
    """The entry this one compensates."""
    run_id: str | None = None
    """Whose it is, where it is a child run's."""
    reason: str | None = None
    """Why it is not compensated, where it is not."""


class RecallEffects(Message):
    """Asks for what a run has left in the ledger, whatever its history says."""

    tenant: str
    run_id: str
    known: list[str] = []
    """Steps whose effects the run knows of: of thousands it could not be told."""
    given_up: list[str] = []
    """Names of stretches in which nothing more is to begin."""


class RecalledEffect(Message):
    """An effect of a run that may have happened and is not undone."""

    effect: EffectView
    commit_seq: int | None = None
    """Its place in the run's chain, if it is known to have happened."""


class EffectsRecalled(Message):
    """The run's effects that stand."""

    effects: list[RecalledEffect]
