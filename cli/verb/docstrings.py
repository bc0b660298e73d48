"""The texts beneath the fields of a class, read from its source when somebody asks.

Pydantic could do it (``use_attribute_docstrings``), but then reads the sources whenever the models
are loaded: in workflows, and whenever a worker starts.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping


def field_docstrings(class_: type) -> dict[str, str]:
    """Return the texts below the fields of a class and its bases, by field."""
    texts: dict[str, str] = {}
    for base in reversed(class_.__mro__):
        texts |= own_docstrings(base)
    return texts


@functools.cache
def own_docstrings(class_: type) -> Mapping[str, str]:
    """Return the texts below a class's own fields, by field."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(class_)))
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    assert isinstance(tree.body[0], ast.ClassDef)
    body = tree.body[0].body
    for field, below in itertools.pairwise(body):
        target = getattr(field, "target", None) or (getattr(field, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            found |= {target.id: inspect.cleandoc(text)} if isinstance(text, str) else {}
    return found
