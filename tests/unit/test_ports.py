"""The activities a run names are exactly the ones a worker has."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable
from typing import Any

from surehand import activities, worker
from surehand.workflows import options, ports
from surehand.workflows.contracts.base import Message
from surehand.workflows.errors import NON_RETRYABLE
from surehand.workflows.ports import Port

#: Where temporalio's decorator leaves what it knows of an activity.
MARK = "__temporal_activity_definition"


def implementations() -> dict[str, list[Callable[..., Any]]]:
    """Return every activity that is defined anywhere in the other room, by name."""
    found: dict[str, list[Callable[..., Any]]] = {}
    for module_info in pkgutil.walk_packages(activities.__path__, "surehand.activities."):
        if ".migrations" in module_info.name:
            continue
        module = importlib.import_module(module_info.name)
        for owner in vars(module).values():
            members = vars(owner).values() if inspect.isclass(owner) else [owner]
            if getattr(owner, "__module__", None) != module.__name__:
                continue
            for member in members:
                definition = getattr(member, MARK, None)
                if definition is not None:
                    found.setdefault(definition.name, []).append(member)
    return found


IMPLEMENTED = implementations()


def test_every_port_is_implemented_exactly_once_and_nothing_else_is_an_activity() -> None:
    assert {name: len(found) for name, found in IMPLEMENTED.items()} == {
        port.name: 1 for port in ports.ALL
    }


def test_no_two_ports_have_one_name() -> None:
    declared = [value for value in vars(ports).values() if isinstance(value, Port)]

    assert sorted(port.name for port in declared) == sorted(port.name for port in ports.ALL)
    assert len({port.name for port in declared}) == len(declared)


def test_a_port_says_what_its_implementation_takes_and_returns() -> None:
    for port in ports.ALL:
        (function,) = IMPLEMENTED[port.name]
        hints = typing.get_type_hints(function)
        [parameter] = [name for name in inspect.signature(function).parameters if name != "self"]

        assert inspect.iscoroutinefunction(function)
        assert (hints[parameter], hints["return"]) == (port.takes, port.returns), port.name


def test_what_crosses_a_boundary_is_frozen_and_tolerates_newer_fields() -> None:
    for message in [message for port in ports.ALL for message in (port.takes, port.returns)]:
        assert issubclass(message, Message)
        assert message.model_config["frozen"] is True
        assert message.model_config["extra"] == "ignore"


def test_the_worker_registers_every_port() -> None:
    source = inspect.getsource(worker.make_worker)

    for port in ports.ALL:
        assert f".{port.name}," in source


def test_how_often_a_failure_is_tried_again_is_never_counted_by_temporal() -> None:
    for config in (
        options.ledger_call("x"),
        options.compensation_call("x"),
        options.tool_call(options.CALL_MARGIN, "x"),
    ):
        policy = config["retry_policy"]
        assert policy is not None
        assert policy.maximum_attempts == 0
        assert set(policy.non_retryable_error_types or ()) == set(NON_RETRYABLE)
        assert config["cancellation_type"].name == "WAIT_CANCELLATION_COMPLETED"
