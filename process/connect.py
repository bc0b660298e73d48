"""One way to the Temporal server, for the starter and the worker.

Address, namespace, TLS and profiles come from the SDK's own environment configuration; a ``.env``
file counts as part of the environment.

Every client that connects, and the worker, get the Temporal plugins that the settings name. They
may add to what is ours, and replace nothing: messages keep their form, so that each process reads
those of every other one, and large payloads go to the artifact store.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import temporalio.client
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, PayloadConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import Runtime, TelemetryConfig

from surehand.process import settings
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.program import command
from surehand.workflows.contracts.base import Message
from surehand.workflows.payload_codec import Encryption, Store, StoreUnavailable, data_converter

if TYPE_CHECKING:
    # Where no plugin is named, nobody waits until the SDK's worker is loaded.
    import temporalio.worker

    Plugin = temporalio.client.Plugin | temporalio.worker.Plugin

PLUGINS: Final = f"{settings.PREFIX}WORKER_PLUGINS"


def load_plugins(names: Sequence[str]) -> list[Plugin]:
    """Return the plugins that are named as ``module:object``; of a class, an object of it."""
    if not names:
        return []
    import temporalio.worker

    kinds = (temporalio.client.Plugin, temporalio.worker.Plugin)
    loaded: list[Plugin] = []
    for name in names:
        found = settings.load_named(name, f"setting {PLUGINS}")
        try:
            if isinstance(found, type) and issubclass(found, kinds):
                found = found()
        except Exception as error:  # the user's own
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise WrongUse(f"setting {PLUGINS}: {name}() has failed: {reason}") from error
        if not isinstance(found, kinds):
            raise WrongUse(
                f"setting {PLUGINS}: {name} is no plugin of Temporal's, such as an object of"
                " temporalio.plugin.SimplePlugin"
            )
        loaded.append(found)
    return loaded


def of_client(plugins: Sequence[Plugin], ours: DataConverter) -> list[temporalio.client.Plugin]:
    """Return those that a client takes, and the one behind them that keeps our converter."""
    if not plugins:
        return []
    from temporalio.plugin import SimplePlugin

    keeping = SimplePlugin(
        "surehand", data_converter=lambda theirs: _keep_our_converter(theirs, ours)
    )
    return [*(one for one in plugins if isinstance(one, temporalio.client.Plugin)), keeping]


def of_worker_alone(plugins: Sequence[Plugin]) -> list[temporalio.worker.Plugin]:
    """Return those that a worker does not get from its client."""
    import temporalio.worker

    return [
        one
        for one in plugins
        if isinstance(one, temporalio.worker.Plugin)
        and not isinstance(one, temporalio.client.Plugin)
    ]


def _keep_our_converter(theirs: DataConverter | None, ours: DataConverter) -> DataConverter:
    """Return what the plugins have made of our converter, with what must stay."""
    if theirs is None:
        return ours
    converter, codec = theirs.payload_converter_class, theirs.payload_codec
    if not issubclass(converter, PydanticPayloadConverter):
        raise WrongUse(
            f"a Temporal plugin ({PLUGINS}) brings the payload converter {converter.__name__}:"
            " our messages need temporalio.contrib.pydantic.PydanticPayloadConverter, or a subclass"
        )
    if codec is not None and codec is not ours.payload_codec:
        raise WrongUse(
            f"a Temporal plugin ({PLUGINS}) brings the payload codec {type(codec).__name__} in the"
            " place of ours, which keeps large payloads in the artifact store: leave it out"
        )
    failures = theirs.failure_converter_class
    if ours.failure_converter_class is not DataConverter.default.failure_converter_class:
        failures = ours.failure_converter_class  # what failures say is encrypted, too
    return dataclasses.replace(
        theirs,
        payload_converter_class=_combine_converters(converter, ours.payload_converter_class),
        payload_codec=ours.payload_codec,
        failure_converter_class=failures,
    )


def _combine_converters(
    theirs: type[PydanticPayloadConverter], own: type[PayloadConverter]
) -> type[PayloadConverter]:
    """Return a converter that writes our messages as ever, and whatever else as theirs does."""
    if theirs in (PydanticPayloadConverter, own):
        return own
    ours = own()

    class Beside(theirs):  # type: ignore[misc, valid-type]
        def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
            as_theirs, payloads = super().to_payloads, list[Payload]()
            for value in values:
                written = ours.to_payloads if isinstance(value, Message) else as_theirs
                payloads += written([value])
            return payloads

    return Beside


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
    artifacts: str = settings.DEFAULT_ARTIFACTS
    """Where large payloads are kept: the workers' artifact store."""
    plugins: tuple[str, ...] = ()
    """Temporal plugins of the user's own, as ``module:object``."""
    encrypts: bool = False
    """Whether there are key-encryption keys: then nothing is sent in plain."""


def find_target(environment: Mapping[str, str]) -> Target:
    """Return the server that the environment and Temporal's configuration file name."""
    try:
        options = ClientConfig.load_client_connect_config(override_env_vars=dict(environment))
    except Exception as error:  # the SDK raises its own type, OSError or ValueError
        raise WrongUse(f"Temporal configuration (TEMPORAL_*): {error}") from error
    address = options.get("target_host") or DEFAULT_ADDRESS
    namespace = options.get("namespace") or DEFAULT_NAMESPACE
    artifacts = environment.get(f"{settings.PREFIX}ARTIFACTS") or settings.DEFAULT_ARTIFACTS
    plugins = tuple(filter(None, map(str.strip, environment.get(PLUGINS, "").split(","))))
    encrypts = bool(environment.get(settings.KEYS, "").strip())
    return Target(address, namespace, options, artifacts, plugins, encrypts)


async def connect(
    target: Target | None = None,
    *,
    quiet: bool = False,
    runtime: Runtime | None = None,
    converter: DataConverter | None = None,
    plugins: Sequence[Plugin] | None = None,
    identity: str | None = None,
) -> Client:
    target = target or find_target(settings.read_environment())
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
        where = f"no Temporal server answers at {target.address} (TEMPORAL_ADDRESS)"
        raise NotReachable(f"{where}: {_short_reason(error)}") from error


def client_converter(target: Target, encryption: Encryption | None = None) -> DataConverter:
    """Return what a client converts payloads with; the store is opened once one is large."""

    def open_store() -> Store:
        from surehand.process.blobs import Blobs

        try:
            # A folder of our own would be one that no worker looks into.
            return Blobs(target.artifacts, make=False)
        except StoreUnavailable as error:
            hint = f"set {settings.PREFIX}ARTIFACTS to the store that the workers use"
            raise StoreUnavailable(f"{error}: {hint}") from error

    if encryption is None and target.encrypts:
        raise WrongUse(
            f"{settings.KEYS} is set, but keys of runs are in the ledger, which this program does"
            f" not open: set {settings.PREFIX}DATABASE_URL"
        )
    return data_converter(open_store, waits=False, encryption=encryption)


def _short_reason(error: Exception) -> str:
    """Return the short reason inside the transport's nested message."""
    text = str(error)
    for known, meaning in (
        ("ConnectionRefused", f"connection refused; a local one: `{command('server')}`"),
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
