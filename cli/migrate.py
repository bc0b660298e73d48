"""``surehand migrate``, and a program of its own, which loads less."""

from __future__ import annotations

from surehand.process.exits import ExitCode  # first: it says what to do where nothing is installed

# isort: split
import sys

from surehand.activities.ledger.core.engine import LedgerUnavailable
from surehand.activities.ledger.core.migrate import DatabaseBehind, NoFolder, migrate, shown
from surehand.activities.worker.settings import SettingsError, load_settings


def main() -> int:
    """Create the ledger's tables, or bring them to their newest shape.

    Example: surehand migrate
    """
    try:
        url = load_settings().database_url
        before, after = migrate(url)
    except (SettingsError, NoFolder) as error:
        print(f"surehand: {error}", file=sys.stderr)
        return ExitCode.WRONG_USE
    except (LedgerUnavailable, DatabaseBehind) as error:
        print(f"surehand: {error}", file=sys.stderr)
        return ExitCode.NOT_REACHABLE
    moved = f"{before or 'empty'} -> {after}" if before != after else f"already at {after}"
    print(f"{shown(url)}: {moved}")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
