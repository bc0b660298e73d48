"""Workflows of the user's own: loaded once at worker start, as tools are."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.run.run import Run


class WorkflowModulesError(Exception):
    """A module that cannot be loaded, or defines no workflow of ours."""


def load_workflows(modules: Iterable[str]) -> list[type[Run]]:
    """Import the named modules and return the workflow classes that they define.

    Raises:
        WorkflowModulesError: Module not found or broken, none defined, two of one name.
    """
    found: dict[str, type[Run]] = {}
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
            and issubclass(value, Run)
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


def workflow_name(class_: type) -> str | None:
    """Return the name under which Temporal knows a workflow's class; ``None`` if it is none."""
    definition = vars(class_).get("__temporal_workflow_definition")
    return None if definition is None else definition.name
