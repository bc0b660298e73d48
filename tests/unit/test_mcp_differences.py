"""What people are shown of a tool that has changed: what has, with an end, and nothing unseen."""

from __future__ import annotations

from typing import Any, Final

import pytest

from surehand.activities.mcp.calls import changed, in_words, sides
from surehand.activities.mcp.server_file import DEFINED
from surehand.activities.tools.classify import LONGEST_MESSAGE, classify
from surehand.activities.tools.failures import FailureClass, NotAsReviewed, Permanent
from surehand.workflows.errors import ErrorType
from surehand.workflows.identity import digest
from surehand.workflows.plan.plan import Plan
from surehand.workflows.state.records import StepFailed
from surehand.workflows.steps.rules import waits_for_a_way_out

REVIEWED: Final[dict[str, Any]] = {
    "name": "refund",
    "description": "Refund an order.",
    "inputSchema": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    "annotations": {"readOnlyHint": False},
}


@pytest.mark.parametrize(
    ("part", "now", "said"),
    [
        ("description", "Refund.", 'description was "Refund an order." and is "Refund."'),
        ("description", 'a" and is "b', r'and is "a\" and is \"b"'),
        ("annotations", {"readOnlyHint": 0}, '{"readOnlyHint": false} and is {"readOnlyHint": 0}'),
        ("annotations", {"readOnlyHint": True}, '{"readOnlyHint": false} and is {"readOnlyHint"'),
        ("inputSchema", {"type": "object"}, 'inputSchema was {"properties": {"order_id"'),
        ("outputSchema", {"type": "object"}, 'outputSchema was nothing and is {"type": "object"}'),
    ],
)
def test_each_part_that_differs_is_said_as_it_was_and_as_it_is(
    part: str, now: Any, said: str
) -> None:
    words = in_words(REVIEWED, {**REVIEWED, part: now})
    assert words.startswith(f"{part} was ") and said in words


def test_a_change_far_into_a_long_text_is_seen() -> None:
    before, now = sides("x" * 50_000 + "pay ann", "x" * 50_000 + "pay bob" + "y" * 50_000)
    assert before.startswith("...xxx") and before.endswith('xpay ann"')
    assert "xpay bob" in now and now.endswith("...")
    assert max(len(before), len(now)) <= 120


def test_nothing_in_it_is_unseen() -> None:
    assert "\\u001b[2J\\u202e" in in_words(REVIEWED, {**REVIEWED, "description": "\x1b[2J\u202e"})


def test_what_is_said_of_all_parts_fits_into_an_error_with_the_command_at_its_end() -> None:
    now = {part: "\u202e" * 3000 + part for part in DEFINED}
    now["inputSchema"] = {"type": "object", "title": "\u202e" * 3000}
    full = f"{'s' * 40}.{'t' * 79}"
    problem = changed(full, {part: "y" * 3000 for part in DEFINED}, now)
    failure = classify(NotAsReviewed(problem))
    assert len(failure.message) < LONGEST_MESSAGE and failure.message.endswith("by `resume`")
    assert f"`mcp pin {full}@{digest(now)}`" in failure.message


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (None, "does not offer it any more"),
        ({**REVIEWED, "annotations": {"number": 2**60}}, "cannot be used: value has no canonical"),
        ({"name": "refund"}, "cannot be used: its params have no schema"),
        ({**REVIEWED, "description": "x" * 70_000}, "65,536 are read"),
    ],
)
def test_what_cannot_be_pinned_is_said_without_the_command_to_pin_it(
    offered: dict[str, Any] | None, said: str
) -> None:
    problem = str(changed("shop.refund", REVIEWED, offered))
    assert said in problem and "mcp pin" not in problem


def test_what_is_as_it_was_reviewed_has_not_changed() -> None:
    assert changed("shop.refund", REVIEWED, {**REVIEWED}) is None


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (NotAsReviewed("changed"), ErrorType.NOT_AS_REVIEWED),
        (Permanent("no such order"), ErrorType.TOOL_FAILED),
    ],
)
def test_only_what_is_not_as_reviewed_is_for_somebody_to_look_at(
    error: Permanent, type_: ErrorType
) -> None:
    failure = classify(error)
    assert (failure.failure_class, failure.for_good) == (FailureClass.PERMANENT, type_)


@pytest.mark.parametrize("on_failure", ["compensate", "continue", "pause"])
@pytest.mark.parametrize("unreviewed", [True, False])
def test_a_step_whose_tool_is_not_as_reviewed_waits_whatever_the_plan_says(
    on_failure: str, unreviewed: bool
) -> None:
    written = {"id": "it", "tool": "shop.refund", "on_failure": on_failure}
    plan = Plan.model_validate({"steps": [written]})
    failed = StepFailed("changed", unreviewed=unreviewed)
    waits = waits_for_a_way_out(plan, plan.step("it"), failed)
    assert waits == (unreviewed or on_failure == "pause")
