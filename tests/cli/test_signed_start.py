"""``start``, ``retry`` and ``fork`` where only signed starts count."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.starter import REFUND, Ended, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

STRICT = {"SUREHAND_DECISIONS": "signed"}


@pytest.fixture(scope="module")
def strict(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The environment of a starter elsewhere, whose worker takes only what is signed."""
    own = {**settings, "SUREHAND_TASK_QUEUE": f"strict-{uuid.uuid4().hex[:8]}"}
    with WorkerProcess({**own, **STRICT}, tmp_path_factory.mktemp("strict")) as process:
        process.wait_ready()
        yield own


@pytest.fixture
def signed(strict: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs(strict, tmp_path, monkeypatch)


@pytest.fixture
def somebody(signed: Verbs, tmp_path: Path) -> tuple[str, str]:
    """A registered name, and the file of its key."""
    name, file = f"mallory-{uuid.uuid4().hex[:8]}", str(tmp_path / "own.pem")
    assert signed("principal", "keygen", file).code == 0
    added = signed("principal", "add", name, "--key", f"{file}.pub", "--as", "root")
    assert added.code == 0, added
    return name, file


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


def start(verbs: Verbs, shop: ShopProcess, run_id: str, *options: str, **settings: str) -> Ended:
    change = f"input.order_id={shop.new_order()}"
    return verbs("start", REFUND, "--run-id", run_id, "--set", change, *options, **settings)


def test_an_unsigned_start_is_refused_by_the_worker_and_the_signed_one_has_its_id(
    signed: Verbs, shop: ShopProcess, somebody: tuple[str, str], run_id: str
) -> None:
    name, file = somebody

    for options in ([], ["--wait"]):
        refused = start(signed, shop, run_id, *options)
        assert refused.code == 2
        assert "only signed starts count here: start it with --key" in refused.line()
    stranger = start(signed, shop, run_id, "--as", "ana", "--key", file)
    assert (stranger.code, "ana has no key" in stranger.line()) == (2, True)

    started = start(signed, shop, run_id, "--as", name, "--for", "ana", "--key", file, "--wait")

    assert started.code == 10, started
    assert f"  user     ana, started by {name}, tenant default\n" in signed("show", run_id).out
    request = signed("show", f"{run_id}/refund/1").out
    assert f"  asked by   ana, started by {name}\n" in request


def test_a_run_that_is_begun_from_another_is_signed_as_well(
    signed: Verbs, shop: ShopProcess, somebody: tuple[str, str], run_id: str
) -> None:
    name, file = somebody
    mine = ["--as", name, "--key", file]
    assert start(signed, shop, run_id, *mine, "--wait").code == 10
    assert signed("cancel", run_id, *mine, "--wait").code == 30

    for verb in (["retry", run_id], ["fork", run_id, "--from", "refund"]):
        other = [*verb, "--run-id", f"{run_id}-{verb[0]}"]
        refused = signed(*other, "--as", name)
        assert (refused.code, "only signed starts count" in refused.line()) == (2, True)
        assert signed(*other, *mine, "--wait").code == 10


@pytest.mark.parametrize("verb", ["start", "retry", "fork"])
def test_where_the_setting_is_known_nothing_unsigned_is_sent(
    signed: Verbs, shop: ShopProcess, somebody: tuple[str, str], run_id: str, verb: str
) -> None:
    name, file = somebody
    if verb == "start":
        refused = start(signed, shop, run_id, **STRICT)
    else:
        mine = ["--as", name, "--key", file]
        assert start(signed, shop, run_id, *mine, "--wait").code == 10
        assert signed("cancel", run_id, *mine, "--wait").code == 30
        options = ["--from", "refund"] if verb == "fork" else []
        refused = signed(verb, run_id, "--run-id", f"{run_id}-2", *options, **STRICT)
        run_id = f"{run_id}-2"

    assert refused.code == 2
    assert "SUREHAND_DECISIONS=signed" in refused.line() and "--key" in refused.line()
    assert signed("show", run_id).code == 2


def test_nobody_is_no_user_to_start_for(lonely: Verbs, shop: ShopProcess, run_id: str) -> None:
    for name in ("", "u" * 201):
        refused = start(lonely, shop, run_id, "--for", name)
        assert refused.code == 2
        assert "user has to be 1 to 200 characters" in refused.line()
