"""Params that hang on artifacts: they travel as written, and the activity fills them in.

The workflow never sees the content of an artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surehand.workflows.contracts.artifacts import Artifact, Late, as_artifact
from surehand.workflows.plan.references import (
    INPUT,
    look_up,
    references,
    resolve,
    resolve_text,
)


def resolve_inline(params: dict[str, Any], facts: Mapping[str, Any]) -> tuple[Any, list[Late]]:
    """Resolve a step's params as far as history has their values.

    Args:
        params: As the plan has them.
        facts: ``input`` and the outputs of finished steps; large ones as references.

    Returns:
        The params, in which texts that refer to artifacts stand as written, and those texts.

    Raises:
        ReferenceUnresolved: If a field is missing.
    """
    late: list[Late] = []

    def large(name: str) -> Artifact | None:
        # The plan's input is whatever its author wrote: it refers to nothing.
        return None if name == INPUT else as_artifact(facts.get(name))

    def walk(value: Any, path: list[str | int]) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, [*path, key]) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, [*path, index]) for index, item in enumerate(value)]
        named = [reference for _, reference in references(value, "")]
        roots = sorted({reference.split(".")[0] for reference in named})
        artifacts = {root: artifact for root in roots if (artifact := large(root)) is not None}
        if not artifacts:
            return resolve(value, facts)
        others = [name for name in named if name.split(".")[0] not in artifacts]
        values = {name: look_up(name, facts) for name in others}
        late.append(Late(path=path, artifacts=artifacts, values=values))
        return value

    return walk(params, []), late


def fill_in(params: dict[str, Any], late: list[Late], contents: Mapping[str, Any]) -> None:
    """Put the values of late texts into the params, in place.

    What a value contains is never read as a reference: only texts of the plan are.

    Args:
        params: As ``resolve_inline`` returned them.
        late: The texts to fill in.
        contents: The artifacts' values by step id.

    Raises:
        ReferenceUnresolved: If a field is missing.
    """
    for item in late:
        holder: Any = params
        for part in item.path[:-1]:
            holder = holder[part]

        def value_of(reference: str, values: Mapping[str, Any] = item.values) -> Any:
            return values[reference] if reference in values else look_up(reference, contents)

        holder[item.path[-1]] = resolve_text(holder[item.path[-1]], value_of)
