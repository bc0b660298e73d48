"""A worker dies in a call, and the next one finds out what became of it: `show` tells the story."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

DIED = "the worker died during {}, or was cut off: nobody knew whether it had happened"
ASKED = "the outside system was asked: payments.refund had"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("crash_at", "told"),
    [
        (
            "payments.refund:after_call",
            [DIED.format("payments.refund"), f"{ASKED} happened; it was not called again"],
        ),
        (
            "payments.refund:after_claim",
            [DIED.format("payments.refund"), f"{ASKED} not happened; it was called again"],
        ),
        (
            "mail.send:after_call",
            [
                "mail.send had no recorded outcome; it was called again with the same key, which"
                " its provider recognises"
            ],
        ),
    ],
    ids=["found", "not found", "repeated"],
)
def test_show_tells_that_a_worker_died_in_a_call_and_how_its_outcome_was_found_out(
    crash_at: str,
    told: list[str],
    settings: dict[str, str],
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unique = uuid.uuid4().hex[:8]
    own = {**settings, "SUREHAND_TASK_QUEUE": f"killed-{unique}", "SUREHAND_TENANT": f"t{unique}"}
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run(f"run-{unique}", shop.new_order())
    armed = {**own, "SUREHAND_CRASH_AT": crash_at}
    with WorkerProcess(armed, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        [asked] = verbs("show", run.name, "--json").document()["pending"]
        verbs("approve", asked["approval_id"], "--params-hash", asked["params_hash"], "--leave")
        first.wait_killed()
    with WorkerProcess(own, tmp_path / "second") as second:
        second.wait_ready()
        assert verbs(*run.start, "--wait").code == 0
        story = verbs("show", run.name, "--json").document()["timeline"]

    assert shop.counts(run.order)["refunds"] == 1
    step = "mail" if crash_at.startswith("mail") else "refund"
    found = [line["text"] for line in story if line["step_id"] == step]
    assert found[-len(told) - 1 :] == [*told, "done"]
