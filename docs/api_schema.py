"""The JSON Schema of `/api/v1/shares`, and the fields of the agent's answers as Markdown, from the types."""

import ast
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gpuagent import api_types
from gpuagent.api_types import AgentResponse, ApiObject

FILE = "shares.schema.json"
"""Name of the schema's file in docs/."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ONCE: Final = ("firstAct", "runbook")
"""Fields of several objects, which docs/api.md describes once."""
_UNIT: Final = re.compile(r", in (?:bytes|seconds)\b")
"""Units that docs/api.md states once; the schema has them in each field."""


def schema() -> dict[str, Any]:
    """Return the schema of the whole response."""
    return {"$schema": _DIALECT, "title": "/api/v1/shares", **_described(AgentResponse)}


def definitions(root: type[ApiObject]) -> dict[str, dict[str, Any]]:
    """Return the objects of an answer by name."""
    objects: dict[str, dict[str, Any]] = _described(root)["$defs"]
    return objects


def _described(root: type[ApiObject]) -> dict[str, Any]:
    """Return the schema of an answer, with the docstring of each field as its description."""
    schema = msgspec.json.schema(root)
    for name, definition in schema["$defs"].items():
        own = getattr(api_types, name)
        docstrings = {field: text for each in reversed(own.__mro__) for field, text in _docstrings(each)}
        for field in msgspec.structs.fields(own):
            properties = definition["properties"]
            about = {"description": docstrings.get(field.name, "")}
            properties[field.encode_name] = about | properties[field.encode_name]
    return schema


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


def objects(root: type[ApiObject]) -> str:
    """Return a section for each object of an answer, with a list of its fields."""
    return "\n".join(_section(definition) for definition in definitions(root).values())


def type_text(field: dict[str, Any]) -> str:
    """Return the type of a field for people, such as `integer or null` or `list of ApiPod`."""
    if "anyOf" in field:
        return " or ".join(type_text(option) for option in field["anyOf"])
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if field["type"] == "array":
        return f"list of {type_text(field['items'])}"
    if field["type"] == "object":
        return f"map to {type_text(field['additionalProperties'])}"
    text: str = field["type"]
    return text


def _section(definition: dict[str, Any]) -> str:
    rows = [
        f"- `{name}` ({type_text(field)}): {_UNIT.sub('', field['description'])}\n"
        for name, field in definition["properties"].items()
        if name not in _ONCE
    ]
    first_line = definition["description"].partition("\n")[0]
    return f"### {definition['title']}\n\n{first_line}\n\n{''.join(rows)}"
