"""``simulate``: held against what a real run has recorded, and nothing is called or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.cli.starter import Run, Verbs
from tests.cli.test_checkpoints import approve
from tests.shop_process import ShopProcess

NewRun = Callable[..., Run]

#: Neither a server nor a worker has a part in it.
NO_SERVER: Final = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}


MIXED: Final = """\
name: mixed
input: {order_id: order-1}
steps:
  - {id: order, tool: orders.read, params: {order_id: "${input.order_id}"}}
  - id: sub
    params: {order_id: "${order.order_id}"}
    plan:
      steps:
        - {id: again, tool: orders.read, params: {order_id: "${input.order_id}"}}
  - {id: each, tool: orders.read, for_each: "${order.lines}",
     params: {order_id: "${sub.again.order_id}"}}
  - {id: why, ask: "Why, ${order.customer_email}?"}
  - {id: back, wait: {event: parcel.back, about: "${why}"}}
"""


def simulated(verbs: Verbs, run: str, seq: int, *changes: str) -> dict[str, Any]:
    sets = [part for change in changes for part in ("--set", change)]
    ended = verbs("simulate", run, "--from", str(seq), *sets, "--json", **NO_SERVER)
    assert ended.code == 0, ended
    document: dict[str, Any] = ended.document()
    return document


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["outcome"] for step in document["steps"]}


def events(verbs: Verbs, run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = verbs("events", run, "--json").document()["rows"]
    return rows


def test_a_simulation_changes_nothing(verbs: Verbs, new_run: NewRun, shop: ShopProcess) -> None:
    run = new_run()
    waiting = len(events(verbs, run.name))
    parked = simulated(verbs, run.name, waiting)
    assert outcomes(parked) == {
        "order": "done",
        "amount": "done",
        "refund": "would call",
        "restock": "would call",
        "mail": "would call",
    }
    refund, mail = parked["steps"][2], parked["steps"][4]
    asked = verbs("show", run.name, "--json").document()["result"]["waiting_for"][0]
    assert (refund["approval"], refund["params_hash"]) == ("yes", asked["params_hash"])
    assert (refund["key"], refund["held"]) == (f"refund:{run.order}", None)
    assert mail["depends_on"] == ["refund"]

    approve(verbs, run.name)
    assert verbs(*run.start, "--wait").code == 0
    before, counts = events(verbs, run.name), shop.counts(run.order)
    same = simulated(verbs, run.name, waiting)
    changed = simulated(verbs, run.name, waiting, "steps.refund.params.amount=1.50")
    anew = simulated(verbs, run.name, 1, "input.order_id=order-1002")

    assert set(outcomes(same).values()) == {"done", "as recorded"}
    assert (same["ends"], changed["ends"]) == (None, None)
    assert outcomes(changed) == {**outcomes(same), "refund": "would call", "mail": "would call"}
    [held] = [step["held"] for step in changed["steps"] if step["held"]]
    assert held == {
        "run_id": run.name,
        "step_id": "refund",
        "state": "committed",
        "same_params": False,
    }
    assert anew["steps"][0]["outcome"] == "would call"
    assert (events(verbs, run.name), shop.counts(run.order)) == (before, counts)

    # What another run has taken over and replayed is recorded there, too.
    fork = f"{run.name}-fork"
    ended = verbs("fork", run.name, "--from", "restock", "--run-id", fork, "--wait")
    assert ended.code == 0, ended
    forked = simulated(verbs, fork, 1)
    assert [step["outcome"] for step in forked["steps"]] == ["done"] * 3 + ["as recorded"] * 2


def test_simulations_take_past_answers(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    order, name = new_run().order, f"mixed-{tmp_path.name}"
    file = tmp_path / "mixed.yaml"
    file.write_text(MIXED)
    start = ["start", str(file), "--run-id", name, "--set", f"input.order_id={order}", "--wait"]
    assert verbs(*start).code == 10
    asking = len(events(verbs, name))

    found = outcomes(simulated(verbs, name, asking))
    done = {"order": "done", "sub": "done", "each": "list", "each[0]": "done"}
    assert found == {**done, "why": "would ask", "back": "would wait"}
    verbs("answer", name, "why.1=broken")
    assert verbs(*start).code == 10
    assert outcomes(simulated(verbs, name, asking))["why"] == "as recorded"
    early = outcomes(simulated(verbs, name, 1))
    assert early == {k: v.replace("done", "as recorded") for k, v in found.items()} | {
        "why": "as recorded"
    }


def test_wrong_use_is_one_line(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    last = len(events(verbs, run.name))
    for arguments, said in (
        (["nobody", "--from", "1"], "run not found: nobody"),
        ([run.name, "--from", str(last + 1)], f"none of number {last + 1}"),
        ([run.name, "--from", "1", "--set", "steps.gone.tool=x"], "unknown path"),
        ([run.name, "--from", "1", "--set", "steps.refund.tool=x.y"], "unknown tool 'x.y'"),
    ):
        ended = verbs("simulate", *arguments, **NO_SERVER)
        assert ended.code == 2, ended
        assert said in ended.line()
