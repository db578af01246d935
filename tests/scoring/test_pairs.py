"""Which rows are scored in pairs, and their log-probabilities back at their turns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.rows import build_rows
from taspo_trl.scoring.paired import PairedLogps, PairedRow
from taspo_trl.scoring.pairs import plan_pairs, scores_of, turn_scores, unscorable_reason
from taspo_trl.types import Guidance, TurnScore
from tests.builders import conversation_trajectory, guided, trajectory, turn, window_trajectory


BLOCK = (7, 8, 9)


def plan_of(played, block=BLOCK, window=None):
    rows = build_rows(played)
    return plan_pairs(rows, {played.uid: played}, {played.uid: guided(played.uid, block, len(played.turns))}, window)


def test_pair_of_a_window_turn_by_hand():
    played = trajectory([turn([1, 2, 3], [10, 11, 12, 13], action_mask=(False, True, True, False), splice_index=2)])
    plan = plan_of(played)
    # Nothing behind the last action token can change it: the end token is not forwarded.
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 12), 2, BLOCK, (4, 5)),)
    assert plan.turns == ((("t", 0),),)
    assert plan.unscorable == {}


def test_pair_of_a_conversation_by_hand():
    played = trajectory(
        [
            turn([1, 2, 3], [10, 11], action_mask=(False, True), splice_index=2),
            turn([1, 2, 3, 10, 11, 4], [12], action_mask=(False,), splice_index=2),
            turn([1, 2, 3, 10, 11, 4, 12, 5], [13, 14, 15], action_mask=(True, True, False), splice_index=2),
        ]
    )
    plan = plan_of(played)
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 4, 12, 5, 13, 14), 2, BLOCK, (4, 8, 9)),)
    assert plan.turns == ((("t", 0), ("t", 2)),)
    assert plan.unscorable == {("t", 1): "empty_mask"}


def test_trajectories_without_guidance_are_passed_over():
    played, other = trajectory([turn()], "a"), trajectory([turn()], "b")
    rows = [*build_rows(played), *build_rows(other)]
    plan = plan_pairs(rows, {"a": played, "b": other}, {"a": Guidance("a", "aligned", abstain_reason="thin")})
    assert (plan.pairs, plan.turns, plan.unscorable) == ((), (), {})


@pytest.mark.parametrize(
    ("values", "window", "reason"),
    [
        ({}, None, ""),
        ({"action_mask": (False, False)}, None, "empty_mask"),
        ({"splice_index": None}, None, "no_splice_index"),
        ({"splice_index": 1}, None, "no_splice_index"),  # no position before it for the shared prefix
        ({"splice_index": 2}, None, ""),
        # Context 3 + block 3 + reply 2 = 8 positions, the whole reply included although its last token is not scored.
        ({}, 8, ""),
        ({}, 7, "over_window"),
        ({"action_mask": (True, False)}, 7, "over_window"),
    ],
)
def test_turn_is_scorable_when_action_place_and_window_allow_it(values, window, reason):
    played = trajectory([turn([1, 2, 3], [10, 11], **values)])
    (row,) = build_rows(played)
    assert unscorable_reason(played, row.turns[0], row, len(BLOCK), window) == reason
    plan = plan_of(played, window=window)
    assert plan.unscorable == ({("t", 0): reason} if reason else {})
    assert len(plan.pairs) == (0 if reason else 1)


def test_window_may_take_the_late_turns_of_a_conversation_only():
    played = trajectory([turn([1, 2, 3], [10], splice_index=2), turn([1, 2, 3, 10, 4], [11, 12], splice_index=2)])
    plan = plan_of(played, window=9)
    assert plan.unscorable == {("t", 1): "over_window"}  # 5 + 2 + 3 = 10 positions
    assert plan.pairs == (PairedRow((1, 2, 3, 10), 2, BLOCK, (3,)),)


def test_scores_return_to_their_turns():
    played = trajectory(
        [
            turn([1, 2, 3], [10, 11], splice_index=2),
            turn([1, 2, 3, 10, 11, 4], [], splice_index=2),
            turn([1, 2, 3, 10, 11, 4, 5], [12], action_mask=(False,), splice_index=2),
            turn([1, 2, 3, 10, 11, 4, 5, 12, 6], [13, 14], action_mask=(False, True), splice_index=2),
        ]
    )
    plan = plan_of(played)
    scores = turn_scores(plan, [PairedLogps((-1.0, -2.0, -3.0), (-0.5, -2.5, -4.0))], {"t": played})
    listed = scores_of(played, scores)
    assert listed == [
        TurnScore((-1.0, -2.0), (-0.5, -2.5)),
        TurnScore(unscorable="no_reply"),
        TurnScore(unscorable="empty_mask"),
        TurnScore((-3.0,), (-4.0,)),
    ]
    assert listed[0].shifts == (0.5, -0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("branch", ["plain", "guided"])
def test_turn_with_a_non_finite_value_keeps_its_numbers_and_is_marked(bad, branch):
    # CRD-2: the neighbours in the same row are not touched.
    played = trajectory([turn([1, 2, 3], [10], splice_index=2), turn([1, 2, 3, 10, 4], [11], splice_index=2)])
    good, broken = (-1.0, -1.0), (-1.0, bad)
    paired = PairedLogps(broken, good) if branch == "plain" else PairedLogps(good, broken)
    first, second = scores_of(played, turn_scores(plan_of(played), [paired], {"t": played}))
    assert first == TurnScore((-1.0,), (-1.0,))
    assert second.unscorable == "non_finite"
    assert len(second.plain_logps) == len(second.guided_logps) == 1


def test_one_result_for_each_pair_is_required():
    played = trajectory([turn()])
    with pytest.raises(ValueError, match="zip"):
        turn_scores(plan_of(played), [], {"t": played})


@given(seed=st.integers(0, 10**6), make=st.sampled_from([window_trajectory, conversation_trajectory]))
def test_scored_positions_are_the_action_tokens_and_results_find_home(seed, make):
    rng = np.random.default_rng(seed)
    played = make(rng, "t", int(rng.integers(1, 7)))
    plan = plan_of(played, window=int(rng.integers(10, 60)))
    # Give every token its own number, so that a value in the wrong place shows.
    logps = [PairedLogps(tuple(map(float, pair.positions)), tuple(map(float, pair.positions))) for pair in plan.pairs]
    for pair, members in zip(plan.pairs, plan.turns, strict=True):
        wanted = [
            token
            for uid, t in members
            for token, flag in zip(played.turns[t].reply_ids, played.turns[t].action_mask, strict=True)
            if flag
        ]
        assert [pair.ids[p] for p in pair.positions] == wanted
        assert all(p >= pair.splice_index for p in pair.positions)
        assert pair.positions[-1] == len(pair.ids) - 1
    scores = scores_of(played, turn_scores(plan, logps, {"t": played}))
    spans = {span.turn_idx: span.start for row in build_rows(played) for span in row.turns}
    for t, (one, score) in enumerate(zip(played.turns, scores, strict=True)):
        if not score.unscorable:
            expected = [spans[t] + k for k, flag in enumerate(one.action_mask) if flag]
            assert list(score.plain_logps) == list(score.guided_logps) == expected
        assert (score.unscorable == "no_reply") == (not one.reply_ids)
