"""What one visitor of the approvers' pages can take from the others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response, StreamingResponse

from surehand.cli.approvals import diff
from surehand.cli.approvals_server.pages import MOST_OF_ONE, Followers
from surehand.cli.approvals_server.sign_in import MOST_OF_ONE as MOST_SIGN_INS
from surehand.cli.approvals_server.sign_in import SignIns


async def nothing_new() -> str:
    return "as it was"


def stream(followers: Followers, who: str, may_look: Callable[[], bool] = bool) -> Response:
    return followers.answer(nothing_new, may_look, who=who)


async def first(answer: Response) -> AsyncIterator[object]:
    assert isinstance(answer, StreamingResponse)
    lines = aiter(answer.body_iterator)
    await anext(lines)
    return lines


async def test_whoever_follows_much_takes_the_place_of_nobody_else() -> None:
    followers = Followers()
    mine = [await first(stream(followers, "ann", lambda: True)) for _ in range(MOST_OF_ONE)]

    assert stream(followers, "ann", lambda: True).status_code == 204
    others = await first(stream(followers, "bob", lambda: True))

    for lines in (*mine, others):
        await lines.aclose()  # type: ignore[attr-defined]
    assert stream(followers, "ann", lambda: True).status_code == 200


async def test_a_stream_says_nothing_of_what_was_looked_up_before_the_session_ended() -> None:
    signed_in = True

    async def look() -> str:
        nonlocal signed_in
        signed_in = False  # meanwhile
        return "a vote"

    answer = Followers().answer(look, lambda: signed_in, who="ann")
    assert isinstance(answer, StreamingResponse)

    assert [line async for line in answer.body_iterator] == []


def test_whoever_signs_in_again_and_again_signs_only_themselves_out() -> None:
    sign_ins = SignIns()
    bob, first_of_ann = sign_ins.begin("bob"), sign_ins.begin("ann")
    newest = [sign_ins.begin("ann") for _ in range(MOST_SIGN_INS)]

    assert sign_ins.principal(first_of_ann) is None
    assert {sign_ins.principal(cookie) for cookie in newest} == {"ann"}
    assert sign_ins.principal(bob) == "bob"


def test_the_differences_of_long_params_that_are_other_in_every_line_are_told() -> None:
    # A comparison within lines would take hours here.
    digits = random.Random(4)

    def lines() -> list[str]:
        return [f"{digits.randrange(10**12):012d}" for _ in range(3000)]

    told = diff({"lines": lines()}, {"lines": lines()})

    assert len(told) == 6000
    assert {line[:2] for line in told} == {"- ", "+ "}
