"""The processor's time of a thread, without what the collection of garbage takes.

A collection may begin at any moment, in whichever thread, and take a second in a large process. So
it says nothing of what is measured.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from typing import Any


class _Collecting(threading.local):
    began = 0.0
    spent = 0.0


_here = _Collecting()


def _note(phase: str, info: Mapping[str, Any]) -> None:
    if phase == "start":
        _here.began = time.thread_time()
    else:
        _here.spent += time.thread_time() - _here.began


gc.callbacks.append(_note)


def spent() -> float:
    """Return the seconds that this thread has used; only their difference says something."""
    return time.thread_time() - _here.spent
