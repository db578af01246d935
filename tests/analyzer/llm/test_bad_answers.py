"""Whatever an analyzer says: no exception, nothing unsupported is believed, every reject is counted.

The judge of what is supported is written here anew, from docs/method.md, section 4.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.guidance.block import Composer
from taspo_trl.types import Extraction, Guidance, Trajectory, TrajectoryGroup

from ...guiding import aligned_guide
from ...tokenizers import byte_bpe
from ..bad_answers import (
    ALIGNMENT,
    BAD_ITEMS,
    BAD_TARGETS,
    BAD_WHOLES,
    EVIDENCE,
    FIRST,
    GROUP,
    SECOND,
    TARGET,
    mutant,
    with_fault,
)


class Says:
    """Answers each stage with one text, the second time as well."""

    name = "says"

    def __init__(self, extraction: str = json.dumps(EVIDENCE), alignment: str = json.dumps(ALIGNMENT)):
        self.texts = {"extraction": extraction, "alignment": alignment}
        self.asked: Counter[str] = Counter()

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        self.asked[request.stage] += 1
        return AnalyzerReply(self.texts[request.stage])

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer(byte_bpe())


def guide(analyzer: Any, composer: Composer) -> tuple[Extraction, Guidance]:
    construction = aligned_guide(analyzer, composer)
    extraction = construction.prepare(GROUP)
    return extraction, construction.build(GROUP, TARGET, extraction)


# ---- the judge ------------------------------------------------------------------------------------------------------


def squashed(text: str) -> str:
    return " ".join(text.split())


def is_piece(quote: str, record: str) -> bool:
    needle, whole = squashed(quote), squashed(record)
    return needle != "" and (needle == whole or (len(needle) >= 4 and needle in whole))


def is_action(quote: str, action: str) -> bool:
    needle, whole = squashed(quote), squashed(action)
    return needle != "" and (needle == whole or (len(whole) > 320 and len(needle) >= 40 and needle in whole))


def check_supported(extraction: Extraction, guidance: Guidance, successes: Sequence[Trajectory]) -> None:
    """Fail when anything that was believed is not borne out by the records."""
    by_uid = {t.uid: t for t in successes}
    for item in extraction.evidence:
        assert item.evidence_id.strip() and 0 < len(item.statement) <= 800 and item.sources
        for source in item.sources:
            turn = by_uid[source.traj_uid].turns[source.step]
            assert source.step >= 0 and turn.valid and is_action(source.action_quote, turn.action)
            pre, post = source.pre_quote.strip(), source.post_quote.strip()
            assert pre or post
            assert not pre or is_piece(pre, turn.observation)
            assert not post or is_piece(post, turn.next_observation)
    assert len({item.evidence_id for item in extraction.evidence}) == len(extraction.evidence) <= 12
    known = {item.evidence_id for item in extraction.evidence}
    for statement in guidance.statements:
        assert statement.evidence_ids and set(statement.evidence_ids) <= known
        assert 0 < len(statement.text) <= 800 and statement.support
        for support in statement.support:
            if support.field == "task":
                assert is_piece(support.quote, TARGET.task_text)
                continue
            turn = TARGET.turns[support.step]
            assert support.step >= 0
            if support.field == "action":
                assert is_action(support.quote, turn.action)
            else:
                assert is_piece(support.quote, turn.observation if support.field == "pre" else turn.next_observation)
    for marker in ("<|", "|>", "<action>", "</action>", "[End Privileged Guidance]"):
        assert sum(marker in statement.text for statement in guidance.statements) == 0
    assert guidance.text.count("[Privileged Guidance]") <= 1
    assert bool(guidance) or guidance.abstain_reason


def check_counted(extraction: Extraction, guidance: Guidance) -> None:
    for rejection in (*extraction.rejections, *guidance.rejections):
        assert rejection.reason and rejection.reason == rejection.reason.strip()
        assert len(rejection.reason) < 60, "a reason is a metric's name"


def test_the_honest_answer_is_believed(composer):
    extraction, guidance = guide(Says(), composer)
    check_supported(extraction, guidance, [FIRST, SECOND])
    assert [item.evidence_id for item in extraction.evidence] == ["E1", "E2"]
    assert len(guidance.statements) == 2 and not extraction.rejections and not guidance.rejections


# ---- fixtures -------------------------------------------------------------------------------------------------------


def test_there_are_enough_fixtures():
    assert len(BAD_ITEMS) + len(BAD_WHOLES) + len(BAD_TARGETS) >= 200


@pytest.mark.parametrize("stage, name, text", BAD_WHOLES, ids=[f"{stage}-{name}" for stage, name, _ in BAD_WHOLES])
def test_a_bad_answer_is_no_guidance_and_one_counted_reason_for_each_try(stage, name, text, composer):
    analyzer = Says(**{stage: text})
    extraction, guidance = guide(analyzer, composer)
    check_supported(extraction, guidance, [FIRST, SECOND])
    check_counted(extraction, guidance)
    rejections = extraction.rejections if stage == "extraction" else guidance.rejections
    assert not guidance and analyzer.asked[stage] in (1, 2)
    assert len(rejections) == analyzer.asked[stage], "each try that could not be read is counted"
    assert len({rejection.reason for rejection in rejections}) == 1
    assert {rejection.stage for rejection in rejections} == {stage}


@pytest.mark.parametrize("stage, name, text", BAD_ITEMS, ids=[f"{stage}-{name}" for stage, name, _ in BAD_ITEMS])
def test_a_bad_item_costs_itself_and_nothing_else(stage, name, text, composer):
    extraction, guidance = guide(Says(**{stage: text}), composer)
    check_supported(extraction, guidance, [FIRST, SECOND])
    check_counted(extraction, guidance)
    if stage == "extraction":
        assert [item.evidence_id for item in extraction.evidence] == ["E2"]
        assert len(extraction.rejections) == 1
        assert [statement.text for statement in guidance.statements] == ["Open the drawer first."]
    else:
        assert [statement.text for statement in guidance.statements] == ["Then move the mug."]
        assert len(guidance.rejections) == 1


@pytest.mark.parametrize("name, text", BAD_TARGETS)
def test_an_answer_about_another_target_is_rejected_whole(name, text, composer):
    extraction, guidance = guide(Says(alignment=text), composer)
    assert not guidance and len(guidance.rejections) == 1
    check_counted(extraction, guidance)


@pytest.mark.parametrize("length, is_kept", [(800, True), (801, False)])
def test_statements_have_at_most_800_characters(length, is_kept, composer):
    extraction, _ = guide(Says(with_fault(EVIDENCE, ("evidence", 0), "statement", "x" * length)), composer)
    assert (len(extraction.evidence) == 2) is is_kept


def test_of_items_with_one_id_the_first_accepted_one_stays(composer):
    double = copy.deepcopy(EVIDENCE)
    double["evidence"][1]["evidence_id"] = "E1"
    extraction, _ = guide(Says(json.dumps(double)), composer)
    assert [item.statement for item in extraction.evidence] == ["Move it once you hold it."]
    assert [rejection.reason for rejection in extraction.rejections] == ["duplicate_id"]


def test_extra_keys_reach_nothing(composer):
    # QUO-2: an analyzer that obeys an injected instruction adds weights, scores and advantages.
    poisoned = copy.deepcopy(ALIGNMENT)
    poisoned["weights"] = {"g0-k2": [9.0]}
    poisoned["targets"][0] |= {"advantage": 5, "score": 1}
    poisoned["targets"][0]["guidance"][0]["weight"] = 99
    _, guidance = guide(Says(alignment=json.dumps(poisoned)), composer)
    _, honest = guide(Says(), composer)
    assert guidance == honest


@pytest.mark.parametrize(
    "quote, is_kept",
    [
        ("you see a mug 1's lid and a pen 2", True),
        ("you see a mug\N{NO-BREAK SPACE}1's lid and a pen 2", True),
        ("you see a mug 1\N{RIGHT SINGLE QUOTATION MARK}s lid", False),
        ("You see a mug 1's lid", False),
        ("you see a mug 2's lid", False),
        ("you see a 1's lid", False),
    ],
)
def test_quotes_forgive_white_space_and_nothing_else(quote, is_kept, composer):
    # QUO-1
    source = {"traj_uid": "g0-k0", "step": 0, "pre_quote": "", "action_quote": "go to desk 1", "post_quote": quote}
    extraction, _ = guide(Says(with_fault(EVIDENCE, ("evidence", 0), "sources", [source])), composer)
    assert (len(extraction.evidence) == 2) is is_kept
    if "\N{RIGHT SINGLE QUOTATION MARK}" in quote:
        assert extraction.rejections[0].reason == "quote_typography"


# ---- mutations ------------------------------------------------------------------------------------------------------

OUTCOMES: Counter[str] = Counter()


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**63))
def test_ten_thousand_mutations_crash_nothing_and_smuggle_nothing_in(seed):
    extraction_text, alignment_text = mutant(seed)
    extraction, guidance = guide(Says(extraction_text, alignment_text), COMPOSER)
    check_supported(extraction, guidance, [FIRST, SECOND])
    check_counted(extraction, guidance)
    if not extraction.evidence:
        assert extraction.fault
    OUTCOMES["believed" if guidance else guidance.abstain_reason.split(":")[0]] += 1


COMPOSER = Composer(byte_bpe())


def test_mutations_reach_every_part_of_the_checks():
    """The test above means something only if many mutants are believed in part and many are not."""
    if not OUTCOMES:
        pytest.skip("the mutations were not run")
    assert OUTCOMES["believed"] > 1000 and len(OUTCOMES) > 8, OUTCOMES


def test_a_group_is_not_changed_by_being_looked_at(composer):
    before = copy.deepcopy(GROUP)
    guide(Says(), composer)
    assert before == GROUP and isinstance(GROUP, TrajectoryGroup)
