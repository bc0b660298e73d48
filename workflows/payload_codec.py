"""What becomes of payloads on their way: they are encrypted, and large ones go as references.

Encryption is optional, and its ciphers are in ``process/ciphers.py``. References are what Temporal
calls a claim check.

The server ends a run, undoing nothing, that hands on more than 2 MiB at once, and takes no message
of more than 4 MiB. So whatever is large is kept in the artifact store, under the digest of its
content, and a small reference goes in its place. What is kept there is encrypted already. Workers
and clients speak it alike.

Workflow code never sees it: the SDK encodes and decodes outside of the sandbox.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

from pydantic import Field, ValidationError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from surehand.workflows import identity
from surehand.workflows.canonical_json import digest, is_too_deep
from surehand.workflows.contracts.base import UNREADABLE, Message, Unreadable

ENCODING_KEY: Final = "encoding"
#: The encoding of what is encrypted, as Temporal's own examples have it.
ENCRYPTED: Final = b"binary/encrypted"
#: The run whose key it is encrypted with. Whoever decrypts goes by it: lists, the Web UI and the
#: command line of Temporal have no context.
KEY_ID: Final = "encryption-key-id"
#: The workflow that it goes into or comes from, which may be a child run, and the part of it.
WORKFLOW_ID: Final = "workflow-id"
PART: Final = "part"
#: A bound of what encrypting adds to a payload, in bytes.
ADDED: Final = 768


class KeyUnavailable(Exception):
    """A key cannot be had now, or not with what is set here; what it is for is not lost."""


class NotDecrypted(Exception):
    """It is nothing that was encrypted for this place, or its key is no more."""


class KeyErased(NotDecrypted):
    """The run was erased: its key is no more, so nobody reads what the run has sent and kept."""

    def __init__(self, root: str, by: str, at: str) -> None:
        """Make it; ``by`` and ``at`` say who has erased it, and when."""
        super().__init__(
            f"run {root[:200]} was erased by {by} on {at}: nobody can read what it sent and kept"
        )
        self.root, self.by, self.at = root, by, at


class Pasted(NotDecrypted):
    """It is in plain, or encrypted for no run: it counts only where people send something."""

    def __init__(self, reason: str, payload: Payload) -> None:
        """Make it; ``payload`` is in plain."""
        super().__init__(reason)
        self.payload = payload


class Part(StrEnum):
    """What of a workflow a payload is of."""

    WORKFLOW = "workflow"
    """Its input and output, what is sent to it and asked of it."""
    ACTIVITY = "activity"
    """What goes into its activities and comes out of them."""
    ANY = "any"
    """Nobody has said so: Temporal's command line, whose payloads only name their tenant."""


class Place(NamedTuple):
    """Where a payload belongs; it counts nowhere else."""

    workflow_id: str
    part: Part

    @property
    def root(self) -> str:
        """The run whose key is the payload's."""
        return identity.root_run_id(self.workflow_id)

    def holds(self, named: Place) -> bool:
        """Return whether what says that it belongs to a place may be taken here."""
        if self.root != named.root or self.part is not named.part:
            return False
        # Those of a schedule have the time behind the id that they were made for.
        return self.workflow_id == named.workflow_id or is_upkeep(self.root)


def is_upkeep(root: str) -> bool:
    """Return whether that is no run, but what keeps a tenant's ledger in order."""
    return root == "" or root.endswith("/")


def place_named(payload: Payload) -> Place:
    """Return the place that an encrypted payload names; ``NotDecrypted``: it names none."""
    named = (payload.metadata.get(name, b"") for name in (WORKFLOW_ID, PART, KEY_ID))
    try:
        workflow_id, part, key_id = (value.decode() for value in named)
        place = Place(workflow_id, Part(part))
        if place.root != key_id:
            raise ValueError("two runs")
    except ValueError as error:
        raise NotDecrypted("it does not say what it was encrypted for") from error
    return place


def require_place(payload: Payload, place: Place | None) -> Place:
    """Return the place that a payload names; ``NotDecrypted``: it was found elsewhere."""
    named = place_named(payload)
    if place is not None and not place.holds(named):
        raise NotDecrypted(
            f"it was encrypted for {_place_text(named)}, and was found at {_place_text(place)}"
        )
    return named


def _place_text(place: Place) -> str:
    return f"{place.part} {place.workflow_id[:200]!r}"


class Encryption(Protocol):
    """Encrypts payloads with the key of their run."""

    async def encrypt(self, payload: Payload, place: Place, *, kept: bool) -> Payload:
        """Encrypt a payload.

        The same content that is ``kept`` in the artifact store comes out the same each time, so
        that a run that is replayed keeps it once.

        Raises:
            KeyUnavailable: The key cannot be had now.
            NotDecrypted: The run's key is no more.
        """

    async def decrypt(self, payload: Payload, place: Place | None) -> Payload:
        """Decrypt a payload; where nobody knows the place, what it says itself counts.

        Raises:
            KeyUnavailable: The key cannot be had now.
            NotDecrypted: It was encrypted for another place, or changed, or its key is no more.
        """


#: Bytes of a payload as the server gets it. A run of 4,000 events stays far below the 50 MiB that
#: the server lets a history have, and what most steps hand on needs no store.
LARGEST_PAYLOAD: Final = 64 * 1024
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
#: What people send in plain.
_PASTED: Final = frozenset({b"json/plain", b"binary/null"})
#: Where payloads are in a tenant's folder, apart from its artifacts.
_PAYLOADS: Final = "payloads"
#: The folder of those of which nobody says for which run they are.
_NO_RUN: Final = "_"
#: The folder that the URI of a reference may name, where nothing else says whose it is.
_FOLDER: Final = re.compile(f"[^/]+/{_PAYLOADS}/(?:{_NO_RUN}|[0-9a-f]{{64}})")


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


def path_of(tenant: str, sha256: str) -> str:
    problem = identity.tenant_problem(tenant)
    if problem is not None:
        raise NotKept(f"tenant {tenant[:80]!r}: {problem}")
    return f"{tenant}/sha256/{sha256[:2]}/{sha256}"


def payloads_of(workflow_id: str | None) -> str:
    """Return the folder in which payloads of a run and its child runs are: they go with it.

    ``None``: nobody says for which run a payload is.
    """
    if workflow_id is None:
        return f"{identity.DEFAULT_TENANT}/{_PAYLOADS}/{_NO_RUN}"
    of_run = digest(identity.root_run_id(workflow_id)).removeprefix("sha256:")
    return f"{identity.owner_of(workflow_id)}/{_PAYLOADS}/{of_run}"


def data_converter(
    open_store: Callable[[], Store], *, waits: bool, encryption: Encryption | None = None
) -> DataConverter:
    """Return what every client and worker converts payloads with.

    The artifact store is opened once something needs it. A worker ``waits``: what cannot be read
    now is an error, and Temporal tries again. A client gets ``Unreadable`` instead. With
    ``encryption`` all payloads are encrypted, and the messages of failures.
    """
    codec = PayloadKeeper(_Kept(open_store), waits=waits, encryption=encryption)
    converter = RunDataConverter(
        payload_converter_class=SharedPayloadConverter, payload_codec=codec
    )
    if encryption is None:
        return converter
    return dataclasses.replace(converter, failure_converter_class=EncryptedFailures)


class RunDataConverter(DataConverter):
    """A data converter whose copy for a context differs in its codec alone.

    The SDK copies the converter up to three times for each payload of a workflow. Its own copy
    makes the payload converter again, which took 8 % of a worker's processor time.
    """

    def with_context(self, context: SerializationContext) -> Self:
        assert isinstance(self.payload_codec, PayloadKeeper)
        mine = object.__new__(type(self))
        mine.__dict__.update(self.__dict__)
        mine.__dict__["payload_codec"] = self.payload_codec.with_context(context)
        return mine


class SharedPayloadConverter(PydanticPayloadConverter):
    """Pydantic's converter, of which a process has one.

    The SDK makes one for each context: for each activity, and for each payload of a workflow. Each
    new one would have to make its type adapters again.
    """

    _one: ClassVar[Self]

    def __new__(cls) -> Self:
        if "_one" not in vars(cls):
            made = super().__new__(cls)
            PydanticPayloadConverter.__init__(made)
            cls._one = made
        return cls._one

    def __init__(self) -> None:
        """Do nothing: it has been made."""

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Return values; what is of no type and cannot be read is ``Unreadable``.

        Such are signals: the SDK drops one that raises here, and nobody would be told.
        """
        try:
            return super().from_payloads(payloads, type_hints)
        except Exception as error:  # whatever a converter finds wrong with it
            if type_hints is not None:
                raise
            return [_stand_in(Unreadable(problem=str(error)))] * len(payloads)


async def _hash_in_thread(data: bytes) -> str:
    """Return a digest, made by a thread: a run may carry 32 MiB, and others have their turn."""
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()


class _Kept:
    """The store of one process, and what it remembers of it."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open = open_store
        self._store: Store | None = None
        self._known = OrderedDict[str, bytes]()
        self._bytes = 0

    async def put(self, path: str, data: bytes) -> None:
        if path not in self._known:
            store = self._open_once()
            # What is there need not be sent once more.
            if not await store.has(path, len(data)):
                await store.put(path, data)
        self._keep_in_memory(path, data)

    async def get(self, path: str, sha256: str) -> bytes:
        """Return verified content; ``StoreUnavailable``: it cannot be had, or is another."""
        data = self._known.get(path)
        if data is None:
            data = await self._open_once().get(path)
            if await _hash_in_thread(data) != sha256:
                raise NotKept("what is there is not what was kept")
        self._keep_in_memory(path, data)
        return data

    async def elsewhere(self, run_id: str) -> str | None:
        return await self._open_once().elsewhere(run_id)

    def _open_once(self) -> Store:
        if self._store is None:
            self._store = self._open()
        return self._store

    def _keep_in_memory(self, path: str, data: bytes) -> None:
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


#: The SDK handles each workflow task in a separate asyncio task.
_TASK: Final[ContextVar[_Task | None]] = ContextVar("workflow_task", default=None)


def _current_task() -> _Task | None:
    """Return the workflow task that is being handled here, not one that has led here."""
    task = _TASK.get()
    return task if task is not None and task.handler is asyncio.current_task() else None


class PayloadKeeper(PayloadCodec, WithSerializationContext):
    """Encrypts payloads, puts references in the place of large ones, and back."""

    def __init__(self, kept: _Kept, *, waits: bool, encryption: Encryption | None = None) -> None:
        self._kept = kept
        self._waits = waits
        self._encryption = encryption
        self._place: Place | None = None
        self._run_id: str | None = None
        """Of the run whose payloads these are, where that is known."""
        self._activity = self._local = False
        self._largest = LARGEST_SENT

    def with_context(self, context: SerializationContext) -> Self:
        # Made for each payload: `copy.copy` takes three times as long.
        mine = object.__new__(type(self))
        mine.__dict__.update(self.__dict__)
        if isinstance(context, WorkflowSerializationContext):
            mine._run_id = context.workflow_id
            mine._place = Place(context.workflow_id, Part.WORKFLOW)
            task = _current_task()
            if task is not None and task.is_of(context.workflow_id):
                mine._largest = LARGEST_PAYLOAD
            elif self._waits:
                _TASK.set(_Task(context.workflow_id, asyncio.current_task()))
        elif isinstance(context, ActivitySerializationContext):
            mine._run_id = context.workflow_id or ""
            mine._place = Place(context.workflow_id or "", Part.ACTIVITY)
            mine._activity, mine._local = True, context.is_local
            mine._largest = LARGEST_LOCAL if context.is_local else LARGEST_PAYLOAD
        return mine

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads, and keep what is large."""
        return [await self._encode_payload(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Fetch what references stand for, and decrypt."""
        return [await self._decode_payload(payload) for payload in payloads]

    async def _encode_payload(self, payload: Payload) -> Payload:
        added, task = ADDED if self._encryption else 0, _current_task()
        size = payload.ByteSize() + added
        if self._local and task is not None:
            return payload  # What a local activity takes stays in the process.
        over = task is not None and task.bytes + size > LARGEST_MESSAGE and size > LEAST + added
        large = over or size > self._largest
        if self._encryption is not None:
            place = self._place or Place("", Part.ANY)
            payload = await self._encryption.encrypt(payload, place, kept=large)
        if large:
            payload = await self._keep_payload(payload)
        if task is not None:
            task.bytes += payload.ByteSize()
        return payload

    async def _keep_payload(self, payload: Payload) -> Payload:
        data = payload.SerializeToString(deterministic=True)
        sha256 = await _hash_in_thread(data)
        path = f"{payloads_of(self._run_id)}/{sha256}"
        try:
            await self._kept.put(path, data)
        except StoreUnavailable as error:
            what = f"a payload of {len(data)} bytes is too large to be sent as it is"
            raise StoreUnavailable(f"{what}, and the artifact store: {error}") from error
        reference = Reference(uri=path, sha256=sha256, bytes=len(data))
        text = json.dumps(reference.model_dump(mode="json"))
        return Payload(metadata={ENCODING_KEY: ENCODING}, data=text.encode())

    async def _decode_payload(self, payload: Payload) -> Payload:
        reference: Reference | None = None
        said: dict[str, Any] = {}
        try:
            if payload.metadata.get(ENCODING_KEY) == ENCODING:
                reference = Reference.model_validate_json(payload.data)
                payload = await self._fetch_content(reference)
            return await self._decrypt_payload(payload)
        except ValidationError:
            problem = "it is no reference"
        except NotDecrypted as error:
            # Whoever can reach the server can send anything: that stops no run. What an activity
            # gets or returns is a worker's to say.
            problem = str(error)
            if self._waits and self._activity:
                raise
            if isinstance(error, Pasted):
                said = _said_in(error.payload)
        except NotKept as error:
            # As above.
            problem = str(error)
            if self._waits and self._activity:
                raise
            # But in another store than the run's, nothing is anywhere: another worker may have it.
            if self._waits and (why := await self._kept.elsewhere(self._run_id or "")) is not None:
                raise StoreUnavailable(f"{why}: {problem}") from error
        except (StoreUnavailable, KeyUnavailable) as error:
            problem = str(error)
            if self._waits:
                raise
        uri, size = (reference.uri, reference.bytes) if reference else ("", 0)
        text = json.dumps(_stand_in(Unreadable(uri=uri, bytes=size, problem=problem, **said)))
        return Payload(metadata={ENCODING_KEY: b"json/plain"}, data=text.encode())

    async def _decrypt_payload(self, payload: Payload) -> Payload:
        encrypted = payload.metadata.get(ENCODING_KEY) == ENCRYPTED
        if self._encryption is None:
            if encrypted:
                raise NotDecrypted("it is encrypted, and no keys are set here")
            return payload
        if encrypted:
            named, here = place_named(payload), self._place
            if named.part is not Part.ANY or here is None:
                return await self._encryption.decrypt(payload, here)
            # Of Temporal's command line: it says whose it is, and not which run it is for.
            anywhere = Place(
                identity.run_id_for(identity.tenant_of_run(here.workflow_id), ""), Part.ANY
            )
            raise Pasted(
                "it does not say what it is for", await self._encryption.decrypt(payload, anywhere)
            )
        if self._local and _current_task() is None:
            return payload  # What a local activity takes has stayed in the process.
        raise Pasted("it is in plain, and here only what is encrypted counts", payload)

    async def _fetch_content(self, reference: Reference) -> Payload:
        # Never by the URI of a message where the run is known: nobody reads another's.
        named = reference.uri.rpartition("/")[0]
        folder = named if self._run_id is None else payloads_of(self._run_id)
        if _FOLDER.fullmatch(folder) is None:
            raise NotKept(f"{folder[:200]!r} is no folder of payloads")
        data = await self._kept.get(f"{folder}/{reference.sha256}", reference.sha256)
        try:
            content = Payload.FromString(data)
        except Exception as error:  # the decoder's own type
            raise NotKept("what is there is no payload") from error
        if content.metadata.get(ENCODING_KEY) == ENCODING:
            raise NotKept("what is there is a reference again")
        return content


def _stand_in(unreadable: Unreadable) -> dict[str, Any]:
    return {UNREADABLE: unreadable.model_dump(mode="json", exclude_defaults=True)}


def _said_in(payload: Payload) -> dict[str, Any]:
    """Return what a pasted payload says, as ``Unreadable`` has it; nothing if it is no JSON."""
    encoding = payload.metadata.get(ENCODING_KEY)
    if encoding not in _PASTED:
        return {}
    try:
        said = None if encoding == b"binary/null" else json.loads(payload.data)
        if is_too_deep(said):
            return {}
        # Whatever is no JSON of ours must not stop the run that it was sent to.
        json.dumps(said, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return {"pasted": True, "said": said}


class EncryptedFailures(DefaultFailureConverterWithEncodedAttributes):
    """Has messages of failures encrypted, and takes no type of a failure that was not.

    What a run makes of a failure goes by its type: one that proves that nothing has happened must
    come from a worker. Whoever reaches the server could end an activity with any.
    """

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        """Write the type beside the message, where it is encrypted."""
        super().to_failure(exception, payload_converter, failure)
        if failure.HasField("application_failure_info"):
            said = _sealed_fields(failure, payload_converter) | _shown_fields(failure)
            [sealed] = payload_converter.to_payloads([said])
            failure.encoded_attributes.CopyFrom(sealed)

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Take the type where it is the one that was encrypted; otherwise there is none."""
        if failure.HasField("application_failure_info"):
            said = _sealed_fields(failure, payload_converter)
            if {name: said.get(name) for name in _shown_fields(failure)} != _shown_fields(failure):
                untyped = Failure()
                untyped.CopyFrom(failure)
                untyped.application_failure_info.type = ""
                failure = untyped
        return super().from_failure(failure, payload_converter)


def _sealed_fields(failure: Failure, payload_converter: PayloadConverter) -> dict[str, Any]:
    if not failure.HasField("encoded_attributes"):
        return {}
    [said] = payload_converter.from_payloads([failure.encoded_attributes])
    return said if isinstance(said, dict) else {}


def _shown_fields(failure: Failure) -> dict[str, Any]:
    info = failure.application_failure_info
    return {"type": info.type, "final": info.non_retryable}
