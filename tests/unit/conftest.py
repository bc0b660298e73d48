"""Pure things: no database, no server, no clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline: a busy machine is slow, not wrong.
settings.register_profile(
    "surehand", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("surehand")
