"""The JSON Schema of `/api/v1/shares` and `/api/v1/history`, from the types."""

import json
from typing import Any, Final

import msgspec

from gpuagent.api_types import AgentResponse, HistoryResponse

FILE = "shares.schema.json"
"""Name of the schema's file in docs/."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the schema of `/api/v1/shares`; its definitions have the objects of `/api/v1/history`, too."""
    types = [AgentResponse, HistoryResponse]
    _, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return {
        "$schema": _DIALECT,
        "title": "/api/v1/shares",
        "$ref": "#/$defs/AgentResponse",
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
