"""Groups that are scored while others play: before these end, with the same numbers whoever ends first."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import LlamaModel

from taspo_trl.errors import ConfigurationError
from taspo_trl.guidance.base import Construction
from taspo_trl.rollout import loop
from taspo_trl.training import beside
from taspo_trl.training.assembly import scores_during_rollout
from taspo_trl.types import Block, Guidance
from tests import tiny
from tests.methods.test_training import ROWS, acting


class Given(Construction):
    """A block for every target."""

    name, needs_success = "aligned", True

    def build(self, context, group, target):
        return Guidance(target.uid, self.name, {self.name: Block.whole((20, 21, 22), len(target.turns))})


class LateOthers(Given):
    needs_others = True


class HoldingPolicy(tiny.ScriptedPolicy):
    """Keeps the replies of one group to itself until the model has been asked five times, for ten seconds at most."""

    def __init__(self, group):
        super().__init__(acting)
        self.group, self.is_open, self.kept = group, group is None, []
        self.lock = threading.Lock()
        self.timer = threading.Timer(10.0, self.release)

    def submit(self, request):
        answer = super().submit(request)
        with self.lock:
            if self.is_open or f"-g{self.group}-" not in request.episode_uid:
                return answer
            self.kept.append((Future(), answer.result()))
            if len(self.kept) == 1:
                self.timer.start()
            return self.kept[-1][0]

    def release(self):
        self.timer.cancel()
        with self.lock:
            self.is_open = True
            kept, self.kept = self.kept, []
        for future, generation in kept:
            future.set_result(generation)


def play(folder, patch, hold=None, fail_at=None, construction=Given, method="taspo", dtype=torch.float32, **values):
    """One rollout batch of two groups: what it came to, and the order of forwards and ends of episodes."""
    policy = HoldingPolicy(hold)
    made = tiny.trainer(
        folder,
        model=tiny.model(dtype=dtype),
        policy=policy,
        train_dataset=Dataset.from_list(ROWS),
        shuffle_dataset=False,
        method=method,
        **{
            "per_device_train_batch_size": 4,
            "steps_per_generation": 2,
            "micro_batch_tokens": 800,
            "max_turns": 6,
            "max_completion_length": 16,
            "score_during_rollout": True,
            **values,
        },
    )
    maker = made.experience_maker
    if construction is not None:
        maker.guidance._construction = construction()
    if maker.teacher is not None:
        maker.teacher.follow(0)
    found = SimpleNamespace(events=[], trainer=made, flags=[], experience=None)
    forward, end = LlamaModel.forward, maker.make

    def noting(model, *positional, **inputs):
        found.events.append("forward")
        found.flags.append((model.training, torch.is_grad_enabled()))
        if fail_at is not None and found.events.count("forward") > fail_at:
            raise RuntimeError("out of memory, say")
        if found.events.count("forward") == 5:
            policy.release()
        return forward(model, *positional, **inputs)

    def making(*positional, on_episode_end, **keywords):
        def ended(trajectory):
            found.events.append(trajectory.uid)
            on_episode_end(trajectory)

        found.experience = end(*positional, on_episode_end=ended, **keywords)
        return found.experience

    maker.make = making
    made.model.train()
    try:
        with patch.context() as inner:
            inner.setattr(LlamaModel, "forward", noting)
            inner.setattr(loop, "_PATIENCE_SECONDS", 10.0)  # a busy machine makes no quick environment a slow one
            made._new_rollout([made.train_dataset[0]] * 4 + [made.train_dataset[1]] * 4)
    finally:
        policy.timer.cancel()
        made.close()
        assert all(module.training for module in made.model.modules())
    found.rows = [row for micro in found.experience.micro_batches for batch in micro for row in batch]
    found.credits = [record.credit for record in found.experience.records]
    return found


def same(one, other):
    """Whether two batches came to the same numbers, to the last bit."""
    assert repr(one.credits) == repr(other.credits)  # a score without value is nan
    assert one.rows == other.rows
    return True


def num_hidden(found):
    """Forwards before the last episode ended."""
    last = max(k for k, event in enumerate(found.events) if event != "forward")
    return found.events[:last].count("forward")


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """The same batch without scoring beside the rollout, and with it when none or either group lingers."""
    with pytest.MonkeyPatch.context() as patch:
        return {
            name: play(tmp_path_factory.mktemp("run"), patch, beta=0.1, **settings)
            for name, settings in {
                "off": {"score_during_rollout": False},
                "none": {},
                "first": {"hold": 0},
                "second": {"hold": 1},
            }.items()
        }


def test_finished_groups_are_scored_before_the_others_end(batches):
    assert num_hidden(batches["off"]) == num_hidden(batches["none"]) == 0
    assert num_hidden(batches["first"]) >= 5 and num_hidden(batches["second"]) >= 5
    for name in ("first", "second"):
        metrics = batches[name].experience.metrics
        assert metrics["time/beside_rollout"] > 0 and metrics["time/scoring"] > 0
    assert batches["none"].experience.metrics["time/beside_rollout"] == 0
    assert "time/beside_rollout" not in batches["off"].experience.metrics
    assert not any(flag for one in batches.values() for flags in one.flags for flag in flags)


def test_numbers_do_not_depend_on_who_ends_first(batches):
    assert same(batches["first"], batches["none"]) and same(batches["second"], batches["none"])
    assert all(row.old_logps and row.ref_logps for row in batches["none"].rows)
    assert any(weight != 1 for credit in batches["none"].credits for weight in credit.weights)


def test_numbers_are_those_of_scoring_after_the_rollout(batches, tmp_path, monkeypatch):
    """To rounding where micro-batches differ; to the last bit where every row is one of its own."""
    for one, other in zip(batches["first"].rows, batches["off"].rows, strict=True):
        assert one.ids == other.ids
        assert one.old_logps == pytest.approx(other.old_logps, abs=1e-5)
        assert one.ref_logps == pytest.approx(other.ref_logps, abs=1e-5)
        assert one.advantages == pytest.approx(other.advantages, abs=1e-4)
    alone = {"micro_batch_tokens": 1, "max_turns": 4}
    after = play(tmp_path / "after", monkeypatch, score_during_rollout=False, **alone)
    assert same(play(tmp_path / "during", monkeypatch, hold=0, **alone), after)
    assert any(weight != 1 for credit in after.credits for weight in credit.weights)


def test_a_teacher_of_its_own_and_contexts_of_other_groups(tmp_path, monkeypatch):
    """A teacher's branches are scored beside the rollout, too; what needs all groups waits for them."""
    serl = {"method": "serl", "construction": None, "dtype": torch.float64}
    after = play(tmp_path / "a", monkeypatch, score_during_rollout=False, **serl)
    during = play(tmp_path / "b", monkeypatch, hold=0, **serl)
    assert num_hidden(during) >= 5 and any(credit.scores for credit in during.credits)
    for one, other in zip(during.rows, after.rows, strict=True):
        assert one.advantages == pytest.approx(other.advantages, abs=1e-9)
    late = play(tmp_path / "c", monkeypatch, construction=LateOthers)
    assert num_hidden(late) == 0 and any(score.guided for credit in late.credits for score in credit.scores)


def test_rows_that_nobody_foresaw_are_computed_after_the_rollout(batches, tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "moving_rows", lambda trajectories, moves: [])
    found = play(tmp_path, monkeypatch, beta=0.1)
    assert num_hidden(found) == 0 and same(found, batches["first"])


def test_what_goes_wrong_ends_the_rollout_and_keeps_its_episodes(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="out of memory, say"):  # flags are looked at in `play`
        play(tmp_path, monkeypatch, hold=0, fail_at=1)
    (partial,) = (tmp_path / "_trajectories").glob("*.partial")
    assert len(partial.read_text().splitlines()) == 4  # the group that has ended


def test_where_it_is_on_off_and_refused(tmp_path, caplog):
    served = SimpleNamespace(use_vllm=True, vllm_mode="server", score_during_rollout=None)
    here = tiny.config(tmp_path)
    assert scores_during_rollout(served, is_sharded=False)
    assert not scores_during_rollout(here, is_sharded=False) and not scores_during_rollout(here, is_sharded=True)
    assert not caplog.records
    assert not scores_during_rollout(served, is_sharded=True) and "beside it: the model is sharded" in caplog.text
    served.score_during_rollout = True
    with pytest.raises(ConfigurationError, match="every forward needs all processes"):
        scores_during_rollout(served, is_sharded=True)
    with pytest.raises(ConfigurationError, match="colocate mode"):
        tiny.config(tmp_path, use_vllm=True, vllm_mode="colocate", score_during_rollout=True)
