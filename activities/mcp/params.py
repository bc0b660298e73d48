"""A tool's params as its server's JSON Schema has them, in the form of a pydantic model."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, create_model, model_serializer, model_validator

from surehand.process.json_schemas import problems

#: Params that rules can name; all others can be passed, too.
_NAME: Final = re.compile(r"[a-z][A-Za-z0-9_]*")


class McpParams(BaseModel):
    """What fits the schema, and nothing else: as it was given."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())
    schema_: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        known = cls.schema_.get("properties", {})
        # Also where the schema allows more: nobody has reviewed what a server makes of that.
        wrong = [f"{name}: unknown field" for name in value if name not in known]
        if wrong := wrong or problems(cls.schema_, value):
            raise ValueError("; ".join(wrong))
        return value

    @model_serializer(mode="plain")
    def _as_given(self) -> dict[str, Any]:
        given = {**self.__dict__, **(self.__pydantic_extra__ or {})}
        return {name: given[name] for name in given if name in self.__pydantic_fields_set__}

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """Return the schema as the server has it."""
        return copy.deepcopy(dict(cls.schema_))


def params_model(schema: Mapping[str, Any], without: str | None) -> type[McpParams]:
    """Return the model of params of a schema.

    Args:
        schema: The server's.
        without: The argument that carries our own key, which nobody else gives.
    """
    left = {key: value for key, value in schema.items() if key != "required"}
    properties = schema.get("properties", {})
    left["properties"] = {name: part for name, part in properties.items() if name != without}
    if required := [name for name in schema.get("required", []) if name != without]:
        left["required"] = required
    fields: dict[str, Any] = {
        name: (Any, None)
        for name in left["properties"]
        if _NAME.fullmatch(name) and not hasattr(McpParams, name)
    }
    model = create_model("Params", __base__=McpParams, **fields)
    model.schema_ = left
    return model
