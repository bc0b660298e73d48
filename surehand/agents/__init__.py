"""Agents of frameworks: their model turns and tool calls are steps of a run.

Public, each where its framework is installed: ``pydantic_ai``, ``openai_agents``, ``langchain`` and
``langgraph``. The room does not lie at the top as the others do: the OpenAI Agents SDK is imported
as ``agents``.
"""

if __name__ != "surehand.agents":
    # By another name each of its modules would be loaded a second time.
    raise ImportError(f"{__name__} is surehand.agents here: import that")
