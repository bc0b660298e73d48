"""Which results of activities say where a run's chain of events stood."""

from __future__ import annotations

import pytest

from surehand.cli.audit import head_in


def test_a_result_of_ours_has_the_head() -> None:
    head = head_in(b'{"head": {"seq": 3, "hash": "sha256:0"}}')

    assert head is not None
    assert (head.seq, head.hash) == (3, "sha256:0")


@pytest.mark.parametrize("data", [b'{"head": "main"}', b'{"head": {"n": 1}}', b"[]", b"\xff"])
def test_a_result_of_an_activity_that_is_not_ours_has_none(data: bytes) -> None:
    assert head_in(data) is None
