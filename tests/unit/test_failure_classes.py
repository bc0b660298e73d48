"""The class of a failure decides what happens; what is not recognised is in doubt."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from surehand.activities.effects.leases import DeadlineOver, LeaseLost
from surehand.activities.tools.failures import (
    LONGEST_MESSAGE,
    DependencyDown,
    Failure,
    FailureClass,
    OutcomeUnknown,
    Permanent,
    RateLimited,
    Retries,
    Transient,
    classify,
    classify_call,
    read_retry_after,
)
from surehand.workflows.names import NON_RETRYABLE

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LOW = Retries(uniform=lambda low, high: low)
HIGH = Retries(uniform=lambda low, high: high)
REQUEST = httpx.Request("POST", "http://shop.test/refunds?secret=1")


def status(code: int, **headers: str) -> httpx.HTTPStatusError:
    response = httpx.Response(code, headers=headers, request=REQUEST)
    return httpx.HTTPStatusError("no", request=REQUEST, response=response)


CLASSES: list[tuple[BaseException, FailureClass]] = [
    (Transient("a"), FailureClass.TRANSIENT),
    (DependencyDown("a"), FailureClass.DEPENDENCY_DOWN),
    (RateLimited("a", SECOND), FailureClass.RATE_LIMITED),
    (Permanent("a"), FailureClass.PERMANENT),
    (OutcomeUnknown("a"), FailureClass.IN_DOUBT),
    # The request was never sent.
    (httpx.ConnectError("a"), FailureClass.DEPENDENCY_DOWN),
    (httpx.ConnectTimeout("a"), FailureClass.DEPENDENCY_DOWN),
    (httpx.PoolTimeout("a"), FailureClass.DEPENDENCY_DOWN),
    (httpx.UnsupportedProtocol("a"), FailureClass.PERMANENT),
    (httpx.InvalidURL("a"), FailureClass.PERMANENT),
    # It may have arrived.
    (httpx.ReadTimeout("a"), FailureClass.IN_DOUBT),
    (httpx.WriteTimeout("a"), FailureClass.IN_DOUBT),
    (httpx.ReadError("a"), FailureClass.IN_DOUBT),
    (httpx.WriteError("a"), FailureClass.IN_DOUBT),
    (httpx.RemoteProtocolError("a"), FailureClass.IN_DOUBT),
    (status(400), FailureClass.PERMANENT),
    (status(401), FailureClass.PERMANENT),
    (status(404), FailureClass.PERMANENT),
    (status(408), FailureClass.IN_DOUBT),
    (status(409), FailureClass.IN_DOUBT),
    (status(422), FailureClass.PERMANENT),
    (status(423), FailureClass.IN_DOUBT),
    (status(429), FailureClass.RATE_LIMITED),
    (status(500), FailureClass.IN_DOUBT),
    (status(502), FailureClass.IN_DOUBT),
    (status(503), FailureClass.IN_DOUBT),
    (status(504), FailureClass.IN_DOUBT),
    (LeaseLost("a"), FailureClass.IN_DOUBT),
    (DeadlineOver("a"), FailureClass.IN_DOUBT),
    (TimeoutError("a"), FailureClass.IN_DOUBT),
    (ConnectionResetError("a"), FailureClass.IN_DOUBT),
    (asyncio.CancelledError(), FailureClass.IN_DOUBT),
    (KeyError("a"), FailureClass.IN_DOUBT),
    (Exception("a"), FailureClass.IN_DOUBT),
]


@pytest.mark.parametrize(
    ("error", "class_"), CLASSES, ids=[f"{type(e).__name__}-{e}"[:40] for e, _ in CLASSES]
)
def test_a_failure_has_this_class(error: BaseException, class_: FailureClass) -> None:
    assert classify(error).failure_class is class_


def test_a_message_names_the_error_and_neither_query_nor_more_than_is_kept() -> None:
    assert classify(Permanent("no such order")).message == "Permanent: no such order"
    assert classify(ValueError()).message == "ValueError"
    assert classify(status(404)).message == "HTTP 404 from POST /refunds"
    assert len(classify(Exception("x" * 10_000)).message) == LONGEST_MESSAGE
    assert "\x00" not in classify(Exception("nul \x00")).message


class CardDeclined(Exception):
    """A provider's own error."""


class Busy(Exception):
    """A provider's own rate limit."""

    retry_after = 7 * SECOND


DECLARED = {CardDeclined: FailureClass.PERMANENT, Busy: FailureClass.RATE_LIMITED}


def test_a_tool_says_of_what_class_its_own_errors_are() -> None:
    assert classify(CardDeclined("no"), DECLARED) == Failure(
        FailureClass.PERMANENT, "CardDeclined: no"
    )
    assert classify(Busy(), DECLARED).retry_after == 7 * SECOND
    assert classify(KeyError("a"), DECLARED).failure_class is FailureClass.IN_DOUBT


@pytest.mark.parametrize("ours", [LeaseLost("a"), DeadlineOver("a")])
def test_a_call_that_we_have_cut_off_is_in_doubt_whatever_a_tool_declares(ours: Exception) -> None:
    declared = {Exception: FailureClass.PERMANENT}

    assert classify(ours, declared).failure_class is FailureClass.IN_DOUBT


def test_a_rate_limit_keeps_the_pause_that_the_provider_named() -> None:
    assert classify(RateLimited("slow", 7 * SECOND)).retry_after == 7 * SECOND
    assert classify(status(429, **{"Retry-After": "7"})).retry_after == 7 * SECOND
    assert classify(status(429)).retry_after == SECOND


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        (None, SECOND),
        ("", SECOND),
        ("0", timedelta(0)),
        ("120", 120 * SECOND),
        (" 120 ", 120 * SECOND),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30 * SECOND),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30 * SECOND),
        ("Sun, 01 Mar 2026 11:00:00 GMT", timedelta(0)),
        ("soon", SECOND),
        ("-5", SECOND),
        ("1.5", SECOND),
        ("²", SECOND),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, pause: timedelta) -> None:
    assert read_retry_after(header, NOW) == pause


@pytest.mark.parametrize(
    "header",
    ["Sun, 01 Mar 2026 12:00:30 -0000", "Sun Mar  1 12:00:30 2026"],
    ids=["-0000", "asctime"],
)
def test_a_date_without_a_zone_is_utc(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        pause = read_retry_after(header, NOW)
    time.tzset()

    assert pause == 30 * SECOND


@pytest.mark.parametrize("header", ["9" * 30, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 -0100"])
def test_a_pause_beyond_all_measure_is_a_long_one(header: str) -> None:
    failure = Failure(FailureClass.RATE_LIMITED, "", read_retry_after(header, NOW))

    assert read_retry_after(header, NOW) > timedelta(days=300)
    assert LOW.delay(failure, 0) is None


@given(st.text(max_size=40) | st.from_regex(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \S*"))
def test_no_header_breaks_the_recording_of_an_outcome(header: str) -> None:
    assert read_retry_after(header, NOW) >= timedelta(0)


DELAYS: list[tuple[FailureClass, list[int]]] = [
    (FailureClass.TRANSIENT, [1, 2, 4]),
    (FailureClass.DEPENDENCY_DOWN, [5, 10]),
    (FailureClass.PERMANENT, []),
    (FailureClass.IN_DOUBT, []),
]


@pytest.mark.parametrize(("class_", "seconds"), DELAYS)
def test_each_class_has_its_retries(class_: FailureClass, seconds: list[int]) -> None:
    failure = Failure(class_, "")

    def delays(retries: Retries) -> list[timedelta | None]:
        return [retries.delay(failure, n) for n in range(len(seconds) + 2)]

    assert delays(LOW) == [s * SECOND * 0.8 for s in seconds] + [None, None]
    assert delays(HIGH) == [s * SECOND * 1.2 for s in seconds] + [None, None]


@given(st.integers(0, 2))
def test_retries_are_spread_within_a_fifth_of_their_delay(earlier: int) -> None:
    delay = Retries().delay(Failure(FailureClass.TRANSIENT, ""), earlier)

    assert delay is not None
    assert 0.8 <= delay / SECOND / 2**earlier <= 1.2


def test_a_rate_limit_is_waited_for_as_long_as_was_asked_and_never_less() -> None:
    failure = Failure(FailureClass.RATE_LIMITED, "", 7 * SECOND)

    assert LOW.delay(failure, 0) == 7 * SECOND
    assert HIGH.delay(failure, 0) == 7 * SECOND * 1.2
    assert LOW.delay(failure, LOW.rate_limited - 1) is not None
    assert LOW.delay(failure, LOW.rate_limited) is None


def test_nobody_is_asked_before_the_time_that_was_named_however_far_off_it_is() -> None:
    cap = LOW.retry_after_cap
    longest = Failure(FailureClass.RATE_LIMITED, "", cap)
    longer = Failure(FailureClass.RATE_LIMITED, "", cap + SECOND)

    assert LOW.delay(longest, 0) == cap
    assert HIGH.delay(longest, 0) == cap + 60 * SECOND
    assert LOW.delay(longer, 0) is None


def test_a_rate_limit_without_a_time_is_waited_for_a_second() -> None:
    assert LOW.delay(Failure(FailureClass.RATE_LIMITED, ""), 0) == SECOND


@pytest.mark.parametrize("class_", [c for c in FailureClass if c is not FailureClass.PERMANENT])
def test_a_class_that_is_tried_again_has_a_retryable_name_on_the_wire(class_: FailureClass) -> None:
    assert class_.error_type not in NON_RETRYABLE


@pytest.mark.parametrize(
    "error", [Permanent("no such order"), httpx.ReadTimeout("lost"), status(404), KeyError("mine")]
)
def test_what_a_tool_means_to_raise_is_logged_without_a_traceback(error: Exception) -> None:
    declared = {KeyError: FailureClass.PERMANENT}

    with capture_logs() as lines:
        failure = classify_call(error, "shop.order", __name__, declared)

    assert failure == classify(error, declared)
    assert lines == []
