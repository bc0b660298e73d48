"""What is wrong with how an undo makes its params, as far as its declaration shows."""

from __future__ import annotations

import dis
import inspect
from itertools import pairwise

from pydantic import BaseModel

from activities.answers import Undo


def undo_problem(undo: Undo, model: type[BaseModel]) -> str | None:
    """Return why an undo's params can never be made; ``None`` if nothing is to be seen.

    Args:
        undo: As declared.
        model: The params of the tool that is undone: what people take the first argument for.
    """
    if not inspect.isfunction(undo.params):
        return None  # no code to look at
    signature = inspect.signature(undo.params)
    try:
        signature.bind({}, None)
    except TypeError:
        return "its params= takes (params, receipt)"
    name = next(iter(signature.parameters))
    for loaded, then in pairwise(dis.get_instructions(undo.params)):
        is_params = loaded.opname.startswith("LOAD_FAST") and loaded.argval == name
        if is_params and then.opname == "LOAD_ATTR" and then.argval in model.model_fields:
            field = then.argval
            return f"{name} is a dict in JSON form: write {name}[{field!r}], not {name}.{field}"
    return None
