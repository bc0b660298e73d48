"""The shop applies and counts effects, honours keys, and fails as it is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.shop.calls import applied, post, refund
from tests.shop_process import ShopProcess

LINES = [{"sku": "article", "quantity": 2}]
EURO = {"amount": "1.00", "currency": "EUR"}


def test_an_honoured_key_answers_with_its_receipt(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()

    first = refund(http, order_id, "key-honoured")
    second = refund(http, order_id, "key-honoured")

    assert second.status_code == 200
    assert second.json() == first.json()
    assert shop.counts(order_id)["refunds"] == 1


def test_two_requests_of_one_key_apply_one_effect(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()
    arrived = shop.requests("refunds")["received"]
    shop.fault("refunds", hold="before", times=1)

    with ThreadPoolExecutor() as pool:
        slow = pool.submit(refund, http, order_id, "key-at-once")
        shop.wait_requests("refunds", arrived + 1)
        quick = refund(http, order_id, "key-at-once")
        shop.clear_faults()

    assert (quick.status_code, slow.result().status_code) == (201, 200)
    assert slow.result().json() == quick.json()
    assert shop.counts(order_id)["refunds"] == 1


def test_without_a_key_the_shop_pays_twice(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()

    refund(http, order_id)
    refund(http, order_id)

    assert shop.counts(order_id)["refunds"] == 2
    assert http.get(f"/orders/{order_id}").json()["refunded"] == "240.00"


def test_a_key_used_for_another_request_is_refused(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()

    refund(http, order_id, "key-reused", amount="120.00")
    other = refund(http, order_id, "key-reused", amount="60.00")

    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert shop.counts(order_id)["refunds"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/refunds", {"order_id": "order-0", **EURO}, 404, "order_not_found"),
        ("/refunds", {"order_id": "order-1003", **EURO}, 409, "already_shipped"),
        ("/refunds/refund-0/cancel", {}, 404, "refund_not_found"),
        ("/restocks", {"order_id": "order-0", "lines": LINES}, 404, "order_not_found"),
        ("/restocks/restock-0/undo", {}, 404, "restock_not_found"),
        ("/tickets/ticket-0/close", {}, 404, "ticket_not_found"),
        ("/tickets/ticket-78/close", {}, 422, "ticket_locked"),
        ("/refunds", {"order_id": "order-1001", **EURO, "amount": "-1"}, 422, "invalid"),
    ],
)
def test_what_is_refused_is_said_with_a_code_and_never_counted(
    shop: ShopProcess,
    http: httpx.Client,
    path: str,
    body: dict[str, object],
    status: int,
    code: str,
) -> None:
    before = shop.counts()

    response = post(http, path, "key-refused", body)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert shop.counts() == before


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
