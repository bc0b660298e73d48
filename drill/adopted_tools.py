"""The tools of an agent that is tried, as tools of Surehand's: they count their calls in a file."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from surehand.activities.mcp.tools import params_model
from surehand.activities.tools.failures import Permanent
from surehand.activities.tools.tool import Found, NotFound, Tool, ToolContext
from surehand.activities.tools.toolbox import READ, WRITE, tool
from surehand.drill import bare_agent
from surehand.drill.adopted_agent import call_as_step


def make_tool(run: bare_agent.BareRun, offered: bare_agent.AgentTool) -> Tool:
    """Return a tool that counts what it would do, and finds it again by its key."""
    agent, world, name = run.agent, run.folder / bare_agent.WORLD, offered.name

    async def read_known(params: Any, ctx: ToolContext) -> Any:
        given = params.model_dump(mode="json")
        known = agent.find_answer(bare_agent.CountedCall(tool=name, params=given, reads=True))
        if known is None:
            raise Permanent("the agent has not asked for this in the run that nothing happened to")
        return known.answer

    async def count_write(params: Any, ctx: ToolContext) -> Any:
        given = params.model_dump(mode="json")
        made = bare_agent.CountedCall(
            tool=name, params=given, reads=False, key=ctx.idempotency_key, run=ctx.run_id
        )
        known = agent.find_answer(made)
        answer = agent.answers.get(name, bare_agent.MADE) if known is None else known.answer
        bare_agent.note_call(world, made.model_copy(update={"answer": answer}))
        return answer

    async def find_made(params: Any, ctx: ToolContext) -> Found | NotFound:
        made = [one for one in bare_agent.read_calls(world) if one.key == ctx.idempotency_key]
        return Found(made[0].answer) if made else NotFound()

    function = read_known if offered.reads else count_write
    function.__doc__ = offered.description or name
    function.__annotations__["params"] = params_model(offered.params_schema, None)
    if offered.reads:
        return tool(name, effect=READ)(function)
    return tool(
        name,
        effect=WRITE,
        lookup=find_made,
        timeout=timedelta(seconds=1),
        settle=timedelta(milliseconds=100),
        irreversible=True,
    )(function)


if bare_agent.ADOPTED in os.environ:  # a worker of a comparison; this module has no tools otherwise
    tried = bare_agent.BareRun.model_validate_json(
        Path(os.environ[bare_agent.ADOPTED]).read_text(encoding="utf-8")
    )
    globals().update(
        {f"tool_{one.name}": make_tool(tried, one) for one in tried.agent.tools.values()}
    )
    if tried.agent.functions:  # before the agent's module takes them
        bare_agent.replace_functions(tried.agent, lambda *_: None, call_as_step)
