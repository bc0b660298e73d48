"""The plans that an assistant may start: those of one folder, as they were when it was read."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pydantic import JsonValue

from surehand.client.plan_file import Draft, plan_from
from surehand.process.exits import PlanRefused, WrongUse
from surehand.process.files import Unreadable, parse_yaml
from surehand.workflows.contracts.tools import PlanError
from surehand.workflows.names import MODEL_RUN
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import INPUT, references

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
#: What an inline plan is called where it is refused.
_INLINE: Final = "plan"


@dataclass(frozen=True)
class ServedPlans:
    """What may be started.

    They are read once: an assistant that may write into the folder adds none while it is served.
    """

    drafts: Mapping[str, Draft] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files that are no plans, and why."""
    inline: bool = False
    """Whether a plan may be sent in the place of a name."""

    @classmethod
    def read(cls, folder: Path | None, *, inline: bool) -> Self:
        """Read the plans of a folder; each is called by its file's name, without the ending.

        Raises:
            WrongUse: The folder cannot be read, or two files have one name.
        """
        drafts, left_out = dict[str, Draft](), dict[str, str]()
        try:
            files = [] if folder is None else sorted(folder.iterdir())
        except OSError as error:
            raise WrongUse(f"--plans {folder}: {error.strerror or error}") from error
        for file in files:
            if file.suffix.lower() not in _SUFFIXES:
                continue
            if file.stem in drafts:
                raise WrongUse(f"--plans {folder}: two plans are called {file.stem!r}")
            try:
                drafts[file.stem] = Draft.of(file)
            except PlanRefused as error:
                left_out[file.name] = error.lines[0]
        return cls(drafts, left_out, inline)

    def plan(self, wanted: str, given: Mapping[str, JsonValue]) -> Plan:
        """Return a plan with its input.

        Args:
            wanted: Its name or, where that is allowed, the plan itself as YAML or JSON.
            given: Inputs, beside those of the plan or in their place.

        Raises:
            WrongUse: There is no such plan, or it may not be sent.
            PlanRefused: Every problem found, with its place.
        """
        if wanted in self.drafts:
            document = copy.deepcopy(self.drafts[wanted].document)
            return plan_from(document, given)
        if not self.inline:
            there = ", ".join(sorted(self.drafts)) or "none (the server is started with --plans)"
            raise WrongUse(f"there is no plan {wanted!r} to start; there are: {there}")
        return self._sent(wanted, given)

    def _sent(self, text: str, given: Mapping[str, JsonValue]) -> Plan:
        try:
            document = parse_yaml(text)
        except Unreadable as error:
            raise PlanRefused(
                _INLINE, [PlanError(where=error.where, reason=error.reason)]
            ) from error
        if isinstance(document, list):
            document = {"steps": document}
        if not isinstance(document, dict):
            there = ", ".join(sorted(self.drafts)) or "none"
            raise WrongUse(f"it is neither a plan nor the name of one; there are: {there}")
        plan = plan_from(document, given)
        for code in _codes(plan):
            # By it any workflow on the server could be started.
            raise WrongUse(f"a plan that is sent lists its steps: `code: {code}` is not taken")
        return plan

    def listed(self) -> list[dict[str, Any]]:
        """Return what there is to start: name, goal, and the input that each takes."""
        found = []
        for name, draft in sorted(self.drafts.items()):
            document = draft.document
            known = document.get(INPUT) or {}
            # A plan inside it has an input of its own.
            steps = [{**step, "plan": None} for step in document.get("steps") or []]
            paths = [path.split(".") for _, path in references(steps)]
            wanted = {path[1] for path in paths if path[0] == INPUT and len(path) > 1}
            found.append(
                {
                    "plan": name,
                    "goal": str(document.get("goal", "")),
                    "input": known,
                    "input_needed": sorted(wanted - set(known)),
                }
            )
        return found


def _codes(plan: Plan) -> Iterator[str]:
    if plan.code not in (None, MODEL_RUN):
        yield str(plan.code)
    for step in plan.steps:
        if step.plan is not None:
            yield from _codes(step.plan)
