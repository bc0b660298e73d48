"""Temporal plugins that the settings name, given to every client that connects, and to the worker.

They may add to what is ours and put nothing in its place: messages keep their form, so that each
process reads those of every other one, and what is large keeps going to the artifact store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import temporalio.client
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, PayloadConverter

from surehand.process.exits import WrongUse
from surehand.process.named_objects import NotLoaded, load_named
from surehand.process.sources import PREFIX
from surehand.workflows.contracts.base import Message

if TYPE_CHECKING:
    # Where no plugin is named, nobody waits until the SDK's worker is loaded.
    import temporalio.worker

    Plugin = temporalio.client.Plugin | temporalio.worker.Plugin

PLUGINS: Final = f"{PREFIX}WORKER_PLUGINS"


def load_plugins(names: Sequence[str]) -> list[Plugin]:
    """Return the plugins that are named as ``module:object``; of a class, an object of it.

    Raises:
        WrongUse: One cannot be loaded, or is none.
    """
    return [_load(name) for name in names]


def _load(name: str) -> Plugin:
    import temporalio.worker

    kinds = (temporalio.client.Plugin, temporalio.worker.Plugin)
    try:
        found = load_named(name)
        if isinstance(found, type) and issubclass(found, kinds):
            found = found()
    except NotLoaded as error:
        raise WrongUse(f"setting {PLUGINS}: {error}") from error
    except Exception as error:  # the user's own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise WrongUse(f"setting {PLUGINS}: {name}() has failed: {reason}") from error
    if not isinstance(found, kinds):
        raise WrongUse(
            f"setting {PLUGINS}: {name} is no plugin of Temporal's, such as an object of"
            " temporalio.plugin.SimplePlugin"
        )
    return found


def of_client(plugins: Sequence[Plugin], ours: DataConverter) -> list[temporalio.client.Plugin]:
    """Return those that a client takes, and the one behind them that keeps our converter."""
    if not plugins:
        return []
    from temporalio.plugin import SimplePlugin

    keeping = SimplePlugin("surehand", data_converter=lambda theirs: _kept(theirs, ours))
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


def _kept(theirs: DataConverter | None, ours: DataConverter) -> DataConverter:
    """Return what the plugins have made of our converter, with what must stay.

    Raises:
        WrongUse: Ours cannot be kept beside theirs.
    """
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
        payload_converter_class=_beside(converter, ours.payload_converter_class),
        payload_codec=ours.payload_codec,
        failure_converter_class=failures,
    )


def _beside(
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
