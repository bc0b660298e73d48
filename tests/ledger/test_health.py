"""A dependency that was down is asked how it is before it is called again."""

from __future__ import annotations

import httpx
import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.effects.recorder import Done
from surehand.activities.ledger.core.tables import effects
from surehand.activities.tools.tool import Tool
from tests.ledger.attempts import Provider, effect_call, request_for
from tests.ledger.scene import Scene

DOWN = httpx.ConnectError("no route")


class Health:
    """A health check that answers as it is told."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)

    async def __call__(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def attempt(scene: Scene, loaded: Tool, number: int) -> object:
    request = request_for(scene, loaded, attempt=number)
    try:
        return await effect_call(scene, loaded, request).run()
    except ApplicationError as error:
        return error.type


@pytest.mark.parametrize("sick", [False, OSError("no route")])
async def test_while_it_is_still_down_it_is_not_called_and_that_counts(
    scene: Scene, sick: bool | Exception
) -> None:
    provider, health = Provider([DOWN, {"id": "r-1"}]), Health(sick)
    loaded = provider.tool(recovery="human", health=health)

    assert await attempt(scene, loaded, 1) == "DependencyDown"
    assert await attempt(scene, loaded, 2) == "DependencyDown"

    assert len(provider.keys) == 1
    assert (scene.row(effects))["failures"] == {"dependency_down": 2}


async def test_once_it_is_up_it_is_called_again(scene: Scene) -> None:
    provider, health = Provider([DOWN, {"id": "r-1"}]), Health(True)
    loaded = provider.tool(recovery="human", health=health)

    await attempt(scene, loaded, 1)

    assert isinstance(await attempt(scene, loaded, 2), Done)
    assert len(provider.keys) == 2


async def test_a_dependency_that_was_not_down_is_not_asked(scene: Scene) -> None:
    loaded = Provider([{"id": "r-1"}]).tool(recovery="human", health=Health())

    assert isinstance(await attempt(scene, loaded, 1), Done)
