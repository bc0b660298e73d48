"""One way to the Temporal server, for the starter and the worker.

Address, namespace, TLS and profiles come from the SDK's own environment configuration; a ``.env``
file counts as part of the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import Runtime, TelemetryConfig

from surehand.process.exits import NotReachable, WrongUse
from surehand.process.plugins import PLUGINS, load_plugins, of_client
from surehand.process.program import command, program
from surehand.process.settings import read_environment
from surehand.process.sources import (
    CODEC_ENDPOINT,
    CODEC_TOKEN,
    DEFAULT_ARTIFACTS,
    KEYS,
    PREFIX,
)
from surehand.workflows.encryption import Encryption
from surehand.workflows.payload_codec import (
    Store,
    StoreUnavailable,
    data_converter,
)

if TYPE_CHECKING:
    from surehand.process.plugins import Plugin

#: What the SDK itself takes when nothing is configured.
DEFAULT_ADDRESS: Final = "localhost:7233"
#: Both names of the address at which the embedded server listens.
EMBEDDED: Final = frozenset({DEFAULT_ADDRESS, "127.0.0.1:7233"})
DEFAULT_NAMESPACE: Final = "default"

#: A server that takes longer to shake hands is not usable; a person waits this long for the error.
CONNECT_TIMEOUT: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class Target:
    """Which server and namespace the environment names."""

    address: str
    namespace: str
    options: ClientConnectConfig
    artifacts: str = DEFAULT_ARTIFACTS
    """Where large payloads are kept: the workers' artifact store."""
    plugins: tuple[str, ...] = ()
    """Temporal plugins of the user's own, as ``module:object``."""
    codec_endpoint: str = ""
    """The codec server that encrypts and decrypts for whoever has no keys."""
    codec_token: str = field(default="", repr=False)
    encrypts: bool = False
    """Whether there are key-encryption keys: then nothing is sent in plain."""


def find_target(environment: Mapping[str, str]) -> Target:
    """Return the server that the environment and Temporal's configuration file name.

    Raises:
        WrongUse: If the profile, the file or a certificate cannot be read.
    """
    try:
        options = ClientConfig.load_client_connect_config(override_env_vars=dict(environment))
    except Exception as error:  # the SDK raises its own type, OSError or ValueError
        raise WrongUse(f"Temporal configuration (TEMPORAL_*): {error}") from error
    address = options.get("target_host") or DEFAULT_ADDRESS
    namespace = options.get("namespace") or DEFAULT_NAMESPACE
    artifacts = environment.get(f"{PREFIX}ARTIFACTS") or DEFAULT_ARTIFACTS
    plugins = tuple(filter(None, map(str.strip, environment.get(PLUGINS, "").split(","))))
    endpoint = environment.get(CODEC_ENDPOINT, "")
    token, keys = environment.get(CODEC_TOKEN, ""), environment.get(KEYS, "").strip()
    return Target(address, namespace, options, artifacts, plugins, endpoint, token, bool(keys))


async def connect(
    target: Target | None = None,
    *,
    quiet: bool = False,
    runtime: Runtime | None = None,
    converter: DataConverter | None = None,
    plugins: Sequence[Plugin] | None = None,
    identity: str | None = None,
) -> Client:
    """Return a client that speaks our models.

    Args:
        target: The server; ``None`` takes the one that environment and ``.env`` name.
        quiet: Drop the SDK's own log, which would stand between the lines of a result.
        runtime: The SDK's core with its logs and metrics otherwise; ``None`` takes its own.
        converter: A worker's; ``None``: a client's, which goes on without the artifact store.
        plugins: A worker's; ``None`` loads those that the target names.
        identity: The name by which the server knows this process; ``None``: the SDK makes one.

    Raises:
        WrongUse: Temporal's configuration cannot be read, or a plugin cannot be used.
        NotReachable: One line that names the address.
    """
    target = target or find_target(read_environment())
    if plugins is None:
        plugins = load_plugins(target.plugins)
    converter = converter or client_converter(target)
    options: dict[str, Any] = {
        **target.options,
        "target_host": target.address,
        "namespace": target.namespace,
    }
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT.total_seconds()):
            return await Client.connect(
                **options,
                data_converter=converter,
                plugins=of_client(plugins, converter),
                connect_timeout=CONNECT_TIMEOUT,
                runtime=Runtime(telemetry=TelemetryConfig(logging=None)) if quiet else runtime,
                identity=identity,
            )
    except (RuntimeError, TimeoutError, ValueError) as error:
        raise NotReachable(
            f"no Temporal server answers at {target.address} (TEMPORAL_ADDRESS): {_cause(error)}"
        ) from error


def client_converter(target: Target, encryption: Encryption | None = None) -> DataConverter:
    """Return what a client converts payloads with; the store is opened once one is large.

    Args:
        target: Names the store, and the codec server if there is one.
        encryption: By keys that are at hand; ``None``: by the codec server, or not at all.

    Raises:
        WrongUse: Something has to encrypt, and nothing can.
    """

    def open_store() -> Store:
        from surehand.process.blobs import Blobs

        try:
            # A folder of our own would be one that no worker looks into.
            return Blobs(target.artifacts, make=False)
        except StoreUnavailable as error:
            hint = f"set {PREFIX}ARTIFACTS to the store that the workers use"
            raise StoreUnavailable(f"{error}: {hint}") from error

    if encryption is None and target.codec_endpoint:
        from surehand.process.remote_codec import RemoteEncryption

        encryption = RemoteEncryption(target.codec_endpoint, target.codec_token, target.namespace)
    if encryption is None and target.encrypts:
        raise WrongUse(
            f"{KEYS} is set, but keys of runs are in the ledger, which this program does not open:"
            f" set {CODEC_ENDPOINT} to a codec server (`{command('codec', 'serve')}`)"
        )
    return data_converter(open_store, waits=False, encryption=encryption)


def _cause(error: Exception) -> str:
    """Return the short reason inside the transport's nested message."""
    text = str(error)
    for known, meaning in (
        ("ConnectionRefused", f"connection refused; a local one: `{program('devserver')}`"),
        ("dns error", "there is no host of that name"),
        ("InvalidUri", "not a host:port"),
        ("invalid uri", "not a host:port"),
        ("get_system_info", "what answers there is no Temporal server"),
        ("certificate", "the TLS certificate is not accepted"),
    ):
        if known in text:
            return meaning
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT.total_seconds():.0f} s"
    return text.splitlines()[0][:200] if text else type(error).__name__
