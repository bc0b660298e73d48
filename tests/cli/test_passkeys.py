"""A call that a passkey has to approve, from its registration to the audit."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from surehand.client.messages import claims_for
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome, Verdict
from tests.cli.starter import Verbs
from tests.passkeys import ORIGIN, Authenticator
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

PLAN = """
name: by-passkey
input: {order_id: ""}
steps:
  - id: refund
    tool: payments.refund
    params: {order_id: "${input.order_id}", amount: "120.00", currency: EUR}
    approval: {roles: [finance], proof: passkey}
"""


@pytest.fixture(scope="module")
def environment(
    settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The environment of a starter, whose worker takes what is signed on a page."""
    own = {**settings, "SUREHAND_TASK_QUEUE": f"passkeys-{uuid.uuid4().hex[:8]}"}
    worker = {**own, "SUREHAND_PASSKEY_ORIGINS": ORIGIN}
    with WorkerProcess(worker, tmp_path_factory.mktemp("passkeys")) as process:
        process.wait_ready()
        yield own


@pytest.fixture
def verbs(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs(environment, tmp_path, monkeypatch)


def send(environment: dict[str, str], run_id: str, decision: Decision) -> Verdict:
    async def sent() -> Verdict:
        client = await Client.connect(
            environment["TEMPORAL_ADDRESS"], data_converter=pydantic_data_converter
        )
        handle = client.get_workflow_handle(run_id)
        verdict: Verdict = await handle.execute_update("decide", decision, result_type=Verdict)
        return verdict

    return asyncio.run(sent())


def test_a_call_is_made_once_by_the_gesture_and_by_no_other_signature(
    environment: dict[str, str], verbs: Verbs, shop: ShopProcess, tmp_path: Path
) -> None:
    who, passkey = f"cora-{uuid.uuid4().hex[:8]}", Authenticator()
    (tmp_path / "passkey.json").write_text(json.dumps(passkey.file))
    (tmp_path / "plan.yaml").write_text(PLAN)
    assert verbs("principal", "keygen", "own.pem", "--as", who).code == 0
    added = verbs("principal", "add", who, "--role", "finance", "--key", "own.pem.pub")
    assert added.code == 0, added
    assert verbs("principal", "key", who, "passkey.json").code == 0
    run_id, order = f"run-{uuid.uuid4().hex[:8]}", shop.new_order()
    started = verbs(
        "start", "plan.yaml", "--run-id", run_id, "--set", f"input.order_id={order}", "--wait"
    )
    assert started.code == 10, started
    [asked] = [
        one for one in verbs("pending", "--json").document()["approvals"] if one["run_id"] == run_id
    ]
    assert (asked["assurance"], asked["commands"]) == ("passkey", {})
    shown = verbs("show", asked["approval_id"]).out
    assert "decisions  have to be signed by a passkey\n" in shown

    seen = (asked["approval_id"], "--params-hash", asked["params_hash"], "--as", who)
    for verb in ("approve", "reject"):
        refused = verbs(verb, *seen, "--key", "own.pem")
        assert refused.code != 0
        assert "passkey_needed" in refused.line() or "signed by a passkey" in refused.line()
    signed = Decision.model_validate_json(verbs("sign", *seen, "--key", "own.pem").out)
    assert send(environment, run_id, signed).code == "passkey_needed"
    assert shop.counts(order)["refunds"] == 0

    decision = Decision(
        approval_id=asked["approval_id"],
        params_hash=asked["params_hash"],
        outcome=DecisionOutcome.APPROVE,
        approver=who,
    )
    claims = claims_for(decision, "default", run_id, int(time.time()))
    proof = passkey.proof(claims.model_dump(mode="json", exclude_none=True))
    verdict = send(environment, run_id, decision.model_copy(update={"signature": proof}))

    assert (verdict.code, verdict.state, verdict.verified) == ("accepted", "approved", True)
    assert verbs("show", run_id, "--follow").code == 0
    assert shop.counts(order)["refunds"] == 1
    assert verbs("audit", run_id).code == 0
    exported = str(tmp_path / "events.jsonl")
    assert verbs("events", run_id, "--export", exported).code == 0
    assert verbs("audit", "--file", exported).code == 0
    signer = verbs("audit", "--file", exported, "--signer", "passkey.json")
    assert "it is a passkey's, which signs no exports" in signer.line()
