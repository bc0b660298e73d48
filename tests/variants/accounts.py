"""Accounts that are opened once people have approved it, and closed to undo that."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from surehand import WRITE, ApprovalPolicy, ToolContext, Undo, tool


class Customer(BaseModel):
    name: str
    file: str


def note(params: Customer, what: str) -> None:
    """Note an effect in a file, which is the world outside."""
    with open(params.file, "a", encoding="utf-8") as file:
        print(what, params.name, file=file)


@tool(
    "accounts.open",
    effect=WRITE,
    version="1",
    recovery="human",
    approval=ApprovalPolicy(),
    compensate=Undo("accounts.close", lambda params, receipt: params),
)
async def open_account(params: Customer, ctx: ToolContext) -> JsonValue:
    """Open an account."""
    note(params, "open")
    return {"opened": params.name}


@tool("accounts.close", effect=WRITE, version="1", recovery="human", irreversible=True)
async def close_account(params: Customer, ctx: ToolContext) -> JsonValue:
    """Close an account."""
    note(params, "close")
    return None
