"""The outside world of a drill: the user's own functions, and comparing what they return.

``world(context)`` returns what a run's effects have left behind, as JSON. ``fresh(context)`` makes
the outside world ready for one more run and returns the plan's input for it, such as the id of a
new order. ``already(context)`` leaves the world as a step's call would. All may be async.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from surehand.process.exits import WrongUse

#: Shorter fresh values are not looked for in a snapshot: they would be found by chance.
SHORTEST_NAMED: Final = 4
#: Key of a snapshot under which the world counts its effects, ``{"refunds": 1}``.
EFFECTS: Final = "effects"
#: Key of a snapshot under which the world says how often models were asked.
TURNS: Final = "turns"


@dataclass(frozen=True)
class Context:
    """What the user's functions are given: the run that is about to start, or has ended.

    Example:
        >>> def world(context: Context) -> dict[str, object]:
        ...     refunds = {"order-7": ["re-1"]}
        ...     found = refunds.get(str(context.input["order_id"]), [])
        ...     return {"effects": {"refunds": len(found)}, "refunds": found}
        >>> world(Context("drill-1", {"order_id": "order-7"}, "sqlite:///ledger.sqlite"))["effects"]
        {'refunds': 1}
    """

    run_id: str
    input: Mapping[str, Any]
    """The plan's input; for ``world`` with what ``fresh`` returned."""
    database_url: str
    """The case's ledger, where ``transactional`` tools leave their effects, too."""
    step: str = ""
    """For ``already``: the step whose effect the world is to show before the run."""


@dataclass(frozen=True)
class Function:
    """A function of the user's, and the name it goes by in reports and errors."""

    name: str
    body: Callable[[Context], Any]

    @classmethod
    def load(cls, option: str, given: str | Callable[[Context], Any]) -> Function:
        """Return a function that is given as such, or as ``module:function``."""
        if callable(given):
            return cls(f"{given.__module__}:{getattr(given, '__qualname__', given)}", given)
        module_name, _, name = given.partition(":")
        if not module_name or not name:
            raise WrongUse(f"{option} {given!r}: write it as module:function")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        try:
            body = getattr(importlib.import_module(module_name), name)
        except Exception as error:  # user code may raise anything while it is imported
            raise WrongUse(f"{option} {given}: {type(error).__name__}: {error}") from error
        if not callable(body):
            raise WrongUse(f"{option} {given}: it is not a function")
        return cls(given, body)

    async def __call__(self, context: Context) -> Any:
        """Return what it returns, as JSON has it.

        Raises:
            WrongUse: It failed, or what it returned is no JSON.
        """
        try:
            if inspect.iscoroutinefunction(self.body):
                value = await self.body(context)
            else:
                value = await asyncio.to_thread(self.body, context)
                value = await value if inspect.isawaitable(value) else value
            return json.loads(json.dumps(value))
        except Exception as error:
            raise WrongUse(
                f"{self.name} failed for run {context.run_id}: {type(error).__name__}: {error}"
            ) from error


def comparable(snapshot: Any, context: Context, fresh: Mapping[str, Any]) -> Any:
    """Return a snapshot in which this run's own values are written by name.

    Every text that holds a fresh value (``order-7f3a``) gets its name (``${input.order_id}``)
    instead, keys included, so that the worlds of two runs compare equal.
    """
    names = {
        value: f"${{input.{name}}}"
        for name, value in fresh.items()
        if isinstance(value, str) and len(value) >= SHORTEST_NAMED
    }
    names[context.run_id] = "${run_id}"
    longest_first = sorted(names.items(), key=lambda item: len(item[0]), reverse=True)

    def rewrite(value: Any) -> Any:
        if isinstance(value, str):
            for text, name in longest_first:
                value = value.replace(text, name)
            return value
        if isinstance(value, list):
            return [rewrite(item) for item in value]
        if isinstance(value, dict):
            return {rewrite(key): rewrite(item) for key, item in value.items()}
        return value

    return rewrite(snapshot)


def own_count(snapshot: Any) -> dict[str, int] | None:
    """Return the world's own count of its effects, if the snapshot has one."""
    counts = snapshot.get(EFFECTS) if isinstance(snapshot, dict) else None
    if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
        return None
    return counts


def without_turns(snapshot: Any) -> tuple[int | None, Any]:
    """Return how often models were asked, if the snapshot says so, and all else that it says."""
    asked = snapshot.get(TURNS) if isinstance(snapshot, dict) else None
    if type(asked) is not int:
        return None, snapshot
    return asked, {name: part for name, part in snapshot.items() if name != TURNS}


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield each place where two snapshots differ, as one line."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            place = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"{place}: missing, expected {_short(expected[key])}"
            elif key not in expected:
                yield f"{place}: {_short(found[key])}, not expected"
            else:
                yield from differences(expected[key], found[key], place)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, list) and isinstance(found, list):
        yield f"{where}: {len(found)} items, expected {len(expected)}: {_short(found)}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{where}: {_short(found)}, expected {_short(expected)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:159]}…"
