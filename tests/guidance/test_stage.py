"""The guidance stage: who gets guidance, when the work starts, and what happens to it when something fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from taspo_trl.analyzer.base import AnalyzerReply, AnalyzerRequest
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.guidance.aligned import AlignedConstruction
from taspo_trl.guidance.base import Construction, GuidanceContext
from taspo_trl.guidance.block import Composer
from taspo_trl.guidance.stage import GuidanceStage, Wanted, outcome_advantages, targets_of
from taspo_trl.types import Extraction, Guidance, StopReason, Trajectory, TrajectoryGroup

from ..builders import guided
from ..playing import eventually, no_new_threads
from ..tokenizers import byte_bpe
from ..trajectories import make_group, make_trajectory, make_turn, outcomes


class Noted(Construction):
    """Notes its calls; the hooks may block or raise."""

    name = "noted"
    needs_success = True

    def __init__(self, on_prepare: Any = None, on_build: Any = None):
        self.on_prepare, self.on_build = on_prepare, on_build
        self.prepared: list[str] = []
        self.built: list[str] = []
        self.shared: list[Extraction] = []

    def prepare(self, context: GuidanceContext, group: TrajectoryGroup) -> Extraction:
        self.prepared.append(group.group_id)
        if self.on_prepare:
            self.on_prepare(group)
        return Extraction(fault=f"made for {group.group_id}")

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        self.built.append(target.uid)
        self.shared.append(context.shared)
        if self.on_build:
            self.on_build(target)
        return guided(target.uid, (1, 2), len(target.turns), name=self.name)


class Gate:
    """Lets the test decide when a worker goes on."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, item: Any) -> None:
        self.entered.set()
        assert self.opened.wait(10)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def asked(
    group: TrajectoryGroup, needs_success: bool = True, **wanted: Any
) -> tuple[list[Trajectory], dict[str, str]]:
    construction = Noted()
    construction.needs_success = needs_success
    uids = [member.uid for member in group.trajectories]
    advantages = dict(zip(uids, outcome_advantages(group), strict=True))
    return targets_of(construction, group, advantages, Wanted(**wanted))


def targets(group: TrajectoryGroup, needs_success: bool = True, **wanted: Any) -> list[int]:
    return [target.generation_idx for target in asked(group, needs_success, **wanted)[0]]


def reasons(group: TrajectoryGroup, needs_success: bool = True, **wanted: Any) -> list[str]:
    by_uid = asked(group, needs_success, **wanted)[1]
    return [by_uid.get(member.uid, "") for member in group.trajectories]


# ---- who is a target -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rewards, wanted, why",
    [
        ((0, 0, 0, 0), [], ["zero_advantage"] * 4),
        ((1, 1, 1, 1), [], ["zero_advantage"] * 4),
        ((1, 0, 0, 0), [1, 2, 3], ["no_other_success", "", "", ""]),
        ((1, 1, 0, 0), [0, 1, 2, 3], [""] * 4),
        ((1,), [], ["zero_advantage"]),
    ],
)
def test_a_target_has_an_advantage_and_a_success_other_than_itself(rewards, wanted, why):
    # CRD-1
    group = outcomes(*rewards)
    assert targets(group) == wanted
    assert reasons(group) == why


def test_infrastructure_ends_are_neither_targets_nor_sources():
    members = [
        make_trajectory(0, success=True, stop_reason=StopReason.ENV_DIED),
        make_trajectory(1),
        make_trajectory(2, reward=0.5),
    ]
    assert targets(make_group(*members)) == []
    assert reasons(make_group(*members)) == ["infrastructure", "no_other_success", "no_other_success"]


def test_an_episode_without_turns_is_no_target():
    empty = make_trajectory(0, stop_reason=StopReason.PROMPT_TOO_LONG)
    object.__setattr__(empty, "turns", ())
    group = make_group(empty, make_trajectory(1, success=True), make_trajectory(2))
    assert targets(group) == [2] and reasons(group)[0] == "infrastructure"


def test_one_usable_member_has_no_one_to_be_compared_with():
    broken = [make_trajectory(k, stop_reason=StopReason.ENV_ERROR) for k in (1, 2)]
    assert reasons(make_group(make_trajectory(0, success=True), *broken))[0] == "zero_advantage"


def test_a_shaped_reward_makes_contrast_but_no_success():
    group = make_group(*(make_trajectory(k, reward=k / 4) for k in range(4)))
    assert targets(group) == []
    assert targets(group, needs_success=False) == [0, 1, 2, 3]


def test_the_member_at_the_mean_has_no_advantage():
    group = make_group(*(make_trajectory(k, reward=float(k), success=True) for k in range(3)))
    assert targets(group) == [0, 2] and reasons(group)[1] == "zero_advantage"


def test_a_target_needs_two_places_where_guidance_can_be_compared():
    ok, blind = make_turn(), make_turn(mask=(False, False))
    hidden, early = make_turn(splice_index=None), make_turn(splice_index=1)
    success = make_trajectory(9, success=True)
    for turns, counts in (
        ((ok, ok), True),
        ((ok, blind), False),
        ((ok, hidden), False),
        ((ok, early), False),
        ((ok, make_turn(splice_index=2)), True),
        ((ok,), False),
    ):
        assert targets(make_group(make_trajectory(0, *turns), success))[:1] == ([0] if counts else []), turns


def test_token_level_allocation_counts_tokens():
    success = make_trajectory(9, success=True)
    two_tokens = make_group(make_trajectory(0, make_turn(mask=(True, True))), success)
    one_token = make_group(make_trajectory(0, make_turn(mask=(True, False))), success)
    assert targets(two_tokens) == [] and targets(two_tokens, allocation="token") == [0]
    assert targets(one_token, allocation="token") == []


class CountingAnalyzer(ExtractiveAnalyzer):
    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()

    def complete(self, request: AnalyzerRequest) -> AnalyzerReply:
        self.stages[request.stage] += 1
        return super().complete(request)


@pytest.mark.parametrize(
    "rewards, calls",
    [((0, 0, 0, 0), (0, 0)), ((1, 1, 1, 1), (0, 0)), ((1, 0, 0, 0), (1, 3)), ((1, 1, 0, 0), (1, 4))],
)
def test_the_analyzer_is_asked_only_where_it_can_help(rewards, calls):
    analyzer = CountingAnalyzer()
    stage = GuidanceStage(AlignedConstruction(Composer(byte_bpe())), context=GuidanceContext(analyzer))
    stage.submit(outcomes(*rewards))
    batch = stage.collect()
    stage.close()
    assert (analyzer.stages["extraction"], analyzer.stages["alignment"]) == calls
    assert len(batch.guidance) == 4
    assert [k for k in range(4) if batch.guidance[f"g0-k{k}"]] == targets(outcomes(*rewards))
    assert all(one or one.abstain_reason for one in batch.guidance.values())


# ---- the work ------------------------------------------------------------------------------------------------------


def test_a_group_is_prepared_once_and_each_target_built_from_it():
    construction = Noted()
    stage = GuidanceStage(construction)
    stage.submit(outcomes(1, 0, 0, 0))
    stage.submit(outcomes(1, 1, 0, group_id="g1"))
    stage.submit(outcomes(0, 0, group_id="g2"))
    batch = stage.collect()
    stage.close()
    assert sorted(construction.prepared) == ["g0", "g1"]
    assert sorted(construction.built) == ["g0-k1", "g0-k2", "g0-k3", "g1-k0", "g1-k1", "g1-k2"]
    assert set(batch.extractions) == {"g0", "g1"}
    assert {id(one) for one in construction.shared} == {id(one) for one in batch.extractions.values()}
    assert len(batch.guidance) == 4 + 3 + 2
    assert batch.guidance["g2-k0"].abstain_reason == "zero_advantage"


def test_work_starts_while_other_groups_still_play(gate):
    construction = Noted(on_prepare=lambda group: gate.entered.set())
    stage = GuidanceStage(construction)
    stage.submit(outcomes(1, 0))
    assert gate.entered.wait(10), "nobody called collect, and the preparation has begun"
    assert eventually(lambda: sorted(construction.built) == ["g0-k1"])
    stage.submit(outcomes(1, 0, group_id="g1"))
    assert set(stage.collect().extractions) == {"g0", "g1"}
    stage.close()


def test_a_slow_group_does_not_keep_the_others_waiting(gate):
    construction = Noted(on_prepare=lambda group: gate(group) if group.group_id == "g0" else None)
    stage = GuidanceStage(construction, max_workers=2)
    stage.submit(outcomes(1, 0))
    assert gate.entered.wait(10)
    for k in range(1, 4):
        stage.submit(outcomes(1, 0, group_id=f"g{k}"))
    assert eventually(lambda: sorted(construction.built) == ["g1-k1", "g2-k1", "g3-k1"])
    gate.opened.set()
    stage.collect()
    stage.close()


@pytest.mark.parametrize("max_workers", [1, 3])
def test_no_more_requests_are_in_flight_than_workers(max_workers):
    lock, now, most = threading.Lock(), [0], [0]
    pause = threading.Event()

    def busy(item: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        pause.wait(0.01)
        with lock:
            now[0] -= 1

    stage = GuidanceStage(Noted(busy, busy), max_workers=max_workers)
    for k in range(4):
        stage.submit(outcomes(1, 1, 0, 0, group_id=f"g{k}"))
    stage.collect()
    stage.close()
    assert most[0] <= max_workers


def test_as_many_groups_as_workers_are_prepared_at_the_same_time():
    meeting = threading.Barrier(3, timeout=10)  # broken, and so raised in collect, unless three of them meet
    stage = GuidanceStage(Noted(on_prepare=lambda group: meeting.wait()), max_workers=3)
    for k in range(3):
        stage.submit(outcomes(1, 0, group_id=f"g{k}"))
    assert len(stage.collect().extractions) == 3
    stage.close()


def test_without_a_construction_everything_says_so():
    stage = GuidanceStage(None)
    with no_new_threads():
        stage.submit(outcomes(1, 0))
        batch = stage.collect()
    assert [one.abstain_reason for one in batch.guidance.values()] == ["no_construction"] * 2
    assert batch.extractions == {} and batch.work_seconds == 0.0


def test_a_batch_is_collected_once():
    stage = GuidanceStage(Noted())
    stage.submit(outcomes(1, 0))
    first = stage.collect()
    assert first.guidance and first.work_seconds >= 0 and first.visible_seconds >= 0
    empty = stage.collect()
    assert (empty.guidance, empty.extractions, empty.work_seconds) == ({}, {}, 0.0)
    stage.close()


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["on_prepare", "on_build"])
def test_a_bug_in_a_construction_is_raised_in_collect_and_the_next_batch_is_clean(where):
    def explode(item: Any) -> None:
        raise ZeroDivisionError("a bug of ours")

    construction = Noted(**{where: explode})
    stage = GuidanceStage(construction)
    stage.submit(outcomes(1, 0, 0))
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        stage.collect()
    construction.on_prepare = construction.on_build = None
    stage.submit(outcomes(1, 0, group_id="g1"))
    batch = stage.collect()
    assert set(batch.guidance) == {"g1-k0", "g1-k1"} and set(batch.extractions) == {"g1"}
    stage.close()


def test_a_cancelled_batch_asks_nothing_more_and_leaves_nothing_behind(gate):
    construction = Noted(on_prepare=gate)
    stage = GuidanceStage(construction, max_workers=1)
    with no_new_threads():
        stage.submit(outcomes(1, 0, 0))
        stage.submit(outcomes(1, 0, group_id="g1"))
        assert gate.entered.wait(10)
        stage.cancel()
        gate.opened.set()
        stage.submit(outcomes(1, 0, group_id="g2"))
        batch = stage.collect()
        stage.close()
    assert construction.prepared == ["g0", "g2"], "the first was under way, the second never started"
    assert construction.built == ["g2-k1"], "a preparation that was under way is not followed by its targets"
    assert set(batch.guidance) == {"g2-k0", "g2-k1"}


def test_cancel_drops_targets_that_wait_for_a_worker(gate):
    construction = Noted(on_build=gate)
    stage = GuidanceStage(construction, max_workers=1)
    with no_new_threads():
        stage.submit(outcomes(1, 1, 0, 0))
        assert gate.entered.wait(10)
        stage.cancel()
        gate.opened.set()
        stage.close()
    assert len(construction.built) == 1


def test_close_ends_the_threads_and_may_be_called_twice(gate):
    construction = Noted(on_prepare=gate)
    stage = GuidanceStage(construction, max_workers=2)
    with no_new_threads():
        for k in range(3):
            stage.submit(outcomes(1, 0, group_id=f"g{k}"))
        assert gate.entered.wait(10)
        stage.close()
        stage.close()
        gate.opened.set()
    assert construction.built == []
    GuidanceStage(construction).close()


# ---- advantages, calls and other groups ----------------------------------------------------------------------------


def test_advantages_of_the_caller_are_taken_as_they_are():
    stage = GuidanceStage(Noted())
    stage.submit(outcomes(1, 1, 0, 0), advantages=[0.0, 0.5, 0.0, -0.5])
    guidance = stage.collect().guidance
    stage.close()
    assert [guidance[f"g0-k{k}"].abstain_reason for k in range(4)] == ["zero_advantage", "", "zero_advantage", ""]


def test_flat_groups_and_single_turns_are_targets_where_the_credit_rule_wants_them():
    flat = outcomes(1, 1, 1)
    assert targets(flat) == [] and targets(flat, flat_groups=True) == [0, 1, 2]
    blind = make_turn(mask=(False, False))
    short = make_group(make_trajectory(0, make_turn()), make_trajectory(1, blind), make_trajectory(9, success=True))
    assert targets(short) == []
    assert targets(short, min_candidates=1) == [0] and reasons(short, min_candidates=1)[1] == "no_candidate"
    assert targets(short, min_candidates=1, scope="reply") == [0, 1]


def test_calls_come_with_the_batch_that_made_them_and_are_told_as_they_come():
    told = []
    context = GuidanceContext(ExtractiveAnalyzer(), on_reply=lambda request, reply: told.append(request.stage))
    stage = GuidanceStage(AlignedConstruction(Composer(byte_bpe())), context=context)
    stage.submit(outcomes(1, 0, 0))
    first = stage.collect()
    stage.submit(outcomes(1, 0))
    second = stage.collect()
    stage.close()
    assert Counter(request.stage for request, _ in first.calls) == {"extraction": 1, "alignment": 2}
    assert Counter(request.stage for request, _ in second.calls) == {"extraction": 1, "alignment": 1}
    assert Counter(told) == {"extraction": 2, "alignment": 3}


class Neighbourly(Noted):
    """Notes which other groups it was told of."""

    needs_others = True

    def build(self, context: GuidanceContext, group: TrajectoryGroup, target: Trajectory) -> Guidance:
        others = {other.group_id: shared.fault for other, shared in context.others}
        return guided(target.uid, (1,), len(target.turns), ",".join(sorted(others)), self.name)


def test_who_needs_the_other_groups_is_built_when_all_are_prepared():
    construction = Neighbourly()
    stage = GuidanceStage(construction)
    for k in range(3):
        stage.submit(outcomes(1, 0, group_id=f"g{k}"))
    stage.submit(outcomes(0, 0, group_id="g3"))  # no target, so nothing is prepared and nothing can be told of it
    batch = stage.collect()
    stage.close()
    assert [batch.guidance[f"g{k}-k1"].text for k in range(3)] == ["g1,g2", "g0,g2", "g0,g1"]
    assert set(batch.extractions) == {"g0", "g1", "g2"}


def test_a_group_that_is_not_prepared_in_time_is_late(gate):
    construction = Neighbourly(on_prepare=lambda group: gate(group) if group.group_id == "g1" else None)
    stage = GuidanceStage(construction, time_budget=0.5)
    for k in range(2):
        stage.submit(outcomes(1, 0, group_id=f"g{k}"))
    batch = stage.collect()
    gate.opened.set()
    stage.close()
    assert batch.guidance["g1-k1"].abstain_reason == "time_budget"


def test_an_error_in_preparing_for_others_is_raised():
    def fail(group: TrajectoryGroup) -> None:
        raise RuntimeError("broken")

    stage = GuidanceStage(Neighbourly(on_prepare=fail))
    stage.submit(outcomes(1, 0))
    with pytest.raises(RuntimeError, match="broken"):
        stage.collect()
    stage.close()


# ---- one group's guidance before the batch's -----------------------------------------------------------------------


def test_a_groups_guidance_is_there_as_soon_as_it_is_whole_and_stays(gate):
    stage = GuidanceStage(Noted(on_build=lambda target: gate(target) if target.uid == "g1-k1" else None))
    groups = [outcomes(1, 0, 0, group_id="g0"), outcomes(1, 0, 0, group_id="g1"), outcomes(0, 0, group_id="g2")]
    for group in groups:
        stage.submit(group)
    assert eventually(lambda: stage.of_group(groups[0]))
    early = stage.of_group(groups[0])
    assert gate.entered.wait(10) and stage.of_group(groups[1]) is None
    assert [one.abstain_reason for one in stage.of_group(groups[2]).values()] == ["zero_advantage"] * 2
    gate.opened.set()
    batch = stage.collect()
    stage.close()
    assert list(early) == ["g0-k0", "g0-k1", "g0-k2"] and early.items() <= batch.guidance.items()


@pytest.mark.parametrize("construction", [Noted, Neighbourly])
def test_a_group_that_failed_or_needs_the_others_has_no_guidance_before_them(construction):
    def fail(group: TrajectoryGroup) -> None:
        raise RuntimeError("broken")

    stage = GuidanceStage(construction(on_prepare=fail if construction is Noted else None))
    group = outcomes(1, 0)
    stage.submit(group)
    assert eventually(lambda: stage._work[0].prepared.done())
    assert stage.of_group(group) is None
    if construction is Noted:
        with pytest.raises(RuntimeError, match="broken"):
            stage.collect()
    stage.close()


def test_what_a_step_has_waited_counts_in_its_budget(gate):
    stage = GuidanceStage(Noted(on_prepare=gate), time_budget=60.0)
    stage.submit(outcomes(1, 0))
    assert stage.collect(waited=59.9).guidance["g0-k1"].abstain_reason == "time_budget"
    gate.opened.set()
    stage.close()
