"""What the worker's process and the command line's have in common.

Importing it makes sure that the packages which both need are there, so every program does it first.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Final

import surehand

if __name__ != "surehand.process":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.process here: import that")

#: As in ``pyproject.toml``, which a checkout that is not installed cannot be asked for.
VERSION: Final = "0.1.0"
#: The package, in which the rooms and the examples are.
PACKAGE: Final = Path(surehand.__file__).resolve().parent
#: The folder that is on the path of every program which imports the package.
ROOT: Final = PACKAGE.parent


def require_packages() -> None:
    """Leave with one line if the packages that Surehand needs are not there."""
    if importlib.util.find_spec("temporalio") is None:
        print(
            f"surehand: its packages are not installed for {sys.executable}:"
            " `source .venv/bin/activate`, or `make venv` first",
            file=sys.stderr,
        )
        raise SystemExit(2)


require_packages()
