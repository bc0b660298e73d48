"""Surehand's command line: start runs, approve their calls, see what they did.

``python starter.py --help`` lists the verbs; everything is in ``cli/``.
"""

from __future__ import annotations

from surehand.process.exits import leave  # first: it says what to do where nothing is installed

# isort: split
import gc
import sys

from surehand.cli.app import run


def main() -> None:
    """Run one verb; the process ends here, with the verb's exit code."""
    # What a verb loads stays. To look for garbage in it often is a sixth of what most verbs cost.
    gc.set_threshold(50_000, 10, 10)
    # Tools are found where it is called; nobody has them where the program itself lies.
    sys.path.insert(0, "")
    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
