"""The refund's tool in each of its kinds, and a shop that is as mean as that kind allows.

Where the tool only has a lookup the shop ignores keys, and where it has nothing the shop does not
tell either. So a blind repetition would show as a second refund in the shop's own count.
"""

from __future__ import annotations

from typing import Any, Final

from surehand.activities.worker.crash_points import CrashPoint
from tests.e2e.plans import NEITHER
from tests.e2e.runs import Run
from tests.e2e.stage import SHOP_TOOLS, Stage

DEDUPES, LOOKUP = "tests.variants.refund_dedupes", SHOP_TOOLS
#: How the shop treats keys, by what the refund's tool relies on.
SHOPS: Final[dict[str, dict[str, Any]]] = {
    DEDUPES: {"ignore_lookup": True},
    LOOKUP: {"ignore_keys": True},
    NEITHER: {"ignore_keys": True, "ignore_lookup": True},
}
#: Killed here, the tool without any recovery leaves nothing unknown: not claimed, or recorded.
CERTAIN: Final = (CrashPoint.BEFORE_CLAIM, CrashPoint.AFTER_OUTCOME, CrashPoint.BEFORE_REPORT)


async def human_settles_refund(stage: Stage, run: Run, order_id: str) -> str:
    """Wait until a human is asked, answer as the shop's books say, and return the answer."""
    question = await run.asks_a_human()
    assert (question.kind, question.step_id) == ("intervention", "refund")
    # What is on its way arrives before a human looks.
    stage.shop.wait_finished("refunds", stage.shop.requests("refunds")["received"])
    await stage.no_call_may_arrive(run)
    paid = stage.shop.world(order_id)["refunds"]
    assert len(paid) <= 1
    answer: dict[str, Any] = {"outcome": "not_happened"}
    if paid:
        receipt = {name: paid[0][name] for name in ("order_id", "amount", "currency")}
        answer = {"outcome": "happened", "evidence": "shop's books", "receipt": receipt}
    await run.resolve(intervention_id=question.id, **answer)
    return str(answer["outcome"])


async def one_approval_was_enough(stage: Stage, run: Run) -> None:
    """Assert that one approval was asked for, and consumed once."""
    [approval] = stage.approval_rows(run)
    assert approval["state"] == "approved"
    assert len(await stage.events(run, "approval.consumed")) == 1


async def one_of_each(stage: Stage, run: Run, order_id: str) -> None:
    """Assert that the run has left one effect of each kind, and an entry that says so."""
    assert stage.made(order_id) == (1, 1, 1)
    assert await stage.effect_states(run) == {
        "payments.refund": "committed",
        "inventory.restock": "committed",
        "mail.send": "committed",
    }
    await one_approval_was_enough(stage, run)
