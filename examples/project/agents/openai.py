"""An agent that refunds an order. Its tool is called by Surehand, as approved and once."""

from __future__ import annotations

from typing import Any

from agents import Model, ModelResponse, Usage
from agents.testing import assistant_message, function_call

from surehand.agents.openai_agents import SurehandAgent


class Rules(Model):
    """Decides by rules, so that you can begin without an API key."""

    async def get_response(
        self, instructions: Any, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        """Ask for the refund, then end."""
        said: Any = assistant_message("paid")
        if len(input) == 1:
            order = {"order_id": "order-1", "amount": "12.50"}
            said = function_call("refunds_pay", order, call_id="call-1")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        """Stream nothing: runs do not."""
        raise NotImplementedError


rules = Rules()
clerk = SurehandAgent(
    name="clerk",
    model="clerk:rules",  # with a real model: model="gpt-5"
    instructions="Refund the order.",
    run_tools=["refunds.pay"],
)
