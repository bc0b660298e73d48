"""Frameworks of the user's own: loaded into the worker, and what is ours stays as it is."""

from __future__ import annotations

from typing import Final

import pytest

from surehand.process.connect import load_plugins
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.states import RunState
from tests.e2e.plans import UNGATED
from tests.e2e.stage import Stage
from tests.e2e.test_code_first import code

FOREIGN: Final = {
    "tool_modules": UNGATED,
    "workflow_modules": "tests.e2e.code_frameworks",
    "max_cached_workflows": "0",
}
PLUGINS: Final = "tests.e2e.plugins"


@pytest.mark.parametrize(
    "given",
    [
        {"sandbox_passthrough": "httpx,anyio"},
        {"worker_plugins": f"{PLUGINS}:framework"},
        {"worker_plugins": f"{PLUGINS}:Framework"},
        {"worker_plugins": f"{PLUGINS}:Alone"},
    ],
    ids=["a setting", "a plugin", "a plugin's class", "a worker's plugin"],
)
async def test_a_workflow_may_import_what_the_sandbox_would_not_load(
    stage: Stage, order_id: str, given: dict[str, str]
) -> None:
    with stage.worker(**FOREIGN, **given) as worker:
        worker.wait_ready()
        run = await stage.start(code("Foreign", order_id=order_id))
        result = await run.result()

    assert result.state is RunState.COMPLETED, result.error
    assert result.output == f"https://shop.example/{order_id}"
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert [row["state"] for row in await stage.effects(run)] == ["committed"]


def refusal(stage: Stage, **settings: str) -> str:
    """Return the one line with which a worker does not start."""
    with stage.worker(**settings) as worker:
        assert worker.wait_exit() == 2
        [line] = [one for one in worker.output().splitlines() if one.startswith("surehand: ")]
        assert "Traceback" not in worker.output()
    return line


async def test_a_worker_says_which_module_its_sandbox_does_not_load_and_which_setting_helps(
    stage: Stage,
) -> None:
    line = refusal(stage, **FOREIGN)

    assert "workflow Foreign cannot be loaded into Temporal's sandbox" in line
    assert "add httpx to SUREHAND_SANDBOX_PASSTHROUGH" in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sandbox_passthrough": "httpq"}, "SUREHAND_SANDBOX_PASSTHROUGH: there is no module"),
        ({"worker_plugins": "httpx"}, "SUREHAND_WORKER_PLUGINS: 'httpx' is not module:name"),
        ({"worker_plugins": f"{PLUGINS}:none"}, f"SUREHAND_WORKER_PLUGINS: {PLUGINS}:none cannot"),
        ({"worker_plugins": f"{PLUGINS}:no_plugin"}, "no_plugin is no plugin of Temporal's"),
        ({"worker_plugins": f"{PLUGINS}:Impossible"}, "Impossible() has failed: TypeError"),
        ({"worker_plugins": f"{PLUGINS}:other_codec"}, "brings the payload codec Secret"),
        ({"worker_plugins": f"{PLUGINS}:other_converter"}, "brings the payload converter Default"),
        ({"worker_plugins": f"{PLUGINS}:other_sandbox"}, "puts another sandbox"),
        ({"crash_at": "a.b:after_call", "decisions": "signed"}, "SUREHAND_DECISIONS=signed"),
    ],
)
async def test_what_cannot_be_loaded_or_kept_beside_another_setting_is_refused_in_one_line(
    stage: Stage, given: dict[str, str], says: str
) -> None:
    assert says in refusal(stage, **given)


def test_a_plugin_that_is_named_by_its_class_is_made_and_one_that_is_made_is_taken() -> None:
    from tests.e2e import plugins

    [made, taken] = load_plugins([f"{PLUGINS}:Framework", f"{PLUGINS}:framework"])

    assert taken is plugins.framework
    assert isinstance(made, plugins.Framework) and made is not taken
    with pytest.raises(WrongUse):
        load_plugins([f"{PLUGINS}:Framework", f"{PLUGINS}:none"])
