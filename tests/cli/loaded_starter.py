"""The starter with all of its verbs loaded, for processes that are forked from it."""

from __future__ import annotations

import importlib
import pkgutil

import surehand.activities.ledger
import surehand.cli
import surehand.drill
from surehand.cli.app import run as main
from surehand.workflows.contracts.base import build_models

__all__ = ["main"]

for _room in (surehand.cli, surehand.drill, surehand.activities.ledger):
    for _found in pkgutil.walk_packages(_room.__path__, f"{_room.__name__}."):
        if ".migrations" not in _found.name and not _found.name.endswith(".plugin"):
            importlib.import_module(_found.name)

# The copies share what is built, too.
build_models()
