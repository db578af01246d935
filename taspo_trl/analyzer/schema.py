"""The agreed shapes of the analyzer's answers, checked item by item, without conversions.

Types are strict: `"2"`, `true` and `2.0` are no step numbers. Unknown keys are ignored and reach nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..text import as_unicode, is_unicode


MAX_STATEMENT = 800


def _check_unicode(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("half of a surrogate pair")
    return text


# JSON can escape half of a surrogate pair (`"\ud83d"`); no tokenizer, request or file takes it.
_Text = Annotated[str, AfterValidator(_check_unicode)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SourceItem(_Strict):
    """A citation of a successful trajectory."""

    traj_uid: _Text
    step: int
    pre_quote: _Text = ""
    action_quote: _Text
    post_quote: _Text = ""

    @field_validator("pre_quote", "post_quote", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value


class EvidenceItem(_Strict):
    """One item of the extraction answer."""

    evidence_id: _Text = Field(min_length=1)
    kind: Literal["requirement", "progress", "constraint", "alternative"]
    statement: _Text = Field(min_length=1, max_length=MAX_STATEMENT)
    sources: list[SourceItem] = Field(min_length=1)


class SupportItem(_Strict):
    """A citation of the target; `step` may be missing for the task text, which belongs to no step."""

    step: int | None = None
    field: Literal["task", "pre", "action", "post"]
    quote: _Text


class StatementItem(_Strict):
    """One statement of the alignment answer."""

    statement: _Text = Field(min_length=1, max_length=MAX_STATEMENT)
    evidence_ids: list[_Text] = Field(min_length=1)
    target_support: list[SupportItem] = Field(min_length=1)


class TargetItem(_Strict):
    """The alignment answer's single entry; its statements are checked one by one."""

    traj_uid: _Text
    guidance: list[Any]
    abstain_reason: str = ""

    @field_validator("abstain_reason", mode="before")
    @classmethod
    def _only_for_the_record(cls, value: Any) -> str:
        # It supports nothing, so a wrong type of it costs nothing.
        return as_unicode(value) if isinstance(value, str) else ""


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
        "value_error": "not_unicode",
        "string_unicode": "not_unicode",  # pydantic's own, where it counts the characters
    }
    return f"{name}_{kind.get(first['type'], 'type')}"
