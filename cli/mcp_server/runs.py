"""What an assistant can do with runs, as one principal: the tools of ``mcp serve``, without MCP.

It starts the plans of one folder. What it is told of runs has a bounded size, and nothing unseen.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from pydantic import JsonValue

from surehand.cli.options import Caller
from surehand.cli.render import waiting_lines
from surehand.cli.runs import why_waiting
from surehand.cli.tools import named_tools
from surehand.client.client import Client
from surehand.client.connection import Connection
from surehand.client.outcome import CUT_OFF_BY_SERVER, state_of
from surehand.client.plan_file import PlanDraft, plan_from
from surehand.client.run import Run
from surehand.process.exits import NoSuchRun, PlanRefused, SurehandError, WrongUse
from surehand.process.files import BadDocument, parse_json
from surehand.workflows.contracts.base import ENDED_STEPS, Waiting, WaitKind
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.steering import CancelMode, InterruptKind
from surehand.workflows.plain_text import plain, plain_line
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.references import INPUT, references

#: Characters of JSON that a tool's answer has at most.
LARGEST_ANSWER: Final = 24 * 1024
#: Characters of an error: one line, with what to do.
LONGEST_ERROR: Final = 600
#: How long texts and lists may be, each tried where the one before was too much.
_CUTS: Final = ((4_000, 200), (1_000, 100), (1_000, 50), (1_000, 20), (300, 20), (100, 10), (20, 3))
#: What people have to do is told whole where anything is: half a command is none.
_TOLD_WHOLE: Final = "waiting_for"
_WHOLE: Final = _CUTS[3]
_MORE: Final = "... (more is not shown)"
#: What is told of an effect.
_EFFECT: Final = {"tool", "key", "state", "step_id"}
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
#: How long a call of a tool waits for a run: hosts give up after a minute.
LONGEST_WAIT: Final = timedelta(seconds=45)
#: Recorded with an answer.
_BY_ASSISTANT: Final = "by an assistant (mcp serve)"
#: Runs that ``pending`` looks at.
_MOST: Final = 50

#: Is told where a run stands while it is waited for.
Told = Callable[[str], None]


@dataclass(frozen=True)
class ServedPlans:
    """What may be started.

    They are read once: an assistant that may write into the folder adds none while it is served.
    """

    drafts: Mapping[str, PlanDraft] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files that are no plans, and why."""

    @classmethod
    def read(cls, folder: Path | None) -> Self:
        """Read the plans of a folder; each is called by its file's name, without the ending."""
        drafts, left_out = dict[str, PlanDraft](), dict[str, str]()
        try:
            files = [] if folder is None else sorted(folder.iterdir())
        except OSError as error:
            raise WrongUse(f"--plans {folder}: {error.strerror or error}") from error
        for file in files:
            if file.suffix.lower() not in _SUFFIXES:
                continue
            if file.stem in drafts:
                raise WrongUse(f"--plans {folder}: two plans are called {file.stem!r}")
            try:
                drafts[file.stem] = PlanDraft.of(file)
            except PlanRefused as error:
                left_out[file.name] = error.lines[0]
        return cls(drafts, left_out)

    def plan(self, wanted: str, given: Mapping[str, JsonValue]) -> Plan:
        if wanted not in self.drafts:
            there = ", ".join(sorted(self.drafts)) or "none (the server is started with --plans)"
            raise WrongUse(f"there is no plan {wanted!r} to start; there are: {there}")
        return plan_from(copy.deepcopy(self.drafts[wanted].document), given)

    def list_plans(self) -> list[dict[str, Any]]:
        """Return what there is to start: name, goal, and the input that each takes."""
        found = []
        for name, draft in sorted(self.drafts.items()):
            document = draft.document
            known = document.get(INPUT) or {}
            # A plan inside it has an input of its own.
            steps = [{**step, "plan": None} for step in document.get("steps") or []]
            paths = [path.split(".") for _, path in references(steps)]
            wanted = {path[1] for path in paths if path[0] == INPUT and len(path) > 1}
            found.append(
                {
                    "plan": name,
                    "goal": str(document.get("goal", "")),
                    "input": known,
                    "input_needed": sorted(wanted - set(known)),
                }
            )
        return found


@dataclass
class ServedRuns:
    """The runs of one principal; each method raises SurehandError if it cannot do its part."""

    caller: Caller
    plans: ServedPlans
    all_runs: bool = False
    """Whether other users' runs of the tenant may be looked at; they are never steered."""
    _client: Client | None = None
    _connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def user(self) -> str:
        return self.caller.settings.user

    async def client(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self.caller.client()
            return self._client

    async def tools(self) -> dict[str, Any]:
        listed: dict[str, Any] = {"plans": self.plans.list_plans()}
        if self.plans.left_out:
            listed["left_out"] = dict(self.plans.left_out)
        try:
            toolbox = named_tools(self.caller)
        except SurehandError as error:
            return {**listed, "tools": [], "tools_unknown": write_error(error)}
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
        if run_id == "":
            raise WrongUse("run_id: it is empty; name the run, or leave it out")
        parsed = self.plans.plan(plan, _require_portable(dict(input)))
        client = await self.client()
        run = await client.start(parsed, run_id=run_id)
        begun: dict[str, Any] = {"run_id": run.run_id, "started": run.is_new}
        if not await run.taken_up():
            found = await run.connection.describe(run.run_id)
            silent = await why_waiting(run.connection, found)
            return {**begun, "state": state_of(found), "note": f"it is with the server{silent}"}
        if wait:
            try:
                await run.wait(timeout=LONGEST_WAIT, or_human=True, watch=_Watch(told))
            except TimeoutError:
                begun["note"] = "the run goes on: look with show_run"
        return {**begun, **await self._describe_run(run, await self._view_visible(run))}

    async def show(self, run_id: str) -> dict[str, Any]:
        run = (await self.client()).run(run_id)
        return await self._describe_run(run, await self._view_visible(run))

    async def pending(self) -> dict[str, Any]:
        client = await self.client()
        found = await client.pending(limit=_MOST)
        listed: dict[str, Any] = {
            "runs": [
                {
                    "run_id": view.result.run_id,
                    "plan": view.plan.name,
                    "user": view.user,
                    "state": view.result.state,
                    "waiting_for": list_waiting(client.connection, view),
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
        given = _require_portable(value)
        run, view = await self._find_own(run_id)
        why = why_not_answerable(view, question_id)
        if why is not None:
            raise WrongUse(f"{question_id}: {why}")
        said = await run.answer_all({question_id: given}, reason=_BY_ASSISTANT)
        return {"run_id": run.run_id, "message": said.message}

    async def cancel(self, run_id: str, mode: CancelMode, reason: str) -> dict[str, Any]:
        run, _ = await self._find_own(run_id)
        said = await run.cancel(mode, reason=reason)
        return {"run_id": run.run_id, "message": said.message}

    def _may_see(self, view: RunView) -> bool:
        return self.all_runs or self.user in (view.user, view.started_by)

    async def _view_visible(self, run: Run) -> RunView:
        view = await run.view()
        if not self._may_see(view):
            raise NoSuchRun(f"run not found: {run.run_id}")
        return view

    async def _find_own(self, run_id: str) -> tuple[Run, RunView]:
        run = (await self.client()).run(run_id)
        view = await self._view_visible(run)
        if view.user != self.user:
            raise WrongUse(f"run {run.run_id} acts for {view.user}, not for {self.user}")
        return run, view

    async def _describe_run(self, run: Run, view: RunView) -> dict[str, Any]:
        state = await run.state()
        if state not in CUT_OFF_BY_SERVER:
            return run_document(run.connection, view, view.result.state)
        document = run_document(run.connection, view, state)
        # No decision reaches it any more; what is told is how it stood.
        document.pop("waiting_for", None)
        return {**document, "note": run.connection.what_to_do(run.run_id)}


def _require_portable(value: Any) -> Any:
    """Return a value if it is what it looks like wherever it goes: as plans have it."""
    try:
        return parse_json(json.dumps(value))
    except BadDocument as error:
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


def write_error(error: SurehandError) -> str:
    return plain_line("; ".join(error.lines), LONGEST_ERROR)


def bound_document(document: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a document and its JSON, with long texts and lists cut until it is small enough."""
    for texts, items in _CUTS:
        room = [LARGEST_ANSWER]
        try:
            shown = {
                key: _cut(value, *(_WHOLE if key == _TOLD_WHOLE else (texts, items)), room)
                for key, value in document.items()
            }
        except _TooMuch:
            continue
        text = json.dumps(shown, ensure_ascii=False)
        if len(text) <= LARGEST_ANSWER:
            return shown, text
    short = {key: one for key, one in document.items() if isinstance(one, str | int | None)}
    shown = {key: _cut(one, *_CUTS[-1], [LARGEST_ANSWER]) for key, one in short.items()}
    shown["too_large"] = "there is more than fits: look with the command line"
    return shown, json.dumps(shown, ensure_ascii=False)


class _TooMuch(Exception):
    """What is shown has more characters than it may have."""


def _cut(value: Any, texts: int, items: int, room: list[int]) -> Any:
    """Return a value as it is shown; ends once ``room`` is used up, however much is behind it."""
    seen = ""
    if isinstance(value, str):
        # Lines may stay. What moves, hides or reverses text is written out.
        seen = "\n".join(plain(line) for line in value[:texts].split("\n"))
    room[0] -= len(seen) + 1
    if room[0] < 0:
        raise _TooMuch
    if isinstance(value, str):
        return seen if len(value) <= texts else seen + _MORE
    if isinstance(value, dict):
        pairs = islice(value.items(), items)
        shown = {_cut(str(k), texts, items, room): _cut(v, texts, items, room) for k, v in pairs}
        return shown if len(value) <= items else {**shown, "...": len(value) - items}
    if isinstance(value, list):
        some = [_cut(one, texts, items, room) for one in value[:items]]
        return some if len(value) <= items else [*some, f"... {len(value) - items} more"]
    return value


def run_document(connection: Connection, view: RunView, state: str) -> dict[str, Any]:
    result = view.result
    document: dict[str, Any] = {
        "run_id": result.run_id,
        "state": state,
        "error": result.error,
        "waiting_for": list_waiting(connection, view),
        "plan": view.plan.name,
        "goal": view.plan.goal,
        "user": view.user,
        "started_by": view.started_by,
        "started_at": view.started_at.isoformat(timespec="seconds"),
        "output": result.output,
        "steps": [
            one.model_dump(
                mode="json",
                include={"id", "tool", "state", "error", "output", "child", "undone"},
                exclude_none=True,
            )
            for one in result.steps
        ],
        "effects": [one.model_dump(mode="json", include=_EFFECT) for one in result.effects],
        "not_undone": [
            one.model_dump(mode="json", include=_EFFECT | {"reason"})
            for one in result.uncompensated
        ],
        "web_ui": connection.web_ui(result.run_id),
    }
    return {key: value for key, value in document.items() if value not in (None, "", [])}


def list_waiting(connection: Connection, view: RunView) -> list[dict[str, Any]]:
    return [_describe_waiting(connection, view, item) for item in view.result.waiting_for]


def _describe_waiting(connection: Connection, view: RunView, item: Waiting) -> dict[str, Any]:
    found = {"kind": item.kind, "id": item.id, "step": item.step_id, "question": item.question}
    asked = next((one for one in view.interrupts if one.interrupt_id == item.id), None)
    mine = view.user == connection.settings.user
    if (
        item.kind is WaitKind.QUESTION
        and mine
        and why_not_answerable(view, item.id) is None
        and asked
    ):
        return {**found, "answer_with": "answer_question", "answer_schema": asked.answer_schema}
    lines = list(waiting_lines(connection, view.result.run_id, item))
    return {**found, "a_person_has_to": lines}


def why_not_answerable(view: RunView, question_id: str) -> str | None:
    """Return why an assistant may not answer a question; ``None``: it may.

    It may answer what a step of the plan asks, unless that says ``by: people``. All else that waits
    for a value looks at what the run does, or may stand for a yes to it: of tools, of code, and of
    frameworks, whose approvals are questions.
    """
    asked = next((one for one in view.interrupts if one.interrupt_id == question_id), None)
    if asked is None:
        questions = [one.interrupt_id for one in view.interrupts]
        there = (
            ", ".join(one for one in questions if why_not_answerable(view, one) is None) or "none"
        )
        kind = next((one.kind for one in view.result.waiting_for if one.id == question_id), None)
        if kind == "question":
            return "a child run asks it: answer it there"
        if kind is not None:
            return f"it is no question: it waits for a person ({kind}), who does what show_run says"
        return f"no such question waits; those that you may answer: {there}"
    if asked.kind is not InterruptKind.ASK:
        return f"a person has to look there (interrupt {asked.kind}), not an assistant"
    ask = None if view.plan.code is not None else view.plan.step(asked.step_id).ask
    if ask is None:
        return "code or a model asks it, which may stand for an approval: a person answers"
    if ask.by == "people":
        return "the plan has people answer it, and no assistant"
    return None
