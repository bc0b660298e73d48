"""What models of agents say, by what they are asked and were told: one script for all frameworks.

A model counts in a file, one byte a request, before it answers: what dies with its worker counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Before the input of a run, in the prompt of an agent that a plan names.
_INPUT: Final = "Input:\n"
#: What a model says that tells a story.
STORY: Final = "Once upon a time."
#: How often a model reads that talks long.
MANY: Final = 50


@dataclass(frozen=True)
class Call:
    """A call that a model makes."""

    tool: str
    params: Any
    id: str | None = None
    """Where a script wants one that other turns have, too."""


@dataclass(frozen=True)
class Said:
    """What a model says in a turn."""

    text: str = ""
    calls: tuple[Call, ...] = ()


#: What a model says, by its prompt and what it was told of its calls.
Script = Callable[[str, list[Any]], Said]


def count_turn(prompt: str) -> str:
    """Count a turn in the file that a prompt names, and return the order that it names."""
    path, order_id = _named(prompt)
    with path.open("a") as file:
        file.write("x")
    return order_id


def turns_of(prompt: str) -> int:
    """Return how often turns were counted in the file that a prompt names."""
    return _named(prompt)[0].stat().st_size


def _named(prompt: str) -> tuple[Path, str]:
    _, given, values = prompt.partition(_INPUT)
    if given:
        path, order_id = (str(json.loads(values)[name]) for name in ("count", "order_id"))
    else:
        _, path, order_id, *_ = prompt.split(" ")
    return Path(path), order_id


def paying(order_id: str) -> dict[str, str]:
    """Return the params of a refund."""
    return {"order_id": order_id, "amount": "120.00", "currency": "EUR", "reason": "late"}


def reads(prompt: str, place: int | None = None) -> Call:
    return Call("orders_read", {"order_id": _named(prompt)[1]}, _id(place))


def pays(prompt: str, place: int | None = None) -> Call:
    return Call("payments_refund", paying(_named(prompt)[1]), _id(place))


def _id(place: int | None) -> str | None:
    """Return the id of a call as some servers of models make it: the same in each turn."""
    return None if place is None else f"call_{place}"


def calling(*calls: Call) -> Said:
    return Said(calls=calls)


def told_of(told: list[Any]) -> Said:
    return Said(json.dumps(told))


def refund(prompt: str, told: list[Any]) -> Said:
    """Read an order, refund it, and say what came of it."""
    if not told:
        return calling(reads(prompt))
    return calling(pays(prompt)) if len(told) == 1 else Said(f"told: {told[-1]}")


def ask(prompt: str, told: list[Any]) -> Said:
    """Ask a human, and give up where the answer is no."""
    if not told:
        given = {"question": "Pay it back?", "answer": {"type": "boolean"}}
        return calling(Call("ask_human", given))
    if told == [False]:
        return calling(Call("give_up", {"reason": "nobody wants it"}))
    return Said(f"told: {told[0]}")


def tell(prompt: str, told: list[Any]) -> Said:
    """Tell a story."""
    return Said(STORY)


def long_talk(prompt: str, told: list[Any]) -> Said:
    """Read an order many times over, and talk about it at length."""
    if len(told) == MANY:
        return Said("done")
    return Said(f"{len(told)}: " + "hm " * 150, (reads(prompt),))


def never_done(prompt: str, told: list[Any]) -> Said:
    """Read an order again and again."""
    return calling(reads(prompt))


def read_and_refund(prompt: str, told: list[Any]) -> Said:
    """Read an order and refund it, both by one call id, and say what came of it."""
    return told_of(told) if told else calling(reads(prompt, 0), pays(prompt, 0))


def look_and_refund(prompt: str, told: list[Any]) -> Said:
    """Have another agent look at the order, refund it, and say what came of it."""
    if told:
        return told_of(told)
    return calling(Call("research", {"input": prompt}, _id(0)), pays(prompt, 1))


def look_twice(prompt: str, told: list[Any]) -> Said:
    """Read an order twice."""
    return Said("looked") if len(told) == 2 else calling(reads(prompt, len(told)))


def share_out(prompt: str, told: list[Any]) -> Said:
    """Have a clerk for each order that the prompt names pay it back, and say what came of it."""
    if told:
        return told_of(told)
    begin, path, *orders = prompt.split(" ")
    shares = [f"{begin} {path} {order_id}" for order_id in orders]
    return calling(*(Call("pay", {"input": one}, _id(at)) for at, one in enumerate(shares)))


def pay_back(prompt: str, told: list[Any]) -> Said:
    """Refund an order, and say what came of it."""
    return told_of(told) if told else calling(pays(prompt, 0))


def from_texts(script: Script) -> Script:
    """Return a script for models that are told JSON as text."""

    def value_of(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    return lambda prompt, told: script(prompt, [value_of(one) for one in told])
