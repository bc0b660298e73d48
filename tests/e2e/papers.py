"""Runs that file papers, and what became of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.e2e.stage import Stage
from tests.variants import papers

TOOLS: Final = {"tool_modules": "tests.variants.papers"}
#: Nobody answers: the run fails here, and undoes what it has done.
FAILS: Final[dict[str, Any]] = {"id": "fails", "ask": {"question": "?", "expires_in": "1s"}}
WAITS: Final[dict[str, Any]] = {"id": "waits", "ask": "Go on?"}


def paper(stage: Stage, name: str) -> str:
    """Return a paper's name that no other test has: keys are the tenant's."""
    return f"{stage.task_queue}-{name}"


def files(stage: Stage, name: str, **more: Any) -> dict[str, Any]:
    params = {"name": paper(stage, name), "once": str(more.pop("once", ""))}
    return {"id": f"file-{name}", "tool": "papers.file", "params": params, **more}


def which(file: Path) -> list[dict[str, Any]]:
    """Return the steps that read which paper is meant, and file it."""
    read = {"id": "which", "tool": "papers.which", "params": {"file": str(file)}}
    return [read, {"id": "file", "tool": "papers.file", "params": {"name": "${which.name}"}}]


def told(stage: Stage, verb: str) -> list[str]:
    """Return the papers of a test that were filed, or taken out, in that order."""
    mine = f"{stage.task_queue}-"
    return [name.removeprefix(mine) for did, name in papers.LOG if did == verb and mine in name]
