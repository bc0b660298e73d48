"""An environment that has Surehand as its users have it: from a wheel, without a checkout."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

from tests.conftest import missing

ROOT: Final = Path(__file__).parent.parent
#: What lies at the top of a checkout, where a program that runs from there could import it.
AT_THE_TOP: Final = [path.name for path in (ROOT / "surehand").iterdir() if path.is_symlink()]
#: What a wheel is made of.
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "surehand", *AT_THE_TOP)


def install_wheel(folder: Path) -> tuple[Path, Path]:
    """Return the wheel, and the folder with the programs of an environment that has it.

    Test processes that give the same folder share both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        programs = folder / "environment" / "bin"
        if not (folder / "done").exists():
            _build(folder / "source", folder / "built")
            _install(next((folder / "built").glob("*.whl")), folder / "environment")
            (folder / "done").touch()
    return next((folder / "built").glob("*.whl")), programs


def _build(source: Path, built: Path) -> None:
    # Of a copy, because building leaves its traces where it builds.
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            left_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, source / name, symlinks=True, ignore=left_out)
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(path, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built]
    ended = subprocess.run([*build, source], capture_output=True, text=True, timeout=280)
    if ended.returncode and "setuptools" in ended.stderr:
        missing("no package index has setuptools, which wheels are built with")
    assert ended.returncode == 0, ended.stderr


def _install(wheel: Path, environment: Path) -> None:
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    [packages] = (environment / "lib").glob("python*/site-packages")
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    # What Surehand needs is here already.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
