"""An agent of LangChain: a graph of LangGraph."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from tests.variants.tried import AMOUNT, ORDER, refuse_effect

CALLS = (("refund", ORDER | AMOUNT),)


class Rules(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "rules"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self.bind(tools=tools, **settings)

    def _generate(self, messages: list[Any], *rest: Any, **settings: Any) -> ChatResult:
        turn = sum(message.type == "tool" for message in messages)
        said = AIMessage("paid back")
        if turn < len(CALLS):
            name, args = CALLS[turn]
            said = AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{turn}"}])
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def refund(order_id: str, amount: str) -> str:
    """Pay it back."""
    return refuse_effect()


rules = Rules()
clerk = create_agent(rules, [refund])
