"""``python -m surehand.examples``: copies the example plans into ``./examples``.

What is there already stays as it is. The tools they name are loaded from the package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
TO = Path("examples")

for source in [*HERE.glob("*.yaml"), *HERE.glob("*.json"), *HERE.glob("mcp/*.yaml")]:
    copy = TO / source.relative_to(HERE)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if not copy.exists():
        shutil.copy(source, copy)
        print(copy)
