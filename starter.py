"""Surehand's command line: start runs, approve their calls, see what they did.

``python starter.py --help`` lists the verbs; everything is in ``cli/``.
"""

from __future__ import annotations

import sys

from cli.app import run
from cli.process import leave


def main() -> None:
    """Run one verb; the process ends here, with the verb's exit code."""
    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
