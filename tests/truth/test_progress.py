"""Progress by a plan or by `info["progress"]`, replayed; what does not come back is refused."""

from dataclasses import replace

import pytest

from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.household import solve
from taspo_trl.errors import ReplayError
from taspo_trl.truth import Labelled, agreement, progress_labels
from taspo_trl.types import StopReason, Trajectory, Turn
from tests.truth.worlds import Corridor, Moody, Planned, Play


def household(actions, index=0, uid="r0-g0-k0"):
    """The episode of these actions, as the rollout loop records it."""
    row = {"preset": "small", "split": "train", "index": index}
    environment = HouseholdEnvironment()
    observation, turns, success = environment.reset(seed=5, **row).observation, [], False
    for action in actions:
        result = environment.step(action)
        turns.append(Turn((), (1,), "", action, (True,), observation, result.observation, result.info["valid"]))
        observation, success = result.observation, result.info["success"]
    reason = StopReason.SOLVED if success else StopReason.FAILED
    return Trajectory(uid, row, "", "", None, 0, tuple(turns), reason, success, (), float(success), seed=5)


@pytest.mark.parametrize("index", range(6))
def test_each_step_of_the_oracle_saves_one(index):
    actions = solve({"preset": "small", "split": "train", "index": index})
    episode = household(actions, index)
    assert episode.success
    assert progress_labels([episode], {None: HouseholdEnvironment}) == {
        (episode.uid, t): 1.0 for t in range(len(actions))
    }


def test_idling_saves_nothing_and_undoing_costs():
    actions = solve({"preset": "small", "split": "train", "index": 0})
    assert actions[0].startswith("go to")
    wasted = ["look", "take the moon", *actions[:1]]
    labels = list(progress_labels([household(wasted)], {None: HouseholdEnvironment}).values())
    assert labels == [0.0, 0.0, 1.0]


def test_weights_by_the_oracle_s_progress_are_nearly_perfect():
    """On a world with an oracle: AUC over 0.95 for its own progress, exactly 0.5 for the outcome's constant credit."""
    rows, flat = [], []
    for index in range(12):
        actions = solve({"preset": "small", "split": "train", "index": index})
        mixed = [a for pair in zip(actions, ["look", "inventory"] * 6, strict=False) for a in pair][:-1][:11]
        episode = household(mixed, index, f"r0-g{index}-k0")
        labels = progress_labels([episode], {None: HouseholdEnvironment})
        credit = [1 + 0.2 * (labels[episode.uid, t] > 0) for t in range(len(mixed))]
        rows.append(Labelled(f"g{index}", credit, [labels[episode.uid, t] for t in range(len(mixed))]))
        flat.append(Labelled(f"g{index}", [1.0] * len(mixed), rows[-1].labels))
    assert agreement(rows).auc.value > 0.95
    assert agreement(flat).auc.value == 0.5


def test_a_plan_comes_before_what_the_world_says_and_the_two_do_not_mix():
    with Play(Planned) as play:
        episodes = play.episodes(8)
    labels = progress_labels(episodes, {None: Planned})
    spoken = progress_labels(episodes, {None: Corridor})
    for one in episodes:
        on_the_way = True
        for t, turn in enumerate(one.turns):
            went_right = on_the_way and turn.action == "right"
            assert labels.get((one.uid, t)) == (1.0 if went_right else None if on_the_way else 0.0)
            assert spoken[one.uid, t] == (1.0 if went_right else -5.0 - t if on_the_way else 0.0)
            on_the_way = went_right


def test_other_texts_and_lost_seeds_are_refused_by_name():
    with Play(Moody) as play:
        (episode,) = play.episodes(1)
    with pytest.raises(ReplayError, match=f"{episode.uid} does not replay: before turn 0"):
        progress_labels([episode], {None: Moody})
    with pytest.raises(ReplayError, match="without its seed"):
        progress_labels([replace(episode, seed=None)], {None: Corridor})
    with pytest.raises(ReplayError, match="cannot be replayed: TypeError"):
        progress_labels([replace(episode, task={"seed_": 1}, turns=episode.turns)], {None: HouseholdEnvironment})
