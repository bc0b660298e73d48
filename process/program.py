"""How people call Surehand here, for commands that they can paste."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from surehand.process import PACKAGE, ROOT

#: Whether the package is a checkout's, which has links where a wheel has copies.
CHECKOUT: Final = (PACKAGE / "starter.py").is_symlink()
#: Tells one of our programs how the program that started it was called.
CALLED_AS: Final = "_SUREHAND_CALLED_AS"
#: How the command line is called where the package is installed.
INSTALLED: Final = "surehand"


def program(*, elsewhere: bool = False) -> str:
    """Return how the command line is called: as it was here, or where Surehand is installed."""
    called = Path(os.environ.get(CALLED_AS) or sys.argv[0])
    if called.name == INSTALLED or not CHECKOUT:
        return INSTALLED
    # The user's own program does not say where ours are.
    others = Path() if ROOT.samefile(".") else ROOT
    folder = called.parent if called.stem in ("starter", "worker") else others
    file = (folder.absolute() if elsewhere else folder) / "starter.py"
    return f"python {shlex.quote(str(file))}"


def command(*parts: str, elsewhere: bool = False) -> str:
    return f"{program(elsewhere=elsewhere)} {shlex.join(parts)}"


def shared_program() -> str:
    """Return how others call the starter, on their own machines."""
    here = program()
    return "python starter.py" if here.startswith("python ") else here


def module(name: str, *, elsewhere: bool = False) -> str:
    """Return how a module is run that needs our package: a checkout is on no path but in itself."""
    found = program(elsewhere=elsewhere) in (INSTALLED, "python starter.py")
    path = "" if found else f"PYTHONPATH={shlex.quote(str(ROOT))} "
    return f"{path}python -m {name}"
