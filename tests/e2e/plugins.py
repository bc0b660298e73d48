"""Temporal plugins as users name them: what they add, and what they would take away."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHandle
from temporalio.common import WorkerDeploymentVersion
from temporalio.contrib.pydantic import (
    PydanticPayloadConverter,
    ToJsonOptions,
    pydantic_data_converter,
)
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    Plugin,
    Replayer,
    ReplayerConfig,
    Worker,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner


class Short(PydanticPayloadConverter):
    """Leaves out what has its default: of a tagged union of ours, that would be the tag."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


class Secret(PayloadCodec):
    """Would take the place of what keeps large payloads in the artifact store."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


def _through(runner: WorkflowRunner | None) -> WorkflowRunner:
    assert isinstance(runner, SandboxedWorkflowRunner)
    restrictions = runner.restrictions.with_passthrough_modules("anyio", "httpx")
    return dataclasses.replace(runner, restrictions=restrictions)


class Framework(SimplePlugin):
    """As a framework has it: a data converter of its own, and what goes through the sandbox."""

    def __init__(self) -> None:
        import anyio._backends._asyncio  # noqa: F401

        converter = DataConverter(payload_converter_class=Short)
        super().__init__("framework", data_converter=converter, workflow_runner=_through)


class Alone(Plugin):
    """A worker's plugin that a client does not take; it names the build, too."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        named = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion("alone", "1"), use_worker_versioning=False
        )
        runner = _through(config.get("workflow_runner"))
        return {**config, "workflow_runner": runner, "deployment_config": named}

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        import anyio._backends._asyncio  # noqa: F401

        await next(worker)

    def run_replayer(self, replayer: Replayer, histories: Any, next: Any) -> Any:
        return next(replayer, histories)


class Impossible(SimplePlugin):
    """Cannot be made without an argument."""

    def __init__(self, needed: str) -> None:
        super().__init__(needed)


framework: Final = Framework()
other_codec: Final = SimplePlugin(
    "codec", data_converter=dataclasses.replace(pydantic_data_converter, payload_codec=Secret())
)
other_converter: Final = SimplePlugin("plain", data_converter=DataConverter.default)
other_sandbox: Final = SimplePlugin("sandbox", workflow_runner=SandboxedWorkflowRunner())
no_plugin: Final = WorkflowHandle
