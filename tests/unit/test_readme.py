"""What the README says of ``--json`` is what the models have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from workflows.contracts import EffectView, RunResult, StepView, Waiting

README = Path(__file__).parent.parent.parent / "README.md"


def shape() -> str:
    """The shape of ``start --wait --json``, as the README has it."""
    return README.read_text().split("`start --wait --json` ends with:")[1].split("```")[1]


@pytest.mark.parametrize(
    ("field", "model"), [("steps", StepView), ("effects", EffectView), ("waiting_for", Waiting)]
)
def test_the_readme_names_the_fields_of_each_part_of_a_result(
    field: str, model: type[BaseModel]
) -> None:
    [part] = re.findall(rf'"{field}": \[{{(.*?)}}\]', shape(), re.DOTALL)

    assert re.findall(r'"(\w+)"', part) == list(model.model_fields)


def test_the_readme_names_the_fields_of_a_result_in_their_order() -> None:
    outside = re.sub(r"\[.*?\]", "", shape(), flags=re.DOTALL)

    assert re.findall(r'"(\w+)"', outside) == list(RunResult.model_fields)
