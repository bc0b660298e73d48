"""The embedded Temporal server in the foreground: ``python devserver.py --help``.

Everything is in ``process/dev_server.py``.
"""

from __future__ import annotations

from surehand.process.dev_server import main
from surehand.process.exits import leave

if __name__ == "__main__":
    leave(main())
