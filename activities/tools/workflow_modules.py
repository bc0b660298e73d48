"""Workflows of the user's own: loaded once at worker start, as tools are, and what they import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import temporalio

from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.run.agent_run import BaseRun

_PASSTHROUGH: Final = "SUREHAND_SANDBOX_PASSTHROUGH"


class WorkflowModulesError(Exception):
    """A module that cannot be loaded, or defines no workflow of ours."""


def load_workflows(modules: Iterable[str]) -> list[type[BaseRun]]:
    """Import the named modules and return the workflow classes that they define."""
    found: dict[str, type[BaseRun]] = {}
    for module_name in modules:
        where = f"workflow module {module_name!r} (SUREHAND_WORKFLOW_MODULES)"
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            reason = f"cannot be imported: {type(error).__name__}: {error}"
            raise WorkflowModulesError(f"{where} {reason}") from error
        own = {
            workflow_name(value): value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, BaseRun)
            and workflow_name(value) is not None
        }
        if not own:
            reason = "defines no workflow: a class of CodeRun with @workflow.defn"
            raise WorkflowModulesError(f"{where} {reason}")
        for name, class_ in own.items():
            assert name is not None
            if name in (WORKFLOW, MODEL_RUN) or found.get(name, class_) is not class_:
                raise WorkflowModulesError(f"{where}: there is a workflow {name!r} already")
            found[name] = class_
    return list(found.values())


def pass_through(modules: Sequence[str]) -> Sequence[str]:
    """Return the modules that the sandbox of the workflows does not load anew."""
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise WorkflowModulesError(
                f"setting {_PASSTHROUGH}: there is no module {name!r}: it must be installed, or lie"
                " on PYTHONPATH"
            )
    if "anyio" in modules:
        # It imports this at its first use, which would be inside a workflow, where it must not.
        importlib.import_module("anyio._backends._asyncio")
    return modules


@contextmanager
def naming_what_the_sandbox_refuses(own: Iterable[type[BaseRun]]) -> Iterator[None]:
    """Say of a workflow that cannot be loaded into the sandbox what to do about it."""
    try:
        yield
    except RuntimeError as error:
        refused = error.__cause__
        name = str(error).rpartition(" ")[2]  # "Failed validating workflow NAME"
        of = {str(workflow_name(class_)): class_.__module__ for class_ in own}.get(name)
        if of is None or refused is None:
            raise
        reason = " ".join(f"{type(refused).__name__}: {refused}".split())
        raise WorkflowModulesError(
            f"workflow {name} cannot be loaded into Temporal's sandbox; if what it imports is"
            f" deterministic, add {_imported_by(of, refused)} to {_PASSTHROUGH}: {reason}"
        ) from error


def _imported_by(module: str, error: BaseException) -> str:
    """Return the package that a workflow's module imports, and whose import has failed."""
    root, own = module.partition(".")[0], sys.modules[module].__file__
    files = {getattr(known, "__file__", None): name for name, known in [*sys.modules.items()]}
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    behind = frames[frames.index(own) + 1 :] if own in frames else frames
    chain = [files[file] for file in behind if file in files]
    packages = [name.partition(".")[0] for name in chain]
    foreign = [name for name in packages if name not in (root, temporalio.__name__, "importlib")]
    return next(iter(foreign), root)


def workflow_name(class_: type) -> str | None:
    """Return the name under which Temporal knows a workflow's class; ``None`` if it is none."""
    definition = vars(class_).get("__temporal_workflow_definition")
    return None if definition is None else definition.name
