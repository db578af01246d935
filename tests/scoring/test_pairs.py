"""Which rows are scored in pairs, and their log-probabilities back at their turns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.rows import build_rows
from taspo_trl.scoring.paired import PairedLogps, PairedRow
from taspo_trl.scoring.pairs import ScoreScope, plan_pairs, scores_of, turn_scores
from taspo_trl.types import Block, Guidance, ReplyScore
from tests.builders import conversation_trajectory, guided, trajectory, turn, window_trajectory


BLOCK = (7, 8, 9)


def plan_of(played, block=BLOCK, window=None):
    rows = build_rows(played)
    return plan_pairs(rows, {played.uid: played}, {played.uid: guided(played.uid, block, len(played.turns))}, window)


def test_pair_of_a_window_turn_by_hand():
    played = trajectory([turn([1, 2, 3], [10, 11, 12, 13], action_mask=(False, True, True, False), splice_index=2)])
    plan = plan_of(played)
    # Nothing behind the last action token can change it: the end token is not forwarded.
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 12), 2, (BLOCK,), (4, 5)),)
    assert plan.turns == (((("t", 0), (1, 2)),),)
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
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 4, 12, 5, 13, 14), 2, (BLOCK,), (4, 8, 9)),)
    assert plan.turns == (((("t", 0), (1,)), (("t", 2), (0, 1))),)
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
    plan = plan_of(played, window=window)
    assert plan.unscorable == ({("t", 0): reason} if reason else {})
    assert len(plan.pairs) == (0 if reason else 1)


def test_window_may_take_the_late_turns_of_a_conversation_only():
    played = trajectory([turn([1, 2, 3], [10], splice_index=2), turn([1, 2, 3, 10, 4], [11, 12], splice_index=2)])
    plan = plan_of(played, window=9)
    assert plan.unscorable == {("t", 1): "over_window"}  # 5 + 2 + 3 = 10 positions
    assert plan.pairs == (PairedRow((1, 2, 3, 10), 2, (BLOCK,), (3,)),)


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
    scores = turn_scores(plan, [PairedLogps((-1.0, -2.0, -3.0), ((-0.5, -2.5, -4.0),))])
    listed = scores_of(played, scores)
    assert listed == [
        ReplyScore((-1.0, -2.0), {"aligned": (-0.5, -2.5)}),
        ReplyScore(unscorable="no_reply"),
        ReplyScore(unscorable="empty_mask"),
        listed[3],
    ]
    assert listed[0].shifts() == listed[0].shifts("aligned") == (0.5, -0.5)
    assert math.isnan(listed[3].plain[0]) and listed[3].plain[1] == -3.0 and listed[3].guided["aligned"][1] == -4.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("branch", ["plain", "guided"])
def test_turn_with_a_non_finite_value_keeps_its_numbers_and_is_marked(bad, branch):
    # CRD-2: the neighbours in the same row are not touched.
    played = trajectory([turn([1, 2, 3], [10], splice_index=2), turn([1, 2, 3, 10, 4], [11], splice_index=2)])
    good, broken = (-1.0, -1.0), (-1.0, bad)
    paired = PairedLogps(broken, (good,)) if branch == "plain" else PairedLogps(good, (broken,))
    first, second = scores_of(played, turn_scores(plan_of(played), [paired]))
    assert first == ReplyScore((-1.0,), {"aligned": (-1.0,)})
    assert second.unscorable == "non_finite"
    assert len(second.plain) == len(second.guided["aligned"]) == 1


def test_one_result_for_each_pair_is_required():
    played = trajectory([turn()])
    with pytest.raises(ValueError, match="zip"):
        turn_scores(plan_of(played), [])


@given(seed=st.integers(0, 10**6), make=st.sampled_from([window_trajectory, conversation_trajectory]))
def test_scored_positions_are_the_action_tokens_and_results_find_home(seed, make):
    rng = np.random.default_rng(seed)
    played = make(rng, "t", int(rng.integers(1, 7)))
    plan = plan_of(played, window=int(rng.integers(10, 60)))
    # Give every token its own number, so that a value in the wrong place shows.
    numbers = [tuple(map(float, pair.positions)) for pair in plan.pairs]
    logps = [PairedLogps(one, (one,)) for one in numbers]
    for pair, members in zip(plan.pairs, plan.turns, strict=True):
        wanted = [
            token
            for (_, t), _ in members
            for token, flag in zip(played.turns[t].reply_ids, played.turns[t].action_mask, strict=True)
            if flag
        ]
        assert [pair.ids[p] for p in pair.positions] == wanted
        assert all(p >= pair.splice_index for p in pair.positions)
        assert pair.positions[-1] == len(pair.ids) - 1
    scores = scores_of(played, turn_scores(plan, logps))
    spans = {span.turn_idx: span.start for row in build_rows(played) for span in row.turns}
    for t, (one, score) in enumerate(zip(played.turns, scores, strict=True)):
        if not score.unscorable:
            for k, flag in enumerate(one.action_mask):
                values = score.plain[k], score.guided["aligned"][k]
                assert values == (spans[t] + k,) * 2 if flag else all(map(math.isnan, values))
        assert (score.unscorable == "no_reply") == (not one.reply_ids)


# ---- scopes, several blocks, a block for each turn ------------------------------------------------------------------


def with_blocks(played, **blocks):
    return {played.uid: Guidance(played.uid, "made", {name: Block(tuple(one)) for name, one in blocks.items()})}


def pairs_of(played, guidance, blocks, tokens="action", window=None):
    return plan_pairs(build_rows(played), {played.uid: played}, guidance, window, ScoreScope(blocks, tokens))


@pytest.fixture
def chat():
    """Two turns that share a row."""
    return trajectory(
        [
            turn([1, 2, 3], [10, 11], action_mask=(False, True), splice_index=2),
            turn([1, 2, 3, 10, 11, 4], [12, 13], action_mask=(True, False), splice_index=2),
        ]
    )


def test_reply_scope_asks_for_every_sampled_token(chat):
    plan = pairs_of(chat, with_blocks(chat, one=[BLOCK, BLOCK]), ("one",), "reply")
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 4, 12, 13), 2, (BLOCK,), (3, 4, 6, 7)),)


def test_turns_of_a_row_with_other_blocks_are_scored_each_in_a_row_of_its_own(chat):
    plan = pairs_of(chat, with_blocks(chat, one=[(5,), (6,)]), ("one",))
    assert plan.pairs == (
        PairedRow((1, 2, 3, 10, 11), 2, ((5,),), (4,)),
        PairedRow((1, 2, 3, 10, 11, 4, 12), 2, ((6,),), (6,)),
    )
    scores = turn_scores(plan, [PairedLogps((-1.0,), ((-2.0,),)), PairedLogps((-3.0,), ((-5.0,),))])
    assert scores["t", 0].shifts("one")[1] == -1.0 and scores["t", 1].shifts("one")[0] == -2.0


def test_two_blocks_of_a_turn_share_its_plain_branch(chat):
    plan = pairs_of(chat, with_blocks(chat, one=[(5,), (5,)], two=[(6, 7), None]), ("one", "two"))
    assert plan.pairs == (
        PairedRow((1, 2, 3, 10, 11), 2, ((5,), (6, 7)), (4,)),
        PairedRow((1, 2, 3, 10, 11, 4, 12), 2, ((5,),), (6,)),
    )
    assert plan.names == (("one", "two"), ("one",))
    assert plan.missing == {("t", 1): {"two": "no_block"}}
    scores = turn_scores(plan, [PairedLogps((-1.0,), ((-2.0,), (-0.5,))), PairedLogps((-3.0,), ((-5.0,),))])
    assert scores["t", 0].shifts("two")[1] == 0.5
    assert scores["t", 1].shifts("two") is None and scores["t", 1].missing == {"two": "no_block"}


def test_turn_without_a_block_is_not_scored_and_the_empty_block_is(chat):
    plan = pairs_of(chat, with_blocks(chat, one=[None, ()]), ("one",))
    assert plan.unscorable == {("t", 0): "no_block"}
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 4, 12), 2, ((),), (6,)),)


def test_block_before_the_chat_needs_no_place_in_the_context():
    played = trajectory([turn([1, 2, 3], [10], splice_index=None)])
    guidance = {"t": Guidance("t", "made", {"one": Block((BLOCK,), place="start")})}
    assert pairs_of(played, guidance, ("one",)).pairs == (PairedRow((1, 2, 3, 10), 0, (BLOCK,), (3,)),)
    assert pairs_of(played, guidance, ("one",), window=6).unscorable == {("t", 0): "over_window"}


def test_plain_context_is_scored_without_any_guidance(chat):
    plan = pairs_of(chat, {}, ("",))
    assert plan.pairs == (PairedRow((1, 2, 3, 10, 11, 4, 12), 2, ((),), (4, 6)),)
    assert plan.names == (("",),)
