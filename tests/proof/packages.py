"""Programs of others that judge what is ours: from the package index, apart from our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import missing


@dataclass(frozen=True)
class Package:
    """One of them, in a folder that our Python has on its path when it runs it."""

    folder: Path

    @classmethod
    def install(cls, folder: Path, requirement: str) -> Package:
        """Put a package there, by its version and hash; what it needs itself, we have."""
        (folder / "requirements.txt").write_text(requirement)
        options = ["--quiet", "--no-deps", "--require-hashes", "-r", "requirements.txt"]
        pip = [sys.executable, "-m", "pip", "install", "--target", str(folder), *options]
        ended = subprocess.run(pip, cwd=folder, capture_output=True, text=True, timeout=120)
        if ended.returncode:
            missing(f"no package index has {requirement.split()[0]}: {ended.stderr[-300:]}")
        return cls(folder)

    def run(
        self, *arguments: str, said: str = "", at: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments, in a folder, and say something to it."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=at or self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            input=said,
            capture_output=True,
            text=True,
        )
