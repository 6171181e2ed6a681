"""The JSON Schema of `/api/v1/shares` and `/api/v1/history`, from the types."""

import ast
import inspect
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gpuagent import api_types
from gpuagent.api_types import AgentResponse, ApiObject, HistoryResponse

FILE = "shares.schema.json"
"""Name of the schema's file in docs/."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema of `/api/v1/shares`; its definitions have the objects of `/api/v1/history`, too."""
    types = [AgentResponse, HistoryResponse]
    _, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for name, definition in definitions.items():
        _describe(getattr(api_types, name), definition["properties"])
    return {
        "$schema": _DIALECT,
        "title": "/api/v1/shares",
        "$ref": "#/$defs/AgentResponse",
        "$defs": definitions,
    }


def _describe(own: type[ApiObject], properties: dict[str, Any]) -> None:
    """Add the docstring of each field as its description."""
    docstrings = {field: text for each in reversed(own.__mro__) for field, text in _docstrings(each)}
    for field in msgspec.structs.fields(own):
        about = {"description": docstrings.get(field.name, "")}
        properties[field.encode_name] = about | properties[field.encode_name]


def _docstrings(own: type) -> Iterator[tuple[str, str]]:
    """Yield the fields that a type of the API itself has, each with its docstring."""
    if own.__module__ == api_types.__name__:
        (tree,) = ast.parse(inspect.getsource(own)).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                yield (
                    ast.unparse(field.target),
                    inspect.cleandoc(ast.literal_eval(text.value)).replace("\n", " "),
                )


def schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
