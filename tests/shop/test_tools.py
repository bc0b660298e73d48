"""The shop's tools answer, refuse, look up and fail as they declare, in each variant."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import yaml
from pydantic import BaseModel

from surehand.activities.tools.failures import FailureClass, classify
from surehand.activities.tools.tool import Partial, ToolContext, Unknown
from surehand.activities.tools.toolbox import Toolbox, load_toolbox
from surehand.examples.shop import client
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import resolve
from tests.shop_process import ROOT, ShopProcess

MODULE = "surehand.examples.shop.tools"


@pytest.fixture(scope="module")
def toolbox() -> Toolbox:
    return load_toolbox([MODULE])


@pytest.fixture(autouse=True)
def shop_url(shop: ShopProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_URL", shop.url)
    # No worker is here that would try again what a busy machine was too slow to connect.
    monkeypatch.setattr(client, "TIMEOUT", httpx.Timeout(4.5))


def context(key: str) -> ToolContext:
    return ToolContext(
        tenant="default", run_id="run", step_id="step", user="ada", attempt=1, idempotency_key=key
    )


async def call(toolbox: Toolbox, name: str, key: str, **params: Any) -> Any:
    """Call a tool as a worker does; a returned model comes back in JSON form."""
    tool = toolbox.get(name)
    assert tool is not None
    answer = await tool.fn(tool.validate(params), context(key))
    return answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer


async def find(toolbox: Toolbox, name: str, key: str, **params: Any) -> Any:
    tool = toolbox.get(name)
    assert tool is not None and tool.lookup is not None
    return await tool.lookup(tool.validate(params), context(key))


@pytest.mark.parametrize("plan_file", ["refund.yaml", "refund_fails.yaml"])
async def test_the_steps_of_the_example_plans_fit_their_tools(
    shop: ShopProcess, toolbox: Toolbox, plan_file: str
) -> None:
    plan = Plan.model_validate(yaml.safe_load((ROOT / "examples" / plan_file).read_text()))
    order_id = shop.new_order()
    facts: dict[str, Any] = {"input": {**plan.input, "order_id": order_id}}

    failed: list[str] = []
    for step in plan.steps:
        try:
            params = resolve(step.params, facts)
            facts[step.id] = await call(toolbox, step.tool, f"{order_id}:{step.id}", **params)
        except httpx.HTTPStatusError as error:
            failed.append(step.id)
            assert classify(error).failure_class is FailureClass.PERMANENT

    assert failed == (["close"] if plan_file == "refund_fails.yaml" else [])
    counts = shop.counts(order_id)
    assert (counts["refunds"], counts["restocks"]) == (1, 1)
    assert counts["mails"] == (1 if plan_file == "refund.yaml" else 0)


async def test_a_lookup_tells_what_was_applied_by_half(shop: ShopProcess, toolbox: Toolbox) -> None:
    params = {"order_id": shop.new_order(), "amount": "120.00"}
    shop.fault("refunds", half=True, times=1)

    with pytest.raises(httpx.HTTPStatusError) as raised:
        await call(toolbox, "payments.refund", "key-by-half", **params)

    assert classify(raised.value).failure_class is FailureClass.IN_DOUBT
    found = await find(toolbox, "payments.refund", "key-by-half", **params)
    assert isinstance(found, Partial)
    assert "60.00" in found.details


async def test_a_lookup_that_cannot_tell_says_so(shop: ShopProcess, toolbox: Toolbox) -> None:
    twice = {"order_id": shop.new_order(), "amount": "1.00"}
    shop.fault("refunds", ignore_keys=True, times=2)
    for _ in range(2):
        await call(toolbox, "payments.refund", "key-twice", **twice)
    assert isinstance(await find(toolbox, "payments.refund", "key-twice", **twice), Unknown)

    once = {"order_id": shop.new_order(), "amount": "1.00"}
    receipt = await call(toolbox, "payments.refund", "key-undone", **once)
    undo = {"refund_id": receipt["refund_id"], "order_id": once["order_id"]}
    await call(toolbox, "payments.cancel_refund", "key-undo-of-it", **undo)
    assert isinstance(await find(toolbox, "payments.refund", "key-undone", **once), Unknown)

    shop.fault("refunds", ignore_lookup=True)
    assert isinstance(await find(toolbox, "payments.refund", "key-none", **once), Unknown)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ({"retry_after": 2}, FailureClass.RATE_LIMITED),
        ({"fail": "after"}, FailureClass.IN_DOUBT),
        ({"fail": "drop_after"}, FailureClass.IN_DOUBT),
        ({"fail": "before", "status": 422}, FailureClass.PERMANENT),
    ],
)
async def test_failures_come_as_the_worker_classifies_them(
    shop: ShopProcess, toolbox: Toolbox, fault: dict[str, Any], failure: FailureClass
) -> None:
    params = {"order_id": shop.new_order(), "amount": "1.00"}
    shop.fault("refunds", **fault)

    with pytest.raises(httpx.HTTPError) as raised:
        await call(toolbox, "payments.refund", f"key-{fault}", **params)

    assert classify(raised.value).failure_class is failure


@pytest.mark.parametrize(
    ("module", "recovery"),
    [
        (MODULE, Recovery.LOOKUP),
        ("tests.variants.refund_dedupes", Recovery.DEDUPES),
        ("tests.variants.refund_human", Recovery.HUMAN),
    ],
)
def test_variants_have_the_same_tools(toolbox: Toolbox, module: str, recovery: Recovery) -> None:
    variant = load_toolbox([module])

    assert variant.names() == toolbox.names()
    refund, original = variant.get("payments.refund"), toolbox.get("payments.refund")
    assert refund is not None and original is not None
    assert refund.recovery is recovery
    assert refund.schema_hash == original.schema_hash


def test_one_amount_has_one_form(toolbox: Toolbox) -> None:
    tool = toolbox.get("payments.refund")
    assert tool is not None

    forms = {
        tool.validate({"order_id": "order-1", "amount": amount}).model_dump_json()
        for amount in (120, 120.0, "120", "120.0", "120.00")
    }

    assert len(forms) == 1
