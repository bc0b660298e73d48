"""What an assistant can do with runs, as one principal: the tools of ``mcp serve``, without MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue

from surehand.cli.mcp_server.answers import (
    error_line,
    not_answerable,
    run_document,
    timeline,
    waiting,
)
from surehand.cli.mcp_server.plans import ServedPlans
from surehand.cli.options import Caller
from surehand.cli.runs import why_waiting
from surehand.cli.tools import named_tools
from surehand.client.client import Client
from surehand.client.outcome import CUT_OFF_BY_SERVER, state_of
from surehand.client.run import Run
from surehand.process.exits import NoSuchRun, SurehandError, WrongUse
from surehand.process.files import Unreadable, parse_json
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import ENDED_STEPS
from surehand.workflows.contracts.steering import CancelMode

#: How long a call of a tool waits for a run: hosts give up after a minute.
LONGEST_WAIT: Final = timedelta(seconds=45)
#: Runs that ``pending`` looks at.
#: Recorded with an answer.
_BY_ASSISTANT: Final = "by an assistant (mcp serve)"
_MOST: Final = 50

#: Is told where a run stands while it is waited for.
Told = Callable[[str], None]


@dataclass
class ServedRuns:
    """The runs of one principal."""

    caller: Caller
    plans: ServedPlans
    all_runs: bool = False
    """Whether other users' runs of the tenant may be looked at; they are never steered."""
    _client: Client | None = None
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def user(self) -> str:
        """Return whom the server acts for."""
        return self.caller.settings.user

    async def client(self) -> Client:
        """Return the connection, made when it is first needed.

        Raises:
            NotReachable: No server answers.
        """
        async with self._connecting:
            if self._client is None:
                self._client = await self.caller.client()
            return self._client

    def tools(self) -> dict[str, Any]:
        """Return the plans that can be started, and the tools that this environment names."""
        listed: dict[str, Any] = {"plans": self.plans.listed()}
        if self.plans.left_out:
            listed["left_out"] = dict(self.plans.left_out)
        if self.plans.inline:
            listed["inline_plans"] = "start_run takes a plan as YAML or JSON, too"
        try:
            toolbox = named_tools(self.caller)
        except SurehandError as error:
            return {**listed, "tools": [], "tools_unknown": error_line(error)}
        if toolbox is None:
            why = "this server's environment names no tools; the worker knows them"
            return {**listed, "tools": [], "tools_unknown": why}
        listed["tools"] = [
            {
                "tool": spec.name,
                "does": spec.description,
                "effect": spec.effect,
                "a_person_approves": spec.approval is not None,
                "undone_by": spec.compensation or ("" if not spec.irreversible else "nothing"),
            }
            for spec in toolbox.specs()
        ]
        return listed

    async def start(
        self,
        plan: str,
        input: Mapping[str, JsonValue],
        run_id: str | None,
        *,
        wait: bool,
        told: Told,
    ) -> dict[str, Any]:
        """Start a run, or find the same one again.

        Raises:
            SurehandError: It is not started, or has ended without a result.
        """
        if run_id == "":
            raise WrongUse("run_id: it is empty; name the run, or leave it out")
        parsed = self.plans.plan(plan, _portable(dict(input)))
        client = await self.client()
        run = await client.start(parsed, run_id=run_id)
        begun = {"run_id": run.run_id, "started": run.is_new}
        if not await run.taken_up():
            found = await run.connection.describe(run.run_id)
            silent = await why_waiting(run.connection, found)
            return {**begun, "state": state_of(found), "note": f"it is with the server{silent}"}
        note = await self._wait(run, told) if wait else None
        shown = await self._shown(run, await self._own(run))
        return {**begun, **({} if note is None else {"note": note}), **shown}

    async def _wait(self, run: Run, told: Told) -> str | None:
        """Wait until the run ends or needs a person; return what to do if it takes longer."""
        try:
            await run.wait(timeout=LONGEST_WAIT, or_human=True, watch=_Watch(told))
        except TimeoutError:
            return "the run goes on: look with show_run"
        return None

    async def show(self, run_id: str) -> dict[str, Any]:
        """Return where a run stands.

        Raises:
            SurehandError: It cannot be seen.
        """
        run = (await self.client()).run(run_id)
        return await self._shown(run, await self._own(run))

    async def events(self, run_id: str) -> dict[str, Any]:
        """Return what has happened to a run, newest first.

        Raises:
            SurehandError: It cannot be seen.
        """
        run = (await self.client()).run(run_id)
        view = await self._own(run)
        return {"run_id": run.run_id, "events": list(timeline(view))}

    async def pending(self) -> dict[str, Any]:
        """Return what waits for people.

        Raises:
            SurehandError: The server does not answer.
        """
        client = await self.client()
        found = await client.pending(limit=_MOST)
        listed: dict[str, Any] = {
            "runs": [
                {
                    "run_id": view.result.run_id,
                    "plan": view.plan.name,
                    "user": view.user,
                    "state": view.result.state,
                    "waiting_for": waiting(client.connection, view),
                }
                for view in found.views
                if self._may_see(view)
            ]
        }
        if found.silent:
            # Whose they are, only they could say.
            listed["note"] = f"{len(found.silent)} more wait, and no worker answers for them"
        return listed

    async def answer(self, run_id: str, question_id: str, value: JsonValue) -> dict[str, Any]:
        """Answer what a step of a plan asks the user whom its run acts for.

        Raises:
            SurehandError: It is no such question, or the run does not take the answer.
        """
        given = _portable(value)
        run, view = await self._mine(run_id)
        why = not_answerable(view, question_id)
        if why is not None:
            raise WrongUse(f"{question_id}: {why}")
        said = await run.answer_all({question_id: given}, reason=_BY_ASSISTANT)
        return {"run_id": run.run_id, "message": said.message}

    async def cancel(self, run_id: str, mode: CancelMode, reason: str) -> dict[str, Any]:
        """End a run before its plan does.

        Raises:
            SurehandError: It acts for somebody else, or does not take it.
        """
        run, _ = await self._mine(run_id)
        said = await run.cancel(mode, reason=reason)
        return {"run_id": run.run_id, "message": said.message}

    def _may_see(self, view: RunView) -> bool:
        return self.all_runs or self.user in (view.user, view.started_by)

    async def _own(self, run: Run) -> RunView:
        """Return what a run says, if it may be seen."""
        view = await run.view()
        if not self._may_see(view):
            raise NoSuchRun(f"run not found: {run.run_id}")
        return view

    async def _mine(self, run_id: str) -> tuple[Run, RunView]:
        """Return a run that acts for the server's principal."""
        run = (await self.client()).run(run_id)
        view = await self._own(run)
        if view.user != self.user:
            raise WrongUse(f"run {run.run_id} acts for {view.user}, not for {self.user}")
        return run, view

    async def _shown(self, run: Run, view: RunView) -> dict[str, Any]:
        state = await run.state()
        if state not in CUT_OFF_BY_SERVER:
            return run_document(run.connection, view, view.result.state)
        document = run_document(run.connection, view, state)
        # No decision reaches it any more; what is told is how it stood.
        document.pop("waiting_for", None)
        return {**document, "note": run.connection.what_to_do(run.run_id)}


def _portable(value: Any) -> Any:
    """Return a value if it is what it looks like wherever it goes: as plans have it.

    Raises:
        WrongUse: It holds what JSON cannot carry, or numbers that lose digits.
    """
    try:
        return parse_json(json.dumps(value))
    except Unreadable as error:
        raise WrongUse(f"{error.where}: {error.reason}") from error


class _Watch:
    """Tells in one line each time something has moved."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._said = ""

    def show(self, view: RunView) -> None:
        steps = view.result.steps
        done = sum(step.state in ENDED_STEPS for step in steps)
        self.note(f"{view.result.state}, {done} of {len(steps)} steps have ended")

    def note(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._told(text)
