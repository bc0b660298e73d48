"""The same booking, whose lookup is said to go by our key: nothing in it does."""

from __future__ import annotations

from dataclasses import replace

from tests.variants import flights

change = replace(flights.change, lookup_by="key")
