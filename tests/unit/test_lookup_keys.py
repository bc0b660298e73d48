"""A lookup that is said to go by key, and never takes the key, is told of."""

from __future__ import annotations

from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest
from pydantic import BaseModel

from surehand.activities.tools.tool import LookupAnswer, NotFound, ToolContext
from surehand.activities.tools.toolbox import WRITE, lookup_warning, tool


class Nothing(BaseModel):
    pass


async def ask(key: Any) -> LookupAnswer:
    return NotFound()


async def by_key(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(ctx.idempotency_key)


async def by_key_inside(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask((lambda: ctx.idempotency_key)())


async def hands_on(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(ctx)


async def by_state(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask(params)


async def by_tenant(params: Nothing, context: ToolContext) -> LookupAnswer:
    return await ask((context.tenant, context.run_id))


async def inside_by_state(params: Nothing, ctx: ToolContext) -> LookupAnswer:
    return await ask((lambda: ctx.tenant)())


class Client:
    async def find(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return await ask(ctx.idempotency_key)

    async def look(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return await ask(self)

    async def __call__(self, params: Nothing, ctx: ToolContext) -> LookupAnswer:
        return NotFound()


@wraps(by_state)
async def wrapped(*args: Any) -> LookupAnswer:
    return await by_state(*args)


async def anything(*args: Any) -> LookupAnswer:
    return await by_key(*args)


def warning(lookup: Any, **more: Any) -> str | None:
    declared = tool("a.b", effect=WRITE, lookup=lookup, settle=timedelta(seconds=1), **more)

    async def called(params: Nothing, ctx: ToolContext) -> None:
        """Do it."""

    return lookup_warning(declared(called))


@pytest.mark.parametrize("lookup", [by_state, by_tenant, inside_by_state, Client().look, wrapped])
def test_a_lookup_that_never_takes_the_key_is_told_of(lookup: Any) -> None:
    told = warning(lookup)

    assert told is not None
    assert told.startswith("a.b: its lookup does not use ctx.idempotency_key")
    assert warning(lookup, lookup_by="state") is None


@pytest.mark.parametrize(
    "lookup",
    [by_key, by_key_inside, hands_on, Client().find, Client(), anything, partial(by_state)],
)
def test_of_a_lookup_that_takes_the_key_or_may_nothing_is_said(lookup: Any) -> None:
    assert warning(lookup) is None
