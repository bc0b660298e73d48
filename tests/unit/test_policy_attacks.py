"""Guarantee G3: of the policies that apply to a call, none can be used to weaken another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.ledger.votes import Vote, may_edit, missing, refusal
from workflows.policy import ApprovalPolicy, Needs, combine

STRICT: dict[str, Any] = {"quorum": 2, "roles": ["cfo"]}
INTERN = Vote("ian", frozenset({"intern"}))
CFOS = [Vote("cleo", frozenset({"cfo"})), Vote("carl", frozenset({"cfo"}))]


def needs(*policies: dict[str, Any]) -> Needs:
    found = combine([ApprovalPolicy.model_validate(policy) for policy in policies], lambda _: False)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "own", [{}, {"on_expiry": "ask_again"}, {"on_expiry": {"escalate": "ceo"}}]
)
def test_an_escalation_in_the_plan_takes_nothing_from_what_the_tool_asks_for(
    own: dict[str, Any],
) -> None:
    lax = {"on_expiry": {"escalate": "intern"}, "expires_in": "1s"}

    asked = needs(lax, {**STRICT, **own}).escalated("intern")

    assert missing(asked.requirements, [INTERN], ()) is not None
    assert missing(asked.requirements, CFOS, ()) is not None or own == {}


def test_the_policy_that_escalates_is_satisfied_by_its_own_role_alone() -> None:
    asked = needs({**STRICT, "on_expiry": {"escalate": "ceo"}}).escalated("ceo")

    assert missing(asked.requirements, [Vote("cora", frozenset({"ceo"}))], ()) is None
    assert missing(asked.requirements, CFOS, ()) is not None


def test_a_policy_for_everybody_lets_nobody_else_reject_or_edit_what_another_guards() -> None:
    asked = needs({}, STRICT).requirements

    assert refusal(asked, INTERN, ()) is not None
    assert not may_edit(asked, INTERN.roles)
    assert missing(asked, CFOS, ()) is None
    assert missing(asked, CFOS[:1], ()) is not None


def test_a_quorum_without_roles_is_not_lost_beside_a_smaller_one_with_roles() -> None:
    asked = needs({"quorum": 3}, STRICT).requirements

    assert missing(asked, CFOS, ()) is not None
    assert missing(asked, [*CFOS, INTERN], ()) is None


def test_the_earliest_end_of_all_policies_counts() -> None:
    assert needs({"expires_in": "1h"}, {"expires_in": "1d"}).expires_in == timedelta(hours=1)
