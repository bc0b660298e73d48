"""What an evaluation may take is not what the garbage of others takes."""

from __future__ import annotations

import gc
import time

from surehand.process.processor_time import spent


def test_a_collection_of_garbage_is_not_counted() -> None:
    kept = [[number] for number in range(1_000_000)]
    before, all_before = spent(), time.thread_time()
    gc.collect()
    counted, all_of_it = spent() - before, time.thread_time() - all_before

    assert len(kept) == 1_000_000
    assert 0 <= counted < all_of_it / 2
