"""A policy of the user's own and the claim: its answer counts for exactly that call, and once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import claims
from surehand.activities.ledger.limits import OWN_POLICY, PolicyAnswer, PolicySilent, PolicyUse
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, OverLimit
from surehand.activities.limits_file import AskedPolicy
from surehand.activities.own_policy import NoAnswer, OwnPolicy
from surehand.activities.tools.tool import Tool, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.activities.worker.context import Attempt
from surehand.workflows.contracts.tools import ApprovalNeeded, Recovery, ToolCall
from surehand.workflows.plan.policy import ApprovalPolicy
from tests.ledger.attempts import Payment, Provider, worker_of
from tests.ledger.scene import LEASE, RUN, STEP, Scene

ASK = ApprovalPolicy(roles=("finance",))


def asked(
    request: ClaimRequest, said: str = "allow", about: Mapping[str, Any] | None = None, **how: Any
) -> ClaimRequest:
    """Return a call, with what a policy has said of it."""
    facts = dict(request.facts)
    answer = PolicyAnswer(said, "too much", "v1", facts if about is None else about)  # type: ignore[arg-type]
    values = {"ask": None, "shadow": False, "approved": False, "answer": answer, **how}
    return replace(request, policy=PolicyUse(facts, **values))


def test_a_call_that_is_allowed_is_made_and_the_answer_recorded(scene: Scene) -> None:
    call = asked(scene.call())
    assert scene.claimed(call)
    [told] = scene.events(RUN, "policy.answered")
    assert told["body"] == {
        "tool": call.tool,
        "answer": "allow",
        "evidence": "too much",
        "params_hash": call.params_hash,
        "policy_version": "v1",
    }


def test_a_call_that_is_refused_claims_nothing(scene: Scene) -> None:
    why = "policy v1: refuse: too much"
    assert scene.claim(asked(scene.call(), "refuse")) == OverLimit(why, OWN_POLICY, None)
    assert scene.claim(asked(scene.call(), "refuse", ask=ASK)) == OverLimit(why, OWN_POLICY, None)
    # Where the file names nobody to be asked, it is refused as well.
    assert isinstance(scene.claim(asked(scene.call(), "ask")), OverLimit)
    assert scene.rows(effects) == []
    told = scene.events(RUN, "effect.refused")[0]["body"]
    assert (told["rule"], told["evidence"]) == ("OverLimit", why)


def test_people_let_through_what_they_are_asked_about_and_nothing_else(scene: Scene) -> None:
    call = scene.call()
    refused = scene.claim(asked(call, "ask", ask=ASK))
    assert isinstance(refused, OverLimit) and refused.ask == ASK
    gated = scene.approved(call)
    assert isinstance(scene.claim(asked(gated, "ask", ask=ASK)), OverLimit)
    assert isinstance(scene.claim(asked(gated, "refuse", ask=ASK, approved=True)), OverLimit)
    assert scene.claimed(asked(gated, "ask", ask=ASK, approved=True))
    assert [one["body"]["allowed"] for one in scene.events(RUN, "limit.exceeded")] == ["approval"]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "of", ["tenant", "run", "step", "tool", "tool_version", "user", "params_hash"]
)
def test_a_yes_to_another_call_is_none(scene: Scene, of: str) -> None:
    call = scene.call()
    with pytest.raises(PolicySilent, match="it was asked about another call"):
        scene.claim(asked(call, about={**call.facts, of: "another"}))
    with pytest.raises(PolicySilent):
        scene.claim(asked(call, about={}))
    with pytest.raises(PolicySilent):
        scene.claim(replace(asked(call), policy=replace(asked(call).policy, answer=None)))  # type: ignore[type-var]
    assert scene.rows(effects) == []


def test_a_policy_in_shadow_stops_nothing(scene: Scene) -> None:
    for number, said in enumerate(("refuse", "ask", "none")):
        name = f"s-{number}"
        assert scene.claimed(asked(scene.call(key=name, step_id=name), said, shadow=True))
    told = [one["body"] for one in scene.events(RUN, "limit.exceeded")]
    assert [one["allowed"] for one in told] == ["shadow"] * 3
    assert told[2]["evidence"] == "policy v1: none: too much"


def test_nothing_is_claimed_ahead_that_a_policy_is_asked_about(scene: Scene) -> None:
    with scene.tx() as tx:
        assert claims.claim_at_once(tx, asked(scene.call())) is None


def test_the_outcome_of_a_call_is_settled_whatever_the_policy_says_by_then(scene: Scene) -> None:
    day = timedelta(days=1)
    dedupes = {"recovery": Recovery.DEDUPES, "window": day, "recovery_limit": day}
    call = scene.call(lease=LEASE, **dedupes)
    entry = scene.claimed(asked(call))
    again = replace(asked(call, "none"), attempt=2, holder="again")
    assert scene.claimed(again).calls == 2  # the repeat of what was allowed
    assert scene.claimed(again).calls == 2  # the answer to that claim was lost
    # What nobody has judged the call by is not told.
    assert [one["body"]["answer"] for one in scene.events(RUN, "policy.answered")] == ["allow"]
    scene.commit(again, scene.entry(entry.entry_id))
    assert scene.claim(asked(call, "refuse")).entry.state == "committed"  # type: ignore[union-attr]


def test_a_call_that_has_failed_is_asked_about_again(scene: Scene) -> None:
    call = scene.call()
    scene.failed(asked(call))
    assert isinstance(scene.claim(asked(call, "refuse")), OverLimit)


class Policy:
    """Answers in turn; a text is why there is no answer."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.told: list[dict[str, Any]] = []

    async def __call__(self, facts: Mapping[str, Any]) -> PolicyAnswer:
        self.told.append(dict(facts))
        said = self.answers.pop(0)
        if said not in ("allow", "ask", "refuse"):
            raise NoAnswer(said)
        return PolicyAnswer(said, "", "v1", facts)  # type: ignore[arg-type]


async def report(
    scene: Scene, policy: Policy, provider: Provider, own_tool: Tool | None = None, **given: Any
) -> Any:
    """Make one attempt at a payment, from the call of its step to its report."""
    loaded = own_tool or provider.tool(recovery="human")
    paths = {"params": ("order",), "amounts": ("amount",) if own_tool else ()}
    own = OwnPolicy(AskedPolicy(cedar="-", ask=ASK, **paths), policy)
    context = worker_of(scene, loaded, policy=own)
    values: dict[str, Any] = {"tenant": scene.tenant, "run_id": RUN, "step_id": STEP}
    values |= {"plan_version": 1, "user": "ada", "tool": loaded.spec(), "params": {}}
    call, tools = ToolCall(**values | given), ToolActivities(context)
    attempt = Attempt(1, "one", "one:1")
    return (await tools.report_call(call, attempt, tools.call_tool(call, attempt))).outcome


async def test_a_call_waits_while_its_policy_does_not_answer(scene: Scene) -> None:
    policy, provider = Policy("OPA has answered 500", "allow"), Provider(["paid"])
    with pytest.raises(ApplicationError, match="policy none: none: OPA has answered 500") as found:
        await report(scene, policy, provider)
    assert (found.value.type, found.value.non_retryable) == ("DependencyDown", False)
    assert (provider.keys, scene.rows(effects)) == ([], [])
    assert (await report(scene, policy, provider)).output == "paid"
    # What was recorded is told, also while the policy is away.
    policy.answers = ["away"]
    assert (await report(scene, policy, provider)).replayed
    assert len(provider.keys) == 1


async def test_a_policy_is_told_of_what_the_file_names_and_asks_people(scene: Scene) -> None:
    policy, provider = Policy("ask"), Provider(["paid"])
    needed = await report(scene, policy, provider, params={"order": "7"})
    assert isinstance(needed, ApprovalNeeded)
    assert (needed.policy, needed.over_limit) == (ASK, OWN_POLICY)
    assert provider.keys == []
    [told] = policy.told
    assert (told["params"], told["user"]) == ({"order": "7"}, "ada")
    assert set(told) == {*scene.call().facts, "params", "millionths"}


class Priced(BaseModel):
    order: str = "7"
    amount: Decimal | float | None


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("amount", "told"),
    [
        ("120.00", {"amount": 120_000_000}),
        ("0.0000001", {"amount": 1}),
        ("-5", {"amount": -5_000_000}),
        ("1e15", {"amount": 10**21}),
        (None, {}),
        ("NaN", None),
        ("Infinity", None),
        (0.5, {"amount": 500_000}),
    ],
)
async def test_an_amount_is_told_as_it_is_or_the_call_is_not_made(
    scene: Scene, amount: Any, told: dict[str, int] | None
) -> None:
    """A policy that refuses too much would take what it is not told of for nothing."""
    policy, provider = Policy("allow"), Provider(["paid"])

    async def pay(params: Priced, ctx: ToolContext) -> Any:
        return await provider.pay(Payment(), ctx)

    loaded = tool("payments.refund", effect=WRITE, irreversible=True, recovery="human")(pay)
    given = {"params": {"amount": amount}, "own_tool": loaded}
    if told is None:
        with pytest.raises(ApplicationError) as found:
            await report(scene, policy, provider, **given)
        assert (found.value.type, policy.told, provider.keys) == ("InvalidParams", [], [])
        return
    await report(scene, policy, provider, **given)
    assert policy.told[0]["millionths"] == told


async def test_a_text_is_no_amount(scene: Scene) -> None:
    provider = Provider(["paid"])
    loaded = provider.tool(recovery="human")  # whose amount is a text
    with pytest.raises(ApplicationError, match="amount is no number of which a policy can be told"):
        await report(scene, Policy("allow"), provider, loaded)
    assert provider.keys == []


async def test_a_refusal_ends_the_step(scene: Scene) -> None:
    provider = Provider(["paid"])
    with pytest.raises(ApplicationError, match="policy v1: refuse") as found:
        await report(scene, Policy("refuse"), provider)
    assert (found.value.type, provider.keys) == ("LimitExceeded", [])


def test_what_undoes_an_effect_is_not_asked_about(scene: Scene) -> None:
    entry = scene.committed(asked(scene.call()))
    assert isinstance(scene.claim(scene.undo(entry)), Claimed)
