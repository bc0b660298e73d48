"""A policy of the user's own, asked right before a claim: OPA over HTTP, or Cedar in this process.

Only an answer to exactly what was asked counts. No answer, a late one, one to something else and
one that says nothing are no yes: the call waits, and the policy is asked again. People are not
asked in its place: while a server is away, that would be about everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surehand.activities.ledger.limits import PolicyAnswer, Said
from surehand.activities.limits_file import AskedPolicy, LimitsError, check_policy, read_file
from surehand.activities.tools.toolbox import Toolbox
from surehand.verify import BadSignature, json_object
from surehand.workflows.plain_text import clean_text

#: Bytes of an answer.
_LARGEST_ANSWER: Final = 65_536
#: Of what is told of it: reasons, and characters of each.
_MOST_REASONS, _LONGEST_REASON = 5, 200


class NoAnswer(Exception):
    """The policy has not said what is to be done; the message says why."""


Evaluate = Callable[[Mapping[str, Any]], Awaitable[PolicyAnswer]]


#: How soon a policy that has not answered is asked again.
PAUSE: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class OwnPolicy:
    """The policy that the file of limits names."""

    asked: AskedPolicy
    evaluate: Evaluate

    async def answer(self, facts: Mapping[str, Any]) -> PolicyAnswer:
        """Return what the policy says of a call, or ``none`` with the reason."""
        try:
            return await self.evaluate(facts)
        except NoAnswer as error:
            return _make_answer("none", facts, [str(error)], "none")


def read_policy(path: str, toolbox: Toolbox) -> OwnPolicy | None:
    """Return the policy that a file of limits names, if any. Raises ``LimitsError``."""
    asked = read_file(path).policy
    if asked is None:
        return None
    check_policy(path, asked, toolbox)
    if asked.opa is not None:
        return OwnPolicy(asked, _Opa(asked.opa, asked.timeout))
    try:
        return OwnPolicy(asked, _Cedar(Path(path).parent / str(asked.cedar)))
    except (OSError, ValueError, ImportError) as error:
        raise LimitsError(f"limits file {path}: policy.cedar: {error}") from error


#: What Cedar is asked, one after the other, and what its permission says.
_ACTIONS: Final[Mapping[str, Said]] = {"call": "allow", "ask": "ask"}


def _make_answer(
    said: Said, facts: Mapping[str, Any], reasons: list[str], version: str
) -> PolicyAnswer:
    told = (clean_text(reason, _LONGEST_REASON) for reason in reasons[:_MOST_REASONS])
    return PolicyAnswer(said, "; ".join(told), clean_text(version, _LONGEST_REASON), facts)


class _Result(BaseModel):
    """What a rule of OPA has to say."""

    model_config = ConfigDict(strict=True, frozen=True)

    answer: Literal["allow", "ask", "refuse"]
    question: str
    """As it was in the input: a cache, or a proxy, has mixed up no answers."""
    version: str = Field(min_length=1)
    reasons: list[str] = []


class _Opa:
    """OPA's Data API: ``POST /v1/data/PATH`` with the facts as ``input``."""

    def __init__(self, url: str, limit: timedelta) -> None:
        import httpx  # Only who asks OPA loads it.

        self._url, self._limit = url, limit.total_seconds()
        self._client = httpx.AsyncClient(trust_env=False, timeout=self._limit)

    async def __call__(self, facts: Mapping[str, Any]) -> PolicyAnswer:
        import httpx

        question = secrets.token_hex(16)
        asked, raw = {"input": {**facts, "question": question}}, bytearray()
        try:
            async with (
                # Of the whole: a server may send a byte now and then.
                asyncio.timeout(self._limit),
                self._client.stream("POST", self._url, json=asked) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise NoAnswer(f"OPA has answered {response.status_code}")
                async for part in response.aiter_bytes():
                    raw += part
                    if len(raw) > _LARGEST_ANSWER:
                        raise NoAnswer(f"OPA's answer is longer than {_LARGEST_ANSWER} bytes")
        except TimeoutError as error:
            raise NoAnswer(f"OPA has not answered within {self._limit:g} s") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"OPA does not answer: {type(error).__name__}") from error
        return self._read(bytes(raw), question, facts)

    def _read(self, raw: bytes, question: str, facts: Mapping[str, Any]) -> PolicyAnswer:
        try:
            result = _Result.model_validate(json_object(raw, "OPA's answer").get("result"))
        except BadSignature as error:
            raise NoAnswer(str(error)) from error
        except ValidationError as error:
            where = ".".join(map(str, ("result", *error.errors()[0]["loc"])))
            raise NoAnswer(f"OPA's answer is undefined or malformed: {where}") from error
        if result.question != question:
            raise NoAnswer("OPA's answer is to another question")
        return _make_answer(result.answer, facts, result.reasons, result.version)


class _Cedar:
    """Cedar's policies in a file: they permit the action ``call``, or else ``ask``."""

    def __init__(self, path: Path) -> None:
        # Only who writes such policies has it: surehand[cedar].
        self._cedar = import_module("cedarpy")
        text = path.read_text(encoding="utf-8")
        self._policies = self._cedar.PolicySet.from_str(text)
        self._version = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    async def __call__(self, facts: Mapping[str, Any]) -> PolicyAnswer:
        reasons: list[str] = []
        for action, said in _ACTIONS.items():
            found = self._cedar.is_authorized(
                {
                    # Not in Cedar's own syntax: nobody's name ends a text in it.
                    "principal": {"type": "User", "id": facts["user"]},
                    "action": {"type": "Action", "id": action},
                    "resource": {"type": "Tool", "id": facts["tool"]},
                    "context": dict(facts),
                },
                self._policies,
                [],
            )
            # Cedar passes over a policy that fails, also over one that forbids.
            if found.diagnostics.errors or found.decision is self._cedar.Decision.NoDecision:
                raise NoAnswer(f"Cedar: {'; '.join(found.diagnostics.errors) or 'no decision'}")
            reasons += found.diagnostics.reasons
            if found.decision is self._cedar.Decision.Allow:
                return _make_answer(said, facts, reasons, self._version)
        return _make_answer("refuse", facts, reasons or ["nothing permits it"], self._version)
