"""What a `<tool_call>` block says: a tool's name and its arguments.

Pure. Two notations are in use: a JSON object (Hermes, Qwen2.5, Qwen3) and nested tags (Qwen3-Coder, Qwen3.5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


_FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` by parameter name."""

    name: str
    arguments: Mapping[str, Any]

    def to_json(self) -> str:
        """The call on one line, in the JSON notation."""
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)


def parse_tool_call(content: str) -> ToolCall | None:
    """The call inside a block; None when it is none."""
    tagged = _FUNCTION.search(content)
    if tagged is not None:
        return ToolCall(tagged[1], dict(_PARAMETER.findall(tagged[2])))
    try:
        data = json.loads(content)
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return None
        arguments = data.get("arguments", data.get("parameters", {}))
        if isinstance(arguments, str):  # some models quote the object once more
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return ToolCall(data["name"], arguments) if isinstance(arguments, Mapping) else None


def typed_arguments(call: ToolCall, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool's JSON schema types them: tags carry text only."""
    properties = schema.get("function", schema).get("parameters", {}).get("properties", {})
    return {name: _typed(value, properties.get(name, {}).get("type")) for name, value in call.arguments.items()}


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, str) or kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
