"""MCP servers as others publish them, unmodified: installed once a machine, their worlds counted.

What is installed is in ``servers/``: a lock of npm, and one of pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.locked_packages import NPM, installed

LOCKS: Final = Path(__file__).parent / "servers"


@dataclass(frozen=True)
class Installed:
    """Where the servers' programs are."""

    folder: Path

    def node(self, program: str) -> str:
        """Return a program of npm's."""
        return str(self.folder / "node_modules" / ".bin" / program)

    def python(self, program: str) -> str:
        """Return a program of the virtual environment."""
        return str(self.folder / "venv" / "bin" / program)


def install() -> Installed:
    """Return the servers, installed by this process or by an earlier one.

    Raises:
        PackagesMissing: npm is not there, or a registry does not answer.
    """
    names = ("package.json", "package-lock.json", "requirements.lock")
    pip = ("venv/bin/pip", "install", "--quiet", "--require-hashes", "-r", "requirements.lock")
    # In its place at once: a virtual environment cannot be moved.
    commands = (NPM, (sys.executable, "-m", "venv", "venv"), pip)
    return Installed(installed("mcp-servers", [LOCKS / name for name in names], commands))


@dataclass(frozen=True)
class RealServer:
    """One server, a write of its own, and the read that finds what the write has left."""

    command: tuple[str, ...]
    env: dict[str, str]
    write: str
    params: dict[str, Any]
    read: str
    lookup: dict[str, Any]
    made: Callable[[], int]
    """How often the write was applied, counted in what the server has left on the disk."""

    def say(self, file: Path, *, lookup: bool) -> None:
        write: dict[str, Any] = {"approval": "none"}
        if lookup:
            write["lookup"] = {"tool": self.read, "settle": "1s", **self.lookup}
        tools = {self.write: write, self.read: {"effect": "read"}}
        server = {
            "command": list(self.command),
            "env": {"PATH": "env:PATH", **self.env},
            "tools": tools,
        }
        file.write_text(yaml.safe_dump({"servers": {"real": server}}), encoding="utf-8")


def filesystem(installed: Installed, folder: Path) -> RealServer:
    """Return the server of files; the write makes a file that was not there."""
    place = folder / "notes"
    place.mkdir()
    path, content = place / "order-7.txt", "order-7 was paid\n"
    return RealServer(
        command=(installed.node("mcp-server-filesystem"), str(place)),
        env={},
        write="write_file",
        params={"path": str(path), "content": content},
        read="read_text_file",
        lookup={
            "params": {"path": "${params.path}"},
            "found": "output.content == params.content",
            "not_found_error": "ENOENT",
        },
        made=lambda: sum(one.read_text() == content for one in place.iterdir()),
    )


def memory(installed: Installed, folder: Path) -> RealServer:
    """Return the server of a knowledge graph, which is a file of JSON lines."""
    file = folder / "memory.jsonl"
    entity = {"name": "order-7", "entityType": "order", "observations": ["paid"]}

    def made() -> int:
        lines = file.read_text().splitlines() if file.exists() else []
        return sum(json.loads(line)["name"] == "order-7" for line in lines)

    return RealServer(
        command=(installed.node("mcp-server-memory"),),
        env={"MEMORY_FILE_PATH": str(file)},
        write="create_entities",
        params={"entities": [entity]},
        read="search_nodes",
        lookup={
            "params": {"query": "${params.entities.0.name}"},
            "found": "params.entities[0] in output.entities",
        },
        made=made,
    )


def git(installed: Installed, folder: Path) -> RealServer:
    """Return the server of a git repository, in which a file is staged."""
    place = folder / "repository"
    place.mkdir()
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "clerk"), ("EMAIL", "clerk@example.org"))
    }

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        told = {**os.environ, **identity}
        return subprocess.run(
            command, cwd=place, env=told, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=Begin")
    (place / "order-7.txt").write_text("paid\n")
    git("add", "order-7.txt")
    return RealServer(
        command=(installed.python("mcp-server-git"), "--repository", str(place)),
        env=identity,
        write="git_commit",
        params={"repo_path": str(place), "message": "Pay order-7"},
        read="git_log",
        lookup={
            "params": {"repo_path": "${params.repo_path}", "max_count": 20},
            "found": "params.message in output.text",
        },
        made=lambda: git("log", "--format=%s").splitlines().count("Pay order-7"),
    )


SERVERS: Final[dict[str, Callable[[Installed, Path], RealServer]]] = {
    "filesystem": filesystem,
    "memory": memory,
    "git": git,
}
