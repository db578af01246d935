"""The schemas for the decoding come from the models that check the answers, in the form that strict endpoints take."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from taspo_trl.analyzer import ExtractiveAnalyzer
from taspo_trl.analyzer.base import AnalyzerRequest
from taspo_trl.analyzer.payloads import alignment_payload, extraction_payload
from taspo_trl.analyzer.prompts import PROMPTS
from taspo_trl.analyzer.schema import ANSWERS, json_schema
from taspo_trl.analyzer.validation import validate_evidence

from ..trajectories import outcomes


STAGES = list(ANSWERS)


def nodes(schema: Any):
    if isinstance(schema, dict):
        yield schema
        for inner in schema.get("properties", {}).values():
            yield from nodes(inner)
        yield from nodes(schema.get("items"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_schema_is_what_strict_decoding_takes(stage):
    schema = json_schema(stage)
    jsonschema.Draft202012Validator.check_schema(schema)
    for node in nodes(schema):
        assert set(node) <= {"type", "properties", "required", "additionalProperties", "items", "enum"}
        if node["type"] == "object":
            assert node["required"] == list(node["properties"]) and node["additionalProperties"] is False


def test_the_schemas_name_the_keys_that_paid_answers_are_kept_under():
    item = json_schema("extraction")["properties"]["evidence"]["items"]
    assert list(item["properties"]) == ["evidence_id", "kind", "statement", "sources"]
    assert item["properties"]["kind"] == {
        "type": "string",
        "enum": ["requirement", "progress", "constraint", "alternative"],
    }
    source = item["properties"]["sources"]["items"]["properties"]
    assert list(source) == ["traj_uid", "step", "pre_quote", "action_quote", "post_quote"]
    target = json_schema("alignment")["properties"]["targets"]["items"]
    assert list(target["properties"]) == ["traj_uid", "guidance", "abstain_reason"]
    statement = target["properties"]["guidance"]["items"]["properties"]
    assert list(statement) == ["statement", "evidence_ids", "target_support"]
    support = statement["target_support"]["items"]["properties"]
    assert support["step"] == {"type": "integer"}
    assert support["field"] == {"type": "string", "enum": ["task", "pre", "action", "post"]}


@pytest.mark.parametrize("stage", STAGES)
def test_the_prompt_shows_an_answer_of_the_schemas_keys(stage):
    example = json.loads(getattr(PROMPTS, stage).rpartition("\n")[2].replace("|", "-"))

    def same_keys(value: Any, schema: dict[str, Any]) -> None:
        if schema["type"] == "object":
            assert list(value) == list(schema["properties"])
            for name, inner in schema["properties"].items():
                same_keys(value[name], inner)
        elif schema["type"] == "array":
            for one in value:
                same_keys(one, schema["items"])

    same_keys(example, json_schema(stage))


def test_answers_of_the_embedded_analyzer_are_of_the_schema():
    group = outcomes(1, 1, 0).trajectories
    request = AnalyzerRequest("extraction", "", extraction_payload("task", group[:2]))
    answer = json.loads(ExtractiveAnalyzer().complete(request).text)
    jsonschema.validate(answer, json_schema("extraction"))
    evidence, _ = validate_evidence(answer, group[:2])
    request = AnalyzerRequest("alignment", "", alignment_payload(group[2], evidence))
    answer = json.loads(ExtractiveAnalyzer().complete(request).text)
    assert answer["targets"][0]["guidance"]
    jsonschema.validate(answer, json_schema("alignment"))
