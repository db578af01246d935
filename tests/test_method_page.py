"""docs/method.md holds what the code cites from it: sections, equations, defaults, files."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from taspo_trl import TASPOConfig
from taspo_trl.analyzer import payloads, quotes, schema
from tests.documents import DOCS, ROOT


PAGE = (DOCS / "method.md").read_text(encoding="utf-8")
SECTIONS = set(re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE))
EQUATIONS = set(re.findall(r"^### (E\d): ", PAGE, re.MULTILINE))


def sources():
    """(name, text without line breaks) of every Python file that may cite the page."""
    for folder in ("taspo_trl", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text(encoding="utf-8"))


def test_the_page_has_eight_sections_and_eight_equations():
    assert sorted(SECTIONS) == list("12345678")
    assert sorted(EQUATIONS) == [f"E{k}" for k in range(1, 9)]
    for number in EQUATIONS:  # a heading alone is no equation
        assert re.search(rf"^### {number}: [^#]*?```text\n.+?```", PAGE, re.MULTILINE | re.DOTALL), number


def test_what_the_code_cites_exists():
    cited = 0
    for name, text in sources():
        assert not re.search(r"(?<!docs/)\bmethod\.md", text.replace('"method.md"', "")), name
        for which in re.findall(r"docs/method\.md, sections? (\d(?:(?:, | and | to )\d)*)", text):
            numbers = set(re.findall(r"\d", which))
            assert numbers <= SECTIONS, f"{name} cites {which}"
            cited += len(numbers)
        for which in re.findall(r"docs/method\.md, (E\d(?:(?:, | and | to )E\d)*)", text):
            assert set(re.findall(r"E\d", which)) <= EQUATIONS, f"{name} cites {which}"
            cited += 1
    assert cited > 10


def test_equations_named_anywhere_in_the_package_exist():
    for name, text in sources():
        if name.startswith("taspo_trl/") and "environments" not in name:  # evidence items are called E1, too
            named = set(re.findall(r"[(,] ?(E\d)(?=[):;,]| to E\d)", text))
            assert named <= EQUATIONS, f"{name} names {named - EQUATIONS}"


def test_files_that_the_page_names_exist():
    files = re.findall(r"`((?:\w+/)*\w+\.py)\b", PAGE) + [f"{one}.py" for one in re.findall(r"`(\w+)\.\w+`", PAGE)]
    assert len(files) > 12
    for file in files:
        name = {"Trajectory.py": "types.py", "Turn.py": "types.py", "StopReason.py": "types.py"}.get(file, file)
        assert (ROOT / "taspo_trl" / name).is_file(), file


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("weight_range", "`weight_range` is eps_w, 0.4 by default"),
        ("shift_clip", "`shift_clip` is c, 2.0 by default"),
        ("score_temperature", "`score_temperature` is tau, 0.5"),
        ("max_evidence_items", "first 12 accepted items stay (`max_evidence_items`)"),
        ("max_guidance_items", "first 8 statements (`max_guidance_items`)"),
        ("max_guidance_tokens", "`max_guidance_tokens` = 256 tokens"),
        ("analyzer_context_chars", "`analyzer_context_chars` (12,000"),
        ("analyzer_max_tokens", "4,096 output tokens"),
        ("eval_temperature", "`eval_temperature` (0.0)"),
        ("invalid_action_penalty", "0.0 by default"),
    ],
)
def test_defaults_are_those_of_the_configuration(name, said):
    assert said in re.sub(r"\s+", " ", PAGE)
    (default,) = (one.default for one in fields(TASPOConfig) if one.name == name)
    numbers = [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", said)]
    assert default in numbers


def test_limits_of_the_analyzer_are_those_of_the_code():
    text = re.sub(r"\s+", " ", PAGE)
    assert f"at most {schema.MAX_STATEMENT} characters" in text
    assert f"has {quotes.MIN_QUOTE} characters or more" in text
    assert f"over {quotes.LONG_ACTION} characters an exact part of {quotes.MIN_ACTION_PART} or more" in text
    assert f"the task {payloads.TASK_CHARS:,} characters, an action {quotes.LONG_ACTION}" in text
    assert f"at least {payloads.MIN_OBSERVATION_CHARS} characters each" in text
