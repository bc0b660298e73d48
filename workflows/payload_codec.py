"""Large payloads travel as references: Temporal calls this a claim check.

The server ends a run, undoing nothing, that hands on more than 2 MiB at once, and takes no message
of more than 4 MiB. So whatever is large is kept in the artifact store, under the digest of its
content, and a small reference goes in its place. Workers and clients speak it alike.

Workflow code never sees it: the SDK encodes and decodes outside of the sandbox.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, Self

from pydantic import Field, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from surehand.workflows.contracts.base import Message
from surehand.workflows.identity import (
    DEFAULT_TENANT,
    tenant_of_run,
    tenant_problem,
)

#: Bytes of a payload as the server gets it. A run of 4,000 events stays far below the 50 MiB that
#: the server lets a history have, and what most steps hand on needs no store.
LARGEST: Final = 64 * 1024
#: The same of what goes between a run and people: a starter may have no store, and each is alone
#: in its message. The server takes 2 MiB.
LARGEST_SENT: Final = 1024 * 1024
#: What a local activity returns: all of one workflow task go to the server in one message.
LARGEST_LOCAL: Final = 8 * 1024
#: What one workflow task hands on goes in one message: once that has this many bytes, all that is
#: larger than a reference is kept. A thousand steps that begin at once are 1 MiB of references.
LARGEST_MESSAGE: Final = 1024 * 1024
LEAST: Final = 1024
#: Bytes of content that a process remembers: replays, and lists whose facts go to each of their
#: items, ask the store once.
MOST_REMEMBERED: Final = 64 * 1024 * 1024

ENCODING: Final = b"json/surehand-kept"
_ENCODING_KEY: Final = "encoding"
#: The one key of what stands for a payload that cannot be had here.
UNREADABLE: Final = "$unreadable"
#: Where payloads go of workflows whose id begins with no tenant's name.
_NOBODYS: Final = "_"


class StoreUnavailable(Exception):
    """The artifact store does not answer, or does not take it."""


class NotKept(StoreUnavailable):
    """The artifact store answers, and does not have it, or has something else there."""


class Store(Protocol):
    """Where content is kept; ``process/blobs.py`` has the real one."""

    async def has(self, path: str, size: int) -> bool:
        """Return whether that many bytes are kept under a path."""

    async def put(self, path: str, data: bytes) -> None:
        """Keep something."""

    async def get(self, path: str) -> bytes:
        """Return what is kept; ``NotKept`` where there is nothing."""

    async def elsewhere(self, run_id: str) -> str | None:
        """Return why what a run hands on is to be looked for elsewhere; ``None``: it is not."""


class Reference(Message):
    """What goes in the place of a large payload."""

    uri: str
    """Path inside the artifact store."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the payload, with its metadata, as Temporal's protocol writes it."""
    bytes: int


class Unreadable(Message):
    """What a reader gets whose artifact store cannot be reached, or is another one."""

    uri: str = ""
    bytes: int = 0
    problem: str

    def __str__(self) -> str:
        """Return it as one line."""
        size = f" of {self.bytes} bytes" if self.bytes else ""
        where = f", kept as {self.uri} in the artifact store," if self.uri else ""
        return f"a payload{size}{where} cannot be read here: {self.problem}"


def as_unreadable(value: Any) -> Unreadable | None:
    """Return what is known of a payload that could not be had; ``None``: it is the value itself."""
    if not isinstance(value, dict) or set(value) != {UNREADABLE}:
        return None
    try:
        return Unreadable.model_validate(value[UNREADABLE])
    except ValidationError:
        return None


def path_of(tenant: str, sha256: str) -> str:
    """Return where in the artifact store something of a tenant is, by its digest.

    Raises:
        NotKept: There can be no such tenant.
    """
    problem = tenant_problem(tenant)
    if problem is not None:
        raise NotKept(f"tenant {tenant[:80]!r}: {problem}")
    return f"{tenant}/sha256/{sha256[:2]}/{sha256}"


def _folder_of(workflow_id: str) -> str:
    tenant = tenant_of_run(workflow_id)
    return tenant if tenant_problem(tenant) is None else _NOBODYS


def data_converter(open_store: Callable[[], Store], *, waits: bool) -> DataConverter:
    """Return what every client and worker converts payloads with.

    Args:
        open_store: Opens the artifact store, once something needs it.
        waits: For a worker: what cannot be read now is an error, and Temporal tries again. A
            client gets ``Unreadable`` instead.
    """
    codec = PayloadKeeper(_Kept(open_store), waits=waits)
    return dataclasses.replace(pydantic_data_converter, payload_codec=codec)


class _Kept:
    """The store of one process, and what it remembers of it."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self._store: Store | None = None
        self._known = OrderedDict[str, bytes]()
        self._bytes = 0

    async def put(self, path: str, data: bytes) -> None:
        if path not in self._known:
            store = self._opened()
            # What is there need not be sent once more.
            if not await store.has(path, len(data)):
                await store.put(path, data)
        self._remember(path, data)

    async def get(self, path: str, sha256: str) -> bytes:
        """Return content, verified.

        Raises:
            StoreUnavailable: It cannot be had, or is not what was kept.
        """
        data = self._known.get(path)
        if data is None:
            data = await self._opened().get(path)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise NotKept("what is there is not what was kept")
        self._remember(path, data)
        return data

    async def elsewhere(self, run_id: str) -> str | None:
        return await self._opened().elsewhere(run_id)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _remember(self, path: str, data: bytes) -> None:
        if path in self._known:
            self._known.move_to_end(path)
            return
        self._known[path] = data
        self._bytes += len(data)
        while self._bytes > MOST_REMEMBERED:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= len(forgotten)


@dataclasses.dataclass
class _Task:
    """What one workflow task of a run hands on."""

    run_id: str
    handler: asyncio.Task[Any] | None
    bytes: int = 0

    def is_of(self, run_id: str) -> bool:
        """Return whether this task may hand something on to that run: a child, or the parent."""
        ours, theirs = self.run_id, run_id
        return theirs.startswith(f"{ours}~") or ours.startswith(f"{theirs}~")


#: The SDK handles each workflow task in an asyncio task of its own.
_TASK: Final[ContextVar[_Task | None]] = ContextVar("workflow_task", default=None)


def _task() -> _Task | None:
    """Return the workflow task that is being handled here, not one that has led here."""
    task = _TASK.get()
    return task if task is not None and task.handler is asyncio.current_task() else None


class PayloadKeeper(PayloadCodec, WithSerializationContext):
    """Puts references in the place of large payloads, and back."""

    def __init__(self, kept: _Kept, *, waits: bool) -> None:
        self._kept = kept
        self._waits = waits
        self._tenant: str | None = None
        self._run_id = ""
        self._activity = self._local = False
        self._largest = LARGEST_SENT

    def with_context(self, context: SerializationContext) -> Self:
        """Return the codec for the payloads of one run, or of one of its activities."""
        mine = copy.copy(self)
        if isinstance(context, WorkflowSerializationContext):
            mine._tenant = _folder_of(context.workflow_id)
            mine._run_id = context.workflow_id
            task = _task()
            if task is not None and task.is_of(context.workflow_id):
                mine._largest = LARGEST
            elif self._waits:
                _TASK.set(_Task(context.workflow_id, asyncio.current_task()))
        elif isinstance(context, ActivitySerializationContext):
            mine._tenant = _folder_of(context.workflow_id or "")
            mine._activity, mine._local = True, context.is_local
            mine._largest = LARGEST_LOCAL if context.is_local else LARGEST
        return mine

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Keep what is large.

        Raises:
            StoreUnavailable: The store does not take it.
        """
        return [await self._encoded(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Fetch what references stand for.

        Raises:
            StoreUnavailable: It cannot be had now.
        """
        return [await self._decoded(payload) for payload in payloads]

    async def _encoded(self, payload: Payload) -> Payload:
        size, task = payload.ByteSize(), _task()
        if self._local and task is not None:
            return payload  # What a local activity takes stays in the process.
        over = task is not None and task.bytes + size > LARGEST_MESSAGE and size > LEAST
        if over or size > self._largest:
            payload = await self._reference(payload)
        if task is not None:
            task.bytes += payload.ByteSize()
        return payload

    async def _reference(self, payload: Payload) -> Payload:
        data = payload.SerializeToString(deterministic=True)
        sha256 = hashlib.sha256(data).hexdigest()
        path = path_of(DEFAULT_TENANT if self._tenant is None else self._tenant, sha256)
        try:
            await self._kept.put(path, data)
        except StoreUnavailable as error:
            what = f"a payload of {len(data)} bytes is too large to be sent as it is"
            raise StoreUnavailable(f"{what}, and the artifact store: {error}") from error
        reference = Reference(uri=path, sha256=sha256, bytes=len(data))
        text = json.dumps(reference.model_dump(mode="json"))
        return Payload(metadata={_ENCODING_KEY: ENCODING}, data=text.encode())

    async def _decoded(self, payload: Payload) -> Payload:
        if payload.metadata.get(_ENCODING_KEY) != ENCODING:
            return payload
        reference: Reference | None = None
        try:
            reference = Reference.model_validate_json(payload.data)
            return await self._content(reference)
        except ValidationError:
            problem = "it is no reference"
        except NotKept as error:
            # Whoever can reach the server can send a reference to nothing: that stops no run.
            problem = str(error)
            if self._waits and self._activity:
                raise
            # But in another store than the run's, nothing is anywhere: another worker may have it.
            if self._waits and (why := await self._kept.elsewhere(self._run_id)) is not None:
                raise StoreUnavailable(f"{why}: {problem}") from error
        except StoreUnavailable as error:
            problem = str(error)
            if self._waits:
                raise
        uri, size = (reference.uri, reference.bytes) if reference else ("", 0)
        unreadable = Unreadable(uri=uri, bytes=size, problem=problem).model_dump(mode="json")
        text = json.dumps({UNREADABLE: unreadable})
        return Payload(metadata={_ENCODING_KEY: b"json/plain"}, data=text.encode())

    async def _content(self, reference: Reference) -> Payload:
        # Never by the URI of a message where the tenant is known: nobody reads another's.
        tenant = reference.uri.partition("/")[0] if self._tenant is None else self._tenant
        data = await self._kept.get(path_of(tenant, reference.sha256), reference.sha256)
        try:
            content = Payload.FromString(data)
        except Exception as error:  # the decoder's own type
            raise NotKept("what is there is no payload") from error
        if content.metadata.get(_ENCODING_KEY) == ENCODING:
            raise NotKept("what is there is a reference again")
        return content
