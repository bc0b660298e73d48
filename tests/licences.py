"""Which licences the packages of the image have: what requirements-runtime.lock names.

Each package says it of itself, in its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).resolve().parents[1] / "requirements-runtime.lock"
#: Licences that an image may have inside.
ALLOWED: Final = frozenset(
    {
        *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"),
        "LGPL-3.0-only",  # whoever gets the image may replace the package
        "MPL-2.0",
    }
)
#: What packages write that are older than the names of SPDX.
_SPDX: Final[Mapping[str, str]] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
#: Of other systems only, so it is not installed where the page is written.
_ELSEWHERE: Final[Mapping[str, str]] = {"colorama": "BSD-3-Clause", "tzdata": "Apache-2.0"}
_LINE: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==")
_CLASSIFIER: Final = "License :: OSI Approved :: "


def packages(lock: Path = LOCK) -> Iterator[tuple[str, str]]:
    """Yield the packages of a lock, each with its licence by SPDX; nothing where it says none."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        found = _LINE.match(line)
        if found is not None:
            yield found[1], _licence(found[1])


def refused(lock: Path = LOCK) -> dict[str, str]:
    """Return the packages of a lock whose licence is not allowed, or not told."""
    return {name: licence for name, licence in packages(lock) if not _is_allowed(licence)}


def _licence(name: str) -> str:
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return _ELSEWHERE.get(name, "")
    for expression in told.get_all("License-Expression") or ():
        return str(expression)
    written = "".join(told.get_all("License") or ()).strip()
    if written in ALLOWED:
        return written
    classifiers = (one for one in told.get_all("Classifier") or () if one.startswith(_CLASSIFIER))
    named = sorted({one.removeprefix(_CLASSIFIER) for one in classifiers} or {written})
    return " OR ".join(_SPDX.get(one, one) for one in named)


def _is_allowed(licence: str) -> bool:
    choices = licence.strip("()").split(" OR ")
    return any(all(one in ALLOWED for one in choice.split(" AND ")) for choice in choices)
