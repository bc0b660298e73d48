"""``answer``: gives a run the values that it asks for."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import WrongUse
from cli.ids import find_run_id
from cli.steering import composed, say, steer
from cli.yamlfile import Unreadable, parse_json
from workflows.contracts import AnswerInterrupts, Verb

#: What the id of a question looks like: one that does not wait is a slip of the pen, no value.
_QUESTION: Final = re.compile(r"[A-Za-z0-9_/\[\]-]+\.[0-9]+")
EXAMPLE = "Example: python starter.py answer refund-1 reason.1='sent twice'"


def answer(
    run: options.Run,
    answers: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID=]VALUE...",
            help="JSON, or text. Without an ID it is for the only question that waits.",
        ),
    ],
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Answer what a run asks; several answers count together, or not at all."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        view = await (await caller.server()).view(run_id)
        # With those of child runs, by the names under which they are answered here.
        asked = {item.id for item in view.result.waiting_for if item.kind == "question"}
        said = given(answers, asked)
        sent = composed(AnswerInterrupts, actor=caller.settings.user, reason=reason, **said)
        return say(caller, run_id, await steer(caller, run_id, Verb.ANSWER, sent, leave=leave))

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def given(answers: list[str], asked: set[str]) -> dict[str, Any]:
    """Return answers as a run takes them.

    Args:
        answers: ``ID=VALUE``, or one ``VALUE``.
        asked: The ids of the questions that wait: text before a ``=`` may be part of a value.

    Raises:
        WrongUse: Several without ids, or one question twice.
    """
    named: dict[str, Any] = {}
    for text in answers:
        id_, equals, value = text.partition("=")
        if not equals or id_ not in asked:
            if len(answers) == 1 and not (equals and _QUESTION.fullmatch(id_)):
                only = value_of(text)
                return {} if only is None else {"answer": only}
            listed = ", ".join(sorted(asked)) or "none"
            raise WrongUse(f"{text!r} does not begin with the id of a question: waiting: {listed}")
        if id_ in named:
            raise WrongUse(f"{id_} is answered twice")
        named[id_] = value_of(value)
    return {"answers": named}


def json_of(text: str, wrong: str) -> Any:
    """Return JSON as its value.

    Args:
        text: The JSON.
        wrong: What is said where it is none, with the option's name.

    Raises:
        WrongUse: It is none.
    """
    try:
        return parse_json(text)
    except Unreadable as error:
        raise WrongUse(f"{wrong}: {error.where}: {error.reason}") from error


def value_of(text: str) -> Any:
    """Return JSON as its value, and anything else as the text that it is."""
    try:
        return parse_json(text)
    except Unreadable:
        return text
