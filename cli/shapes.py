"""The documents of ``--json`` that several verbs print. A verb's own one is beside it.

What a run answers is printed as it is: ``RunResult`` (``--wait``), ``Verdict`` (``approve``,
``reject``) and the checkpoint document of ``checkpoint``.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from surehand.workflows.contracts.tools import PlanError


class Shape(BaseModel):
    """Base of every document."""

    model_config = ConfigDict(frozen=True, defer_build=True)  # a verb prints one of them


class ErrorReport(Shape):
    """Any verb that could not do what was asked."""

    error: str
    exit_code: int
    problems: list[PlanError] = []
    """What is wrong with a plan, and where."""


class NewToken(Shape):
    """``codec token``."""

    token: str
    tenants: list[str]
    right: str


class SignInLink(Shape):
    """``approvals link``."""

    link: str
    principal: str
    minutes: int
    """How long it counts, unless it was used."""


class Steered(Shape):
    """``cancel``, ``resume`` and ``resolve``: the run has taken it."""

    run_id: str
    message: str


class LedgerRows(Shape):
    """``effects``, ``events``, ``interventions``, ``notifications``: rows of the ledger."""

    run_id: str | None
    rows: list[dict[str, Any]]
