"""What an assistant is told of runs: documents of bounded size, in which nothing is unseen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from surehand.cli.render import waiting_lines
from surehand.client.connection import Connection
from surehand.process.exits import SurehandError
from surehand.workflows.contracts.interrupts import InterruptKind
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import Waiting
from surehand.workflows.plain_text import plain, plain_line

#: Characters of JSON that a tool's answer has at most, and a resource.
LARGEST_ANSWER: Final = 24 * 1024
LARGEST_RESOURCE: Final = 128 * 1024
#: Characters of an error: one line, with what to do.
LONGEST_ERROR: Final = 600
#: How long texts and lists may be, each tried where the one before was too much.
_CUTS: Final = ((4_000, 200), (1_000, 100), (1_000, 50), (1_000, 20), (300, 20), (100, 10), (20, 3))
#: What people have to do is told whole where anything is: half a command is none.
_TOLD_WHOLE: Final = "waiting_for"
_WHOLE: Final = _CUTS[3]
_MORE: Final = "... (more is not shown)"


def error_line(error: SurehandError) -> str:
    """Return an error as one line."""
    return plain_line("; ".join(error.lines), LONGEST_ERROR)


class _TooMuch(Exception):
    """What is shown has more characters than it may have."""


def bounded(document: dict[str, Any], largest: int) -> tuple[dict[str, Any], str]:
    """Return a document and its JSON, with long texts and lists cut until it is small enough."""
    for texts, items in _CUTS:
        cut, whole = _Cut(texts, items, largest), _Cut(*_WHOLE, largest)
        try:
            shown = {
                key: (whole if key == _TOLD_WHOLE else cut).of(value)
                for key, value in document.items()
            }
        except _TooMuch:
            continue
        text = json.dumps(shown, ensure_ascii=False)
        if len(text) <= largest:
            return shown, text
    few = _Cut(*_CUTS[-1], largest)
    kept = {
        k: few.of(value) for k, value in document.items() if isinstance(value, str | int | None)
    }
    shown = {**kept, "too_large": "there is more than fits: look with the command line"}
    return shown, json.dumps(shown, ensure_ascii=False)


class _Cut:
    """Cuts values; ends as soon as what it has shown is too much, however much is behind it."""

    def __init__(self, texts: int, items: int, left: int) -> None:
        """Begin with how long texts and lists may be, and all of it together."""
        self._texts, self._items, self._left = texts, items, left

    def of(self, value: Any) -> Any:
        """Return a value as it is shown.

        Raises:
            _TooMuch: It is too much, with what was shown before.
        """
        texts, items = self._texts, self._items
        if isinstance(value, str):
            # Lines may stay. What moves, hides or reverses text is written out.
            seen = "\n".join(plain(line) for line in value[:texts].split("\n"))
            self._count(len(seen) + 2)
            return seen if len(value) <= texts else seen + _MORE
        self._count(2 if isinstance(value, dict | list) else 1)
        if isinstance(value, dict):
            pairs = islice(value.items(), items)
            shown = {self.of(str(key)): self.of(one) for key, one in pairs}
            return shown if len(value) <= items else {**shown, "...": len(value) - items}
        if isinstance(value, list):
            some = [self.of(one) for one in value[:items]]
            return some if len(value) <= items else [*some, f"... {len(value) - items} more"]
        return value

    def _count(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _TooMuch


def run_document(connection: Connection, view: RunView, state: str) -> dict[str, Any]:
    """Return where a run stands, and what a person has to do.

    Args:
        connection: Where the run is.
        view: What it says.
        state: What the server says: it may have ended the run.
    """
    result = view.result
    document: dict[str, Any] = {
        "run_id": result.run_id,
        "state": state,
        "error": result.error,
        "waiting_for": waiting(connection, view),
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


_EFFECT: Final = {"tool", "key", "state", "step_id"}


def waiting(connection: Connection, view: RunView) -> list[dict[str, Any]]:
    """Return what a run waits for, each with what a person has to do about it."""
    return [_waiting(connection, view, item) for item in view.result.waiting_for]


def _waiting(connection: Connection, view: RunView, item: Waiting) -> dict[str, Any]:
    found = {"kind": item.kind, "id": item.id, "step": item.step_id, "question": item.question}
    asked = next((one for one in view.interrupts if one.interrupt_id == item.id), None)
    mine = view.user == connection.settings.user
    if item.kind == "question" and mine and not_answerable(view, item.id) is None and asked:
        return {**found, "answer_with": "answer_question", "answer_schema": asked.answer_schema}
    lines = list(waiting_lines(connection, view.result.run_id, item))
    return {**found, "a_person_has_to": lines}


def not_answerable(view: RunView, question_id: str) -> str | None:
    """Return why an assistant may not answer a question; ``None``: it may.

    It may answer what a step of the plan asks, unless that says ``by: people``. All else that waits
    for a value looks at what the run does, or may stand for a yes to it: of tools, of code, and of
    frameworks, whose approvals are questions.
    """
    asked = next((one for one in view.interrupts if one.interrupt_id == question_id), None)
    if asked is None:
        questions = [one.interrupt_id for one in view.interrupts]
        there = ", ".join(one for one in questions if not_answerable(view, one) is None) or "none"
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


def timeline(view: RunView) -> Iterator[dict[str, Any]]:
    """Yield what has happened to a run, newest first: what does not fit is the oldest."""
    for line in reversed(view.timeline):
        told = {"at": line.at.isoformat(timespec="milliseconds"), "text": line.text}
        yield told if line.step_id is None else {**told, "step": line.step_id}
