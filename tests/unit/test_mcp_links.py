"""A server that sends people to a link: they are asked, and nothing opens it for them."""

from __future__ import annotations

from typing import Any, Final, cast

import mcp_types
import pytest

from surehand.activities.mcp.calls import McpCall
from surehand.activities.mcp.connection import McpConnection
from surehand.activities.mcp.server_file import McpServer, McpTool
from surehand.activities.tools.call_reports import Answers, NeedsAnswer
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import ToolContext

LINK: Final = "https://pay.example/authorise?id=7"
CALL: Final = McpCall("shop", McpServer(command=("shop",)), "refund", McpTool(), {})


class Asking:
    """A connection whose server sends people to a link before it does anything."""

    def __init__(self, link: str) -> None:
        self.link = link
        self.heard: list[Any] = []

    async def call(self, name: str, arguments: Any, meta: Any, answers: Any, state: Any) -> Any:
        self.heard.append((answers, state))
        if answers is not None:
            return mcp_types.CallToolResult(content=[])
        asked = mcp_types.ElicitRequest(
            params=mcp_types.ElicitRequestURLParams(
                message="Sign in there", url=self.link, elicitation_id="e-1"
            )
        )
        return mcp_types.InputRequiredResult(input_requests={"it": asked}, request_state="s-1")


async def asked(server: Asking, *given: tuple[str, Any]) -> Any:
    context = ToolContext(
        tenant="t",
        run_id="r",
        step_id="s",
        user="u",
        attempt=1,
        idempotency_key="k",
        answers=Answers(given),
    )
    return await CALL._sent(cast(McpConnection, server), {}, context)


@pytest.mark.parametrize("answer", ["accept", "decline"])
async def test_a_human_is_shown_the_link_and_the_server_is_told_what_they_say(answer: str) -> None:
    server = Asking(LINK)
    question = await asked(server)
    assert isinstance(question, NeedsAnswer)
    assert f"shop.refund asks to open {LINK} in a browser" in question.question
    assert question.question.endswith("It says: Sign in there")
    assert server.heard == [(None, None)]

    server = Asking(LINK)
    said = await asked(server, (question.digest, answer))
    assert isinstance(said, mcp_types.CallToolResult)
    assert server.heard[1:] == [({"it": {"action": answer}}, "s-1")]


async def test_another_link_in_the_place_of_an_answered_one_is_asked_anew() -> None:
    first = await asked(Asking(LINK))
    server = Asking("https://evil.example/authorise?id=7")
    again = await asked(server, (first.digest, "accept"))
    assert isinstance(again, NeedsAnswer) and "evil.example" in again.question
    assert server.heard == [(None, None)]


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "file:///etc/passwd", "https://x\u202ey", f"https://{'x' * 2000}"],
)
async def test_what_is_no_link_is_asked_of_nobody(link: str) -> None:
    with pytest.raises(Permanent, match="no link"):
        await asked(Asking(link))
