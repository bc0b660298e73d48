"""A program in TypeScript, written from ``docs/reference/wire.md`` alone, uses a real run."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final

from joserfc.jwk import OKPKey
from jsonschema import Draft202012Validator

from docs.reference import WIRE, wire_schema
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import decisions, runs, steerings
from surehand.process.children import clean_environment
from surehand.process.settings import DEFAULT_TASK_QUEUE
from surehand.verify import LONGEST_TOKEN
from surehand.workflows.contracts import approvals
from surehand.workflows.contracts.base import RunState
from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.ports import SEARCH_ATTRIBUTES
from surehand.workflows.run.deliveries import LARGEST_DELIVERY, LARGEST_PLAN, MESSAGES
from tests.conftest import missing
from tests.e2e.plans import plan, refund_step
from tests.e2e.stage import Stage
from tests.ledger.people import key_of, person
from tests.locked_packages import NPM, PackagesMissing, installed

#: npm's ``@temporalio/client`` and ``jose``, as their lock has them, and what runs TypeScript.
PROGRAM: Final = [
    Path(__file__).parent / "wire" / name
    for name in ("package.json", "package-lock.json", "client.ts")
]
_LONGEST_S: Final = 200


async def use_from_typescript(given: dict[str, Any]) -> dict[str, Any]:
    try:
        folder = installed("wire", PROGRAM, (NPM,))
    except PackagesMissing as error:
        missing(str(error))
    node = shutil.which("node")
    if node is None:
        missing("node is not on PATH: install Debian's package nodejs")
    process = await asyncio.create_subprocess_exec(
        *(node, "--import", "tsx", "client.ts"),
        cwd=folder,
        env=clean_environment({"GIVEN": json.dumps(given)}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, complained.decode()[-4000:]
    answer: dict[str, Any] = json.loads(said)
    return answer


def test_the_page_has_the_names_and_limits_of_the_code() -> None:
    page = (WIRE.parent.parent / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    kinds = (approvals.StartClaims, approvals.DecisionClaims, approvals.SteeringClaims)
    names = [name for verb, message in MESSAGES.items() for name in (verb, message.__name__)]
    names += [name for kind in kinds for name in (kind.typ, kind.__name__, *kind.model_fields)]
    names += [WORKFLOW, MODEL_RUN, DEFAULT_TASK_QUEUE, *(key.name for key in SEARCH_ATTRIBUTES)]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert (
        f"{LARGEST_DELIVERY:,}" in page
        and f"{LARGEST_PLAN:,}" in page
        and f"{LONGEST_TOKEN:,}" in page
    )


def test_the_package_has_the_schemas_of_the_code() -> None:
    assert WIRE.read_text() == json.dumps(wire_schema(), indent=2) + "\n", "`make reference`"


async def test_a_program_in_typescript_starts_decides_answers_and_steers(
    stage: Stage, order_id: str
) -> None:
    keys = {"uma": key_of(stage, person(stage, "uma"))}
    keys["cora"] = key_of(stage, person(stage, "cora", "finance"))
    shelf = {"type": "object", "properties": {"shelf": {"type": "integer"}}}
    asked = {"roles": ["finance"], "four_eyes": True}
    lines = [{"sku": "mug", "quantity": 1}]
    both = plan(
        {"id": "go", "ask": {"question": "Where to?", "answer": shelf}},
        refund_step(order_id, after=["go"], approval=asked),
        {
            "id": "restock",
            "tool": "inventory.restock",
            "params": {"order_id": order_id, "lines": lines},
            "after": ["go"],
            "approval": asked,
        },
        name="by-typescript",
    )
    given = {
        "address": stage.client.service_client.config.target_host,
        "taskQueue": stage.task_queue,
        "runId": f"typescript-{order_id}",
        "plan": both.model_dump(mode="json", exclude_defaults=True),
        "keys": {name: OKPKey.import_key(key).as_dict(private=True) for name, key in keys.items()},
    }
    async with stage.worker_here(decisions="signed"):
        answer = await use_from_typescript(given)

    assert answer["seen"] == {
        "startedAgain": "already started",
        "unsignedAnswer": "SteeringRefused",
        "answered": "answered go.1",
        "paused": "paused",
        "resumed": "going on",
        "tampered": "bad_signature",
        "otherHash": "wrong_hash",
        "otherRequest": "bad_signature",
        "anotherName": "bad_signature",
        "expired": "bad_signature",
        "withoutRole": "not_permitted",
        "unsigned": "unsigned",
        "approved": "accepted",
        "approvedTwice": "accepted",
        "replayed": "used_signature",
        "approvedToo": "accepted",
    }
    assert answer["result"]["state"] == RunState.COMPLETED
    definitions = wire_schema()["$defs"]
    told = {**answer["sent"], "RunView": [answer["view"]], "RunResult": [answer["result"]]}
    for name, messages in told.items():
        schema = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})
        assert [error.message for one in messages for error in schema.iter_errors(one)] == []
    assert stage.made(order_id) == (1, 1, 0)
    recorded = await stage.ledger.transact(stage.tenant, read_records, given["runId"])
    assert recorded["start"] == ("uma", OKPKey.import_key(keys["uma"]).thumbprint())
    assert recorded["counted"] == [("cora", True)] * 2
    assert len(recorded["refused"]) == 8
    assert recorded["steered"] == [("answer", True), ("pause", True), ("resume", True)]


def read_records(tx: Transaction, run_id: str) -> dict[str, Any]:
    start = tx.one(rows_of(runs, "started_by", "start_kid", run_id=run_id))
    voted = tx.all(rows_of(decisions, "approver", "verdict", "verified", run_id=run_id))
    steered = tx.all(rows_of(steerings, "verb", "code", "verified", run_id=run_id))
    assert start is not None
    return {
        "start": (start["started_by"], start["start_kid"]),
        "counted": [(v["approver"], v["verified"]) for v in voted if v["verdict"] == "accepted"],
        "refused": [v["verdict"] for v in voted if v["verdict"] != "accepted"],
        "steered": sorted((s["verb"], s["verified"]) for s in steered if s["code"] == "accepted"),
    }
