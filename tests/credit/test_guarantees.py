"""The table of guarantees as properties of every weight rule, and the check that watches over them at each step."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.credit.agentopsd import AgentOPSD
from taspo_trl.credit.base import Guarantees, Needs, NoWeights, Weighed, broadcast, check_guarantees
from taspo_trl.credit.factor import HTA, TAC
from taspo_trl.credit.grsd import GRSD
from taspo_trl.credit.opid import OPID
from taspo_trl.credit.rlsd import RLSD
from taspo_trl.credit.serl import SERL
from taspo_trl.credit.stepopsd import StepOPSD
from taspo_trl.credit.taspo import TurnWeights
from taspo_trl.credit.taspo_factor import TASPOFactor
from taspo_trl.credit.token_level import TokenWeights
from taspo_trl.credit.turnsight import TurnSight
from taspo_trl.errors import ConfigurationError, InvariantError
from tests.credit import scored
from tests.credit.scored import Episode, Reply


NOW = {"zero_at": 0, "warmup": 0}
FREE = (-math.inf, math.inf)
RULES = {
    "none": (NoWeights(), (1.0, 1.0)),
    "rlsd": (RLSD(), (0.9, 1.1)),
    "rlsd blame": (RLSD(blame_only=True), (0.9, 1.1)),
    "serl": (SERL(), (0.9, 1.1)),
    "serl tags": (SERL(inside_tags=False, share=1.0), (0.8, 1.2)),
    "stepopsd": (StepOPSD(), (0.45, 2.2)),
    "stepopsd raw": (StepOPSD(normalise=False, kernel="exp"), (0.9, 1.1)),
    "opid": (OPID(), FREE),
    "opid loud": (OPID(additive=True, episode_weight=1.0, step_weight=2.0), FREE),
    "agentopsd": (AgentOPSD(), (0.9, 1.1)),
    "grsd": (GRSD(), (0.1, 2.5)),
    "grsd launcher": (GRSD(clip=0.2), (0.9, 1.1)),
    "turnsight": (TurnSight(), (0.75, 1.25)),
    "factor": (HTA(**NOW), FREE),
    "factor turn": (HTA(**NOW, outside="turn"), (0.3, math.inf)),
    "taspo_factor": (TASPOFactor(**NOW), (0.6 * 0.3, math.inf)),
    "taspo": (TurnWeights(), (0.6, 1.4)),
    "taspo capped": (TurnWeights(cap_refused=True), (0.6, 1.4)),
    "taspo token": (TokenWeights(), (0.6, 1.4)),
}
"""Name -> (rule, the bounds of A~ / A that its card states)."""
MAY_FLIP = ("opid", "opid loud", "factor")
MAY_MOVE_ZERO = ("opid", "opid loud", "factor")

every_rule = pytest.mark.parametrize("name", RULES)
quick = settings(max_examples=25, deadline=None)


def play(name, groups, **fields):
    """The rule's word on the groups: (rule, batch, A, what it gave)."""
    rule, _ = RULES[name]
    batch = scored.batch(*groups, scope=rule.needs.scope, **fields)
    rows = scored.rows(batch)
    return rule, batch, rows, rule(batch, rows)


def drawn(data, name, **options):
    return data.draw(scored.groups(RULES[name][0].needs.blocks, **options))


def neutral(name, batch, i, row, turn_idx):
    """What a turn gets that has no score."""
    return math.fsum(row) if name == "factor" else row[turn_idx]


@every_rule
@quick
@given(data=st.data())
def test_every_promise_is_kept(name, data):
    rule, batch, rows, weighed = play(name, drawn(data, name))
    check_guarantees(batch, rows, weighed, rule.needs, rule.guarantees)
    low, high = RULES[name][1]
    for t, row, tokens in zip(batch.trajectories, rows, weighed.advantages, strict=True):
        assert [len(turn) for turn in tokens] == [len(turn.reply_ids) for turn in t.turns]
        for a, turn in zip(row, tokens, strict=True):
            for x in turn:
                assert math.isfinite(x)
                assert a * x >= 0 or name in MAY_FLIP
                assert x == 0 if a == 0 and name not in MAY_MOVE_ZERO else True
                assert not a or low - 1e-9 <= x / a <= high + 1e-9
        if not t.is_usable:
            assert all(x == 0 for turn in tokens for x in turn)


@pytest.mark.parametrize("name", [name for name, (rule, _) in RULES.items() if rule.guarantees.per_trajectory])
@quick
@given(data=st.data())
def test_a_trajectory_may_be_weighed_before_the_others(name, data):
    """`per_trajectory`: what a rule gives some trajectories is what it gives them among all, to the last bit."""
    rule, batch, rows, weighed = play(name, drawn(data, name))
    uids = [t.uid for t in batch.trajectories]
    some = data.draw(st.sets(st.sampled_from(uids), min_size=1)) if uids else set()
    part = batch.part(some, scores={key: one for key, one in batch.scores.items() if key[0] in some})
    assert [t.uid for t in part.trajectories] == [uid for uid in uids if uid in some]
    alone = rule(part, [rows[uids.index(t.uid)] for t in part.trajectories])
    assert alone.advantages == [weighed.advantages[uids.index(t.uid)] for t in part.trajectories]


@every_rule
@quick
@given(data=st.data())
def test_the_report_has_the_shape_of_the_batch(name, data):
    _, batch, rows, weighed = play(name, drawn(data, name))
    if name == "none":
        return
    for i, (t, row) in enumerate(zip(batch.trajectories, rows, strict=True)):
        assert len(weighed.supports[i]) == len(t.turns)
        if weighed.weights is not None:
            assert len(weighed.weights[i]) == len(t.turns)
        if weighed.fallbacks[i] and name != "factor":
            assert weighed.advantages[i] == [[a] * len(turn.reply_ids) for a, turn in zip(row, t.turns, strict=True)]
        if weighed.token_weights is not None and name != "factor":
            for a, tokens, weights in zip(row, weighed.advantages[i], weighed.token_weights[i], strict=True):
                assert tokens == pytest.approx([a * w for w in weights], abs=1e-12)


@every_rule
@quick
@given(data=st.data())
def test_shifts_of_zero_give_the_advantage_to_the_last_bit(name, data):
    _, batch, rows, weighed = play(name, drawn(data, name, shifts=st.just(0.0)))
    for i, (t, row) in enumerate(zip(batch.trajectories, rows, strict=True)):
        for turn_idx, turn in enumerate(t.turns):
            beside = neutral(name, batch, i, row, turn_idx)
            expected = [row[turn_idx] if is_action else beside for is_action in turn.action_mask]
            assert weighed.advantages[i][turn_idx] == expected


@every_rule
@quick
@given(data=st.data())
def test_a_turn_without_score_is_neutral(name, data):
    rule, batch, rows, weighed = play(name, drawn(data, name))
    for i, (t, row) in enumerate(zip(batch.trajectories, rows, strict=True)):
        for turn_idx, turn in enumerate(t.turns):
            span = turn.action_mask if rule.needs.scope == "action" else None
            if all(batch.span_shifts(t, turn_idx, block, span) is None for block in rule.needs.blocks):
                beside = neutral(name, batch, i, row, turn_idx)
                expected = [row[turn_idx] if is_action else beside for is_action in turn.action_mask]
                assert weighed.advantages[i][turn_idx] == expected


@every_rule
@quick
@given(data=st.data(), seed=st.integers(0, 1000))
def test_the_order_of_the_batch_does_not_matter(name, data, seed):
    groups = drawn(data, name)
    _, batch, _, weighed = play(name, groups)
    shuffled = [random.Random(seed).sample(group, len(group)) for group in groups][::-1]
    _, other, _, again = play(name, shuffled)
    of_uid = {t.uid: tokens for t, tokens in zip(other.trajectories, again.advantages, strict=True)}
    assert weighed.advantages == [of_uid[t.uid] for t in batch.trajectories]


@every_rule
@quick
@given(data=st.data())
def test_groups_and_unusable_trajectories_do_not_change_the_others(name, data):
    groups = drawn(data, name)
    _, batch, _, together = play(name, groups)
    kept = [[one for one in group if one.usable] for group in groups]
    apart = [tokens for group in kept for tokens in play(name, [group])[3].advantages]
    usable = [x for t, x in zip(batch.trajectories, together.advantages, strict=True) if t.is_usable]
    assert usable == apart


# ---- a constant added to all shifts --------------------------------------------------------------------------------


def shifted(name, constant):
    """A success and a failure of two turns, all shifts moved by a constant."""
    blocks = RULES[name][0].needs.blocks

    def reply(*shifts):
        return Reply((True,) * len(shifts), {block: tuple(d + constant for d in shifts) for block in blocks})

    won = Episode("a", 0.8, (reply(0.10, 0.12), reply(0.3)), success=True)
    lost = Episode("b", -0.8, (reply(0.16), reply(0.05, 0.2)))
    return [x for tokens in play(name, [[won, lost]])[3].advantages for turn in tokens for x in turn]


@pytest.mark.parametrize("name", ["none", "turnsight", "factor", "factor turn", "taspo_factor"])
def test_rules_that_do_not_see_a_constant(name):
    assert shifted(name, 0.25) == pytest.approx(shifted(name, 0.0), abs=1e-12)


@pytest.mark.parametrize("name", ["rlsd", "serl", "stepopsd raw", "stepopsd", "agentopsd", "grsd"])
def test_rules_that_see_a_constant(name):
    assert shifted(name, -0.15) != pytest.approx(shifted(name, 0.0), abs=1e-6)


def test_turnsight_sees_a_constant_that_changes_a_majority():
    reply = Reply((True,), {"own_future_1": (0.1,), "own_future_2": (0.2,), "own_future_3": (0.3,)})
    below = Reply((True,), {block: (d[0] - 1.0,) for block, d in reply.shifts.items()})
    assert [play("turnsight", [[Episode("a", 1.0, (one,))]])[3].supports for one in (reply, below)] == [
        [[0.3]],
        [[pytest.approx(-0.9)]],
    ]


def test_opid_adds_its_weight_times_the_constant():
    moved = [x - y for x, y in zip(shifted("opid", 0.25), shifted("opid", 0.0), strict=True)]
    assert moved == pytest.approx([0.001 * 0.25] * len(moved), abs=1e-12)


# ---- the check -----------------------------------------------------------------------------------------------------


def checked(advantages, promised, *, a=1.0, shifts=(0.5, 0.5), mask=(True, True), weights=None, peer=None):
    """Check what a rule gave for one turn of two tokens; `peer` = the shifts of another member of its group."""
    episodes = [Episode("a", a, (Reply(mask, {"b": shifts}),))]
    if peer is not None:
        episodes.append(Episode("p", 0.0, (Reply(mask, {"b": peer}),)))
        advantages = [*advantages, [[0.0, 0.0]]]
    batch = scored.batch(episodes)
    check_guarantees(batch, scored.rows(batch), Weighed(advantages, weights), Needs(("b",), "reply"), promised)


@pytest.mark.parametrize(
    ("advantages", "promised", "fields", "match"),
    [
        ([[[1.0]]], Guarantees(), {}, "one value for each reply token"),
        ([[]], Guarantees(), {}, "one value for each reply token"),
        ([[[1.0, math.nan]]], Guarantees(), {}, "finite values"),
        ([[[1.0, -0.1]]], Guarantees(), {}, "the sign of A"),
        ([[[0.0, 0.1]]], Guarantees(), {"a": 0.0}, "A~ = 0 where A = 0"),
        ([[[1.0, 1.11]]], Guarantees(bounds=(0.9, 1.1)), {}, r"inside \[0.9, 1.1\]"),
        ([[[-1.0, -0.89]]], Guarantees(bounds=(0.9, 1.1)), {"a": -1.0}, r"inside \[0.9, 1.1\]"),
        ([[[1.0, 1.01]]], Guarantees(mean_one="turns"), {}, "mean one over turns"),
        ([[[1.0, 1.0]]], Guarantees(mean_one="turns"), {"weights": [[1.01]]}, "mean one over turns"),
        ([[[1.5, 1.01]]], Guarantees(mean_one="each_action"), {"mask": (False, True)}, "mean one over each_action"),
        ([[[1.5, 1.01]]], Guarantees(mean_one="action_tokens"), {"mask": (False, True)}, "mean one over action"),
        ([[[1.0, 1.01]]], Guarantees(), {"shifts": (0.0, 0.0)}, "A~ = A where every shift is 0"),
        (
            [[[1.0, 1.01]]],
            Guarantees(identity_at_zero="group"),
            {"shifts": (0.0, 0.0), "peer": (0.0, 0.0)},
            "A~ = A where every shift is 0",
        ),
    ],
)
def test_a_broken_promise_is_caught(advantages, promised, fields, match):
    with pytest.raises(InvariantError, match=match):
        checked(advantages, promised, **fields)


@pytest.mark.parametrize(
    ("advantages", "promised", "fields"),
    [
        ([[[1.0, -0.1]]], Guarantees(keeps_sign=False), {}),
        ([[[0.0, 0.1]]], Guarantees(flat_is_zero=False), {"a": 0.0}),
        ([[[1.5, 1.0]]], Guarantees(mean_one="each_action"), {"mask": (False, True)}),
        ([[[1.0, 1.01]]], Guarantees(identity_at_zero=False), {"shifts": (0.0, 0.0)}),
        ([[[1.0, 1.01]]], Guarantees(identity_at_zero="group"), {"shifts": (0.0, 0.0), "peer": (0.0, 0.2)}),
    ],
)
def test_what_was_not_promised_is_not_asked(advantages, promised, fields):
    checked(advantages, promised, **fields)


@pytest.mark.parametrize("name", [one for one in RULES if one not in ("none", *MAY_FLIP)])
def test_a_rule_with_a_flipped_sign_is_caught(name):
    rule = RULES[name][0]
    episode = Episode("a", 0.8, (Reply((True, True), dict.fromkeys(rule.needs.blocks, (0.3, -0.1))),))
    batch = scored.batch([episode], scope=rule.needs.scope)
    rows = scored.rows(batch)
    flipped = dataclasses.replace(rule(batch, rows), advantages=broadcast(batch, [[-0.8]]))
    with pytest.raises(InvariantError, match="the sign of A"):
        check_guarantees(batch, rows, flipped, rule.needs, rule.guarantees)


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RLSD(share=1.5), r"`share` must be a number in \[0, 1\], got 1.5\. .*plain GRPO"),
        (lambda: RLSD(share="0.5"), "`share` must be a number .* got '0.5'"),
        (lambda: RLSD(share=True), "`share` must be a number .* got True"),
        (lambda: RLSD(clip=1.0), r"`clip` must be a number in \(0, 1\), got 1.0"),
        (lambda: RLSD(clip=0), "`clip`"),
        (lambda: RLSD(clip=math.nan), "`clip`"),
        (lambda: RLSD(zero_at=-1), "`zero_at` must be a whole number of at least 0, got -1"),
        (lambda: RLSD(zero_at=50.0), "`zero_at`"),
        (lambda: RLSD(teacher="model"), "`teacher` must be one of 'rollout', 'stale', 'ema', 'frozen', got 'model'"),
        (lambda: RLSD(block=""), "`block` must be the name of a guidance block, got ''"),
        (lambda: RLSD(blame_only=1), "`blame_only` must be one of False, True, got 1"),
        (lambda: SERL(inside_tags="yes"), "`inside_tags`"),
        (lambda: SERL(teacher_every=0), "`teacher_every` must be a whole number of at least 1, got 0"),
        (lambda: SERL(teacher="ema", teacher_rate=0.0), r"`teacher_rate` must be a number in \(0, 1\], got 0.0"),
        (lambda: StepOPSD(kernel="tanh"), "`kernel` must be one of 'sigmoid', 'exp', got 'tanh'"),
        (lambda: StepOPSD(normalise=None), "`normalise`"),
        (lambda: OPID(episode_weight=-0.1), r"`episode_weight` must be a number in \[0, inf\), got -0.1"),
        (lambda: OPID(step_weight=math.inf), "`step_weight`"),
        (lambda: AgentOPSD(gamma=1.01), "`gamma`"),
        (lambda: AgentOPSD(reach=1.0), "`reach`"),
        (lambda: GRSD(floor=0.0), "`floor`"),
        (lambda: GRSD(gain=-1), "`gain`"),
        (lambda: GRSD(clip=0.0), "`clip`"),
        (lambda: TurnSight(gain=1.0), "`gain`"),
        (lambda: TurnSight(horizons=()), r"`horizons` must be numbers of turns from 1, got \(\)"),
        (lambda: TurnSight(horizons=(1, 0)), "`horizons`"),
        (lambda: TAC(value="head"), "`value` must be one of 'siblings', 'continuations', got 'head'"),
        (lambda: TAC(continuations=0), "`continuations`"),
        (lambda: TAC(baseline="none"), "`baseline`"),
        (lambda: TAC(warmup=-1), "`warmup`"),
        (lambda: HTA(temperature=0.0), "`temperature`"),
        (lambda: HTA(outside="reply"), "`outside`"),
        (lambda: TASPOFactor(weight_range=1.0), r"`weight_range` must be a number in \[0, 1\), got 1.0"),
        (lambda: TASPOFactor(token_temperature=0.0), "`token_temperature`"),
        (lambda: TASPOFactor(step_size=-1.0), "`step_size`"),
        (lambda: TASPOFactor(share=2.0), "`share`"),
    ],
)
def test_impossible_options_are_refused(make, match):
    with pytest.raises(ConfigurationError, match=match):
        make()


@pytest.mark.parametrize(
    ("rule", "needs"),
    [
        (RLSD(), Needs(("random_success",), "reply", "rollout")),
        (SERL(), Needs(("serl_immediate",), "action", "stale", 10)),
        (StepOPSD(), Needs(("first_success_failed_only",), "action", "stale", 10)),
        (OPID(), Needs(("episode", "step"), "reply", "rollout", flat_groups=True)),
        (AgentOPSD(), Needs(("random_success",), "reply", "rollout")),
        (GRSD(), Needs(("contrast",), "reply", "rollout")),
        (TurnSight(), Needs(("own_future_1", "own_future_2", "own_future_3"), "reply", "frozen")),
        (HTA(), Needs(("serl_immediate",), "action", "rollout")),
        (TASPOFactor(), Needs(("aligned", "serl_immediate"), "action", "rollout")),
    ],
)
def test_needs_of_the_defaults(rule, needs):
    assert rule.needs == needs
