"""Monte-Carlo values against their closed form; what cannot be replayed is refused."""

import itertools
import math
from concurrent.futures import Future
from dataclasses import replace
from statistics import variance

import pytest

from taspo_trl.errors import ConfigurationError, ReplayError
from taspo_trl.generation import SteppedEngine
from taspo_trl.truth import play_values
from taspo_trl.truth.forced import ForcedPrefixes
from taspo_trl.truth.measures import reliability
from taspo_trl.truth.reading import GuidedEngine
from taspo_trl.truth.values import num_replies_expected, sampled_trajectories
from tests.truth.worlds import CARE, LENGTH, Corridor, Moody, Play, value


def test_the_values_are_right_within_their_standard_errors():
    with Play() as play:
        episodes = play.episodes(6)
        values = play_values(episodes, num_continuations=24, **play.arguments)
    assert len({tuple(turn.action for turn in one.turns) for one in episodes}) > 2, "several ways were walked"
    labels, errors = values.labels(), values.standard_errors()
    assert len(labels) == sum(len(one.turns) for one in episodes)
    standardized = []
    for one in episodes:
        actions = [turn.action for turn in one.turns]
        for t in range(len(one.turns)):
            known = value(t + 1, actions) - value(t, actions)
            if errors[one.uid, t] == 0:
                assert labels[one.uid, t] == known == 0, "astray nothing happens any more"
            else:
                standardized.append((labels[one.uid, t] - known) / errors[one.uid, t])
    assert all(abs(z) < 4 for z in standardized)
    # Unbiased, and the errors neither too large nor too small.
    spread = math.sqrt(sum(z * z for z in standardized) / len(standardized))
    assert abs(sum(standardized)) / math.sqrt(len(standardized)) < 3
    assert 0.5 < spread < 1.6


def test_the_last_state_is_known_and_costs_nothing():
    with Play() as play:
        (episode,) = play.episodes(1)
        values = play_values([episode], num_continuations=4, **play.arguments)
    assert values.outcomes[episode.uid, LENGTH] == (float(episode.success),)
    assert values.num_replies <= num_replies_expected([episode], 4) == 4 * (3 + 2 + 1)
    assert sorted(t for _, t in values.outcomes) == [0, 1, 2, 3]


def test_halves_share_no_continuation_and_say_how_much_is_noise():
    with Play() as play:
        episodes = play.episodes(8)
        few, many = (play_values(episodes, num_continuations=k, **play.arguments) for k in (2, 20))
    assert few.labels(0) != few.labels(1)

    def of(values):
        halves = values.labels(0), values.labels(1)
        return reliability([tuple([half[e.uid, t] for t in range(LENGTH)] for half in halves) for e in episodes])

    assert of(many) > 0.6 and not of(few) >= of(many)


@pytest.mark.parametrize("kept", [1, 2], ids=["half a run", "half a line more"])
def test_an_interrupted_run_goes_on_and_gives_the_same(tmp_path, kept):
    path = tmp_path / "values.jsonl"
    with Play() as play:
        episodes = play.episodes(4)
        given = {"num_continuations": 3, "states_in_flight": 4, **play.arguments}
        whole = play_values(episodes, progress_path=path, **given)
        lines = path.read_text().split("\n")
        path.write_text("\n".join(lines[: 1 + kept]) + ("\n" if kept == 1 else "\n" + lines[3][:20]))
        seen = []
        play.arguments["engine"].requests.clear()
        again = play_values(episodes, progress_path=path, on_states=lambda done, of: seen.append((done, of)), **given)
        assert len(play.arguments["engine"].requests) < whole.num_replies
        with pytest.raises(ConfigurationError, match="other episodes or settings"):
            play_values(episodes, progress_path=path, **{**given, "num_continuations": 5})
    assert again == whole
    assert seen == [(4, 12), (8, 12), (12, 12)]


def test_other_texts_are_refused_by_name():
    with Play(Moody) as play:
        Moody.count = 0
        episodes = play.episodes(2)
        with pytest.raises(ReplayError, match=rf"{episodes[0].uid}.*mood 1|{episodes[0].uid}.*another one"):
            play_values(episodes[:1], num_continuations=2, **play.arguments)


class Flaky(Corridor):
    """Breaks off behind door 1 in every fifth episode that is begun from `begun` = 1 on."""

    begun = itertools.count()

    def reset(self, *, seed, **row):
        number = next(Flaky.begun)
        self.is_broken = number > 0 and number % 5 == 0
        return super().reset(seed=seed, **row)

    def step(self, action):
        if self.is_broken and self.turn == 1:
            raise OSError("the line is dead")
        return super().step(action)


def test_a_continuation_that_breaks_off_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Flaky, "begun", itertools.count(-5))
    with Play(Flaky) as play:
        episodes = play.episodes(6)
        assert all(one.is_usable for one in episodes)
        given = {"num_continuations": 8, "progress_path": tmp_path / "values.jsonl", **play.arguments}
        values = play_values(episodes, **given)
        assert play_values(episodes, **given) == values, "reasons are found again as well"
    assert not values.lost
    states = [(one.uid, t) for one in episodes for t in range(LENGTH)]
    dropped = {state: values.dropped.get(state, ()) for state in states}
    assert sum(map(len, dropped.values())) == len(states) * 8 // 5
    reasons = {reason for of_state in dropped.values() for reason in of_state}
    assert len(reasons) == 1 and reasons.pop().startswith("env_error: OSError: the line is dead")
    errors = values.standard_errors()
    for uid, t in states:
        first, second = values.outcomes[uid, t], values.outcomes[uid, t + 1]
        assert len(first) + len(dropped[uid, t]) == 8
        expected = math.sqrt(sum(variance(one) / len(one) for one in (first, second) if len(one) > 1))
        assert errors[uid, t] == pytest.approx(expected)


def test_where_all_but_one_break_off_there_is_no_value_and_where_none_comes_there_no_episode(monkeypatch):
    with Play(Flaky) as play:
        monkeypatch.setattr(Flaky, "begun", itertools.count(-100))
        (episode,) = play.episodes(1)
        monkeypatch.setattr(Flaky, "begun", itertools.count(4))
        given = {"num_continuations": 2, **play.arguments}
        few = play_values([episode], first_turn=1, states_in_flight=1, **given)
        assert few.outcomes[episode.uid, 1] == () and len(few.dropped[episode.uid, 1]) == 1
        assert list(few.labels()) == [(episode.uid, 2)] and not few.lost
        monkeypatch.setattr(Flaky, "reset", dead)
        gone = play_values([episode], num_continuations=2, is_strict=False, **play.arguments)
        with pytest.raises(ReplayError, match=r"none of its 2 continuations came to turn 0 \(env_error: OSError"):
            play_values([episode], num_continuations=2, **play.arguments)
    assert set(gone.lost) == {episode.uid} and not gone.dropped and not gone.num_turns


def dead(self, *, seed, **row):
    raise OSError("the line is dead")


def test_other_texts_are_refused_where_the_record_has_no_prompts():
    with Play() as play:
        (episode,) = play.episodes(1)
        turns = tuple(replace(turn, prompt_ids=()) for turn in episode.turns)
        turns = (turns[0], replace(turns[1], observation="a door of another house"), turns[2])
        with pytest.raises(ReplayError, match="before turn 1 the record says 'a door of another house'"):
            play_values([replace(episode, turns=turns)], num_continuations=2, **play.arguments)


def test_an_episode_without_its_seed_is_refused():
    with Play() as play:
        (episode,) = play.episodes(1)
        with pytest.raises(ReplayError, match="without its seed"):
            play_values([replace(episode, seed=None)], num_continuations=2, **play.arguments)


def test_one_continuation_has_no_standard_error():
    with Play() as play, pytest.raises(ConfigurationError, match="at least 2"):
        play_values([], num_continuations=1, **play.arguments)


def test_recorded_replies_come_first_and_are_not_counted():
    with Play() as play:
        (episode,) = play.episodes(1)
        engine = ForcedPrefixes(play.arguments["engine"], {"again": episode.turns[:2]})
        engine.begin(play.arguments["sampling"], 3)
        from taspo_trl.rollout.loop import play_episodes
        from taspo_trl.rollout.tasks import EpisodeSpec

        spec = EpisodeSpec("again", "g", 0, episode.task, episode.seed)
        given = {name: play.arguments[name] for name in ("pool", "renderer")}
        (played,) = play_episodes([spec], engine=engine, settings=play.arguments["rollout"], **given)
    assert played.turns[:2] == episode.turns[:2]
    assert engine.num_sampled == 1


class Stepped:
    """Answers one request in each step, and keeps count of what the loop calls."""

    is_stepped = True

    def __init__(self, engine):
        self.engine, self.queue, self.most = engine, [], 0
        self.forgotten = []

    def begin(self, sampling, seed):
        self.engine.begin(sampling, seed)

    def submit(self, request):
        self.queue.append((request, Future()))
        return self.queue[-1][1]

    def flush(self):
        raise AssertionError("a stepped engine is stepped")

    def step(self):
        self.most = max(self.most, len(self.queue))
        if not self.queue:
            return False
        request, future = self.queue.pop(0)
        answer = self.engine.submit(request)
        self.engine.flush()
        future.set_result(answer.result())
        return True

    def forget(self, episode_uid):
        self.forgotten.append(episode_uid)


def test_continuations_are_stepped_as_episodes_are():
    with Play() as play:
        (episode,) = play.episodes(1)
        flushed = play_values([episode], num_continuations=4, **play.arguments)
        stepped = Stepped(play.arguments["engine"])
        values = play_values([episode], num_continuations=4, **{**play.arguments, "engine": stepped})
    assert values.outcomes == flushed.outcomes
    assert len(set(stepped.forgotten)) == 4 * LENGTH, "what the engine kept of each continuation may go"
    around = GuidedEngine(stepped, {}, lambda ids: None)
    assert isinstance(around, SteppedEngine) and around.is_stepped
    assert not GuidedEngine(play.arguments["engine"], {}, lambda ids: None).is_stepped


def test_whole_trajectories_are_sampled():
    with Play(Corridor) as play:
        episodes = play.episodes(6)
    chosen = sampled_trajectories(episodes, 7)
    assert len(chosen) == 3 and {one.uid for one in chosen} <= {one.uid for one in episodes}
    assert sampled_trajectories(episodes, 7) == chosen != sampled_trajectories(episodes, 7, seed=1)
    assert 0 < CARE < 1
