"""The agreed shapes as JSON schemas, for endpoints that decode under a schema. Pure.

They guide the decoding only; what comes back is checked by `schema.py` like any other answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    # OpenAI's strict mode wants every property required and no others.
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_TEXT = {"type": "string"}
_STEP = {"type": "integer"}

JSON_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "extraction": _object(
        evidence=_list(
            _object(
                evidence_id=_TEXT,
                kind=_one_of("requirement", "progress", "constraint", "alternative"),
                statement=_TEXT,
                sources=_list(
                    _object(traj_uid=_TEXT, step=_STEP, pre_quote=_TEXT, action_quote=_TEXT, post_quote=_TEXT)
                ),
            )
        )
    ),
    "alignment": _object(
        targets=_list(
            _object(
                traj_uid=_TEXT,
                guidance=_list(
                    _object(
                        statement=_TEXT,
                        evidence_ids=_list(_TEXT),
                        target_support=_list(
                            _object(step=_STEP, field=_one_of("task", "pre", "action", "post"), quote=_TEXT)
                        ),
                    )
                ),
                abstain_reason=_TEXT,
            )
        )
    ),
}
"""Stage -> schema of its answer."""
