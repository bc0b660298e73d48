"""An agent that refunds an order. Its tool is called by Surehand, as approved and once."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from surehand.agents.langchain import SurehandMiddleware, model


class Rules(BaseChatModel):
    """Decides by rules, so that you can begin without an API key."""

    @property
    def _llm_type(self) -> str:
        return "rules"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Take the tools that it may ask for."""
        return self.bind(tools=tools, **settings)

    def _generate(self, messages: list[Any], *rest: Any, **settings: Any) -> ChatResult:
        said = AIMessage("paid")
        if messages[-1].type == "human":
            order = {"order_id": "order-1", "amount": "12.50"}
            said = AIMessage(
                "", tool_calls=[{"name": "refunds_pay", "args": order, "id": "call-1"}]
            )
        return ChatResult(generations=[ChatGeneration(message=said)])


rules = Rules()
clerk = create_agent(
    model("clerk:rules"),  # with a real model: model("openai:gpt-5")
    system_prompt="Refund the order.",
    middleware=[SurehandMiddleware(["refunds.pay"])],
)
