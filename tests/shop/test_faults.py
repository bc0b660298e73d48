"""Each fault does what it says, and nothing else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

import httpx
import pytest

from tests.shop.calls import applied, post, refund
from tests.shop_process import ShopProcess


def test_ignored_keys_apply_a_request_twice(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", ignore_keys=True)

    refund(http, order_id, "key-ignored")
    refund(http, order_id, "key-ignored")

    assert shop.counts(order_id)["refunds"] == 2
    assert len(applied(http, "refunds", "key-ignored")) == 2


def test_an_ignored_lookup_cannot_tell(shop: ShopProcess, http: httpx.Client) -> None:
    refund(http, shop.new_order(), "key-untold")
    shop.fault("refunds", ignore_lookup=True)

    assert http.get("/refunds", params={"key": "key-untold"}).status_code == 501


@pytest.mark.parametrize("fault", ["delay_before_s", "delay_after_s"])
def test_a_slow_endpoint_is_slow_and_applies(
    shop: ShopProcess, http: httpx.Client, fault: str
) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", **{fault: 0.3})
    started = time.monotonic()

    response = refund(http, order_id)

    assert time.monotonic() - started >= 0.3
    assert response.status_code == 201
    assert shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize(("hold", "refunds"), [("before", 0), ("after", 1)])
@pytest.mark.parametrize("ends", ["cleared", "replaced"])
def test_a_held_request_goes_on_once_its_fault_is_over(
    shop: ShopProcess, http: httpx.Client, hold: str, refunds: int, ends: str
) -> None:
    order_id = shop.new_order()
    before, made = shop.requests("refunds")["received"], shop.counts()["refunds"]
    shop.fault("refunds", hold=hold)

    with ThreadPoolExecutor() as pool:
        held = pool.submit(refund, http, order_id)
        shop.wait_requests("refunds", before + 1)
        if refunds:
            shop.wait_effects("refunds", made + 1)
        assert shop.requests("refunds")["in_flight"] == 1
        assert shop.counts(order_id)["refunds"] == refunds
        if ends == "cleared":
            shop.clear_faults()
        else:
            shop.fault("refunds", fail="before")
        assert held.result().status_code == 201

    assert shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize(("fail", "refunds"), [("before", 0), ("after", 1)])
def test_a_failure_comes_before_or_after_the_effect(
    shop: ShopProcess, http: httpx.Client, fail: str, refunds: int
) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", fail=fail, status=503)

    assert refund(http, order_id).status_code == 503
    assert shop.counts(order_id)["refunds"] == refunds


@pytest.mark.parametrize(("fail", "refunds"), [("drop_before", 0), ("drop_after", 1)])
def test_a_dropped_connection_ends_without_any_answer(
    shop: ShopProcess, http: httpx.Client, fail: str, refunds: int
) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", fail=fail)

    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        refund(http, order_id)

    assert shop.counts(order_id)["refunds"] == refunds


def test_half_a_refund_is_found_by_half_and_not_completed_by_repeating(
    shop: ShopProcess, http: httpx.Client
) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", half=True, times=1)

    statuses = [refund(http, order_id, "key-half").status_code for _ in range(2)]

    assert statuses == [500, 500]
    assert [found["half"] for found in applied(http, "refunds", "key-half")] == [True]
    assert http.get(f"/orders/{order_id}").json()["refunded"] == "60.00"
    assert shop.counts(order_id)["refunds"] == 1


def test_half_a_restock_puts_half_of_the_articles_back(
    shop: ShopProcess, http: httpx.Client
) -> None:
    order_id = shop.new_order()
    lines = http.get(f"/orders/{order_id}").json()["lines"]
    shop.fault("restocks", half=True)

    assert post(http, "/restocks", None, {"order_id": order_id, "lines": lines}).is_server_error

    assert list(shop.world(order_id)["stock"].values()) == [11]


@pytest.mark.parametrize("wait", [2, "date"])
def test_a_rate_limit_answers_429_with_retry_after_and_applies_nothing(
    shop: ShopProcess, http: httpx.Client, wait: int | str
) -> None:
    order_id = shop.new_order()
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30)
    retry_after = format_datetime(until, usegmt=True) if wait == "date" else wait
    shop.fault("refunds", retry_after=retry_after, times=1)

    limited = refund(http, order_id)

    assert limited.status_code == 429
    assert limited.headers["Retry-After"] == str(retry_after)
    if wait == "date":
        assert parsedate_to_datetime(limited.headers["Retry-After"]) == until
    assert shop.counts(order_id)["refunds"] == 0


def test_a_fault_for_the_first_two_requests_leaves_the_third_alone(
    shop: ShopProcess, http: httpx.Client
) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", fail="before", times=2)

    assert [refund(http, order_id).status_code for _ in range(3)] == [500, 500, 201]


def test_cleared_faults_disturb_nothing(shop: ShopProcess, http: httpx.Client) -> None:
    shop.fault("refunds", fail="before")
    shop.clear_faults()

    assert refund(http, shop.new_order()).status_code == 201


def test_reads_and_lookups_have_faults_of_their_own(shop: ShopProcess, http: httpx.Client) -> None:
    shop.fault("orders", fail="before", status=503, times=1)
    shop.fault("refunds.lookup", fail="before", status=502, times=1)

    assert http.get("/orders/order-1001").status_code == 503
    assert http.get("/refunds", params={"key": "key-any"}).status_code == 502
    assert refund(http, shop.new_order()).status_code == 201


@pytest.mark.parametrize(
    "fault", [{"fail": "sometimes"}, {"half": True, "fail": "before"}, {"unheard_of": 1}]
)
def test_a_fault_nobody_knows_is_refused(
    shop: ShopProcess, http: httpx.Client, fault: dict[str, object]
) -> None:
    assert http.put("/admin/faults/refunds", json=fault).status_code == 422


def test_an_endpoint_nobody_knows_is_refused_by_name(http: httpx.Client) -> None:
    response = http.put("/admin/faults/refnuds", json={})

    assert response.status_code == 404
    assert "refund_cancellations" in response.json()["message"]
