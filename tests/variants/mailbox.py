"""A mailbox: mails that strangers have written, and letters that stand in a file once sent."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from surehand import (
    READ,
    WRITE,
    ApprovalPolicy,
    ApprovalRule,
    Found,
    LookupAnswer,
    No,
    NotFound,
    OutcomeUnknown,
    Permanent,
    ToolContext,
    tool,
)

#: Asks only where the run has read what a stranger may have written.
CAREFUL: Final = ApprovalPolicy(rules=(ApprovalRule(when="not run.foreign", required=False),))


class Folder(BaseModel):
    folder: str


class Letter(Folder):
    text: str


def sent(folder: Path) -> list[str]:
    """Return the letters that were sent from a folder."""
    file = folder / "sent"
    return file.read_text().splitlines() if file.exists() else []


@tool("mail.read", effect=READ, foreign=True)
async def read(params: Folder, ctx: ToolContext) -> dict[str, str] | No:
    """Read the newest mail."""
    mail = Path(params.folder) / "mail"
    if (mail.parent / "refuses").exists():
        raise Permanent(mail.read_text())
    return {"text": mail.read_text()} if mail.exists() else No("there is no mail")


@tool("mail.count", effect=READ)
async def count(params: Folder, ctx: ToolContext) -> int:
    """Count the letters that were sent."""
    return len(sent(Path(params.folder)))


def _send(params: Letter) -> str:
    with (Path(params.folder) / "sent").open("a") as file:
        print(params.text, file=file)
    return params.text


@tool("mail.send", effect=WRITE, recovery="human", irreversible=True, approval=CAREFUL)
async def send(params: Letter, ctx: ToolContext) -> str:
    """Send a letter."""
    return _send(params)


@tool("mail.forward", effect=WRITE, recovery="human", irreversible=True, approval=ApprovalPolicy())
async def forward(params: Letter, ctx: ToolContext) -> str:
    """Send a letter that people always look at."""
    return _send(params)


@tool("mail.exchange", effect=WRITE, recovery="human", irreversible=True, foreign=True,
      key=lambda letter: f"exchange:{letter.text}")  # fmt: skip
async def exchange(params: Letter, ctx: ToolContext) -> dict[str, str]:
    """Send a letter, and read what comes back."""
    return {"sent": _send(params), "answer": (Path(params.folder) / "mail").read_text()}


async def find_posted(params: Letter, ctx: ToolContext) -> LookupAnswer:
    """Find a letter, and what was written on it since."""
    folder = Path(params.folder)
    found = params.text in sent(folder)
    return Found({"note": (folder / "mail").read_text()}) if found else NotFound()


@tool("mail.post", effect=WRITE, lookup=find_posted, foreign="lookup", irreversible=True,
      settle=timedelta(seconds=1), key=lambda letter: f"post:{letter.text}")  # fmt: skip
async def post(params: Letter, ctx: ToolContext) -> dict[str, str]:
    """Send a letter whose receipt is always lost."""
    _send(params)
    raise OutcomeUnknown("the line is cut")
