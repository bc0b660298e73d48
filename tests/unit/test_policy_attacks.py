"""Guarantee G3: of the policies that apply to a call, none can be used to weaken another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.approvals.votes import (
    Vote,
    helps,
    may_edit,
    missing,
    refusal,
)
from surehand.workflows.plan.policy import ApprovalPolicy, Needs, combine

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
    assert missing(asked.requirements, CFOS, ()) is not None


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


def test_no_policy_lets_votes_in_advance_count_where_another_that_asks_refuses_them() -> None:
    assert not needs({}, {"standing": False}).standing
    assert not needs({"standing": False}).escalated("ceo").standing
    assert needs({}, {"roles": ["cfo"]}).standing


def test_a_policy_that_lets_the_call_pass_refuses_it_no_votes_in_advance() -> None:
    small = {"standing": False, "rules": [{"when": "small", "required": False}]}
    policies = [ApprovalPolicy.model_validate(one) for one in (small, {})]

    for is_small in (True, False):
        found = combine(policies, lambda _, is_small=is_small: is_small)
        assert found is not None
        assert found.standing is is_small


@pytest.mark.parametrize(
    ("votes", "one_more", "does"),
    [
        ([], CFOS[0], True),
        ([], INTERN, False),
        (CFOS[:1], CFOS[0], False),
        (CFOS[:1], CFOS[1], True),
        (CFOS, Vote("cara", frozenset({"cfo"})), False),
        ([], Vote("REX", frozenset({"cfo"})), False),
    ],
)
def test_a_vote_helps_only_where_it_is_missing(
    votes: list[Vote], one_more: Vote, does: bool
) -> None:
    asked = needs({**STRICT, "four_eyes": True})

    assert helps(asked.requirements, votes, one_more, ["rex"]) is does
