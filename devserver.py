"""The embedded Temporal server in the foreground, as ``surehand server`` runs it."""

from __future__ import annotations

from surehand.process.dev_server import serve
from surehand.process.exits import leave

if __name__ == "__main__":
    leave(serve())
