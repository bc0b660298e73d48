"""Surehand's command line: start runs, approve their calls, see what they did.

``python starter.py --help`` lists the verbs; everything is in ``cli/``.
"""

from __future__ import annotations

from surehand.process.ending import leave  # first: it says what to do where nothing is installed

# isort: split
import os
import sys

from surehand.cli.app import run


def main() -> None:
    """Run one verb; the process ends here, with the verb's exit code."""
    leave(run(sys.argv[1:]))


def installed() -> None:
    """Run one verb as the command ``surehand``, which finds tools where it is called."""
    # Otherwise the first place is that of the command itself, where nobody has tools.
    sys.path.insert(0, os.getcwd())
    main()


if __name__ == "__main__":
    main()
