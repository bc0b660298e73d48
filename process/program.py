"""How people call Surehand's programs here, for commands that they can paste."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from surehand.process import PACKAGE

#: Whether the package is a checkout's, which has links where a wheel has copies.
CHECKOUT: Final = (PACKAGE / "starter.py").is_symlink()
#: Tells a program of ours how the one was called that has started it.
CALLED_AS: Final = "_SUREHAND_CALLED_AS"
_INSTALLED: Final = {
    "starter": "surehand",
    "worker": "surehand worker",
    "devserver": "python -m surehand.devserver",
}


def program(name: str = "starter") -> str:
    """Return how one of the programs is called: from a checkout, or where Surehand is installed.

    Args:
        name: ``starter``, ``worker`` or ``devserver``.
    """
    called = Path(os.environ.get(CALLED_AS) or sys.argv[0]).name == "surehand"
    return _INSTALLED[name] if called or not CHECKOUT else f"python {name}.py"


def command(*parts: str) -> str:
    """Return a command of ours, ready to paste."""
    return f"{program()} {shlex.join(parts)}"
