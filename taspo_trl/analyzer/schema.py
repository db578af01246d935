"""The agreed shapes of the analyzer's answers, checked item by item, without conversions.

Types are strict: `"2"`, `true` and `2.0` are no step numbers. Unknown keys are ignored and reach nothing.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

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

    step: int | None = None
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
    guidance: list[Any]
    abstain_reason: str = ""

    @field_validator("abstain_reason", mode="before")
    @classmethod
    def _only_for_the_record(cls, value: Any) -> str:
        # It supports nothing, so a wrong type of it costs nothing.
        return as_unicode(value[:MAX_STATEMENT]) if isinstance(value, str) else ""


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
