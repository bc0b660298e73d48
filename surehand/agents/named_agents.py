"""The agents and models that plans may name: those of the modules that the worker is told of."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Final

#: What frameworks are made of, which a workflow's sandbox would load anew for each run, or refuse.
PASSED_THROUGH: Final = (
    *("pydantic_ai", "pydantic_graph", "anyio", "sniffio", "httpx", "httpx2", "httpcore"),
    *("httpcore2", "opentelemetry", "genai_prices", "certifi", "truststore", "openai", "anthropic"),
    *("agents", "mcp", "mcp_types"),
    *("langchain", "langchain_core", "langchain_protocol", "langgraph", "langgraph_sdk"),
    *("langsmith", "requests", "requests_toolbelt", "uuid_utils", "xxhash", "ormsgpack", "orjson"),
    *("google.auth", "logfire", "rich", "griffe"),
)


class AgentsError(Exception):
    """A module of agents cannot be loaded; the message says which, and why."""


#: What plans may name, by ``module:name``: what the worker's modules hold.
_NAMED: Final[dict[str, Any]] = {}


def load_agents(modules: Iterable[str]) -> None:
    """Import the named modules: plans may name what is in them, and nothing else.

    Raises:
        AgentsError: A module is not there, or broken.
    """
    _NAMED.clear()
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            where = f"agent module {module_name!r} (SUREHAND_AGENT_MODULES)"
            reason = f"cannot be imported: {type(error).__name__}: {error}"
            raise AgentsError(f"{where} {reason}") from error
        _NAMED.update({f"{module_name}:{name}": value for name, value in vars(module).items()})


def named(name: str) -> Any:
    """Return the agent or model that a plan names as ``module:name``; ``None``: there is none."""
    return _NAMED.get(name)
