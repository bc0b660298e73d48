"""Large payloads travel by reference: verified, kept once, the same each time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    SerializationContext,
    WorkflowSerializationContext,
)
from temporalio.exceptions import ApplicationError

from surehand.process.blobs import Blobs
from surehand.workflows.contracts.base import as_unreadable
from surehand.workflows.payload_codec import (
    ENCODING,
    LARGEST_LOCAL,
    LARGEST_MESSAGE,
    LARGEST_PAYLOAD,
    LARGEST_SENT,
    LEAST,
    Reference,
    StoreUnavailable,
    data_converter,
    payloads_of,
)

LARGE = {"text": "x" * LARGEST_PAYLOAD}


class Counted(Blobs):
    """A store that counts what it is asked for, and can be cut off."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.put_paths: list[str] = []
        self.got_paths: list[str] = []
        self.cut_off = False

    async def has(self, path: str, size: int) -> bool:
        self._reach()
        return await super().has(path, size)

    async def put(self, path: str, data: bytes) -> None:
        self._reach()
        self.put_paths.append(path)
        await super().put(path, data)

    async def get(self, path: str) -> bytes:
        self._reach()
        self.got_paths.append(path)
        return await super().get(path)

    def _reach(self) -> None:
        if self.cut_off:
            raise StoreUnavailable("cut off")


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "artifacts")


def activity(run_id: str = "run", *, local: bool = False) -> SerializationContext:
    return ActivitySerializationContext("default", None, None, None, run_id, None, local)


def run(run_id: str = "run") -> SerializationContext:
    return WorkflowSerializationContext("default", run_id)


def worker(store: Counted, context: SerializationContext | None = None) -> DataConverter:
    converter = data_converter(lambda: store, waits=True)
    return converter.with_context(activity() if context is None else context)


def client(store: Counted, context: SerializationContext | None = None) -> DataConverter:
    return data_converter(lambda: store, waits=False).with_context(context or run())


def is_reference(payload: Payload) -> bool:
    return payload.metadata["encoding"] == ENCODING


def file_of(tmp_path: Path, payload: Payload) -> Path:
    return tmp_path / "artifacts" / Reference.model_validate_json(payload.data).uri


async def test_a_large_payload_is_kept_by_its_digest(store: Counted, tmp_path: Path) -> None:
    [payload] = await worker(store).encode([LARGE])

    assert is_reference(payload)
    assert payload.ByteSize() < 400
    reference = Reference.model_validate_json(payload.data)
    content = (tmp_path / "artifacts" / reference.uri).read_bytes()
    assert reference.sha256 == hashlib.sha256(content).hexdigest()
    assert reference.uri == f"{payloads_of('run')}/{reference.sha256}"
    assert reference.bytes == len(content)
    assert await worker(store).decode([payload]) == [LARGE]


async def test_what_a_power_cut_has_emptied_is_kept_again(store: Counted, tmp_path: Path) -> None:
    [payload] = await worker(store).encode([LARGE])
    file_of(tmp_path, payload).write_bytes(b"")

    assert await worker(store).encode([LARGE]) == [payload]
    assert await worker(store).decode([payload]) == [LARGE]


async def test_a_small_payload_stays_as_it_is(store: Counted) -> None:
    [plain] = await DataConverter.default.encode([{"text": "x"}])

    codec = worker(store).payload_codec
    assert codec is not None
    [payload] = await codec.encode([plain])

    assert payload is plain
    assert (await codec.decode([plain]))[0] is plain
    assert store.put_paths == []


async def test_the_same_content_has_the_same_reference_and_is_sent_once(store: Counted) -> None:
    first, second = worker(store), worker(store)

    payloads = [*await first.encode([LARGE, LARGE]), *await second.encode([LARGE])]

    assert payloads[0] == payloads[1] == payloads[2]
    assert len(store.put_paths) == 1


async def test_what_a_process_has_seen_is_not_fetched_again(store: Counted) -> None:
    [payload] = await worker(store).encode([LARGE])
    reader = worker(store)

    for _ in range(3):
        assert await reader.decode([payload]) == [LARGE]

    assert len(store.got_paths) == 1


@pytest.mark.parametrize("content", [b"", b"something else", None])
async def test_an_object_that_was_tampered_with_is_refused(
    store: Counted, tmp_path: Path, content: bytes | None
) -> None:
    [payload] = await worker(store).encode([LARGE])
    file = file_of(tmp_path, payload)
    kept = Payload.FromString(file.read_bytes())
    # Also where it is still a payload, only another one.
    other = replace_data(kept, b'{"text": "y"}').SerializeToString()
    file.write_bytes(other if content is None else content)

    with pytest.raises(StoreUnavailable, match="not what was kept"):
        await worker(store).decode([payload])
    [shown] = await client(store).decode([payload])
    assert "not what was kept" in str(as_unreadable(shown))


def replace_data(payload: Payload, data: bytes) -> Payload:
    changed = Payload()
    changed.CopyFrom(payload)
    changed.data = data
    return changed


async def test_a_worker_that_cannot_reach_the_store_fails_for_now_only(store: Counted) -> None:
    [payload] = await worker(store).encode([LARGE])
    store.cut_off = True

    for context in (activity(), run()):
        # Anything but this type is tried again by Temporal.
        with pytest.raises(StoreUnavailable) as error:
            await worker(store, context).decode([payload])
        assert not isinstance(error.value, ApplicationError)
    with pytest.raises(StoreUnavailable, match="too large to be sent as it is"):
        await worker(store).encode([LARGE])
    store.cut_off = False
    assert await worker(store).decode([payload]) == [LARGE]


async def test_a_client_that_cannot_reach_the_store_sees_a_reference(store: Counted) -> None:
    [payload] = await worker(store).encode([LARGE])
    store.cut_off = True

    [shown] = await client(store).decode([payload])

    unreadable = as_unreadable(shown)
    assert unreadable is not None
    reference = Reference.model_validate_json(payload.data)
    assert (unreadable.uri, unreadable.bytes) == (reference.uri, reference.bytes)
    assert "cut off" in str(unreadable)


async def test_a_client_opens_the_store_only_for_what_is_large() -> None:
    def nowhere() -> Any:
        raise StoreUnavailable("there is none")

    converter = data_converter(nowhere, waits=False).with_context(run())
    below = "x" * (LARGEST_SENT - 1000)

    assert await converter.decode(await converter.encode([below])) == [below]
    with pytest.raises(StoreUnavailable, match="there is none"):
        await converter.encode(["x" * LARGEST_SENT])


HOSTILE: list[Any] = [
    "no reference",
    {"uri": "default/sha256/00/x", "sha256": "0" * 64, "bytes": 1},
    {"uri": "../../../etc/passwd", "sha256": "../../etc/passwd", "bytes": 1},
    {"uri": "../../../etc/passwd", "sha256": "f" * 64, "bytes": -1},
]


@pytest.mark.parametrize("content", HOSTILE, ids=str)
async def test_a_reference_to_nothing_is_told_apart(store: Counted, content: Any) -> None:
    payload = Payload(metadata={"encoding": ENCODING}, data=json.dumps(content).encode())

    for reader in (worker(store, run()), client(store)):
        [shown] = await reader.decode([payload])
        assert as_unreadable(shown) is not None


async def test_nobody_reads_what_a_run_of_another_tree_or_tenant_has_kept(store: Counted) -> None:
    [payload] = await worker(store, activity("acme/run")).encode([LARGE])

    assert Reference.model_validate_json(payload.data).uri.startswith("acme/")
    assert await worker(store, activity("acme/run~child")).decode([payload]) == [LARGE]
    # Nor a process that remembers it.
    both = data_converter(lambda: store, waits=True)
    await both.with_context(activity("acme/run")).decode([payload])
    for other in ("run", "acme/other"):
        with pytest.raises(StoreUnavailable):
            await both.with_context(activity(other)).decode([payload])


@pytest.mark.parametrize("run_id", ["../run", "a b/run", "./run", "x" * 50 + "/run"])
async def test_an_odd_tenant_leads_nowhere_else(store: Counted, run_id: str) -> None:
    [payload] = await worker(store, activity(run_id)).encode([LARGE])

    assert Reference.model_validate_json(payload.data).uri.startswith("_/payloads/")
    assert await worker(store, activity(run_id)).decode([payload]) == [LARGE]


@pytest.mark.slow
async def test_a_task_hands_on_less_than_a_message(store: Counted) -> None:
    converter = data_converter(lambda: store, waits=True)

    async def handled(run_id: str) -> list[Payload]:
        converter.with_context(run(run_id))
        found = list[Payload]()
        for n in range(1000):
            # Activities and children, as the SDK encodes a completion.
            context = activity(run_id) if n % 2 else run(f"{run_id}~child{n}")
            found += await converter.with_context(context).encode([f"{n} " * 2000])
        return found

    for run_id in ("one", "two"):
        payloads = await asyncio.create_task(handled(run_id))
        assert sum(payload.ByteSize() for payload in payloads) < 2 * LARGEST_MESSAGE
        assert not is_reference(payloads[0])  # Each task begins anew.


async def test_a_local_activity_returns_less_and_takes_all(store: Counted) -> None:
    converter, value = data_converter(lambda: store, waits=True), "x" * LARGEST_LOCAL

    async def taken() -> Payload:
        converter.with_context(run())
        [payload] = await converter.with_context(activity(local=True)).encode([value])
        return payload

    assert not is_reference(await asyncio.create_task(taken()))
    [returned] = await converter.with_context(activity(local=True)).encode([value])
    assert is_reference(returned)


async def test_the_details_of_a_failure_travel_the_same_way(store: Counted) -> None:
    converter, failure = worker(store), Failure()
    await converter.encode_failure(ApplicationError("no", LARGE), failure)

    assert failure.ByteSize() < LEAST
    error = await worker(store).decode_failure(failure)
    assert isinstance(error, ApplicationError)
    assert error.details[0] == LARGE


async def test_many_that_read_at_once_are_each_given_the_content(store: Counted) -> None:
    [payload] = await worker(store).encode([LARGE])
    reader = worker(store)

    found = await asyncio.gather(*(reader.decode([payload]) for _ in range(20)))

    assert found == [[LARGE]] * 20


async def test_every_context_has_the_one_converter_of_the_process(store: Counted) -> None:
    one, other = worker(store, activity("r-1")), worker(store, activity("r-2"))
    made = one.payload_converter_class()
    assert one.payload_codec is not other.payload_codec
    assert made is other.payload_converter_class()
    assert made.from_payload(made.to_payload(7), int) == 7
