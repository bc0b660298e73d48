"""What ``simulate`` is given and what it finds, between its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from cli.plan_shapes import Asks, SimulatedStep
from workflows.contracts import Artifact
from workflows.policy import ApprovalPolicy

if TYPE_CHECKING:
    from activities.ledger.recorded import KeyEntry


class CannotHold(ValueError):
    """A condition cannot be evaluated; the message says which, and why."""


@dataclass(frozen=True)
class CheckedCall:
    """A call as far as it can be looked at without making it."""

    params: Any
    """As the tool's model has them, where the tool is loaded; else as given. Null: not known."""
    params_hash: str | None = None
    approval: Asks = "no"
    approval_text: str = ""
    key: str | None = None
    problem: str | None = None
    """Why the call would be refused."""


class Checks(Protocol):
    """What needs the worker's own code."""

    def holds(self, expression: str, values: Mapping[str, Any]) -> bool:
        """Return whether a condition is true; raises ``CannotHold``."""

    def call(
        self, step_id: str, tool: str, params: Any, policies: Sequence[ApprovalPolicy]
    ) -> CheckedCall:
        """Look at a call; ``params`` is ``None`` where they are not known."""


@dataclass(frozen=True)
class Known:
    """What was looked up: keys by tool and key, contents of artifacts by SHA-256."""

    keys: Mapping[tuple[str, str], KeyEntry | None]
    contents: Mapping[str, Any]


@dataclass(frozen=True)
class Course:
    """What the plan would do."""

    steps: list[SimulatedStep]
    facts: dict[str, Any]
    """``input`` and the outputs that are known."""
    ends: str | None
    keys: frozenset[tuple[str, str]]
    """Business keys, by tool, whose entries are not looked up yet: simulate again with them."""
    artifacts: dict[str, Artifact]
    """The same of artifacts that params reach into, by SHA-256."""


NOTHING_KNOWN: Final = Known({}, {})
