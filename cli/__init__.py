"""Command line of Surehand; importing it makes sure that the rooms are ours, and can be used."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

#: As in ``pyproject.toml``, which a checkout that is not installed cannot be asked for.
VERSION = "0.1.0"

#: Other distributions ship packages of these names (llama-index-workflows does).
_ROOMS = ("workflows", "activities")


def require_own_rooms() -> None:
    """Leave with one line if another package has taken the name of a room.

    Raises:
        SystemExit: With code 2; the line names the foreign package and says what to do.
    """
    for room in _ROOMS:
        own = Path(__file__).resolve().parent.parent / room
        spec = importlib.util.find_spec(room)
        places = (spec and spec.submodule_search_locations) or ()
        found = [Path(place).resolve() for place in places]
        if own not in found:
            where = found[0] if found else "nowhere"
            print(
                f"surehand: the package {room!r} is another one ({where}), not {own}: run from"
                " Surehand's folder, or uninstall the other package",
                file=sys.stderr,
            )
            raise SystemExit(2)


def require_packages() -> None:
    """Leave with one line if the packages that Surehand needs are not there.

    Raises:
        SystemExit: With code 2; the line says what to do.
    """
    if importlib.util.find_spec("temporalio") is None:
        print(
            f"surehand: its packages are not installed for {sys.executable}:"
            " `source .venv/bin/activate`, or `make venv` first",
            file=sys.stderr,
        )
        raise SystemExit(2)


require_own_rooms()
require_packages()
