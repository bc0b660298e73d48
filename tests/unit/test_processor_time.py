"""What an evaluation may take is not what the garbage of others takes."""

from __future__ import annotations

import gc
import time

from surehand.process.clock import processor_time


def test_a_collection_of_garbage_is_not_counted() -> None:
    kept = [[number] for number in range(1_000_000)]
    before, all_before = processor_time(), time.thread_time()
    gc.collect()
    counted, all_of_it = processor_time() - before, time.thread_time() - all_before

    assert len(kept) == 1_000_000
    assert 0 <= counted < all_of_it / 2
