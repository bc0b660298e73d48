"""The shop as a process: clients that die, waiting, restarts, comparable worlds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.shop.calls import refund
from tests.shop_process import ROOT, ShopProcess


def test_a_deaf_client_stops_nothing(shop: ShopProcess, http: httpx.Client) -> None:
    order_id = shop.new_order()
    finished = shop.requests("refunds")["finished"]
    shop.fault("refunds", delay_before_s=0.5)

    body = {"order_id": order_id, "amount": "1.00", "currency": "EUR"}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/refunds", json=body, timeout=0.1)

    shop.wait_finished("refunds", finished + 1)
    assert shop.counts(order_id)["refunds"] == 1


def test_effects_survive_the_shops_death(tmp_path: Path) -> None:
    with ShopProcess(tmp_path / "shop.sqlite") as shop:
        url = shop.url
        shop.fault("orders", fail="before")
        with httpx.Client(base_url=url, trust_env=False) as http:
            refund(http, "order-1001").raise_for_status()
        shop.kill()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/orders/order-1001", trust_env=False)
        shop.start()

        assert shop.url == url
        assert shop.counts()["refunds"] == 1
        order = httpx.get(f"{url}/orders/order-1001", trust_env=False)
        assert (order.status_code, order.json()["refunded"]) == (200, "120.00")


def test_two_shops_to_which_the_same_happened_have_equal_worlds(tmp_path: Path) -> None:
    worlds = []
    for name in ("one", "other"):
        with ShopProcess(tmp_path / f"{name}.sqlite") as shop:
            with httpx.Client(base_url=shop.url, trust_env=False) as http:
                receipt = refund(http, "order-1001", f"key-in-{name}").json()
                http.post(f"/refunds/{receipt['refund_id']}/cancel").raise_for_status()
            worlds.append(shop.world())

    assert worlds[0] == worlds[1]
    assert worlds[0]["refunds"][0]["cancellations"] == 1


def test_a_taken_port_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shop = [
            sys.executable,
            "-m",
            "surehand.examples.shop",
            "--port",
            str(port),
            "--db",
            "shop.sqlite",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            shop, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Port {port} on 127.0.0.1 is taken: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_command_runs_beside_the_shop_and_its_exit_code_is_the_shops(tmp_path: Path) -> None:
    command = (
        "import httpx, os, sys; from surehand.examples.shop.drill import fresh;"
        "order = fresh(None)['order_id'];"
        "url = os.environ['SHOP_URL'] + '/orders/' + order;"
        "sys.exit(7 if httpx.get(url, trust_env=False).json()['order_id'] == order else 1)"
    )
    shop = [
        sys.executable,
        "-m",
        "surehand.examples.shop",
        "--port",
        "0",
        "--db",
        str(tmp_path / "s.db"),
    ]
    ended = subprocess.run([*shop, "--", sys.executable, "-c", command], cwd=ROOT, timeout=60)

    assert ended.returncode == 7
