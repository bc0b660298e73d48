"""How far properties are searched: the same examples in every test run, or more of them.

``make test-properties PROPERTY_EXAMPLES=5000`` looks further, each time at other examples; a
failure prints its smallest example and the ``@reproduce_failure`` that repeats it.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

_MORE: Final = os.environ.get("PROPERTY_EXAMPLES", "")
#: Seconds that pytest leaves a property: a failing example has to be made small, too.
TIMEOUT_S: Final = 6 * 3600 if _MORE else 1200


def search(examples: int, *, functions: bool = False, **changes: int) -> settings:
    """Return how a property is searched.

    Args:
        examples: In every test run; ``PROPERTY_EXAMPLES`` replaces it.
        functions: Whether the fixtures of one test serve all of its examples.
        changes: Other settings of hypothesis.
    """
    return settings(
        max_examples=int(_MORE or examples),
        # Nobody's change is held up by what it has not caused.
        derandomize=not _MORE,
        database=None,
        # A busy machine is slow, not wrong.
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
        + ([HealthCheck.function_scoped_fixture] if functions else []),
        **changes,
    )
