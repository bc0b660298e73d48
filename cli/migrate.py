"""``surehand migrate``, and a program of its own, which loads less."""

from __future__ import annotations

# First: it says what to do where nothing is installed.
from surehand.process.exits import ExitCode, SurehandError

# isort: split
import sys

from surehand.activities.ledger.core.migrate import migrate, shown
from surehand.activities.worker.settings import load_settings


def main() -> int:
    """Create the ledger's tables, or bring them to their newest shape.

    Example: surehand migrate
    """
    try:
        url = load_settings().database_url
        before, after = migrate(url)
    except SurehandError as error:
        print(f"surehand: {error}", file=sys.stderr)
        return error.code
    moved = f"{before or 'empty'} -> {after}" if before != after else f"already at {after}"
    print(f"{shown(url)}: {moved}")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
