"""Metrics of a rollout batch and of an update, worked by hand."""

import math
import statistics

import pytest

from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.guidance.stage import GuidanceBatch
from taspo_trl.reporting.metrics import (
    analyzer_metrics,
    credit_metrics,
    group_metrics,
    guidance_metrics,
    rollout_metrics,
    rollout_report,
    tokens_seen,
    update_metrics,
)
from taspo_trl.rollout.groups import CollectedGroup
from taspo_trl.types import (
    Credit,
    Evidence,
    Extraction,
    FinishReason,
    Guidance,
    Rejection,
    ReplyScore,
    Statement,
    StopReason,
)
from tests.builders import group, guided, trajectory, turn


def episodes():
    """A success of two turns, a failure of three, and an infrastructure failure with one turn."""
    won = trajectory(
        [turn((1, 2), (10, 11, 12)), turn((1, 2, 3, 4), (10,), finish_reason=FinishReason.LENGTH, prompt_cuts=2)],
        "won",
        family="pick",
        success=True,
        stop_reason=StopReason.SOLVED,
        reward=1.5,
        environment_reward=0.5,
        rewards={"success": 1.0, "style": 0.5},
    )
    lost = trajectory(
        [
            turn((1, 2), (), valid=False, action_mask=()),
            turn((1, 2), (10, 11), valid=False, action_mask=(False, False)),
            turn((1, 2), (10, 11)),
        ],
        "lost",
        family="clean",
        rewards={"success": 0.0, "style": None},
    )
    died = trajectory(
        [turn((1,), (10,))], "died", stop_reason=StopReason.ENV_DIED, reward=99.0, rewards={"style": 9.0}
    )
    return [won, lost, died]


def test_outcomes_count_usable_episodes_and_tokens_count_all():
    values = rollout_metrics(episodes())
    expected = {
        "success": 1 / 2,
        "reward": 0.75,
        "reward_std": statistics.stdev([1.5, 0.0]),
        "environment_reward": 0.25,
        "turns/mean": 2.5,
        "turns/mean_success": 2.0,
        "turns/max": 3.0,
        "actions/invalid_share": 2 / 6,
        "actions/empty_reply_share": 1 / 6,
        "actions/unlocated_share": 2 / 6,
        "prompts/cut_share": 1 / 6,
        "prompts/mean_length": (2 + 4 + 2 + 2 + 2 + 1) / 6,
        "replies/mean_length": (3 + 1 + 0 + 2 + 2 + 1) / 6,
        "replies/min_length": 0.0,
        "replies/max_length": 3.0,
        "replies/clipped_ratio": 1 / 6,
        "replies/mean_terminated_length": (3 + 0 + 2 + 2 + 1) / 5,
        "replies/min_terminated_length": 0.0,
        "replies/max_terminated_length": 3.0,
        # TRL's completion is an episode: 4 tokens and cut at its end, 4, 1
        "completions/mean_length": 3.0,
        "completions/min_length": 1.0,
        "completions/max_length": 4.0,
        "completions/clipped_ratio": 1 / 3,
        "completions/mean_terminated_length": 2.5,
        "completions/min_terminated_length": 1.0,
        "completions/max_terminated_length": 4.0,
        "episodes/failed_share": 1 / 3,
        "tokens/prompt": 13.0,
        "tokens/reply": 9.0,
        "rewards/success/mean": 0.5,
        "rewards/success/std": statistics.stdev([1.0, 0.0]),
        "rewards/style/mean": 0.5,  # where it applied, in usable episodes
        "rewards/style/std": 0.0,
        "success/pick": 1.0,
        "success/clean": 0.0,
    }
    ends = {f"stop/{reason.value}": 0.0 for reason in StopReason}
    ends |= {"stop/solved": 1 / 3, "stop/max_turns": 1 / 3, "stop/env_died": 1 / 3}
    assert values == pytest.approx(expected | ends)


def test_families_are_listed_only_where_there_are_several():
    assert not any(name.startswith("success/") for name in rollout_metrics(episodes()[:1]))


def test_every_metric_is_a_float_and_only_means_of_nothing_are_nan():
    assert all(type(value) is float for value in rollout_metrics(episodes()).values())
    values = rollout_metrics([])
    assert all(type(value) is float for value in values.values())
    assert {name for name, value in values.items() if math.isnan(value)} == {
        "success",
        "reward",
        "environment_reward",
        "turns/mean",
        "turns/mean_success",
        "actions/invalid_share",
        "actions/empty_reply_share",
        "actions/unlocated_share",
        "prompts/cut_share",
        "prompts/mean_length",
        "replies/mean_length",
        "replies/clipped_ratio",
        "replies/mean_terminated_length",
        "completions/mean_length",
        "completions/clipped_ratio",
        "completions/mean_terminated_length",
        "episodes/failed_share",
    }


def test_tokens_are_counted_as_trl_counts_them():
    """The prompt that opens an episode and what was sampled; what the environment answered is neither."""
    chat = trajectory([turn((1, 2), (10, 11)), turn((1, 2, 10, 11, 5, 6, 7), (12,))], "chat")
    assert tokens_seen(chat) == 2 + 3
    assert tokens_seen(trajectory([], "dead")) == 0


def test_groups_without_contrast_and_with_too_few_members():
    assert group_metrics([True, False, True, False], [4, 4, 1, 2]) == {
        "frac_reward_zero_std": 0.5,
        "groups/too_few_usable": 0.25,
    }


def test_coverage_counts_the_trajectories_that_can_use_guidance():
    # Four trajectories, three with an advantage, one of these with guidance; the fourth has some too.
    members = [trajectory([turn()], uid) for uid in "abcd"]
    evidence = Evidence("e", "progress", "s", ())
    guidance = {
        "a": guided("a", (5, 6, 7), statements=(Statement("s", (), ()),)),
        "b": Guidance("b", "aligned", abstain_reason="no_other_success"),
        "c": Guidance(
            "c",
            "aligned",
            abstain_reason="everything_rejected: two items",
            rejections=(Rejection("alignment", "unknown_id"), Rejection("alignment", "quote")),
        ),
        "d": guided("d", statements=(Statement("s", (), ()), Statement("t", (), ()))),
    }
    extractions = {"g": Extraction((evidence, evidence), (Rejection("extraction", "quote"),))}
    assert guidance_metrics(guidance, extractions, members, [0.5, -0.5, 1.0, 0.0]) == {
        "guidance/coverage": pytest.approx(1 / 3),
        "guidance/coverage_all": 0.5,
        "guidance/eligible_groups": 1.0,
        "guidance/statements": 1.5,
        "guidance/tokens": 2.0,
        "evidence/kept": 2.0,
        "evidence/rejected": 3.0,
        "evidence/rejected/alignment_unknown_id": 1.0,
        "evidence/rejected/alignment_quote": 1.0,
        "evidence/rejected/extraction_quote": 1.0,
        "guidance/none/no_other_success": 1.0,
        "guidance/none/everything_rejected": 1.0,
    }


def test_coverage_of_a_batch_that_can_use_none_is_zero():
    values = guidance_metrics({"a": Guidance("a", "none")}, {}, [trajectory([turn()], "a")], [0.0])
    assert (values["guidance/coverage"], values["guidance/coverage_all"]) == (0.0, 0.0)


def test_weight_spread_and_support_by_hand():
    members = [
        trajectory([turn(), turn(valid=False), turn()], "a"),
        trajectory([turn()], "b"),
        trajectory([turn(), turn()], "c"),
    ]
    score, unscored = ReplyScore((-1.0,), {"aligned": (-0.5,)}), ReplyScore(unscorable="empty_mask")
    credits = [
        Credit("a", 1.0, (1.2, 0.8, 1.0), (0.5, -0.5, None), (score, score, unscored)),
        Credit("b", 1.0, (1.0,), (None,), fallback="no_other_success"),
        Credit("c", 1.0, (1.0, 1.0), (0.1, None), (score, unscored), fallback="fewer_than_two_scorable_turns"),
    ]
    assert credit_metrics(credits, members) == {
        "credit/weighted_share": pytest.approx(1 / 3),
        "credit/weight_std": pytest.approx(0.2),
        "credit/weight_min": 0.8,
        "credit/weight_max": 1.2,
        "credit/scorable_share": pytest.approx(3 / 5),
        "credit/support_accepted": pytest.approx(0.3),  # 0.5 and 0.1
        "credit/support_rejected": -0.5,
        "credit/fallback/no_other_success": 1.0,
        "credit/fallback/fewer_than_two_scorable_turns": 1.0,
        "credit/unscorable/empty_mask": 2.0,
    }


def test_batch_without_scores_has_neutral_credit():
    values = credit_metrics(
        [Credit("a", 0.0, (1.0,), (None,), fallback="zero_advantage")], [trajectory([turn()], "a")]
    )
    assert (values["credit/weighted_share"], values["credit/scorable_share"]) == (0.0, 0.0)
    assert (values["credit/weight_std"], values["credit/weight_min"], values["credit/weight_max"]) == (0.0, 1.0, 1.0)
    assert math.isnan(values["credit/support_accepted"])


def calls(*replies):
    stages = ["extraction", *["alignment"] * (len(replies) - 1)]
    return [(AnalyzerRequest(stage, "s", {}), reply) for stage, reply in zip(stages, replies, strict=True)]


def test_analyzer_calls_by_hand():
    values = analyzer_metrics(
        calls(
            AnalyzerReply(
                "{}", prompt_tokens=100, completion_tokens=10, cost_usd=0.25, seconds=2.0, details={"retries": 2}
            ),
            AnalyzerReply("{", finish_reason="length", prompt_tokens=50, seconds=1.0, is_cached=True),
            AnalyzerReply(error="timeout", details={"retries": 1}),
        )
    )
    assert values == {
        "analyzer/calls": 3.0,
        "analyzer/calls_extraction": 1.0,
        "analyzer/calls_alignment": 2.0,
        "analyzer/cached_share": pytest.approx(1 / 3),
        "analyzer/seconds_per_call": 1.0,
        "analyzer/tokens_prompt": 150.0,
        "analyzer/tokens_completion": 10.0,
        "analyzer/truncated": 1.0,
        "analyzer/cost_usd": 0.25,
        "analyzer/errors/timeout": 1.0,
        "analyzer/retries": 3.0,
    }


def test_no_calls_no_metrics_and_no_known_price_no_cost():
    assert analyzer_metrics([]) == {}
    assert "analyzer/cost_usd" not in analyzer_metrics(calls(AnalyzerReply("{}")))


def test_update_metrics_are_means_over_tokens():
    totals = {"tokens": 8.0, "policy_loss": -0.3, "entropy": 4.0, "clip_low": 2.0, "clip_high": 1.0, "kl": 0.8}
    assert update_metrics(totals) == pytest.approx(
        {
            "policy_loss": -0.3,
            "entropy": 0.5,
            "clip_ratio/low_mean": 0.25,
            "clip_ratio/high_mean": 0.125,
            "clip_ratio/region_mean": 0.375,
            "kl": 0.1,
        }
    )
    del totals["kl"]
    assert "kl" not in update_metrics(totals)


def test_update_metrics_take_the_extremes_over_rows_as_trl_does():
    totals = {"tokens": 8.0, "policy_loss": -0.3, "entropy": 4.0, "clip_low": 2.0, "clip_high": 1.0}
    values = update_metrics(totals, [(0.5, 0.0), (0.25, 0.125), (1.0, 0.0)])
    assert (values["clip_ratio/low_min"], values["clip_ratio/high_max"]) == (0.25, 0.125)
    assert not {name for name in update_metrics(totals) if name.endswith(("_min", "_max"))}


def test_metrics_over_a_part_of_trl_s_set_have_other_names():
    totals = {"tokens": 8.0, "policy_loss": -0.3, "entropy": 4.0, "clip_low": 2.0, "clip_high": 1.0}
    whole = update_metrics(totals, [(0.5, 0.0)])
    part = update_metrics(totals, [(0.5, 0.0)], is_whole=False)
    assert part == {name if name == "policy_loss" else f"moving/{name}": value for name, value in whole.items()}


def test_update_without_tokens_has_a_loss_and_no_means():
    totals = {"tokens": 0.0, "policy_loss": 0.0, "entropy": 0.0, "clip_low": 0.0, "clip_high": 0.0}
    assert update_metrics(totals) == {"policy_loss": 0.0}


def test_report_holds_all_parts_and_what_reward_functions_logged():
    members = episodes()
    collected = [
        CollectedGroup(group(*members[:2]), extra_metrics={"style/score": [1.0, 2.0]}),
        CollectedGroup(group(members[2]), extra_metrics={"style/score": [6.0]}),
    ]
    guided = GuidanceBatch({t.uid: Guidance(t.uid, "none", abstain_reason="off") for t in members}, {}, 1.5, 0.5)
    credits = [Credit(t.uid, 0.0, (1.0,) * len(t.turns), fallback="zero_advantage") for t in members]
    values = rollout_report(collected, [0.0] * 3, [True, True], guided, credits, calls(AnalyzerReply("{}")))
    assert values["style/score"] == 3.0
    assert values["time/analyzer"] == 1.5
    assert values["groups/too_few_usable"] == 0.5  # the group of one that died
    assert values.keys() >= {
        "success",
        "frac_reward_zero_std",
        "guidance/coverage",
        "credit/weighted_share",
        "credit/fallback/zero_advantage",
        "analyzer/calls",
    }
    assert all(type(value) is float for value in values.values())
