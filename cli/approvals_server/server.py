"""The approvers' pages, for one tenant: who may look, what is looked at, what is handed on.

This process has no private key, but for votes in a chat (``chat.py``). It reads the ledger, and
hands on what a browser has signed, unchanged. So whoever takes it over can show something wrong,
but decides nothing: the script computes what is signed from what it shows, and the worker verifies
that again.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from surehand.activities.ledger.approvals.decisions import Lifting
from surehand.activities.ledger.approvals.waiting import (
    ListPage,
    ListPlace,
    list_groups,
    waiting_for_others,
)
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.halts import list_halts
from surehand.activities.ledger.history.run_display import (
    Doubt,
    OneApproval,
    read_approval,
    read_doubts,
    read_progress,
)
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import Key, Principal
from surehand.activities.run_keys import Hashes
from surehand.cli.approvals_server import runs
from surehand.cli.approvals_server.approvals import (
    ON_A_PAGE,
    PagePart,
    SecretReads,
    Viewed,
    describe_halt,
    describe_line,
    group_lines,
    own_keys,
    show_own_decisions,
)
from surehand.cli.approvals_server.pages import (
    Followers,
    Headers,
    Look,
    error,
    link_more,
    page,
    static_files,
)
from surehand.cli.approvals_server.sign_in import LASTS, BadLink, Links, SignIns
from surehand.cli.halt_calls import vote_and_lift
from surehand.cli.options import translated
from surehand.client.client import ONE_OF_MANY, Client, look_at_runs
from surehand.client.messages import compose_message, find_approval, find_run_id
from surehand.process import exits
from surehand.process.program import shared_program
from surehand.process.settings import PREFIX
from surehand.workflows.canonical_json import NotCanonical
from surehand.workflows.contracts.approvals import Decision, Verdict
from surehand.workflows.contracts.base import WaitKind
from surehand.workflows.contracts.effects import UnwindRun
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.payload_codec import KeyErased
from surehand.workflows.ports import RUN_STATE
from surehand.workflows.run import deliveries

if TYPE_CHECKING:
    from surehand.cli.approvals_server.chat import ChatVotes
    from surehand.cli.approvals_server.oidc import OidcSignIn

#: Bytes of a decision or a message, of which a run takes no more characters; and of a sign-in.
LARGEST_DECISION: Final = deliveries.LARGEST_DELIVERY
LARGEST_OTHER: Final = 4096
#: Of errors, the status that tells a script what to do; any other one is a mistake of ours.
_STATUS: Final = (
    (exits.Unanswered, 202),
    (exits.NoWorker, 503),
    (exits.NotReachable, 503),
    (exits.OutOfReach, 503),
    (exits.NotFound, 404),
    (exits.Refused, 409),
    (exits.CutOff, 409),
    (exits.WrongUse, 400),
)
#: Runs that are asked what they wait for: each answer wakes a worker.
_MOST_ASKED: Final = 25
#: What the pages send to a run, besides decisions.
_VERBS: Final = frozenset((Verb.ANSWER, Verb.RESOLVE))

_Endpoint = Callable[[Request, str], Awaitable[Response]]
Connect = Callable[[], Awaitable[Client]]
#: Of a tool's name and version.
SchemaOf = Callable[[str, str], JsonValue]


@dataclass(kw_only=True, eq=False)
class ApprovalsServer:
    """Answers the requests of browsers."""

    ledger: Ledger
    connect: Connect
    """Called again after it has failed."""
    tenant: str
    links: Links
    schema_of: SchemaOf
    oidc: OidcSignIn | None = None
    chat: ChatVotes | None = None
    artifacts: runs.OpenStore | None = None
    read_lifting: Callable[[], Lifting] = Lifting

    def __post_init__(self) -> None:
        self._sign_ins = SignIns()
        self._followers = Followers()
        self._secret_reads = SecretReads(self.ledger, self.tenant)
        self._files = static_files()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    def app(self, origin: str) -> ASGIApp:
        """Return it as an application; ``origin``: of all its pages, as browsers name it."""
        self._origin = origin
        self._tls = origin.startswith("https:")
        # With TLS no other host, and nothing without TLS, can set a cookie of that name.
        self._cookie = f"{'__Host-' if self._tls else ''}surehand_approvals"
        here = (self.ledger, self.tenant)
        routes = [
            Route("/", self._signed_in_only(self._list_page)),
            Route("/approval", self._signed_in_only(self._approval_page)),
            Route("/several", self._signed_in_only(self._several_page)),
            Route("/approval.json", self._signed_in_only(self._approval_document)),
            Route("/story.json", self._signed_in_only(self._story_document)),
            Route("/run", self._signed_in_only(self._run_page)),
            Route("/run.json", self._signed_in_only(self._run_document)),
            Route("/undo.json", self._signed_in_only(self._undo_document)),
            Route("/halts.json", self._signed_in_only(self._halts_document)),
            Route("/others", self._signed_in_only(self._others_page)),
            Route("/follow/run", self._signed_in_only(self._follow_run)),
            Route("/follow/list", self._signed_in_only(self._follow_list)),
            Route("/follow/approval", self._signed_in_only(self._follow_approval)),
            Route("/mine", self._signed_in_only(partial(show_own_decisions, *here))),
            Route("/artifacts", self._signed_in_only(partial(runs.show_artifacts, *here))),
            Route("/artifact", self._signed_in_only(self._hand_out_artifact)),
            Route("/keys", self._signed_in_only(self._keys_page)),
            Route("/decide", self._signed_in_only(self._take_decision), methods=["POST"]),
            Route("/steer", self._signed_in_only(self._take_message), methods=["POST"]),
            Route("/lift", self._signed_in_only(self._take_lift), methods=["POST"]),
            Route("/sign-in", self._sign_in_page),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/static/{name}", self._static_file),
            Route("/health", _answer_health),
        ]
        if self.oidc is not None:
            routes += self.oidc.routes(origin, self._begin_sign_in)
        if self.chat is not None:
            routes += self.chat.routes(self._forward)
        handlers = {404: _not_found, 405: _not_found, Exception: _answer_mistake}
        # Around all of it: a mistake of ours is answered by the same rules.
        return Headers(Starlette(routes=routes, exception_handlers=handlers), origin=origin)

    # Who looks

    def _signed_in_only(self, endpoint: _Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for those who are signed in; what goes wrong is one line."""

        async def answer(request: Request) -> Response:
            me = self._sign_ins.principal(self._cookie_of(request))
            if me is None:
                return self._not_signed_in(request)
            try:
                with translated():
                    return await endpoint(request, me)
            except exits.SurehandError as problem:
                return error(request, status_of(problem), str(problem), me)

        return answer

    def _cookie_of(self, request: Request) -> str:
        return request.cookies.get(self._cookie, "")

    def _not_signed_in(self, request: Request) -> Response:
        if request.method != "GET" or request.url.path.endswith(".json"):
            return error(request, 401, "you are not signed in any more: sign in again")
        query = f"?{request.url.query}" if request.url.query else ""
        return self._sign_in_with(401, request.url.path + query)

    def _sign_in_with(self, status: int, then: str) -> Response:
        command = f"{shared_program()} approvals link --as NAME" if self.links.taken else None
        provider = begin = None
        if self.oidc is not None:
            provider, begin = self.oidc.host, self.oidc.begin_at(then)
        return page(
            "sign_in", status=status, me=None, command=command, provider=provider, begin=begin
        )

    async def _sign_in_page(self, request: Request) -> Response:
        return self._sign_in_with(200, "/")

    async def _sign_in(self, request: Request) -> Response:
        try:
            sent = await _read_json(request, LARGEST_OTHER)
            me = self.links.spend(str(sent.get("token")) if isinstance(sent, dict) else "")
        except (BadLink, exits.SurehandError) as problem:
            return error(request, 401, str(problem))
        answer = JSONResponse({"principal": me})
        self._begin_sign_in(request, answer, me)
        return answer

    def _begin_sign_in(
        self, request: Request, answer: Response, me: str, counts: Callable[[], bool] = lambda: True
    ) -> None:
        """Sign somebody in with an answer; whoever was signed in in this browser is no more."""
        self._sign_ins.end(self._cookie_of(request))
        answer.set_cookie(
            self._cookie,
            self._sign_ins.begin(me, counts),
            max_age=int(LASTS.total_seconds()),
            httponly=True,
            secure=self._tls,
            # A link in a mail opens the page; nothing that other pages send has the cookie.
            samesite="lax",
        )

    async def _sign_out(self, request: Request) -> Response:
        self._sign_ins.end(self._cookie_of(request))
        answer = JSONResponse({})
        answer.delete_cookie(self._cookie, httponly=True, secure=self._tls, samesite="lax")
        return answer

    # Requests

    async def _list_page(self, request: Request, me: str) -> Response:
        part = PagePart.of(request)

        def look(tx: Transaction) -> tuple[ListPage[ListPlace], list[Any], list[str], Counter[str]]:
            person = principals.find_voter(tx, me)
            tools = [group.tool for group in list_groups(tx)]
            elsewhere = (
                waiting_for_others(tx, person.roles, ON_A_PAGE) if part.mine else Counter[str]()
            )
            found, standing = part.look(tx, person), list_halts(tx, standing=True)
            lines = [describe_line(row, person, tx.now_ms, standing) for row in found.rows]
            return found, lines, tools, elsewhere

        found, lines, tools, elsewhere = await self.ledger.transact(self.tenant, look)
        return page(
            "list",
            me=me,
            sections=group_lines(lines),
            elsewhere=elsewhere,
            most=ON_A_PAGE,
            tools=sorted({*tools, *([part.tool] if part.tool else [])}),
            part=part,
            more=link_more("/", found.more, **part.query()),
            first=None if part.after is None else f"/?{urlencode(part.query())}",
            follow=f"/follow/list?{request.url.query}",
        )

    async def _halts_document(self, request: Request, me: str) -> Response:
        def look(tx: Transaction) -> list[dict[str, Any]]:
            standing = list_halts(tx, standing=True)
            if not standing:
                return []
            lifting = self.read_lifting()
            person = {"tenant": self.tenant, "principal": me, **own_keys(_find_person(tx, me)[1])}
            return [person | describe_halt(tx, one, lifting) for one in standing]

        return JSONResponse(await self.ledger.transact(self.tenant, look))

    async def _follow_list(self, request: Request, me: str) -> Response:
        part = PagePart.of(request)

        def look(tx: Transaction) -> list[Any]:
            rows = part.look(tx, principals.find_voter(tx, me)).rows
            return [[row["approval_id"], *row["voters"]] for row in rows]

        return self._follow_changes(request, me, lambda: self.ledger.transact(self.tenant, look))

    async def _follow_approval(self, request: Request, me: str) -> Response:
        await self._find_request(request, me)  # refuses what there is not

        async def look() -> dict[str, Any]:
            return (await self._find_request(request, me)).standing()

        return self._follow_changes(request, me, look)

    def _follow_changes(self, request: Request, me: str, look: Look) -> Response:
        async def answer() -> Any:
            with translated():
                return await look()

        def signed_in() -> bool:
            return self._sign_ins.principal(self._cookie_of(request)) is not None

        return self._followers.answer(answer, signed_in, who=me)

    async def _approval_page(self, request: Request, me: str) -> Response:
        viewed = await self._find_request(request, me)
        web_ui = await self._web_ui(viewed.one.row["run_id"])

        def drawn() -> Response:
            one, asked = viewed.detailed(), viewed.asked()
            return page("approval", me=me, one=one, asked=asked, web_ui=web_ui)

        # In a thread, as all that grows with the params of a call.
        return await asyncio.to_thread(drawn)

    async def _several_page(self, request: Request, me: str) -> Response:
        ids = list(dict.fromkeys(request.query_params.getlist("id")))
        if not 1 <= len(ids) <= ON_A_PAGE:
            raise exits.WrongUse(f"choose 1 to {ON_A_PAGE} of them")
        calls = []
        for approval_id in ids:
            viewed = await self._find_request(request, me, approval_id)
            calls.append(await asyncio.to_thread(viewed.detailed))
        return await asyncio.to_thread(page, "several", me=me, calls=calls)

    async def _approval_document(self, request: Request, me: str) -> Response:
        viewed = await self._find_request(request, me)
        row = viewed.one.row
        salt = await self._find_salt(viewed.one)
        schema = self.schema_of(row["tool"], row["tool_version"])
        return await asyncio.to_thread(lambda: JSONResponse(viewed.document(salt, schema)))

    async def _find_request(self, request: Request, me: str, wanted: str | None = None) -> Viewed:
        """Return the request that is asked for; its look is on record if it is secret."""
        given = request.query_params.get("id", "") if wanted is None else wanted
        run_id, approval_id = find_approval(self.tenant, given)

        def look(tx: Transaction) -> tuple[OneApproval | None, Principal, list[Key]]:
            return read_approval(tx, approval_id), *_find_person(tx, me)

        one, person, keys = await self.ledger.transact(self.tenant, look)
        if one is None or one.row["run_id"] != run_id:
            raise exits.NotFound(f"approval not found: {approval_id}")
        await self._secret_reads.record(one, me, self._cookie_of(request))
        return Viewed(one, person, keys, self.tenant)

    async def _find_salt(self, one: OneApproval) -> str | None:
        """Return what is hashed with the params; without keys nobody is told."""
        keys, row = self.ledger.keys, one.row
        if keys is None or row["params"] is None:
            return None
        hashed = (row["run_id"], row["tool"], row["tool_version"])
        answers = row["answers"] or ()
        try:
            made = await self.ledger.with_keys(
                lambda: Hashes(keys).of_params(*hashed, row["params"], answers), row["params"]
            )
        except (NotCanonical, KeyErased):
            return None
        return made.salt

    async def _keys_page(self, request: Request, me: str) -> Response:
        def look(tx: Transaction) -> tuple[Principal, list[Key], bool]:
            return *_find_person(tx, me), principals.has_principal(tx, me)

        person, keys, known = await self.ledger.transact(self.tenant, look)
        words = ["grant" if known else "add", me, "--key", "-"]
        words += ["--tenant", self.tenant] if self.tenant != DEFAULT_TENANT else []
        command = f"{shared_program()} principal {shlex.join(words)}"
        told = {"tenant": self.tenant, "principal": me, "command": command, **own_keys(keys)}
        origin, known_origins = self._origin, self.ledger.passkey_origins
        setting = None if origin in known_origins else f"{PREFIX}PASSKEY_ORIGINS={origin}"
        return page("keys", me=me, keys=person.keys, told=told, setting=setting)

    # Runs

    async def _web_ui(self, run_id: str) -> str | None:
        try:
            return (await self._connect_once()).connection.web_ui(run_id)
        except exits.SurehandError:
            return None  # the page is whole without it

    async def _connect_once(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self.connect()
            return self._client

    async def _story_document(self, request: Request, me: str) -> Response:
        run_id = find_run_id(self.tenant, request.query_params.get("run", ""))
        view = await (await self._connect_once()).connection.view(run_id, ONE_OF_MANY)
        return JSONResponse(runs.story(view))

    async def _others_page(self, request: Request, me: str) -> Response:
        """Return the runs that wait for people in another way: they ask, doubt, or are paused."""
        states = ", ".join(f"'{state}'" for state in runs.WAITING_STATES)
        condition = f"{RUN_STATE.name} IN ({states}) AND ExecutionStatus = 'Running'"
        connection = (await self._connect_once()).connection
        found = [run async for run in connection.listed(condition, _MOST_ASKED)]
        looked = await look_at_runs(connection, found)
        lines = [line for view in looked.views for line in runs.question_lines(view)]
        lines += [runs.silent_line(one.run_id, one.state) for one in looked.silent]
        return page("others", me=me, lines=lines, most=_MOST_ASKED)

    async def _run_page(self, request: Request, me: str) -> Response:
        run_id = find_run_id(self.tenant, request.query_params.get("id", ""))
        approval, web_ui = request.query_params.get("approval"), await self._web_ui(run_id)
        return page("run", me=me, run_id=run_id, approval=approval, web_ui=web_ui)

    async def _run_document(self, request: Request, me: str) -> Response:
        run_id = find_run_id(self.tenant, request.query_params.get("id", ""))
        view = await (await self._connect_once()).connection.view(run_id, ONE_OF_MANY)
        cookie = self._cookie_of(request)
        await self._secret_reads.record_questions(run_id, view.interrupts, me, cookie)
        ids = [one.id for one in view.result.waiting_for if one.kind is WaitKind.INTERVENTION]

        def look(tx: Transaction) -> tuple[dict[str, Doubt], Principal, list[Key]]:
            return read_doubts(tx, run_id, ids), *_find_person(tx, me)

        known = await self.ledger.transact(self.tenant, look)
        # In a thread: to lay out a large plan takes a while.
        told = await asyncio.to_thread(runs.run_document, view, *known, tenant=self.tenant)
        return JSONResponse(told)

    async def _undo_document(self, request: Request, me: str) -> Response:
        run_id = find_run_id(self.tenant, request.query_params.get("id", ""))
        asked = UnwindRun(tenant=self.tenant, run_id=run_id, actor=me, dry_run=True)
        found = await (await self._connect_once()).connection.unwind(asked)
        return JSONResponse(found.model_dump(mode="json"))

    async def _follow_run(self, request: Request, me: str) -> Response:
        run_id = find_run_id(self.tenant, request.query_params.get("id", ""))

        def look(tx: Transaction) -> list[Any]:
            return list(read_progress(tx, run_id))

        return self._follow_changes(request, me, lambda: self.ledger.transact(self.tenant, look))

    async def _hand_out_artifact(self, request: Request, me: str) -> Response:
        async def record(run_id: str, step_id: str) -> None:
            cookie = self._cookie_of(request)
            await self._secret_reads.record_artifact(run_id, step_id, me, cookie)

        where = (self.ledger, self.artifacts, self.tenant)
        return await runs.hand_out(*where, request, me, record=record)

    # What is handed on. Each signature is of the approver's key, which this process does not have:
    # whatever is altered on the way counts for nothing. Who is signed in is compared only to say
    # early what is wrong.

    async def _take_decision(self, request: Request, me: str) -> Response:
        sent = await _read_json(request, LARGEST_DECISION)
        try:
            if not isinstance(sent, dict):
                raise exits.WrongUse("a decision is an object")
            if sent.get("approver") != me:
                raise exits.WrongUse(f"you are signed in as {me}, and decide in no other name")
            run_id, _ = find_approval(self.tenant, str(sent.get("approval_id")))
            verdict = await self._forward(run_id, sent)
        except exits.DecisionRefused as refused:
            return JSONResponse(
                {"verdict": refused.verdict.model_dump(mode="json")}, status_code=409
            )
        except exits.SurehandError as problem:
            return _not_delivered(problem)
        return JSONResponse({"verdict": verdict.model_dump(mode="json")})

    async def _take_lift(self, request: Request, me: str) -> Response:
        sent = await _read_json(request, LARGEST_DECISION)
        decision = compose_message(Decision, **(sent if isinstance(sent, dict) else {}))
        if decision.approver != me:
            raise exits.WrongUse(f"you are signed in as {me}, and decide in no other name")
        try:
            # If no vote were missing, anybody who may look here could lift it.
            told = await vote_and_lift(
                self.ledger, self.tenant, decision, self.read_lifting(), must_count=True
            )
        except principals.PrincipalError:
            told = "all who are asked have said yes; whoever owns the ledger lifts it now"
        return JSONResponse({"message": told})

    async def _forward(self, run_id: str, decision: Mapping[str, Any]) -> Verdict:
        return await (await self._connect_once()).run(run_id).forward(decision)

    async def _take_message(self, request: Request, me: str) -> Response:
        sent = await _read_json(request, LARGEST_DECISION)
        try:
            match sent:
                case {"run": str(run), "verb": str(verb), "message": dict(message)}:
                    pass
                case _:
                    raise exits.WrongUse("what is sent has a run, a verb and a message")
            if verb not in _VERBS:
                raise exits.WrongUse(f"these pages send no {verb[:40]!r}")
            if message.get("actor") != me:
                raise exits.WrongUse(f"you are signed in as {me}, and act in no other name")
            run_id = find_run_id(self.tenant, run)
            said = await (await self._connect_once()).run(run_id).forward_steering(verb, message)
        except exits.SurehandError as problem:
            return _not_delivered(problem)
        return JSONResponse({"message": said.message})

    async def _static_file(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return error(request, 404, "There is no such page.")
        content, kind = found
        return Response(content, media_type=kind)


def status_of(error: exits.SurehandError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _not_delivered(error: exits.SurehandError) -> Response:
    """Return the answer that tells why a run has not answered; 504: it may have been sent."""
    lost = isinstance(error, exits.NotReachable) and not isinstance(error, exits.NoWorker)
    return JSONResponse({"error": str(error)}, status_code=504 if lost else status_of(error))


def _find_person(tx: Transaction, name: str) -> tuple[Principal, list[Key]]:
    person = principals.find_voter(tx, name)
    keys = [principals.find_key(tx, kid) for kid in person.keys]
    return person, [key for key in keys if key is not None]


async def _read_json(request: Request, largest: int) -> Any:
    """Return what was sent; WrongUse: it is too large, or no JSON."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise exits.WrongUse(f"{largest} bytes are taken at most")
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as problem:
        raise exits.WrongUse("that is no JSON") from problem


async def _not_found(request: Request, problem: Exception) -> Response:
    return error(request, 404, "There is no such page.")


async def _answer_mistake(request: Request, problem: Exception) -> Response:
    return error(request, 500, "That is a mistake of ours; the server's log has it.")


async def _answer_health(request: Request) -> Response:
    return JSONResponse({"ok": True})
