"""The script of docs/porting.md in TRL and after its diffs: the same episodes, rewards and metrics."""

from __future__ import annotations

import warnings

import pytest

from taspo_trl.records import read_records
from tests.environments.test_tools import call
from tests.porting import stand


PLAYS = {
    0: [call("guess", word="crane"), "It is crane."],
    1: [call("guess", word="slate"), call("guess", word="crane"), "It is crane."],
    2: [call("guess", word="slate"), call("guess", word="sla"), "I give up."],
    3: ["I do not know."],
}
SAME = (
    "reward", "reward_std", "rewards/solved/mean", "rewards/solved/std", "frac_reward_zero_std", "num_tokens",
    *(f"completions/{name}" for name in (
        "mean_length", "min_length", "max_length", "clipped_ratio",
        "mean_terminated_length", "min_terminated_length", "max_terminated_length",
    )),
)  # fmt: skip
"""Metrics of both trainers that an episode decides, and not the update."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    """(TRL's log, ours, ours with a verdict, the folder) of the page's script."""
    folder = tmp_path_factory.mktemp("porting")
    stand.save_model(folder)
    monkeypatch = pytest.MonkeyPatch()
    before = stand.page_blocks("python")[0].replace('("crane", "slate", "pilot") * 20', '["crane"] * 8')
    diffs = stand.page_blocks("diff")
    found = []
    for name, script in (
        ("trl", before),
        ("grpo", stand.patched(before, diffs[:3])),
        ("taspo", stand.patched(before, diffs)),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monkeypatch.chdir(folder)
            made = stand.run(script.replace("runs/words", f"runs/{name}"), PLAYS, monkeypatch, beta=0.1)
        found.append((stand.first_entry(made), [str(one.message) for one in caught]))
    return folder, *found


def test_the_changed_script_plays_and_rates_as_in_trl(entries):
    _, (in_trl, _), (ours, said), _ = entries
    assert in_trl["reward"] == 0.5 and in_trl["completions/max_length"] > in_trl["completions/min_length"]
    assert {name: ours[name] for name in SAME} == pytest.approx({name: in_trl[name] for name in SAME})
    assert [one for one in said if "plain GRPO" in one and "`WordEnv`" in one]
    assert ours["guidance/coverage"] == 0.0


def test_metrics_of_the_update_have_trl_s_values_where_no_turn_weighs(entries):
    """Untouched by credit: one update of a fresh batch, so nothing is clipped and the reference is the policy."""
    _, (in_trl, _), (ours, _), _ = entries
    for name in ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "entropy"):
        assert ours[name] == pytest.approx(in_trl[name], rel=1e-3, abs=1e-6), name


def test_with_a_verdict_turns_get_credit_and_rewards_stay(entries):
    folder, (in_trl, _), _, (ours, said) = entries
    assert not [one for one in said if "plain GRPO" in one]
    assert {name: ours[name] for name in SAME} == pytest.approx({name: in_trl[name] for name in SAME})
    assert ours["success"] == 0.5 and ours["guidance/coverage"] > 0 and ours["credit/weight_std"] > 0
    (record, *_) = [
        one for one in read_records(folder / "runs/taspo/_trajectories") if one.trajectory.generation_idx == 2
    ]
    assert [turn.valid for turn in record.trajectory.turns[:2]] == [True, False]
    assert stand.is_refusal(record.trajectory.turns[1].next_observation)
