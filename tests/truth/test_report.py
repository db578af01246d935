"""The report on a world with closed-form advantages: constant credit is a coin, the labels' own weights are right."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.credit.base import Batch
from taspo_trl.environments import HouseholdEnvironment, ResetResult
from taspo_trl.errors import ConfigurationError
from taspo_trl.methods import Recipe
from taspo_trl.plots import credit_quality_figure
from taspo_trl.records import TrajectoryRecord
from taspo_trl.rollout.rewards import RewardSettings
from taspo_trl.truth import play_values, progress_labels
from taspo_trl.truth.assess import assess, recipes_of, recorded_report, truths_of
from taspo_trl.truth.report import Truth, credit_report, perfect_credit, turn_credit
from taspo_trl.truth.sample import play_groups
from tests.truth.worlds import LENGTH, Corridor, Planned, Play, value


@pytest.fixture(scope="module")
def walked():
    """Twelve groups on the way, and values of all their states."""
    with Play(Planned) as play:
        given = play.arguments
        rows = [{"task_id": f"walk {k}"} for k in range(12)]
        groups = play_groups(rows, rewards=RewardSettings(), num_generations=6, **given)
        episodes = [t for group in groups for t in group.trajectories]
        values = play_values(episodes[:12], num_continuations=8, **given)
    return groups, values


def batch_of(groups):
    from taspo_trl.rollout.advantages import group_advantages

    advantages, _ = group_advantages([[t.reward for t in group.trajectories] for group in groups])
    return Batch(tuple(groups), tuple(a for row in advantages for a in row))


def known(batch):
    """The closed form of every turn's advantage."""
    labels = {}
    for t in batch.trajectories:
        actions = [turn.action for turn in t.turns]
        labels |= {(t.uid, u): value(u + 1, actions) - value(u, actions) for u in range(LENGTH)}
    return labels


def test_constant_credit_is_a_coin_and_the_truth_is_not(walked):
    groups, _ = walked
    batch = batch_of(groups)
    flat = turn_credit(batch, Recipe("grpo").assign(batch).weighed)
    truth = known(batch)
    credits = {"grpo": flat, "truth": perfect_credit(batch, truth)}
    report = credit_report(batch, credits, {"exact": Truth(truth)}, num_resamples=50)
    grpo, right = (report["methods"][name]["exact"] for name in credits)
    assert grpo["all"]["auc"] == [0.5, 0.5, 0.5] and grpo["all"]["rank_correlation"][0] is None
    assert grpo["all"]["dose"][0] == pytest.approx(0, abs=1e-12)
    assert right["all"]["auc"][0] > 0.95 and right["all"]["rank_correlation"][0] > 0.95
    assert right["minus grpo"]["auc"][0] == pytest.approx(right["all"]["auc"][0] - 0.5)
    assert report["methods"]["grpo"]["moved_share"] == 0.0
    assert json.loads(json.dumps(report)) == report


def test_values_and_plan_agree_with_the_closed_form(walked):
    groups, values = walked
    batch = batch_of(groups)
    truths = truths_of(batch, {None: Planned}, values)
    assert truths["progress"].labels == progress_labels(batch.trajectories, {None: Planned})
    exact = known(batch)
    report = credit_report(
        batch, {"exact": perfect_credit(batch, exact)}, {"values": truths["values"]}, num_resamples=50
    )
    assert report["methods"]["exact"]["values"]["all"]["auc"][0] > 0.9
    facts = report["labels"]["values"]
    assert 0.3 < facts["reliability"] <= 1 and facts["mean_standard_error"] > 0
    assert facts["ceiling_rank_correlation"] == pytest.approx(math.sqrt(facts["reliability"]))


def test_examples_come_from_both_ends(walked):
    groups, _ = walked
    batch = batch_of(groups)
    truth = known(batch)
    right = perfect_credit(batch, truth)
    wrong = perfect_credit(batch, {turn: -label for turn, label in truth.items()})
    report = credit_report(
        batch, {"right": right, "wrong": wrong}, {"exact": Truth(truth)}, num_resamples=20, num_examples=2
    )
    found = report["methods"]["right"]["exact"]["examples"]
    assert len(found["helpful"]) == 2
    assert all((one["weight"] - 1) * one["label"] * (1 if one["success"] else -1) > 0 for one in found["helpful"])
    assert report["methods"]["wrong"]["exact"]["examples"]["harmful"][0]["action"] in ("right", "left")


class Silent(Corridor):
    """Has no plan and tells nothing."""

    def reset(self, *, seed, **row):
        return ResetResult(super().reset(seed=seed, **row).observation)

    def step(self, action):
        result = super().step(action)
        return replace(result, info={"success": result.info["success"]})


def test_a_world_without_labels_is_refused():
    with Play(Silent) as play:
        given = play.arguments
        groups = play_groups([{"task_id": "walk"}], rewards=RewardSettings(), num_generations=6, **given)
    with pytest.raises(ConfigurationError, match="no `oracle_plan"):
        truths_of(batch_of(groups), {None: Silent})


ARGS = SimpleNamespace(
    shift_clip=2.0,
    shift_threshold=0.0,
    score_temperature=0.5,
    weight_range=0.4,
    weight_step_size=None,
    guidance="aligned",
    allocation="action",
)


def test_methods_come_with_their_controls():
    recipes = recipes_of(["taspo", "grpo", "contrast"], ARGS)
    assert list(recipes) == ["taspo", "taspo@shuffled", "grpo", "contrast", "contrast@shuffled"]
    assert recipes["contrast@shuffled"].needs.blocks == ("shuffled",)
    assert list(recipes_of(["taspo"], ARGS, with_controls=False)) == ["taspo"]
    with pytest.raises(ConfigurationError, match="no method 'magic'"):
        recipes_of(["magic"], ARGS)


@pytest.fixture(scope="module")
def assessed():
    """The whole way on the household, with a scripted policy and a random model."""
    from taspo_trl.environments.household import solve
    from taspo_trl.environments.workers import EnvironmentPool
    from taspo_trl.generation import SamplingSettings
    from taspo_trl.rollout.contexts import ChatRenderer
    from taspo_trl.rollout.loop import RolloutSettings
    from tests import tiny

    rows = list(tiny.household_rows(size=4))
    plans = [solve(row) for row in rows]

    def reply(uid, turn):
        group, member = (int(part[1:]) for part in uid.split("-")[1:])
        plan = ["look", *plans[group]] if member else ["look"] * 20
        return f"<action>{plan[min(turn, len(plan) - 1)]}</action>"

    pool = EnvironmentPool({None: HouseholdEnvironment})
    try:
        groups = play_groups(
            rows,
            engine=tiny.ScriptedPolicy(reply),
            pool=pool,
            renderer=ChatRenderer(tiny.tokenizer()),
            rollout=RolloutSettings(max_turns=12),
            sampling=SamplingSettings(),
            rewards=RewardSettings(),
            num_generations=3,
        )
    finally:
        pool.close()
    recipes = recipes_of(["taspo", "grpo", "contrast", "contrast_probability"], ARGS)
    return assess(
        groups,
        recipes,
        model=tiny.model(),
        tokenizer=tiny.tokenizer(),
        analyzer=ExtractiveAnalyzer(),
        factories={None: HouseholdEnvironment},
        num_resamples=20,
    )


def test_the_whole_way_on_the_household(assessed):
    report, scored = assessed
    assert report["success"] == pytest.approx(2 / 3) and report["guided"] > 0
    assert report["methods"]["grpo"]["progress"]["all"]["auc"][0] == 0.5
    assert report["methods"]["perfect progress"]["progress"]["all"]["auc"][0] == 1.0
    for name in ("taspo", "contrast", "contrast_probability"):
        found = report["methods"][name]
        assert found["progress"]["all"]["dose"][0] > 0
        assert {"minus grpo", f"minus {name}@shuffled"} <= set(found["progress"])
        assert set(found["progress"]["families"]) == {t.family for t in scored.batch.trajectories}
    assert set(report["seconds"]) == {"guidance", "scoring", "alternatives", "credit", "labels"}
    assert report["alternative_tokens"] > 0
    assert len(credit_quality_figure(report).axes) == 2


def test_recorded_credit_is_measured_without_a_model(assessed):
    report, scored = assessed
    credits = recipes_of(["taspo"], ARGS)["taspo"].assign(scored.batch).credits
    records = [
        TrajectoryRecord(t, group.group_id, 0, 0, credit=credits[t.uid])
        for group in scored.batch.groups
        for t in group.trajectories
    ]
    recorded = recorded_report(records, {None: HouseholdEnvironment}, num_resamples=20)
    one, other = (data["methods"]["taspo"]["progress"]["all"] for data in (recorded, report))
    assert one["auc"][0] == pytest.approx(other["auc"][0]) and one["dose"][0] == pytest.approx(other["dose"][0])
    with pytest.raises(ConfigurationError, match="no credit"):
        recorded_report([], {None: HouseholdEnvironment})
