"""How each framework's models are asked, by the framework's name.

A framework is imported when one of its models is first asked: each is an extra of its own.
"""

from __future__ import annotations

import importlib
from typing import Final

from surehand.activities.effects.model_turns import Asked, AskModel, Said, Tell
from surehand.activities.tools.failure_classes import Permanent

_MODULES: Final = {
    "pydantic-ai": "surehand.agents.models.pydantic_ai",
    "openai-agents": "surehand.agents.models.openai_agents",
    "langchain": "surehand.agents.models.langchain",
}


def _asking(framework: str, module_name: str) -> AskModel:
    async def ask(asked: Asked, tell: Tell | None) -> Said:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            remedy = f"pip install 'surehand[{framework}]' for the worker"
            raise Permanent(f"{framework} cannot be imported ({error}): {remedy}") from error
        said: Said = await module.ask(asked, tell)
        return said

    return ask


FRAMEWORKS: Final = {name: _asking(name, module) for name, module in _MODULES.items()}
