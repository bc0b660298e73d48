"""Encryption of payloads: bound to tenant, run and place; what does not fit is refused."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import DBAPIError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    SerializationContext,
    WorkflowSerializationContext,
)
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import run_keys
from surehand.activities.run_keys import REMEMBERED, LedgerKeys
from surehand.process.blobs import Blobs
from surehand.process.ciphers import KeyRing, RunEncryption, add_to_file, new_key, read_key_ring
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import as_pasted, as_unreadable
from surehand.workflows.payload_codec import (
    ENCODING,
    ENCODING_KEY,
    ENCRYPTED,
    KEY_ID,
    LARGEST_PAYLOAD,
    PART,
    WORKFLOW_ID,
    KeyUnavailable,
    NotDecrypted,
    Reference,
    data_converter,
)

MARKER = "iban-DE02120300000000202051"
VALUE = {"account": MARKER}

Convert = Callable[..., DataConverter]


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing([new_key("first")])


@pytest.fixture
def convert(ledger: Ledger, ring: KeyRing, tmp_path: Path) -> Convert:
    """Makes what one process converts with; ``worker=False`` is a client's."""

    def make(
        context: SerializationContext | None, *, worker: bool = True, by: KeyRing = ring
    ) -> DataConverter:
        converter = data_converter(
            lambda: Blobs(str(tmp_path / "artifacts")),
            waits=worker,
            encryption=RunEncryption(LedgerKeys(lambda: ledger, by)),
        )
        return converter if context is None else converter.with_context(context)

    return make


def run(run_id: str = "run") -> SerializationContext:
    return WorkflowSerializationContext("default", run_id)


def activity(run_id: str = "run", *, local: bool = False) -> SerializationContext:
    return ActivitySerializationContext("default", None, None, None, run_id, None, local)


def problem(shown: Any) -> str:
    found = as_unreadable(shown)
    assert found is not None, shown
    return found.problem


async def test_what_is_sent_comes_back_in_another_process(convert: Convert) -> None:
    [payload] = await convert(run()).encode([VALUE])

    assert payload.metadata[ENCODING_KEY] == ENCRYPTED
    assert MARKER.encode() not in payload.SerializeToString()
    assert await convert(run(), worker=False).decode([payload]) == [VALUE]
    # Lists and the codec server have no context: what the payload says counts.
    assert await convert(None, worker=False).decode([payload]) == [VALUE]


async def test_the_same_is_never_encrypted_to_the_same_on_its_way(convert: Convert) -> None:
    one, two = await convert(run()).encode([VALUE, VALUE])

    assert one.data != two.data


async def test_a_large_payload_is_encrypted_and_kept_once(convert: Convert, tmp_path: Path) -> None:
    large = {"text": MARKER * (LARGEST_PAYLOAD // len(MARKER) + 1)}
    # Two processes, as before and after a worker was killed.
    [one], [two] = [await convert(activity()).encode([large]) for _ in range(2)]

    assert one.metadata[ENCODING_KEY] == ENCODING
    assert one == two
    reference = Reference.model_validate_json(one.data)
    assert MARKER.encode() not in (tmp_path / "artifacts" / reference.uri).read_bytes()
    assert await convert(activity()).decode([one]) == [large]


async def test_child_runs_share_the_top_runs_key(convert: Convert, ledger: Ledger) -> None:
    await convert(run("top")).encode([VALUE])
    [payload] = await convert(run("top~pay~check.2")).encode([VALUE])

    with ledger.transaction("default") as tx:
        assert [row["run_id"] for row in tx.all(rows_of(run_keys))] == ["top"]
    assert await convert(run("top~pay~check.2")).decode([payload]) == [VALUE]


@pytest.mark.parametrize(
    ("made", "found"),
    [
        pytest.param(run("one"), run("two"), id="of another run"),
        pytest.param(run("acme/one"), run("one"), id="of another tenant"),
        pytest.param(run("one"), run("one~pay"), id="of the parent run"),
        pytest.param(activity("one"), run("one"), id="of an activity"),
    ],
)
async def test_a_ciphertext_of_another_place_is_refused_in_one_line(
    convert: Convert, made: SerializationContext, found: SerializationContext
) -> None:
    [payload] = await convert(made).encode([VALUE])
    [shown] = await convert(found).decode([payload])

    assert "encrypted for" in problem(shown)
    assert "\n" not in problem(shown)


@pytest.mark.parametrize(
    ("claimed", "found"),
    [
        pytest.param({KEY_ID: b"two", WORKFLOW_ID: b"two"}, run("two"), id="another run"),
        pytest.param({WORKFLOW_ID: b"one~pay"}, run("one~pay"), id="a child run"),
        pytest.param({PART: b"activity"}, activity("one"), id="an activity"),
    ],
)
async def test_a_ciphertext_that_claims_another_place_is_refused(
    convert: Convert, claimed: dict[str, bytes], found: SerializationContext
) -> None:
    [payload] = await convert(run("one")).encode([VALUE])
    await convert(run("two")).encode([VALUE])  # so there is a key
    for name, value in claimed.items():
        payload.metadata[name] = value
    [shown] = await convert(found, worker=False).decode([payload])

    assert "was changed" in problem(shown)


@pytest.mark.parametrize("bad", [None, b"", b"\x01", b"\x01" * 13, b"\x02" * 60, b"{}"])
async def test_a_changed_ciphertext_is_refused(convert: Convert, bad: bytes | None) -> None:
    [payload] = await convert(run()).encode([VALUE])
    one_bit = payload.data[:-1] + bytes([payload.data[-1] ^ 1])
    payload.data = one_bit if bad is None else bad
    [shown] = await convert(run()).decode([payload])

    assert problem(shown)
    assert bad is not None or "was changed" in problem(shown)


async def test_an_activity_takes_and_returns_nothing_that_was_swapped(convert: Convert) -> None:
    [payload] = await convert(activity("one")).encode([VALUE])

    with pytest.raises(NotDecrypted, match="encrypted for"):
        await convert(activity("two")).decode([payload])


async def test_plaintext_is_refused_where_ciphertext_is_expected(convert: Convert) -> None:
    plain = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=b'{"amount": 1}')

    with pytest.raises(NotDecrypted, match="in plain"):
        await convert(activity()).decode([plain])
    for context in (run(), None):
        [shown] = await convert(context, worker=False).decode([plain])
        assert "in plain" in problem(shown)


async def test_pasted_plaintext_is_kept_for_its_judges(convert: Convert) -> None:
    plain = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=b'{"outcome": "approve"}')
    [shown] = await convert(run()).decode([plain])

    assert as_pasted(shown) == {"outcome": "approve"}
    assert as_pasted({"outcome": "approve"}) == {"outcome": "approve"}


async def test_plain_content_by_reference_is_refused(convert: Convert, tmp_path: Path) -> None:
    store = Blobs(str(tmp_path / "artifacts"))
    plain = data_converter(lambda: store, waits=True).with_context(activity())
    [reference] = await plain.encode([{"text": "x" * LARGEST_PAYLOAD}])

    with pytest.raises(NotDecrypted, match="in plain"):
        await convert(activity()).decode([reference])


async def test_a_local_activitys_result_is_encrypted(convert: Convert) -> None:
    plain = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=b"1")
    local = convert(activity(local=True))
    [result] = await local.encode([VALUE])

    assert await local.decode([plain]) == [1]
    assert result.metadata[ENCODING_KEY] == ENCRYPTED


async def test_a_worker_with_another_key_of_the_same_id_waits_and_says_so(convert: Convert) -> None:
    [payload] = await convert(run()).encode([VALUE])
    other = KeyRing([new_key("first")])

    with pytest.raises(KeyUnavailable, match=r"'first' .* does not unwrap"):
        await convert(run(), by=other).decode([payload])
    with pytest.raises(KeyUnavailable, match=r"needs key-encryption key 'first'"):
        await convert(run(), by=KeyRing([new_key("second")])).decode([payload])


async def test_a_copied_key_row_opens_nothing(convert: Convert, ledger: Ledger) -> None:
    await convert(run("one")).encode([VALUE])
    [target] = await convert(run("two")).encode([VALUE])
    [foreign] = await convert(run("acme/one")).encode([VALUE])
    with ledger.transaction("default") as tx:
        [stolen] = [row["wrapped"] for row in tx.all(rows_of(run_keys, run_id="one"))]
        tx.execute(update_rows(run_keys, run_id="two").values(wrapped=stolen))
    with ledger.transaction("acme") as tx:
        tx.execute(update_rows(run_keys, run_id="acme/one").values(wrapped=stolen))

    for context, payload in ((run("two"), target), (run("acme/one"), foreign)):
        with pytest.raises(KeyUnavailable, match="another run's"):
            await convert(context).decode([payload])


async def test_two_that_make_a_run_s_key_at_once_agree(convert: Convert, ledger: Ledger) -> None:
    makers = [convert(run()) for _ in range(8)]
    made = await asyncio.gather(*(maker.encode([VALUE]) for maker in makers))

    with ledger.transaction("default") as tx:
        assert len(tx.all(rows_of(run_keys))) == 1
    for [payload] in made:
        assert await convert(run()).decode([payload]) == [VALUE]


async def test_the_messages_and_traces_of_failures_are_encrypted(convert: Convert) -> None:
    failure = Failure()
    try:
        raise ApplicationError(f"no account {MARKER}", VALUE)
    except ApplicationError as error:
        await convert(activity()).encode_failure(error, failure)

    assert MARKER.encode() not in failure.SerializeToString()
    back = await convert(activity()).decode_failure(failure)
    assert MARKER in str(back)


async def test_without_keys_a_process_says_so(convert: Convert, tmp_path: Path) -> None:
    [payload] = await convert(run()).encode([VALUE])
    without = data_converter(lambda: Blobs(str(tmp_path)), waits=False).with_context(run())
    [shown] = await without.decode([payload])

    assert "no keys are set here" in problem(shown)


async def test_an_unwrapped_key_is_remembered_for_a_time(ledger: Ledger, ring: KeyRing) -> None:
    now = 0.0
    keys = LedgerKeys(lambda: ledger, ring, clock=lambda: now)
    await keys.key_of("run", make=True)
    with ledger.transaction("default") as tx:
        erased = update_rows(run_keys, run_id="run")
        tx.execute(erased.values(wrapped=None, erased_ms=tx.now_ms, erased_by="root"))

    now = REMEMBERED.total_seconds() - 0.001
    await keys.key_of("run", make=False)
    now = REMEMBERED.total_seconds()
    with pytest.raises(NotDecrypted, match="erased by root"):
        await keys.key_of("run", make=True)


async def test_a_slow_key_is_remembered_no_longer(ledger: Ledger, ring: KeyRing) -> None:
    now, answered = 0.0, asyncio.Event()

    async def transact(*asked: Any) -> Any:
        await answered.wait()
        return await ledger.transact(*asked)

    opened = itertools.chain([SimpleNamespace(transact=transact)], itertools.repeat(ledger))
    keys = LedgerKeys(lambda: cast("Ledger", next(opened)), ring, clock=lambda: now)
    slow = asyncio.create_task(keys.key_of("slow", make=True))
    await asyncio.sleep(0)
    now = 5.0
    await keys.key_of("other", make=True)
    answered.set()
    await slow
    with ledger.transaction("default") as tx:
        erased = update_rows(run_keys, run_id="slow")
        tx.execute(erased.values(wrapped=None, erased_ms=tx.now_ms, erased_by="root"))

    now = REMEMBERED.total_seconds()
    with pytest.raises(NotDecrypted, match="erased by root"):
        await keys.key_of("slow", make=False)


async def test_an_erased_key_never_comes_back(convert: Convert, ledger: Ledger) -> None:
    await convert(run()).encode([VALUE])
    with ledger.transaction("default") as tx:
        [row] = tx.all(rows_of(run_keys))
        erased = update_rows(run_keys, run_id="run")
        tx.execute(erased.values(wrapped=None, erased_ms=tx.now_ms, erased_by="root"))

    back = {"wrapped": row["wrapped"], "erased_ms": None, "erased_by": None}
    with pytest.raises(DBAPIError, match="has ended"), ledger.transaction("default") as tx:
        tx.execute(update_rows(run_keys, run_id="run").values(**back))


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_to_file(file, new_key("first"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_key_ring(str(file)) is not None

    file.chmod(0o640)
    with pytest.raises(WrongUse, match="chmod 600"):
        read_key_ring(str(file))


def test_the_newest_key_of_a_file_wraps_and_a_running_process_finds_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_to_file(file, new_key("old"))
    running = read_key_ring(str(file))
    assert running is not None
    add_to_file(file, new_key("new"))
    fresh = read_key_ring(str(file))
    assert fresh is not None
    wrapped = fresh.wrap(b"k" * 32, b"about")

    assert fresh.ids == ["new", "old"]
    assert wrapped.kek_id == "new"
    assert running.unwrap(wrapped, b"about") == b"k" * 32


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("first=c2hvcnQ=", "32 random bytes"),
        ("=" + base64.b64encode(b"k" * 32).decode(), "32 random bytes"),
        (",".join(["a=" + base64.b64encode(b"k" * 32).decode()] * 2), "two keys 'a'"),
        ("/nowhere/keys", "cannot be read"),
        ("json:dumps", "is no key"),
        ("no_such_module:keys", "cannot be loaded"),
    ],
)
def test_wrong_keys_are_refused_in_one_line_that_shows_none(text: str, told: str) -> None:
    with pytest.raises(WrongUse, match=told) as refused:
        read_key_ring(text)

    assert base64.b64encode(b"k" * 32).decode() not in str(refused.value)
    assert "\n" not in str(refused.value)


class Kms:
    """Stands for a key management service: it has the key, and asks what it is for."""

    id = "kms-1"

    def wrap(self, key: bytes, about: bytes) -> bytes:
        return json.dumps([key.hex(), about.hex()]).encode()

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        key, bound = json.loads(wrapped)
        if bound != about.hex():
            raise PermissionError("other encryption context")
        return bytes.fromhex(key)


kms = Kms()


async def test_a_key_management_service_is_put_in_by_name(convert: Convert, ledger: Ledger) -> None:
    ring = read_key_ring("tests.unit.test_encryption:kms")
    assert ring is not None
    [payload] = await convert(run(), by=ring).encode([VALUE])

    with ledger.transaction("default") as tx:
        assert [row["kek_id"] for row in tx.all(rows_of(run_keys))] == ["kms-1"]
    assert await convert(run(), by=ring).decode([payload]) == [VALUE]


def test_a_service_that_gives_back_no_key_is_named() -> None:
    class Short(Kms):
        def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
            return super().unwrap(wrapped, about)[:16]

    ring = KeyRing([Short()])
    with pytest.raises(KeyUnavailable, match=r"does not unwrap it: what it gives is no key"):
        ring.unwrap(ring.wrap(b"k" * 32, b"about"), b"about")


@pytest.mark.parametrize(
    "sent", [b"[" * 300 + b"]" * 300, b'{"\\ud800": 1}', b'"\\ud800"', b"[NaN]", b"{"]
)
async def test_plaintext_stops_no_run(convert: Convert, sent: bytes) -> None:
    plain = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=sent)

    [shown] = await convert(run()).decode([plain])

    found = as_unreadable(shown)
    assert found is not None
    assert not found.pasted


async def failure_of(converter: DataConverter, error: BaseException) -> Failure:
    failure = Failure()
    await converter.encode_failure(error, failure)
    return failure


async def test_a_failure_of_a_worker_keeps_its_type_and_what_is_behind_it(convert: Convert) -> None:
    error = ApplicationError("no", VALUE, type="ToolFailed", non_retryable=True)
    error.__cause__ = ApplicationError("behind", type="Behind")

    failure = await failure_of(convert(activity()), error)
    found = await convert(activity()).decode_failure(failure)

    assert isinstance(found, ApplicationError)
    assert (found.message, found.type, found.non_retryable) == ("no", "ToolFailed", True)
    assert found.details == (VALUE,)
    assert isinstance(found.__cause__, ApplicationError)
    assert found.__cause__.type == "Behind"


async def test_a_failure_that_no_worker_has_written_proves_nothing(convert: Convert) -> None:
    retyped = await failure_of(convert(activity()), ApplicationError("no", type="ToolFailed"))
    retyped.application_failure_info.type = "CalledOff"
    final = await failure_of(convert(activity()), ApplicationError("no", type="CalledOff"))
    final.application_failure_info.non_retryable = True
    plain = Failure(message="forged")
    plain.application_failure_info.type = "CalledOff"

    for failure in (retyped, final, plain):
        found = await convert(activity()).decode_failure(failure)
        assert isinstance(found, ApplicationError)
        assert not found.type
