"""Metrics of several processes as one page that Prometheus can read."""

from __future__ import annotations

from surehand.activities.worker.processes import merged

ONE = """\
# HELP calls_total Calls that were made.
# TYPE calls_total counter
calls_total{tool="refund",note="a \\"} b"} 3
# TYPE waiting gauge
waiting 1
"""
OTHER = """\
# HELP calls_total Calls that were made.
# TYPE calls_total counter
calls_total{} 4
# TYPE seconds histogram
seconds_bucket{le="+Inf"} 2
seconds_sum 0.5
seconds_count 2
"""


def test_each_series_has_its_process_and_stands_behind_what_describes_it_once() -> None:
    assert (
        merged({1: ONE, 2: OTHER})
        == """\
# HELP calls_total Calls that were made.
# TYPE calls_total counter
calls_total{process="1",tool="refund",note="a \\"} b"} 3
calls_total{process="2"} 4
# TYPE waiting gauge
waiting{process="1"} 1
# TYPE seconds histogram
seconds_bucket{process="2",le="+Inf"} 2
seconds_sum{process="2"} 0.5
seconds_count{process="2"} 2
"""
    )


def test_of_no_process_there_is_nothing() -> None:
    assert merged({}) == ""
