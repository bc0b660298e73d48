"""An agent of the OpenAI Agents SDK."""

from __future__ import annotations

from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from agents.testing import assistant_message, function_call

from tests.variants.tried import AMOUNT, ORDER, refuse_effect

CALLS = (("refund", ORDER | AMOUNT),)


class Rules(Model):
    async def get_response(
        self, system_instructions: Any, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        said = [one for one in input if one.get("type") == "function_call_output"]
        turn = len(said)
        call = function_call(*CALLS[turn], call_id=f"call-{turn}") if turn < len(CALLS) else None
        output = [call or assistant_message("paid back")]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@function_tool
def refund(order_id: str, amount: str) -> str:
    """Pay it back."""
    return refuse_effect()


rules = Rules()
clerk = Agent(name="clerk", model=rules, tools=[refund])
