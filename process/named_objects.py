"""What is imported by its name: objects of the user's own, and modules that need an extra."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

from surehand.workflows.plan.plan import LONGEST_OBJECT, OBJECT_FORM


class NotLoaded(Exception):
    """There is no such object, or its module cannot be imported; in one line."""


def is_named(text: str) -> bool:
    """Return whether a text has the form ``module:name``."""
    return len(text) <= LONGEST_OBJECT and re.fullmatch(OBJECT_FORM, text) is not None


def load_named(name: str) -> Any:
    """Return the object that ``module:name`` names.

    Raises:
        NotLoaded: It cannot be had, and why.
    """
    if not is_named(name):
        raise NotLoaded(f"{name!r} is not module:name")
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotLoaded(
            f"{name} cannot be loaded: {reason}; its module must be installed, or lie on PYTHONPATH"
        ) from error


def load_extra(module: str, extra: str) -> ModuleType:
    """Return a module of ours that needs what an extra installs.

    Raises:
        NotLoaded: It is not installed; with the command that does.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotLoaded(f"{error}: pip install 'surehand[{extra}]'") from error
