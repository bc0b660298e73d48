"""The agent's tools. Loaded with ``SUREHAND_TOOL_MODULES=surehand.examples.support.tools``.

The help desk is found at ``SUPPORT_URL``, its mail server at ``SUPPORT_SMTP``. Each tool says at
its decorator what it does to the world, and how an outcome is settled that a crash left unknown.
"""

from __future__ import annotations

import asyncio
import os
import smtplib
from datetime import timedelta
from email.message import EmailMessage
from typing import Annotated, Any, Final

import httpx
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from surehand import (
    READ,
    WRITE,
    ApprovalPolicy,
    Dedupes,
    DependencyDown,
    Found,
    LookupAnswer,
    No,
    NotFound,
    Permanent,
    ToolContext,
    Transient,
    Undo,
    Unknown,
    tool,
)
from surehand.examples.shop.client import said_no

SENDER: Final = "support@example.com"
#: Deadline of one call. Each answer of desk and mail server has to come within ``ANSWER``.
CALL = timedelta(seconds=10)
ANSWER: Final = 2.0
#: The desk forgets idempotency keys after a day.
KEYS_KEPT = timedelta(hours=24)
#: The mail server hangs up on whoever is silent for 4 s. One that waits for minutes, as most do,
#: needs minutes here: until then a mail may still arrive.
MAIL_SETTLES = timedelta(seconds=5)

Id = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]


class Params(BaseModel):
    """Base of the params: what nobody knows is refused, so no model can add a ``bcc``."""

    model_config = ConfigDict(extra="forbid")


class TicketParams(Params):
    """Which ticket."""

    ticket_id: Id


class Ticket(BaseModel):
    """A ticket."""

    ticket_id: str
    customer: str
    subject: str
    body: str
    status: str


class SearchParams(Params):
    """What is looked for."""

    query: str = Field(min_length=1, max_length=2000)


class ArticleFound(BaseModel):
    """An article that has some of the words."""

    article_id: str
    title: str
    excerpt: str


class ReportParams(TicketParams):
    """What a report is about."""

    article_ids: list[Id] = Field(max_length=3)
    advice: str


class MailParams(TicketParams):
    """An answer to a ticket."""

    to: str = Field(pattern=r"^[^@\s,;<>]+@[^@\s,;<>]+$")
    subject: str = Field(pattern=r"^[^\r\n]{1,120}$")
    body: str = Field(min_length=1, max_length=5000)


class Mailed(BaseModel):
    """A mail that the mail server has."""

    message_id: str
    to: str


class FileParams(TicketParams):
    """The report that a ticket is to name, by the digest that ``report.write`` returns."""

    artifact: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


@tool("tickets.read", effect=READ, timeout=CALL)
async def read_ticket(params: TicketParams, ctx: ToolContext) -> Ticket | No:
    """Read a ticket."""
    answer = await _desk("GET", f"/tickets/{params.ticket_id}", ctx)
    return said_no(answer) or Ticket.model_validate(answer.json())


@tool("articles.search", effect=READ, timeout=CALL)
async def search_articles(params: SearchParams, ctx: ToolContext) -> list[ArticleFound]:
    """Search the knowledge base by the words of a text; the best articles first."""
    answer = await _desk("GET", "/articles", ctx, params={"q": params.query})
    return [ArticleFound.model_validate(one) for one in answer.raise_for_status().json()]


@tool("report.write", effect=READ, timeout=CALL)
async def write_report(params: ReportParams, ctx: ToolContext) -> JsonValue | No:
    """Write a report about a ticket, the articles that help, and what the customer is advised."""
    # A section is written whole, or not at all; those of an earlier attempt stand.
    stands = await ctx.artifact.read()
    written = sum(line.startswith(b"## ") for line in stands.splitlines())
    if not written:
        answer = await _desk("GET", f"/tickets/{params.ticket_id}", ctx)
        if no := said_no(answer):
            return no
        ticket = Ticket.model_validate(answer.json())
        said = f"{ticket.customer} writes:\n\n{ticket.body}"
        await ctx.artifact.append(_section(ticket.subject, said))
    for article_id in params.article_ids[max(written - 1, 0) :]:
        answer = await _desk("GET", f"/articles/{article_id}", ctx)
        if no := said_no(answer):
            return no
        article = answer.json()
        await ctx.artifact.append(_section(article["title"], article["body"]))
    if written <= 1 + len(params.article_ids):
        await ctx.artifact.append(_section("Advice", params.advice))
    return await ctx.artifact.finish(media_type="text/markdown")


def _section(title: str, text: str) -> str:
    """Return a section. What others have written is quoted, so none of it begins another one."""
    quoted = "".join(f"> {line}\n" for line in text.splitlines())
    return f"## {' '.join(title.split())}\n\n{quoted}\n"


async def customers_own(params: MailParams, ctx: ToolContext) -> JsonValue:
    """Return what an approval of a mail rests on; refuse one to anybody but the ticket's customer.

    It is read before anybody is asked, and right before the call.
    """
    answer = await _desk("GET", f"/tickets/{params.ticket_id}", ctx)
    ticket = Ticket.model_validate(answer.raise_for_status().json())
    if params.to != ticket.customer:
        raise Permanent(f"{params.to} is not the customer of {ticket.ticket_id}")
    return {"customer": ticket.customer, "status": ticket.status}


async def find_mail(params: MailParams, ctx: ToolContext) -> LookupAnswer:
    """Search the mailbox for the mail of this call."""
    message_id = _message_id(ctx)
    answer = await _desk("GET", "/mailbox", ctx, params={"message_id": message_id})
    match answer.raise_for_status().json():
        case []:
            return NotFound()
        case [mail]:
            return Found({"message_id": message_id, "to": mail["recipients"][0]})
        case several:
            return Unknown(f"the mailbox has {len(several)} mails of one Message-ID")


@tool(
    "mail.send",
    effect=WRITE,
    timeout=CALL,
    # One answer to a ticket, whichever run sends it.
    key=lambda params: f"answer:{params.ticket_id}",
    # SMTP knows no idempotency keys: the same mail twice is two. So the mailbox is searched.
    lookup=find_mail,
    settle=MAIL_SETTLES,
    irreversible=True,
    approval=ApprovalPolicy(expires_in=timedelta(hours=24)),
    precondition=customers_own,
    describe=lambda params: f"Mail {params.to} about {params.ticket_id}: {params.subject}",
)
async def send_mail(params: MailParams, ctx: ToolContext) -> Mailed:
    """Answer a ticket by mail. Only its own customer can be written to."""
    mail = EmailMessage()
    mail["Message-ID"] = _message_id(ctx)
    mail["From"], mail["To"] = SENDER, params.to
    mail["Subject"] = f"[{params.ticket_id}] {params.subject}"
    mail.set_content(params.body)
    await asyncio.to_thread(_hand_in, mail)
    return Mailed(message_id=mail["Message-ID"], to=params.to)


@tool(
    "tickets.close",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"close:{params.ticket_id}",
    dedupes=Dedupes(KEYS_KEPT),
    compensate=Undo("tickets.reopen", lambda params, receipt: {"ticket_id": params["ticket_id"]}),
    describe=lambda params: f"Close {params.ticket_id}",
)
async def close_ticket(params: TicketParams, ctx: ToolContext) -> JsonValue | No:
    """Close a ticket."""
    return await _written(f"/tickets/{params.ticket_id}/close", ctx)


@tool("tickets.reopen", effect=WRITE, timeout=CALL, dedupes=Dedupes(KEYS_KEPT), irreversible=True)
async def reopen_ticket(params: TicketParams, ctx: ToolContext) -> JsonValue | No:
    """Open a closed ticket again."""
    return await _written(f"/tickets/{params.ticket_id}/reopen", ctx)


@tool(
    "report.file",
    effect=WRITE,
    timeout=CALL,
    key=lambda params: f"report:{params.ticket_id}",
    dedupes=Dedupes(KEYS_KEPT),
    irreversible=True,
    describe=lambda params: f"File a report with {params.ticket_id}",
)
async def file_report(params: FileParams, ctx: ToolContext) -> JsonValue | No:
    """Name a report in its ticket, by its digest."""
    return await _written(f"/tickets/{params.ticket_id}/report", ctx, {"report": params.artifact})


async def _desk(method: str, path: str, ctx: ToolContext, **request: Any) -> httpx.Response:
    """Send one request. Retries are left to the worker, which knows what may be repeated."""
    url = os.environ.get("SUPPORT_URL", "http://127.0.0.1:8091")
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER, trust_env=False) as desk:
        return await desk.request(method, path, headers=headers, **request)


async def _written(
    path: str, ctx: ToolContext, body: dict[str, str] | None = None
) -> JsonValue | No:
    answer = await _desk("POST", path, ctx, json=body)
    if no := said_no(answer):
        return no
    receipt: JsonValue = answer.json()
    return receipt


def _message_id(ctx: ToolContext) -> str:
    """Return what the mail is known by; the same in every attempt at the same effect."""
    return f"<{ctx.idempotency_key}@{SENDER.partition('@')[2]}>"


def _hand_in(mail: EmailMessage) -> None:
    """Hand a mail in."""
    host, _, port = os.environ.get("SUPPORT_SMTP", "127.0.0.1:8025").partition(":")
    try:
        server = smtplib.SMTP(host, int(port), timeout=ANSWER)
    except OSError as error:
        raise DependencyDown(f"no mail server at {host}:{port}: {error}") from error
    with server:
        try:
            server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as refused:
            raise Permanent(
                f"the mail server takes nothing for {mail['To']}: {refused}"
            ) from refused
        except smtplib.SMTPResponseException as refused:
            fault = Transient if refused.smtp_code < 500 else Permanent
            raise fault(f"the mail server says {refused.smtp_code}") from refused
