"""One rollout batch on one or several processes: every episode played once, every group scored and guided once."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError, RolloutError
from taspo_trl.generation import SamplingSettings
from taspo_trl.guidance.base import Construction, GuidanceContext
from taspo_trl.guidance.stage import GuidanceBatch, GuidanceStage
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.groups import CollectedGroup, Collector
from taspo_trl.rollout.loop import RolloutSettings
from taspo_trl.rollout.rewards import RewardSettings
from taspo_trl.types import Extraction, Guidance, StopReason, Trajectory, TrajectoryGroup

from ..builders import guided
from ..playing import Recorder, ScriptedPolicy, act
from ..scripted import Ledger, ScriptedEnvironment, factory
from ..tokenizers import byte_bpe


ROWS = [{"task_id": f"t{g}", "word": word} for g, word in enumerate(["mug", "pen", "bowl"])]
OUTCOMES = {0: ["go", "win"], 1: ["lose"], 2: ["go", "go", "win"], 3: ["go", "lose"], 4: ["win"], 5: ["lose"]}


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_bpe())


class Gathering:
    """`gather_object` for threads that stand for processes: everybody's lists, joined in the order of the ranks."""

    def __init__(self, num_processes: int):
        self._barrier = threading.Barrier(num_processes, timeout=60)
        self._parts: list[list] = [[] for _ in range(num_processes)]
        self.calls = Counter[int]()

    def of(self, rank: int) -> Callable[[list], list]:
        def gather(objects: list) -> list:
            self.calls[rank] += 1
            self._parts[rank] = list(objects)
            self._barrier.wait()
            joined = [one for part in self._parts for one in part]
            self._barrier.wait()
            return joined

        return gather


class Noted(Construction):
    name, needs_success = "noted", True

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.built: list[str] = []

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        self.prepared.append(group.group_id)
        return Extraction()

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        assert len(group.trajectories) == len({t.generation_idx for t in group.trajectories})
        self.built.append(target.uid)
        return guided(target.uid, (1,), len(target.turns), name=self.name)


class Team:
    """Collectors of `num_processes` processes that play one batch together."""

    def __init__(self, renderer: ChatRenderer, num_processes: int, num_generations: int = 4, **rewards: Any):
        self.gathering = Gathering(num_processes)
        self.construction = Noted()
        self.ledger = Ledger()
        self.policies = [ScriptedPolicy(renderer.tokenizer, self.reply) for _ in range(num_processes)]
        self.scripts: dict[str, list[str]] = {}
        self.collectors = [
            Collector(
                engine=policy,
                pool=EnvironmentPool({None: factory(self.ledger)}, "thread"),
                renderer=renderer,
                rollout=RolloutSettings(environment_timeout=30.0),
                rewards=RewardSettings(**rewards),
                guidance=GuidanceStage(self.construction),
                num_generations=num_generations,
                gather=self.gathering.of(rank) if num_processes > 1 else lambda objects: objects,
                process_index=rank,
                num_processes=num_processes,
            )
            for rank, policy in enumerate(self.policies)
        ]

    def reply(self, uid: str, turn: int) -> str:
        group, k = uid.split("-")[1:]
        orders = self.scripts.get(f"{group}-{k}") or OUTCOMES[int(k[1:])]
        return act(orders[min(turn, len(orders) - 1)])[0]

    def play(self, rows: list[dict] | None = None, rollout: int = 0, **kwargs: Any) -> list[list[CollectedGroup]]:
        """What each process gets."""

        def one(collector: Collector) -> list[CollectedGroup]:
            return collector.play(ROWS if rows is None else rows, SamplingSettings(), 7, rollout, **kwargs)

        with ThreadPoolExecutor(len(self.collectors)) as executor:
            futures = [executor.submit(one, collector) for collector in self.collectors]
        return [future.result() for future in futures]

    def guidance(self) -> list[GuidanceBatch]:
        return [collector.guidance.collect() for collector in self.collectors]

    def close(self) -> None:
        for collector in self.collectors:
            collector.guidance.close()
            collector.pool.close()


@pytest.fixture
def team(renderer, request):
    made: list[Team] = []

    def make(*args: Any, **kwargs: Any) -> Team:
        made.append(Team(renderer, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.ledger.let_go()
        one.close()


def story(collected: list[CollectedGroup]) -> list:
    """What happened, without the seconds."""
    return [
        [(t.uid, t.stop_reason, t.reward, [(turn.prompt_ids, turn.reply_ids) for turn in t.turns]) for t in members]
        for members in (one.group.trajectories for one in collected)
    ]


@pytest.mark.parametrize(
    "num_processes, num_generations",
    [(2, 4), (3, 4), (2, 6), (3, 6), (2, 5), (3, 5)],
    ids=lambda n: str(n),
)
def test_several_processes_make_the_batch_of_one(team, num_processes, num_generations):
    # 3 groups: with 2 processes of 4 members group 1 straddles; 15 episodes cannot be shared evenly at all.
    calls: list[list[str]] = []

    def length(trajectories: list[Trajectory], **kwargs: Any) -> list[float]:
        calls.append([t.uid for t in trajectories])
        return [0.01 * len(t.turns) for t in trajectories]

    rewards = {"functions": [length], "weights": [1.0], "names": ["length"]}
    alone = team(1, num_generations, **rewards)
    [expected] = alone.play()
    calls.clear()
    several = team(num_processes, num_generations, **rewards)
    answers = several.play()
    assert all(story(answer) == story(expected) for answer in answers)
    assert [one.group.group_id for one in answers[0]] == ["r0-g0", "r0-g1", "r0-g2"]
    assert sorted(calls) == [[f"r0-g{g}-k{k}" for k in range(num_generations)] for g in range(3)]
    parts = several.guidance()
    assert sorted(several.construction.prepared) == ["r0-g0", "r0-g1", "r0-g2"], "guidance starts once for a group"
    uids = [uid for part in parts for uid in part.guidance]
    assert sorted(uids) == sorted(t.uid for one in expected for t in one.group.trajectories)
    assert several.ledger.counts["reset"] == 3 * num_generations, "every episode is played exactly once"
    assert len(set(several.gathering.calls.values())) == 1, "all processes meet equally often"


class Idle:
    """One piece of work for each group that is submitted."""

    def __init__(self, done: Callable[[], None]):
        self.num_pieces, self.done = 0, done

    def submit(self, group: TrajectoryGroup, advantages: Any = None) -> None:
        self.num_pieces += 1

    def work(self) -> float:
        if self.num_pieces == 0:
            return math.inf
        self.num_pieces -= 1
        self.done()
        return 0.0

    def cancel(self) -> None:
        raise AssertionError


def test_who_is_done_first_works_on_its_groups_before_it_waits_for_the_others(team):
    two, worked = team(2), threading.Event()
    # Group 1 is the other process's, which plays until the first one has done its work.
    two.policies[1]._reply = lambda uid, turn: two.reply(uid, turn) if worked.wait(20) else ""
    idle = [Idle(worked.set), Idle(lambda: None)]
    play_beside(two, ROWS[:2], idle)
    assert worked.is_set() and [one.num_pieces for one in idle] == [0, 0]


def test_groups_that_straddle_come_together_before_anybody_works(team):
    two, calls = team(2), []
    idle = [Idle(lambda rank=rank: calls.append(two.gathering.calls[rank])) for rank in range(2)]
    play_beside(two, ROWS, idle)  # three groups of four: the second one lies across both
    assert len(calls) == 3 and max(calls) == 1, "after the first meeting, and before the second"


def play_beside(team: Team, rows: list[dict], idle: list[Idle]) -> list[list[CollectedGroup]]:
    with ThreadPoolExecutor(len(idle)) as executor:
        futures = [
            executor.submit(collector.play, rows, SamplingSettings(), 7, 0, idle_work=one)
            for collector, one in zip(team.collectors, idle, strict=True)
        ]
    return [future.result() for future in futures]


def test_the_members_of_a_group_share_row_and_seed_on_all_processes(team):
    answers = team(2).play()
    for one in answers[0]:
        starts = {t.turns[0].observation for t in one.group.trajectories}
        assert len(starts) == 1 and starts.pop().startswith(f"start of {one.group.trajectories[0].task['word']} ")


def test_processes_and_batches_sample_from_seeds_of_their_own(team):
    pair = team(2)
    pair.play(rollout=0)
    pair.play(rollout=1)
    seeds = [seed for policy in pair.policies for _, seed in policy.begun]
    assert len(set(seeds)) == 4
    again = team(2)
    again.play(rollout=0)
    assert [policy.begun[0][1] for policy in again.policies] == [policy.begun[0][1] for policy in pair.policies]


def test_guidance_of_a_finished_group_starts_while_another_still_plays(renderer):
    prepared = threading.Event()

    class Telling(Noted):
        def prepare(self, context, group):
            prepared.set()
            return super().prepare(context, group)

    def reply(uid: str, turn: int) -> str:
        if uid.startswith("r0-g1") and turn == 3:
            # This group can only end when the other one's guidance has begun.
            assert prepared.wait(20), "the guidance of group 0 did not start before group 1 ended"
        over = {"r0-g0-k0": "win", "r0-g0-k1": "lose", "r0-g1-k0": "win", "r0-g1-k1": "lose"}[uid]
        return act(over if turn == (1 if uid.startswith("r0-g0") else 3) else "go")[0]

    stage = GuidanceStage(Telling())
    pool = EnvironmentPool({None: ScriptedEnvironment}, "thread")
    collector = Collector(
        engine=ScriptedPolicy(renderer.tokenizer, reply),
        pool=pool,
        renderer=renderer,
        rollout=RolloutSettings(),
        rewards=RewardSettings(),
        guidance=stage,
        num_generations=2,
        gather=lambda objects: objects,
    )
    collector.play(ROWS[:2], SamplingSettings(), 0, 0)
    assert sum(bool(one) for one in stage.collect().guidance.values()) == 2
    stage.close()
    pool.close()


def test_logs_of_reward_functions_stay_with_their_group(team):
    def noisy(trajectories, log_extra, log_metric, **kwargs):
        log_extra("length", [len(t.turns) for t in trajectories])
        log_metric("longest", max(len(t.turns) for t in trajectories))
        return [None] * len(trajectories)

    [collected] = team(1, functions=[noisy], weights=[1.0], names=["noisy"]).play()
    for one in collected:
        lengths = [len(t.turns) for t in one.group.trajectories]
        assert one.extra_logs == {"length": lengths} and one.extra_metrics == {"longest": [max(lengths)]}


def test_each_finished_episode_is_told_once_where_it_was_played(team):
    told = Recorder()
    team(2).play(on_episode_end=told)
    assert len(told.items) == len({t.uid for t in told.items}) == 12


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_batch_without_a_usable_episode_raises_with_the_causes(team, num_processes):
    made = team(num_processes)
    made.scripts = {f"g{g}-k{k}": ["service"] for g in range(3) for k in range(4)}
    made.scripts["g0-k0"] = ["go", "pay nan"]
    with pytest.raises(RolloutError) as caught:
        made.play()
    message = str(caught.value)
    assert "All 12 episodes" in message
    assert "11 x service_error: ServiceError: http://127.0.0.1:9/retrieve is down" in message
    assert "1 x reward_error" in message
    assert all(part.guidance == {} for part in made.guidance()), "nothing is left for the next batch"


def test_a_process_whose_own_episodes_all_failed_goes_on_with_the_others(team):
    made = team(3, 4)
    made.scripts = {f"g0-k{k}": ["raise"] for k in range(4)}  # all that process 0 plays
    answers = made.play()
    ends = [[t.stop_reason for t in one.group.trajectories] for one in answers[0]]
    assert ends[0] == [StopReason.ENV_ERROR] * 4 and StopReason.SOLVED in ends[1]


def test_one_usable_episode_is_enough_to_go_on(team):
    made = team(1)
    made.scripts = {f"g{g}-k{k}": ["raise"] for g in range(3) for k in range(4)} | {"g2-k3": ["lose"]}
    [collected] = made.play()
    assert sum(t.is_usable for one in collected for t in one.group.trajectories) == 1


def test_a_bug_in_a_reward_function_stops_the_batch_and_drops_its_guidance(team):
    def explode(trajectories, **kwargs):
        if trajectories[0].uid.startswith("r0-g1"):
            raise LookupError("no such column")
        return [0.0] * len(trajectories)

    made = team(1, functions=[explode], weights=[1.0], names=["explode"])
    with pytest.raises(LookupError, match="no such column"):
        made.play()
    [batch] = made.guidance()
    assert batch.guidance == {}
    assert made.play(rollout=1), "the pool and the stage work on"


def test_a_reward_that_is_not_finite_takes_its_trajectory_out(team):
    def odd(trajectories, **kwargs):
        return [float("nan") if t.generation_idx == 0 else 0.5 for t in trajectories]

    [collected] = team(1, functions=[odd], weights=[1.0], names=["odd"]).play()
    first = collected[0].group.trajectories[0]
    assert first.stop_reason is StopReason.REWARD_ERROR and not first.success and not first.is_usable


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_none_values_of_a_row_reach_neither_reset_nor_the_record(renderer):
    # DAT-1: Arrow fills in None for keys that a row did not have, at any depth.
    seen: list[dict] = []

    class Witness(ScriptedEnvironment):
        def reset(self, *, seed, **row):
            seen.append(row)
            return super().reset(seed=seed)

    rows = [
        {"task_id": "a", "hint": None, "meta": {"a": 1, "b": None, "c": [{"x": None, "y": 2}]}},
        {"task_id": "b", "hint": "look", "meta": None},
    ]
    pool = EnvironmentPool({None: Witness}, "thread")
    collector = Collector(
        engine=ScriptedPolicy(renderer.tokenizer, {0: act("win")}),
        pool=pool,
        renderer=renderer,
        rollout=RolloutSettings(),
        rewards=RewardSettings(),
        guidance=GuidanceStage(None),
        num_generations=1,
        gather=lambda objects: objects,
    )
    collected = collector.play(rows, SamplingSettings(), 0, 0)
    pool.close()
    clean = [{"task_id": "a", "meta": {"a": 1, "c": [{"y": 2}]}}, {"task_id": "b", "hint": "look"}]
    assert sorted(seen, key=lambda row: row["task_id"]) == clean
    assert [one.group.trajectories[0].task for one in collected] == clean


@pytest.mark.parametrize("column", ["seed", "self"])
def test_columns_that_reset_cannot_take_are_refused(team, column):
    with pytest.raises(ConfigurationError, match=f"column `{column}`"):
        team(1).play([{column: 1}])


def test_a_row_s_environment_selects_one_and_does_not_reach_reset(renderer):
    ledgers = {"a": Ledger(), "b": Ledger()}
    pool = EnvironmentPool({name: factory(ledger) for name, ledger in ledgers.items()}, "thread")
    collector = Collector(
        engine=ScriptedPolicy(renderer.tokenizer, {0: act("win"), 1: act("lose")}),
        pool=pool,
        renderer=renderer,
        rollout=RolloutSettings(),
        rewards=RewardSettings(),
        guidance=GuidanceStage(None),
        num_generations=2,
        gather=lambda objects: objects,
    )
    collected = collector.play([{"environment": "b", "word": "x"}], SamplingSettings(), 0, 0)
    assert collected[0].group.trajectories[0].environment == "b"
    assert "environment" not in collected[0].group.trajectories[0].task
    assert (ledgers["a"].counts["reset"], ledgers["b"].counts["reset"]) == (0, 2)
    with pytest.raises(ConfigurationError, match="'c'"):
        collector.play([{"environment": "c"}], SamplingSettings(), 0, 0)
    pool.close()
