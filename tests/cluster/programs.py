"""What the images bring along, built or found on this machine instead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from surehand.process.dev_server import find_cli
from tests.postgres_server import find_binaries

ROOT = Path(__file__).parent.parent.parent


def go(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run Go, with an environment beside this process's own; returns what it printed."""
    done = subprocess.run(
        ["go", *arguments],
        cwd=folder,
        env=os.environ | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def server_programs(version: str) -> Path:
    """The folder with the Temporal server and its schema tool; built once a machine (5 minutes)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "surehand", f"temporal-server-{version}")
    if not folder.exists():
        print(f"building the Temporal server {version} (about 5 minutes, once)", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="incoming-") as incoming:
            module = "go.temporal.io/server/cmd"
            wanted = (f"{module}/server@v{version}", f"{module}/tools/sql@v{version}")
            go("install", *wanted, environment={"GOBIN": f"{incoming}/bin"})
            Path(incoming, "bin").rename(folder)
    return folder


def config_template(version: str) -> Path:
    """The config template that the server's image renders at its start."""
    module = json.loads(go("mod", "download", "-json", f"go.temporal.io/server@v{version}"))
    return Path(module["Dir"], "docker", "config_template.yaml")


def collect(folder: Path, version: str) -> None:
    """Link every program that the services call into one folder, under the images' names."""
    built = server_programs(version)
    postgres = find_binaries()
    programs = {
        "temporal-server": built / "server",
        "temporal-sql-tool": built / "sql",
        "temporal": find_cli(),
        "psql": postgres / "psql",
        "pg_isready": postgres / "pg_isready",
    }
    for name, path in programs.items():
        (folder / name).symlink_to(path)
    for name in ("grep", "sleep", "cat"):
        (folder / name).symlink_to(shutil.which(name) or name)


def copy_image(folder: Path) -> None:
    """Copy what the Dockerfile copies, so that a file it forgets is missing here too."""
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        verb, *words = line.split() or [""]
        if verb != "COPY" or words[0].startswith("--"):
            continue
        *sources, target = words
        for source in sources:
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, folder / target, ignore=ignored)
            else:
                shutil.copy(path, folder / target)
