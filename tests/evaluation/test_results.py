"""Evaluation: each task once, resumable, failures counted apart, and intervals that agree with other people's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.errors import ConfigurationError
from taspo_trl.evaluation import EvaluationResult, Play, compare, evaluate_tasks, macro_rate, wilson_rate
from taspo_trl.generation import SamplingSettings
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings
from taspo_trl.types import StopReason

from ..playing import ScriptedPolicy, act, open_pool
from ..scripted import Ledger, factory
from ..tokenizers import byte_bpe


ROWS = [{"task_id": f"t{k}", "word": word, "family": family} for k, (word, family) in enumerate(
    [("mug", "pick"), ("pen", "pick"), ("lamp", "look")]
)]  # fmt: skip
OUTCOMES = {"t0": ["go", "win"], "t1": ["lose"], "t2": ["win"]}


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_bpe())


def reply_of(outcomes: dict[str, list[str]]) -> Any:
    def reply(uid: str, turn: int) -> str:
        orders = outcomes[uid.split("-")[1]]
        return act(orders[min(turn, len(orders) - 1)])[0]

    return reply


def evaluate(renderer: ChatRenderer, rows: list[dict] | None = None, outcomes: Any = None, **kwargs: Any):
    """(result, policy, ledger)"""
    ledger = kwargs.pop("ledger", None) or Ledger()
    policy = kwargs.pop("policy", None) or ScriptedPolicy(renderer.tokenizer, reply_of(outcomes or OUTCOMES))
    arguments = {"sampling": SamplingSettings(0.0), "rollout": RolloutSettings(), **kwargs}
    with open_pool(factory(ledger)) as pool:
        result = evaluate_tasks(
            ROWS if rows is None else rows, engine=policy, pool=pool, renderer=renderer, **arguments
        )
    return result, policy, ledger


def make_play(task: str, success: bool = False, family: str = "pick", play_idx: int = 0, **fields: Any) -> Play:
    reason = fields.pop("stop_reason", StopReason.SOLVED if success else StopReason.FAILED)
    return Play(task, family, play_idx, success, float(success), fields.pop("num_turns", 2), 10, reason, **fields)


def result_of(**families: str) -> EvaluationResult:
    """`pick="110"`: three plays of the family, the first two solved."""
    return EvaluationResult(
        tuple(
            make_play(f"{family}{k}", outcome == "1", family)
            for family, outcomes in families.items()
            for k, outcome in enumerate(outcomes)
        )
    )


# ---- playing -------------------------------------------------------------------------------------------------------


def test_each_task_is_played_exactly_once_in_the_order_of_the_rows(renderer):
    # EVL-1: three rows, two at a time, one play each.
    result, policy, ledger = evaluate(renderer, max_in_flight=2)
    assert ledger.counts["reset"] == 3 and ledger.most_open == 2
    assert [(play.task_id, play.success, play.num_turns) for play in result.plays] == [
        ("t0", True, 2),
        ("t1", False, 1),
        ("t2", True, 1),
    ]
    values = result.metrics()
    assert values["success"] == pytest.approx(2 / 3) and values["num_plays"] == 3
    assert all(math.isfinite(value) for value in values.values())
    assert len(policy.begun) == 1 and policy.begun[0][0] == SamplingSettings(0.0)


def test_several_plays_of_a_task_share_its_world(renderer):
    result, policy, ledger = evaluate(renderer, num_plays=3)
    assert ledger.counts["reset"] == 9
    assert [(play.task_id, play.play_idx) for play in result.plays] == [
        (f"t{t}", k) for t in range(3) for k in range(3)
    ]
    firsts = {r.episode_uid: r.prompt_ids for r in reversed(policy.requests) if "t0" in r.episode_uid}
    assert len(firsts) == 3 and len(set(firsts.values())) == 1


def test_an_evaluation_repeats_itself_and_another_seed_is_another_world(renderer):
    def prompts(**kwargs: Any) -> set:
        return {request.prompt_ids for request in evaluate(renderer, **kwargs)[1].requests}

    assert prompts() == prompts(max_in_flight=1) and prompts() != prompts(seed=1)


def test_two_rows_of_one_task_are_refused(renderer):
    with pytest.raises(ConfigurationError, match=r"'t0' stands 2 times.*num_generations_eval"):
        evaluate(renderer, [*ROWS, {"task_id": "t0", "word": "other"}])


def test_equal_rows_without_ids_are_tasks_of_their_own(renderer):
    policy = ScriptedPolicy(renderer.tokenizer, {0: act("win")})
    result, _, _ = evaluate(renderer, [{"word": "mug"}, {"word": "pen"}, {"word": "mug", "hint": None}], policy=policy)
    first, other, second = (play.task_id for play in result.plays)
    assert second == f"{first}-2" and other != first
    worlds = [policy.prompts(f"eval-{one}-g0-k0")[0] for one in (first, second)]
    assert worlds[0] != worlds[1], "each with a seed of its own"
    alone = ScriptedPolicy(renderer.tokenizer, {0: act("win")})
    evaluate(renderer, [{"word": "mug"}], policy=alone)
    assert alone.prompts(f"eval-{first}-g0-k0")[0] == worlds[0]


def test_processes_that_share_the_rows_play_what_one_would(renderer):
    rows = [*ROWS, {"word": "x"}, {"word": "x"}, {"word": "x"}]

    def run(part: slice) -> dict:
        policy = ScriptedPolicy(renderer.tokenizer, {0: act("win")})
        result, _, _ = evaluate(renderer, rows, policy=policy, part=part)
        prompts = {play.task_id: policy.prompts(f"eval-{play.task_id}-g0-k0") for play in result.plays}
        return {"settings": result.settings, **prompts}

    whole, halves = run(slice(None)), [run(slice(k, None, 2)) for k in (0, 1)]
    assert halves[0] | halves[1] == whole and len(whole) == 7


def test_rows_without_ids_are_told_apart_by_their_content(renderer):
    rows = [{"word": "mug", "hint": None}, {"word": "pen"}]
    result, _, _ = evaluate(renderer, rows, policy=ScriptedPolicy(renderer.tokenizer, {0: act("win")}))
    assert len({play.task_id for play in result.plays}) == 2
    again, _, _ = evaluate(
        renderer, [{"word": "mug"}, {"word": "pen"}], policy=ScriptedPolicy(renderer.tokenizer, {0: act("win")})
    )
    assert [play.task_id for play in again.plays] == [play.task_id for play in result.plays]


def test_no_tasks_make_an_empty_result_without_a_crash(renderer):
    result, policy, _ = evaluate(renderer, [])
    assert result.plays == () and policy.begun == []
    assert math.isnan(result.metrics()["success"]) and result.families() == {}


def test_infrastructure_failures_are_counted_apart(renderer):
    result, _, _ = evaluate(renderer, outcomes={"t0": ["win"], "t1": ["go", "raise"], "t2": ["lose"]})
    failed = result.plays[1]
    assert failed.stop_reason is StopReason.ENV_ERROR and "an environment's bug" in failed.error
    values = result.metrics()
    assert values["success"] == 0.5 and values["failed_share"] == pytest.approx(1 / 3)
    assert values["stop/env_error"] == pytest.approx(1 / 3) and values["num_plays"] == 3
    assert result.overall().num_plays == 2 and len(result.usable) == 2


def test_a_play_without_turns_counts_as_failed_infrastructure_and_not_as_a_loss(renderer):
    result, _, _ = evaluate(renderer, rollout=RolloutSettings(max_prompt_length=3))
    assert result.usable == [] and result.metrics()["failed_share"] == 1.0
    assert result.metrics()["stop/prompt_too_long"] == 1.0


# ---- resuming ------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_an_interrupted_evaluation_goes_on_where_it_stopped(renderer, tmp_path):
    path = tmp_path / "deep" / "progress.jsonl"
    whole, _, _ = evaluate(renderer)

    class Killed(ScriptedPolicy):
        def flush(self):
            if len(self.flushes) == 1:
                raise KeyboardInterrupt
            super().flush()

    with pytest.raises(KeyboardInterrupt):
        evaluate(renderer, policy=Killed(renderer.tokenizer, reply_of(OUTCOMES)), progress_path=path)
    assert len(lines_of(path)) == 1 + 2, "t1 and t2 ended in their first turn"
    told: list[Play] = []
    resumed, policy, ledger = evaluate(renderer, progress_path=path, on_play=told.append)
    assert ledger.counts["reset"] == 1 and {r.episode_uid for r in policy.requests} == {"eval-t0-g0-k0"}
    assert resumed == whole
    assert sorted(play.task_id for play in told) == ["t0", "t1", "t2"]
    again, policy, ledger = evaluate(renderer, progress_path=path)
    assert again == whole and policy.begun == [] and ledger.counts["reset"] == 0


@pytest.mark.parametrize("cut", [1, 2, 25, 60])
def test_a_line_that_was_cut_by_a_kill_is_played_again(renderer, tmp_path, cut):
    path = tmp_path / "progress.jsonl"
    whole, _, _ = evaluate(renderer, progress_path=path)
    path.write_bytes(path.read_bytes()[:-cut])
    resumed, _, ledger = evaluate(renderer, progress_path=path)
    assert resumed == whole
    # A cut of one byte takes the line break only.
    assert ledger.counts["reset"] == (0 if cut == 1 else 1)
    assert evaluate(renderer, progress_path=path)[2].counts["reset"] == 0, "and the file is whole again"


def test_broken_lines_of_the_progress_are_left_out_counted_and_named(renderer, tmp_path, caplog):
    path = tmp_path / "progress.jsonl"
    whole, _, _ = evaluate(renderer, progress_path=path)
    header, first, *rest = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, first[:20], '{"task_id": 1}', "[]", *rest, ""]), encoding="utf-8")
    resumed, _, ledger = evaluate(renderer, progress_path=path)
    assert resumed == whole and ledger.counts["reset"] == 1
    (told,) = [one.getMessage() for one in caplog.records if "skipped" in one.getMessage()]
    assert f"{path}: 3 of its lines are no finished plays" in told and "(line 2: " in told and "; line 4: " in told


def test_a_kill_inside_a_character_is_survived(renderer, tmp_path):
    path = tmp_path / "progress.jsonl"
    rows = [{"task_id": "größe"}, {"task_id": "b"}]
    outcomes = {"größe": ["win"], "b": ["lose"]}
    evaluate(renderer, rows, outcomes, progress_path=path, max_in_flight=1)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex("größe".encode()) + 3])  # behind the first byte of "ö"
    resumed, _, ledger = evaluate(renderer, rows, outcomes, progress_path=path)
    assert [play.task_id for play in resumed.plays] == ["größe", "b"] and ledger.counts["reset"] == 2


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\x1c"])
def test_texts_may_hold_any_line_separator(renderer, tmp_path, separator):
    path = tmp_path / "progress.jsonl"
    rows = [{"task_id": f"a{separator}b"}]
    outcomes = {f"a{separator}b": ["win"]}
    evaluate(renderer, rows, outcomes, progress_path=path, settings={"note": separator})
    _, _, ledger = evaluate(renderer, rows, outcomes, progress_path=path, settings={"note": separator})
    assert ledger.counts["reset"] == 0


def test_plays_that_failed_through_infrastructure_are_played_again(renderer, tmp_path):
    path = tmp_path / "progress.jsonl"
    evaluate(renderer, outcomes={**OUTCOMES, "t1": ["raise"]}, progress_path=path)
    resumed, _, ledger = evaluate(renderer, progress_path=path)
    assert ledger.counts["reset"] == 1 and all(play.is_usable for play in resumed.plays)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"num_plays": 2},
        {"sampling": SamplingSettings(0.4)},
        {"sampling": SamplingSettings(0.0, top_p=0.9)},
        {"sampling": SamplingSettings(0.0, top_k=5)},
        {"sampling": SamplingSettings(0.0, extra={"no_repeat_ngram_size": 2})},
        {"rollout": RolloutSettings(max_turns=3)},
        {"rollout": RolloutSettings(context="conversation")},
        {"settings": {"model": "other"}},
        {"rows": ROWS[:2]},
        {"rows": [*ROWS[:2], {"task_id": "t2", "word": "another world under the same id"}]},
    ],
    ids=str,
)
def test_the_progress_of_other_settings_or_tasks_is_refused(renderer, tmp_path, change):
    path = tmp_path / "progress.jsonl"
    evaluate(renderer, progress_path=path)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"progress\.jsonl holds the progress of an evaluation with other"):
        evaluate(renderer, **{"progress_path": path, **change})
    assert path.read_bytes() == before


def test_an_empty_progress_file_is_a_fresh_start(renderer, tmp_path):
    path = tmp_path / "progress.jsonl"
    path.touch()
    evaluate(renderer, progress_path=path)
    assert len(lines_of(path)) == 4


def test_a_result_survives_saving_and_loading(renderer, tmp_path):
    result, _, _ = evaluate(
        renderer, outcomes={**OUTCOMES, "t1": ["raise"]}, settings={"folder": tmp_path, "note": "ä\u2028"}
    )
    path = tmp_path / "a" / "result.json"
    result.save(path)
    loaded = EvaluationResult.load(path)
    assert loaded.plays == result.plays
    assert dict(loaded.settings) == {**result.settings, "folder": str(tmp_path)}
    assert loaded.metrics() == result.metrics()
    assert [one.name for one in path.parent.iterdir()] == ["result.json"]
    data = json.loads(path.read_text())
    assert data["summary"]["success"] == 1.0 and data["version"] == 2


def test_a_file_of_version_1_is_read_and_compared(tmp_path):
    """As the first version wrote it: no `date_string`, equal rows with one id."""
    play = {
        "task_id": "a", "family": "pick", "play_idx": 0, "success": True, "score": 1.0, "num_turns": 3,
        "num_reply_tokens": 10, "stop_reason": "solved", "error": "",
    }  # fmt: skip
    settings = {"tasks_digest": "00", "seed": 0, "num_plays": 1, "temperature": 0.0, "top_p": 1.0, "num_tasks": 2,
                "global_step": 8, "weights_step": 8}  # fmt: skip
    lost = {**play, "task_id": "b", "success": False, "score": 0.0, "stop_reason": "max_turns"}
    data = {"version": 1, "kind": "evaluation", "settings": settings, "summary": {}, "plays": [play, lost]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    old = EvaluationResult.load(path)
    assert old.overall().num_successes == 1 and dict(old.settings) == settings
    lost_play = make_play("b", num_turns=3, stop_reason=StopReason.MAX_TURNS)
    assert old.plays == (make_play("a", success=True, num_turns=3), lost_play)
    new = EvaluationResult((make_play("a"), make_play("b", success=True)))
    paired = compare(old, new)
    assert (paired.num_pairs, paired.only_first, paired.only_second) == (2, 1, 1)
    old.save(path)  # what is written is always the newest version
    assert json.loads(path.read_text())["version"] == 2 and EvaluationResult.load(path) == old


def test_a_result_without_usable_plays_can_be_saved(tmp_path):
    EvaluationResult((make_play("a", stop_reason=StopReason.ENV_DIED),)).save(tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert "NaN" not in text and json.loads(text)["summary"]["success"] is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "evaluation", "version": 3}', '{"kind": "x", "version": 1}']
)
def test_what_is_no_result_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"other\.json is not an evaluation result of version 1 or 2"):
        EvaluationResult.load(path)


# ---- numbers -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 200), st.data())
def test_the_interval_is_wilson_s(num_plays: int, data: st.DataObject):
    successes = data.draw(st.integers(0, num_plays))
    rate = wilson_rate([True] * successes + [False] * (num_plays - successes))
    # Wilson (1927), with z = 1.959964.
    z, p, n = 1.959963984540054, successes / num_plays, num_plays
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert rate.value == p
    assert (rate.low, rate.high) == pytest.approx((max(0, centre - half), min(1, centre + half)), abs=1e-9)


def test_known_wilson_values():
    # 108 of 128, by hand: centre 0.83371, half width 0.06271.
    rate = wilson_rate([True] * 108 + [False] * 20)
    assert (rate.low, rate.high) == pytest.approx((0.77100, 0.89642), abs=2e-4)
    assert math.isnan(wilson_rate([]).value)


def test_micro_and_macro_means_of_unequal_families():
    # pick 2 of 3, heat 0 of 1: micro 2/4, macro (2/3 + 0)/2 = 1/3.
    result = result_of(pick="110", heat="0")
    assert result.overall().value == 0.5
    assert result.macro()[0] == pytest.approx(1 / 3)
    assert [(family, rate.num_successes, rate.num_plays) for family, rate in result.families().items()] == [
        ("heat", 0, 1),
        ("pick", 2, 3),
    ]
    values = result.metrics()
    assert values["success/pick"] == pytest.approx(2 / 3) and values["success/heat"] == 0.0
    assert "success/pick" not in result_of(pick="110").metrics(), "one family is the whole"


def test_the_interval_of_a_macro_mean_is_never_a_point():
    # One stratum: its Wilson interval. Ten failures: 0 to 0.2775; two such strata: 0 to 0.2775 * sqrt(2) / 2.
    assert macro_rate([[True, False]]) == pytest.approx(
        (0.5, wilson_rate([True, False]).low, wilson_rate([True, False]).high)
    )
    assert macro_rate([[False] * 10]) == pytest.approx((0.0, 0.0, 0.27753), abs=1e-4)
    assert macro_rate([[False] * 10] * 2) == pytest.approx((0.0, 0.0, 0.19624), abs=1e-4)
    assert macro_rate([[False] * 10, [True] * 10]) == pytest.approx((0.5, 0.36124, 0.63876), abs=1e-4)
    assert macro_rate([[], [True]])[0] == 1.0
    assert all(math.isnan(value) for value in macro_rate([]))


def test_the_interval_of_a_macro_mean_agrees_with_the_normal_approximation():
    # Variance of the macro mean: 1/4 * (0.5 * 0.5 / 100 + 0.8 * 0.2 / 100), its root 0.03202; 1.96 of them 0.06275.
    strata = [[True] * 50 + [False] * 50, [True] * 80 + [False] * 20]
    value, low, high = macro_rate(strata)
    assert value == pytest.approx(0.65)
    assert (low, high) == pytest.approx((0.65 - 0.06275, 0.65 + 0.06275), abs=0.006)
    narrow = macro_rate(strata, confidence=0.5)
    assert low < narrow[1] < narrow[2] < high


def test_the_paired_test_counts_discordant_pairs():
    first = result_of(pick="1100111111")
    second = result_of(pick="1111111100")
    comparison = compare(first, second)
    assert (comparison.num_pairs, comparison.only_first, comparison.only_second) == (10, 2, 2)
    assert comparison.difference == 0.0 and comparison.p_value == 1.0


@pytest.mark.parametrize(
    "only_first, only_second, p_value",
    # Two tails of Binomial(b + c, 1/2): 2 * (1 + 10) / 2**10 for 1 and 9; 2 / 2**5 for 0 and 5; 1 for 3 and 3.
    [(1, 9, 22 / 1024), (9, 1, 22 / 1024), (0, 5, 2 / 32), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_the_p_value_is_mcnemar_s_exact_one(only_first: int, only_second: int, p_value: float):
    both = "1" * 4 + "0" * 4
    first = result_of(pick="1" * only_first + "0" * only_second + both)
    second = result_of(pick="0" * only_first + "1" * only_second + both)
    comparison = compare(first, second)
    assert comparison.p_value == pytest.approx(p_value)
    assert comparison.difference == pytest.approx((only_second - only_first) / (8 + only_first + only_second))


def test_pairs_are_made_by_task_and_play_whatever_the_order():
    plays = [
        make_play(task, success, play_idx=k) for task, k, success in [("a", 0, True), ("a", 1, False), ("b", 0, True)]
    ]
    flipped = [
        make_play(task, success, play_idx=k) for task, k, success in [("b", 0, False), ("a", 1, False), ("c", 0, True)]
    ]
    comparison = compare(EvaluationResult(tuple(plays)), EvaluationResult(tuple(flipped)))
    assert (comparison.num_pairs, comparison.only_first, comparison.only_second) == (2, 1, 0)


def test_failed_plays_make_no_pair_and_a_family_can_be_compared_alone():
    first = EvaluationResult((make_play("a", True), make_play("b", True, family="heat"), make_play("c", True)))
    second = EvaluationResult(
        (
            make_play("a", stop_reason=StopReason.ENV_TIMEOUT),
            make_play("b", False, family="heat"),
            make_play("c", True),
        )
    )
    assert compare(first, second).num_pairs == compare(second, first).num_pairs == 2
    assert compare(first, second, "heat").difference == -1.0
    assert compare(first, second, "pick").difference == 0.0
    with pytest.raises(ConfigurationError, match="share no task"):
        compare(first, second, "cool")
    with pytest.raises(ConfigurationError, match="share no task"):
        compare(first, EvaluationResult(()))
