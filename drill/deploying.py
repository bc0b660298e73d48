"""The same tools as of another release: with shorter timeouts, for workers with a shorter lease.

It is loaded by those workers, too, and so imports nothing else of the drill.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from surehand.activities.tools.tool import Tool

#: The longest that a call may take after the deploy.
SHORT_TIMEOUT: Final = timedelta(seconds=2)
#: The workers' settings after it, beside their tools.
SHORT_LEASE: Final = {"lease": "1s", "lease_renewal": "300ms"}
_MODULE: Final = "drill_release"


def shortened(modules: Sequence[str]) -> dict[str, Tool]:
    """Return the tools of some modules with shorter timeouts, by names that a module may have."""
    found = {
        id(value): value
        for module in modules
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, Tool)
    }
    return {
        f"tool_{number}": replace(one, timeout=min(one.timeout, SHORT_TIMEOUT))
        for number, one in enumerate(found.values())
    }


def release(folder: Path, tool_modules: str) -> dict[str, str]:
    """Write a module with such tools for workers in a folder; returns the settings they need."""
    modules = [name.strip() for name in tool_modules.split(",")]
    (folder / f"{_MODULE}.py").write_text(
        "from surehand.drill.deploying import shortened\n\n"
        f"globals().update(shortened({modules!r}))\n",
        encoding="utf-8",
    )
    return {"tool_modules": _MODULE, **SHORT_LEASE}
