"""Each fault does what it says, and nothing else."""

from __future__ import annotations

import httpx
import pytest

from tests.shop.calls import applied, refund
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


def test_half_a_refund_stays_half_when_repeated(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", half=True, times=1)

    statuses = [refund(http, order_id, "key-half").status_code for _ in range(2)]

    assert statuses == [500, 500]
    assert [found["half"] for found in applied(http, "refunds", "key-half")] == [True]
    assert http.get(f"/orders/{order_id}").json()["refunded"] == "60.00"
    assert shop.counts(order_id)["refunds"] == 1


def test_a_fault_for_two_requests_ends(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()
    shop.fault("refunds", fail="before", times=2)

    assert [refund(http, order_id).status_code for _ in range(3)] == [500, 500, 201]


def test_cleared_faults_disturb_nothing(shop: ShopProcess, http: httpx.Client) -> None:
    shop.fault("refunds", fail="before")
    shop.clear_faults()

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
