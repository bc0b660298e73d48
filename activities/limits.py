"""How far the sweep goes; a worker's limits come from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class SweepLimits:
    """How a round of the sweep goes about it."""

    quiet: timedelta = timedelta(seconds=30)
    """How long an entry is left to its own run first, whose next attempt is due within seconds."""
    batch: int = 100
    """Entries of one tenant in one part of a round; the next part goes on behind them."""
