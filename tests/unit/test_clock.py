"""G1: this process's own clock goes on while its machine is suspended. And processor time."""

from __future__ import annotations

import gc
import inspect
import time

import pytest

from surehand.process import clock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has this clock")
def test_the_clock_of_leases_counts_suspension() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock.now()

    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_nothing_that_judges_a_lease_goes_by_another_clock() -> None:
    from surehand.activities.effects import leases, read, reconcile, write
    from surehand.activities.ledger.core import engine
    from surehand.activities.worker import watchdog

    assert engine.clock is clock
    for module in (write, leases, read, reconcile, watchdog):
        assert module.clock is clock, module.__name__
        assert "time.monotonic" not in inspect.getsource(module), module.__name__


def test_a_collection_of_garbage_is_not_counted() -> None:
    kept = [[number] for number in range(1_000_000)]
    before, all_before = clock.processor_time(), time.thread_time()
    gc.collect()
    counted, all_of_it = clock.processor_time() - before, time.thread_time() - all_before

    assert len(kept) == 1_000_000
    assert 0 <= counted < all_of_it / 2
