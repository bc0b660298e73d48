"""The examples in the docstrings of public names, and how they are played."""

from __future__ import annotations

import ast
import doctest
import inspect
import sys
from typing import Any, Final

import pytest

import surehand

#: Public names whose examples are about a run, and need a worker.
OF_A_RUN: Final = {
    *("Acknowledged", "ApprovalRequest", "CancelMode", "Client", "CutOff", "DecisionOutcome"),
    *("DecisionRefused", "Left", "ListedRun", "NoSuchRun", "NoWorker", "NotReachable", "Paused"),
    "Pending",
    *("PlanRefused", "Refused", "ResolutionOutcome", "Run", "RunResult", "RunState", "RunView"),
    *("SeenRequest", "StartNotTaken", "Verdict", "VerdictCode", "WrongUse"),
}


def public_names() -> dict[str, Any]:
    """Return what an example of the docs has imported."""
    return {name: getattr(surehand, name) for name in surehand.__all__}


async def play(text: str, names: dict[str, Any]) -> None:
    """Run the examples of a docstring, and hold what they show against what they say."""
    for example in doctest.DocTestParser().get_examples(text):
        shown: list[Any] = []
        code = compile(example.source, "<example>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        # Not what is printed: the worker in this process logs.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "displayhook", shown.append)
            said = ""
            try:
                waiting = eval(code, names)
                if inspect.isawaitable(waiting):
                    await waiting
            except Exception as error:
                if example.exc_msg is None:
                    raise
                said = f"{type(error).__name__}: {error}\n"
        said += "".join(f"{value!r}\n" for value in shown if value is not None)
        assert said == (example.exc_msg or example.want), example.source
