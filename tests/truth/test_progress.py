"""Progress by `info["progress"]` as it was told, or by plans, replayed; what does not come back is refused."""

import threading
from dataclasses import replace

import pytest

from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.environments.household import solve
from taspo_trl.errors import ReplayError
from taspo_trl.rollout.plans import progress_told
from taspo_trl.truth import Labelled, agreement, progress_labels
from taspo_trl.types import StopReason, Trajectory, Turn
from tests.truth.worlds import LENGTH, Planned, Play, Quiet


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


def test_what_the_world_told_comes_first_and_is_what_methods_and_records_have():
    with Play(Planned) as play:
        episodes = play.episodes(8)
    labels = progress_labels(episodes, {None: Planned})
    for one in episodes:
        on_the_way = True
        for t, turn in enumerate(one.turns):
            went_right = on_the_way and turn.action == "right"
            expected = 1.0 if went_right else -5.0 - t if on_the_way else 0.0
            assert labels[one.uid, t] == turn.progress == expected
            on_the_way = went_right


def test_plans_label_the_episodes_of_a_world_that_tells_nothing():
    with Play(Quiet) as play:
        episodes = play.episodes(8)
    labels = progress_labels(episodes, {None: Quiet})
    for one in episodes:
        # Astray there is no plan, so nothing is known of the step that led there either.
        first = next((t for t, turn in enumerate(one.turns) if turn.action == "left"), LENGTH)
        assert {t for uid, t in labels if uid == one.uid} == set(range(first))
    assert set(labels.values()) == {1.0}


class Renamed(Quiet):
    """The same in other words each time that it is made."""

    count = 0

    def __init__(self):
        Renamed.count += 1
        self.mood = f" of mood {Renamed.count}"


class Hanging(Quiet):
    """Thinks about its second plan for ever."""

    let_go = threading.Event()

    def oracle_plan(self):
        if self.turn == 1:
            self.let_go.wait()
        return super().oracle_plan()


def test_other_texts_and_lost_seeds_are_refused_by_name():
    with Play(Renamed) as play:
        (episode,) = play.episodes(1)
    with pytest.raises(ReplayError, match=f"{episode.uid} does not replay: before turn 0"):
        progress_labels([episode], {None: Renamed})
    with pytest.raises(ReplayError, match="without its seed"):
        progress_labels([replace(episode, seed=None)], {None: Quiet})
    with pytest.raises(ReplayError, match="cannot be replayed: TypeError"):
        progress_labels([replace(episode, task={"seed_": 1}, turns=episode.turns)], {None: HouseholdEnvironment})


def test_a_world_that_hangs_is_given_up_in_time():
    with Play(Quiet) as play:
        episode = next(one for one in play.episodes(8) if one.turns[0].action == "right")
    try:
        assert progress_told(episode, Hanging, timeout=0.1) == [None] * LENGTH
        with pytest.raises(ReplayError, match=r"no answer for the state before turn 1 within 0\.1 s"):
            progress_told(episode, Hanging, timeout=0.1, is_strict=True)
    finally:
        Hanging.let_go.set()
    assert progress_told(episode, Hanging, timeout=30)[0] == 1.0
