"""Questions that a tool asks a human in the middle of its call, before its effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from surehand.activities.tools.output_json import clean_text
from surehand.workflows.identity import digest

#: Characters of a question.
LONGEST_QUESTION = 2000


class NeedsAnswer(BaseException):
    """A tool cannot go on without an answer; the call begins anew once a human has given it.

    Not an ``Exception``: a tool that catches those must not go on without its answer.
    """

    def __init__(self, question: str, schema: dict[str, Any], before: int = 0) -> None:
        """Say what is asked, and how many of the call's answers stand before it."""
        super().__init__(question)
        self.question = question
        self.schema = schema
        self.before = before

    @property
    def digest(self) -> str:
        """What tells the question from others."""
        return digest({"question": self.question, "schema": self.schema})


class Answers:
    """What humans have answered to one call, handed out in the order of its questions.

    Each with the digest of its question: another one in its place is asked anew.
    """

    def __init__(self, given: Sequence[tuple[str, JsonValue]] = ()) -> None:
        """Begin with the digests of the questions so far, and their answers."""
        self._given = given
        self._asked = 0

    def next(self, question: str, schema: dict[str, Any] | None) -> JsonValue:
        """Return the answer to the call's next question.

        Raises:
            NeedsAnswer: Nobody has answered it yet, but at most another one in its place.
        """
        text = clean_text(str(question), LONGEST_QUESTION)
        needed = NeedsAnswer(text, dict(schema or {}), before=self._asked)
        if self._asked >= len(self._given):
            raise needed
        about, answer = self._given[self._asked]
        if about != needed.digest:
            raise needed
        self._asked += 1
        return answer
