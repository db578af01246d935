"""The agreed shapes of the analyzer's answers: checked item by item, and as JSON schemas for the decoding.

Types are strict: `"2"`, `true` and `2.0` are no step numbers. Unknown keys are ignored and reach nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from ..tokens import as_unicode


MAX_STATEMENT = 800


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SourceItem(_Strict):
    """A citation of a successful trajectory."""

    traj_uid: str
    step: int
    pre_quote: str = ""
    action_quote: str
    post_quote: str = ""

    @field_validator("pre_quote", "post_quote", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value


class EvidenceItem(_Strict):
    """One item of the extraction answer."""

    evidence_id: str = Field(min_length=1)
    kind: Literal["requirement", "progress", "constraint", "alternative"]
    statement: str = Field(min_length=1, max_length=MAX_STATEMENT)
    sources: list[SourceItem] = Field(min_length=1)


class SupportItem(_Strict):
    """A citation of the target; `step` may be missing for the task text, which belongs to no step."""

    step: Annotated[int | None, WithJsonSchema({"type": "integer"})] = None
    field: Literal["task", "pre", "action", "post"]
    quote: str


class StatementItem(_Strict):
    """One statement of the alignment answer."""

    statement: str = Field(min_length=1, max_length=MAX_STATEMENT)
    evidence_ids: list[str] = Field(min_length=1)
    target_support: list[SupportItem] = Field(min_length=1)


class TargetItem(_Strict):
    """The alignment answer's single entry; its statements are checked one by one."""

    traj_uid: str
    guidance: list[SkipValidation[StatementItem]]
    abstain_reason: str = ""

    @field_validator("abstain_reason", mode="before")
    @classmethod
    def _only_for_the_record(cls, value: Any) -> str:
        # It supports nothing, so a wrong type of it costs nothing.
        return as_unicode(value[:MAX_STATEMENT]) if isinstance(value, str) else ""


class ExtractionAnswer(_Strict):
    """The extraction answer; its items are checked one by one."""

    evidence: list[SkipValidation[EvidenceItem]]


class AlignmentAnswer(_Strict):
    """The alignment answer; its entry is checked by itself."""

    targets: list[SkipValidation[TargetItem]]


class JudgementAnswer(_Strict):
    """The judgement answer; its sentences are checked one by one."""

    verdict: Literal["succeeded", "failed"]
    sentences: list[SkipValidation[str]]


ANSWERS: Mapping[str, type[BaseModel]] = {
    "extraction": ExtractionAnswer,
    "alignment": AlignmentAnswer,
    "judgement": JudgementAnswer,
}
"""Stage -> its answer."""


def json_schema(stage: str) -> dict[str, Any]:
    """The schema of a stage's answer as endpoints with strict decoding take it.

    Every property is required and no other allowed, nothing is referred to, and lengths are left out: not every
    endpoint knows them, and what comes back is checked like any other answer.
    """
    schema = ANSWERS[stage].model_json_schema()
    return _strict_schema(schema, schema.get("$defs", {}))


def _strict_schema(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return _strict_schema(definitions[node["$ref"].rpartition("/")[2]], definitions)
    if node["type"] == "object":
        inner = {name: _strict_schema(one, definitions) for name, one in node["properties"].items()}
        return {"type": "object", "properties": inner, "required": list(inner), "additionalProperties": False}
    if node["type"] == "array":
        return {"type": "array", "items": _strict_schema(node["items"], definitions)}
    return {name: node[name] for name in ("type", "enum") if name in node}


def schema_fault(error: ValidationError) -> str:
    """A short reason for a metric's name: the first field that is wrong, without any of the answer's text."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    names = [part for part in first["loc"] if isinstance(part, str)]
    name = names[-1] if names else "item"
    kind = {
        "missing": "missing",
        "string_too_long": "too_long",
        "string_too_short": "empty",
        "too_short": "empty",
        "literal_error": "unknown",
        # Half of a surrogate pair, which JSON can escape and no tokenizer, request or file takes. Pydantic refuses it
        # wherever it counts characters; quotes and uids must stand in the records anyway.
        "string_unicode": "not_unicode",
    }
    return f"{name}_{kind.get(first['type'], 'type')}"
