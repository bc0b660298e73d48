"""What a step's row says of its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.cli.render import step_rows
from surehand.workflows.contracts.runs import StepView
from surehand.workflows.contracts.states import StepState


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"output": {"refund_id": "r-1"}}, '{"refund_id": "r-1"}'),
        (
            {"output": {"refund_id": "r-1"}, "undone": "by payments.cancel"},
            "undone by payments.cancel",
        ),
        ({"output": 1, "replayed": True}, "recorded before: 1"),
        ({"state": StepState.SKIPPED, "error": "not called: cancelled"}, "not called: cancelled"),
        ({"state": StepState.SKIPPED}, ""),
    ],
)
def test_what_was_undone_or_never_called_does_not_look_like_what_stands(
    changes: dict[str, Any], outcome: str
) -> None:
    view = StepView(id="refund", tool="payments.refund", state=StepState.SUCCEEDED)

    assert step_rows([view.model_copy(update=changes)])[0][-1] == outcome


def test_a_long_error_keeps_its_end_which_names_the_line_of_the_users_code() -> None:
    error = f"payments.refund: ValueError: {'x' * 200} (acme/billing.py:12)"
    view = StepView(id="refund", tool="payments.refund", state=StepState.FAILED, error=error)

    outcome = step_rows([view])[0][-1]

    assert outcome.startswith("payments.refund: ValueError: ")
    assert outcome.endswith(" (acme/billing.py:12)")
