"""From trajectories to the loss of an update: the whole pure path against the nested reference of E3 to E8.

The batches are random and ragged: turns without reply, replies without located action, trajectories without guidance
or contrast, infrastructure failures. Log-probabilities are made up; everything else is the package's own.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.errors import InvariantError
from taspo_trl.loss import batches
from taspo_trl.loss import plan as planning
from taspo_trl.loss.batches import EMPTY_ROW, collate, loss_row, with_logps
from taspo_trl.loss.objective import taspo_loss
from taspo_trl.rollout.advantages import group_advantages
from taspo_trl.rows import build_rows
from taspo_trl.scoring.paired import PairedLogps
from taspo_trl.scoring.pairs import plan_pairs, turn_scores
from taspo_trl.types import Credit, FinishReason, Guidance, StopReason
from tests import reference
from tests.builders import conversation_trajectory, guided, trajectory, turn, window_trajectory
from tests.credit.assigning import credits_of, token_advantages


GROUP_SIZE = 3


def plan_update(trajectories, advantages, *, all_contribute=False, **arguments):
    moves = [[all_contribute or a != 0] * len(t.turns) for t, a in zip(trajectories, advantages, strict=True)]
    return planning.plan_update(trajectories, moves, **arguments)


def with_credit(made, row, credit):
    lengths = [0] * len(credit.weights)
    for one in row.turns:
        lengths[one.turn_idx] = one.length
    return batches.with_credit(made, row, token_advantages(credit, lengths))


class Batch:
    """A rollout batch with made-up log-probabilities for every sampled token."""

    def __init__(self, seed, num_groups=2, make=window_trajectory):
        rng = np.random.default_rng(seed)
        self.trajectories = [
            make(
                rng,
                f"g{g}k{k}",
                int(rng.integers(1, 6)),
                reward=float(rng.choice([0.0, 1.0, rng.normal()])),
                stop_reason=StopReason.ENV_DIED if rng.random() < 0.15 else StopReason.MAX_TURNS,
            )
            for g in range(num_groups)
            for k in range(GROUP_SIZE)
        ]
        if not any(t.is_usable for t in self.trajectories):
            self.trajectories[0] = dataclasses.replace(self.trajectories[0], stop_reason=StopReason.MAX_TURNS)
        self.trajectories = [self._some_replies_cut(rng, t) for t in self.trajectories]
        self.guidance = {
            t.uid: guided(t.uid, (5, 6) if rng.random() < 0.7 else (), len(t.turns), abstain_reason="none_given")
            for t in self.trajectories
        }
        # pi (new), pi_old, pi_ref and the entropy of each sampled token; pi_old with guidance.
        self.values = {
            (t.uid, k): {
                "new": rng.normal(-1, 0.7, size=len(one.reply_ids)),
                "old": rng.normal(-1, 0.7, size=len(one.reply_ids)),
                "ref": rng.normal(-1, 0.7, size=len(one.reply_ids)),
                "entropy": rng.uniform(0, 2, size=len(one.reply_ids)),
                "guided": rng.normal(-1, 0.7, size=len(one.reply_ids)),
            }
            for t in self.trajectories
            for k, one in enumerate(t.turns)
        }
        for key in self.values:  # now and then a log-probability is not finite in the guided branch
            if rng.random() < 0.1 and len(self.values[key]["guided"]):
                self.values[key]["guided"][-1] = rng.choice([math.nan, -math.inf])

    @staticmethod
    def _some_replies_cut(rng, t):
        turns = (
            dataclasses.replace(one, finish_reason=FinishReason.LENGTH if rng.random() < 0.2 else FinishReason.STOP)
            for one in t.turns
        )
        return dataclasses.replace(t, turns=tuple(turns))

    # ---- the package's path

    def advantages(self):
        rewards = [t.reward if t.is_usable else None for t in self.trajectories]
        grouped = [rewards[k : k + GROUP_SIZE] for k in range(0, len(rewards), GROUP_SIZE)]
        return [one for group in group_advantages(grouped)[0] for one in group]

    def credits(self, rows, **credit):
        by_uid = {t.uid: t for t in self.trajectories}
        plan = plan_pairs(rows, by_uid, self.guidance)
        logps = []
        for members in plan.turns:
            chosen = [(self.values[key], list(places)) for key, places in members]
            plain = [values["old"][places] for values, places in chosen]
            with_block = [values["guided"][places] for values, places in chosen]
            logps.append(
                PairedLogps(tuple(np.concatenate(plain).tolist()), (tuple(np.concatenate(with_block).tolist()),))
            )
        unguided = {uid: one.abstain_reason for uid, one in self.guidance.items() if not one}
        return credits_of(self.trajectories, self.advantages(), turn_scores(plan, logps), unguided, **credit)

    def of_row(self, row, name):
        return np.concatenate([self.values[row.traj_uid, span.turn_idx][name] for span in row.turns])

    def loss_of(self, rows, made, objective):
        """The loss of one micro-batch; no rows stand for the zero row."""
        batch = collate(made, dtype=torch.float64)

        def flat(name):
            return torch.from_numpy(np.concatenate([self.of_row(row, name) for row in rows]) if rows else np.ones(1))

        return taspo_loss(
            flat("new"),
            batch.get("old_logps", flat("old")),
            batch["advantages"],
            batch["coefficients"],
            ref_logps=batch.get("ref_logps", flat("ref")),
            entropies=flat("entropy"),
            **objective,
        ).loss.item()

    def finished(self, made, row, credit):
        made = with_credit(made, row, credit)
        return with_logps(made, old_logps=self.of_row(row, "old"), ref_logps=self.of_row(row, "ref"))

    def update_loss(self, objective, credit=None, num_processes=1, mask_truncated=False, **plan):
        """The sum of all steps' losses over micro-steps and processes, each step weighted by n_k / N_row."""
        arguments = {"num_steps": 1, "num_micro_steps": 1, "max_tokens": 40, "seed": 0, **plan}
        plans = [
            plan_update(
                self.trajectories,
                self.advantages(),
                all_contribute=bool(objective.get("beta") or objective.get("entropy_coef")),
                mask_truncated=mask_truncated,
                process_index=process,
                num_processes=num_processes,
                **arguments,
            )
            for process in range(num_processes)
        ]
        credits = self.credits(plans[0].rows, **(credit or {}))
        total, num_micro_steps = 0.0, arguments["num_micro_steps"]
        for step in range(arguments["num_steps"]):
            micro_steps = range(step * num_micro_steps, (step + 1) * num_micro_steps)
            num_rows = sum(len(batch) for one in plans for k in micro_steps for batch in one.micro_batches[k])
            for one in plans:
                values = {
                    index: self.finished(made, one.rows[index], credits[one.rows[index].traj_uid])
                    for index, made in one.loss_rows.items()
                }
                batches = one.batches(values)
                for k in micro_steps:
                    for members, made in zip(one.micro_batches[k], batches[k], strict=True):
                        loss = self.loss_of([one.rows[index] for index in members], made, objective)
                        total += num_rows / max(1, len(one.rows)) * loss  # zero rows add nothing
        return total

    # ---- the reference

    def reference_loss(self, objective, credit=None, mask_truncated=False):
        names = {"beta": "beta", "entropy_coef": "entropy_coef", "epsilon_low": "low", "epsilon_high": "high"}
        played = []
        for start in range(0, len(self.trajectories), GROUP_SIZE):
            members = [t for t in self.trajectories[start : start + GROUP_SIZE] if t.is_usable]
            for t, advantage in zip(members, reference.advantages([t.reward for t in members]), strict=True):
                played.append(self._played(t, advantage, credit or {}, mask_truncated))
        return reference.loss(played, **{names[name]: value for name, value in objective.items()})

    def _played(self, t, advantage, credit, mask_truncated):
        turns = [self.values[t.uid, k] for k in range(len(t.turns))]
        masks = [np.array(one.action_mask, dtype=bool) for one in t.turns]
        settings = {
            "clip": 2.0,
            "threshold": 0.0,
            "temperature": 0.5,
            "weight_range": 0.4,
            "step_size": None,
            **credit,
        }
        allocation = settings.pop("allocation", "action")
        clip, threshold = settings.pop("clip"), settings.pop("threshold")
        deltas = [
            reference.shifts(one["old"][mask], one["guided"][mask]) if self.guidance[t.uid] else np.array([])
            for one, mask in zip(turns, masks, strict=True)
        ]
        if allocation == "action":
            supports = [reference.support(one, clip, threshold) for one in deltas]
            of_turn = reference.weights(supports, advantage, **settings)
            weights = [np.full(len(mask), w) for mask, w in zip(masks, of_turn, strict=True)]
        else:
            weights = [np.ones(len(mask)) for mask in masks]
            of_tokens = reference.token_weights(deltas, advantage, clip, threshold, **settings)
            for own, mask, one in zip(weights, masks, of_tokens, strict=True):
                if len(one):
                    own[mask] = one
        return reference.PlayedTrajectory(
            float(advantage),
            [
                reference.PlayedTurn([], [], [], [], [])  # masked: counts in T_i and adds nothing
                if mask_truncated and t.turns[k].finish_reason is FinishReason.LENGTH
                else reference.PlayedTurn(one["new"], one["old"], one["ref"], one["entropy"], weights[k])
                for k, one in enumerate(turns)
            ],
        )


GRPO = {}
FULL = {"beta": 0.04, "entropy_coef": 0.01, "epsilon_low": 0.1, "epsilon_high": 0.3}

makers = st.sampled_from([window_trajectory, conversation_trajectory])
objectives = st.sampled_from([GRPO, FULL])
splits = st.fixed_dictionaries(
    {
        "num_steps": st.integers(1, 3),
        "num_micro_steps": st.integers(1, 3),
        "num_processes": st.integers(1, 3),
        "max_tokens": st.sampled_from([1, 25, 60, 10_000]),
        "seed": st.integers(0, 9),
    }
)
credits = st.fixed_dictionaries(
    {},
    optional={
        "allocation": st.sampled_from(["action", "token"]),
        "clip": st.floats(0.1, 3),
        "threshold": st.floats(0, 0.5),
        "temperature": st.floats(0.1, 2),
        "weight_range": st.floats(0, 0.9),
        "step_size": st.floats(0, 2),
    },
)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), make=makers, objective=objectives, split=splits, credit=credits, mask=st.booleans())
def test_sum_of_all_parts_equals_the_nested_means_of_the_reference(seed, make, objective, split, credit, mask):
    batch = Batch(seed, make=make)
    expected = batch.reference_loss(objective, credit, mask)
    assert batch.update_loss(objective, credit, mask_truncated=mask, **split) == pytest.approx(expected, abs=1e-9)


def test_random_batches_hold_every_awkward_thing():
    # The property above is worth what its batches contain.
    batches = [Batch(seed) for seed in range(20)]
    trajectories = [t for batch in batches for t in batch.trajectories]
    turns = [one for t in trajectories for one in t.turns]
    assert any(not t.is_usable for t in trajectories)
    assert any(not one.reply_ids for one in turns)
    assert any(one.reply_ids and not any(one.action_mask) for one in turns)
    assert any(not all(one.action_mask) and any(one.action_mask) for one in turns)
    assert any(all(a == 0 for a in batch.advantages()[:GROUP_SIZE]) for batch in batches)
    all_credits = [
        one
        for batch in batches
        for one in batch.credits([row for t in batch.trajectories for row in build_rows(t)]).values()
    ]
    assert {one.fallback for one in all_credits} >= {
        "",
        "none_given",
        "zero_advantage",
        "fewer_than_two_scorable_turns",
    }
    reasons = {score.unscorable for one in all_credits for score in one.scores}
    assert reasons >= {"", "empty_mask", "non_finite", "no_reply"}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), objective=objectives, split=splits, data=st.data())
def test_order_of_groups_and_members_changes_nothing(seed, objective, split, data):
    batch = Batch(seed)
    before = batch.update_loss(objective, **split)
    groups = [batch.trajectories[k : k + GROUP_SIZE] for k in range(0, len(batch.trajectories), GROUP_SIZE)]
    groups = [data.draw(st.permutations(group)) for group in data.draw(st.permutations(groups))]
    batch.trajectories = [t for group in groups for t in group]
    assert batch.update_loss(objective, **split) == pytest.approx(before, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), objective=objectives)
def test_shared_rows_and_rows_of_one_turn_give_the_same_loss(seed, objective):
    batch = Batch(seed, make=conversation_trajectory)
    usable = [t for t in batch.trajectories if t.is_usable]
    losses = []
    for merge in (True, False):
        rows = [(t, row) for t in usable for row in build_rows(t, merge)]
        credits = batch.credits([row for t in batch.trajectories for row in build_rows(t, merge)])
        losses.append(
            sum(
                batch.loss_of(
                    [row],
                    [
                        batch.finished(
                            loss_row(row, t, num_trajectories=len(usable), factor=1.0), row, credits[row.traj_uid]
                        )
                    ],
                    objective,
                )
                for t, row in rows
            )
        )
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert losses[0] == pytest.approx(batch.reference_loss(objective), abs=1e-9)


def test_padding_of_the_rectangle_changes_nothing():
    batch = Batch(1)
    plan = plan_update(
        batch.trajectories, batch.advantages(), num_steps=1, num_micro_steps=1, max_tokens=10**6, seed=0
    )
    credits = batch.credits(plan.rows)
    rows = [batch.finished(plan.loss_rows[k], row, credits[row.traj_uid]) for k, row in enumerate(plan.rows)]
    together = batch.loss_of(plan.rows, rows, GRPO)
    # With padding rows among them, as a process gets them that has fewer micro-batches than another.
    alone = sum(batch.loss_of([row], [made], GRPO) for row, made in zip(plan.rows, rows, strict=True))
    assert together == pytest.approx(alone + batch.loss_of([], [EMPTY_ROW], FULL), abs=1e-12)


def test_weights_of_one_are_grpo():
    batch = Batch(3)
    grpo = {uid: Guidance(uid, "none", abstain_reason="off") for uid in batch.guidance}
    with_range_zero = batch.update_loss(FULL, {"weight_range": 0.0})
    batch.guidance = grpo
    assert batch.update_loss(FULL) == with_range_zero


# ---- by hand -------------------------------------------------------------------------------------------------------


def test_long_and_short_episodes_weigh_alike():
    # NRM-1: one group, reward 1 with 3 turns, reward 0 with 1 turn; five rows with the padding row.
    won = trajectory([turn([1, 2, k], [10] * k) for k in (1, 2, 3)], "won", reward=1.0)
    lost = trajectory([turn([1, 2, 9], [10, 10])], "lost", reward=0.0)
    (advantages,), _ = group_advantages([[1.0, 0.0]])
    assert advantages == pytest.approx([0.70701, -0.70701], abs=1e-5)
    plan = plan_update([won, lost], advantages, num_steps=1, num_micro_steps=1, max_tokens=100, seed=0)
    of_row = [plan.loss_rows[k] for k in range(4)]
    # Balance factors over the mean of five rows: 5 / (2 * 3) for the long one's turns, 5 / (2 * 1) for the short one.
    factors = [5 * sum(made.coefficients) for made in of_row]
    assert factors == pytest.approx([5 / 6, 5 / 6, 5 / 6, 2.5], abs=1e-12)
    assert sum(EMPTY_ROW.coefficients) == 0.0
    l1, l2, l3, l4 = 0.3, 1.1, 0.7, -0.4  # token-mean losses of the short episode and of the long one's turns
    mean = sum(factor * loss for factor, loss in zip([*factors, 0.0], [l2, l3, l4, l1, 9.9], strict=True)) / 5
    assert mean == pytest.approx(l1 / 2 + (l2 + l3 + l4) / 6, abs=1e-12)


def test_two_steps_by_hand():
    # Five rows in two steps: three rows in one, two in the other, factors 5/3 and 5/2.
    members = [trajectory([turn([k, 2, 3], [10])], f"t{k}") for k in range(5)]
    plan = plan_update(members, [1.0] * 5, num_steps=2, num_micro_steps=1, max_tokens=100, seed=4)
    sizes = [sum(map(len, micro)) for micro in plan.micro_batches]
    assert sorted(sizes) == [2, 3]
    for micro, size in zip(plan.micro_batches, sizes, strict=True):
        for row in itertools.chain(*micro):
            assert plan.loss_rows[row].coefficients == (pytest.approx(5 / size / 5),)


# ---- what is planned -----------------------------------------------------------------------------------------------


def plan_of(members, advantages, **arguments):
    return plan_update(
        members, advantages, **{"num_steps": 1, "num_micro_steps": 1, "max_tokens": 100, "seed": 0, **arguments}
    )


def test_rows_without_advantage_cost_no_forward_but_count():
    members = [trajectory([turn()], "a"), trajectory([turn()], "b")]
    plan = plan_of(members, [0.5, 0.0])
    assert [row.traj_uid for row in plan.rows] == ["a"]
    assert plan.loss_rows[0].coefficients == (0.25, 0.25)  # B = 2
    everything = plan_of(members, [0.5, 0.0], all_contribute=True)
    assert [row.traj_uid for row in everything.rows] == ["a", "b"]
    assert everything.loss_rows[0].coefficients == (0.25, 0.25)


def test_infrastructure_failures_leave_rows_and_the_number_of_trajectories():
    members = [
        trajectory([turn()], "a"),
        trajectory([turn()], "died", stop_reason=StopReason.ENV_DIED),
        trajectory([], "no_turns", stop_reason=StopReason.PROMPT_TOO_LONG),
    ]
    plan = plan_of(members, [0.5, 0.0, 0.0], all_contribute=True)
    assert [row.traj_uid for row in plan.rows] == ["a"]
    assert plan.loss_rows[0].coefficients == (0.5, 0.5)


def test_batch_without_contrast_plans_a_zero_row_for_every_micro_step():
    plan = plan_of([trajectory([turn()], "a")], [0.0], num_steps=2, num_micro_steps=2)
    assert plan.micro_batches == (((),),) * 4
    assert plan.batches({}) == [[[EMPTY_ROW]]] * 4


def test_more_steps_than_rows_leaves_steps_of_zero_rows():
    plan = plan_of([trajectory([turn()], "a")], [1.0], num_steps=3)
    assert sorted(sum(map(len, micro)) for micro in plan.micro_batches) == [0, 0, 1]
    assert plan.loss_rows[0].coefficients == (0.5, 0.5)  # N_row / n_k = 1: only the steps with rows learn


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), split=splits)
def test_processes_share_the_rows_and_run_equally_many_forwards(seed, split):
    batch, num_processes = Batch(seed), split["num_processes"]
    arguments = {name: value for name, value in split.items() if name != "num_processes"}
    plans = [
        plan_update(
            batch.trajectories,
            batch.advantages(),
            process_index=process,
            num_processes=num_processes,
            **arguments,
        )
        for process in range(num_processes)
    ]
    assert len({plan.rows for plan in plans}) == 1
    for micro in zip(*(plan.micro_batches for plan in plans), strict=True):
        assert len({len(batches) for batches in micro}) == 1
        assert len(micro[0]) >= 1
    dealt = [row for plan in plans for micro in plan.micro_batches for batch in micro for row in batch]
    assert sorted(dealt) == list(range(len(plans[0].rows)))
    for plan in plans:
        assert sorted(plan.loss_rows) == sorted(row for micro in plan.micro_batches for one in micro for row in one)
        for one in itertools.chain(*plan.micro_batches):
            lengths = [len(plan.rows[row].ids) for row in one]
            assert len(one) <= 1 or len(one) * max(lengths) <= split["max_tokens"]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    processes=st.integers(1, 3),
    micro_steps=st.integers(1, 2),
    budget=st.sampled_from([30, 60, 200, 1000]),
    padding_free=st.booleans(),
    data=st.data(),
)
def test_trajectories_stay_whole_where_they_fit(seed, processes, micro_steps, budget, padding_free, data):
    batch = Batch(seed)
    uids = [t.uid for t in batch.trajectories]
    whole = data.draw(st.sets(st.sampled_from(uids)))
    plans = [
        plan_update(
            batch.trajectories,
            batch.advantages(),
            num_steps=1,
            num_micro_steps=micro_steps,
            max_tokens=budget,
            seed=seed,
            whole=whole,
            padding_free=padding_free,
            process_index=process,
            num_processes=processes,
        )
        for process in range(processes)
    ]
    first = plans[0]
    assert len({plan.whole for plan in plans}) == 1 and first.whole <= whole
    batches = [one for plan in plans for micro in plan.micro_batches for one in micro]
    assert sorted(row for one in batches for row in one) == list(range(len(first.rows)))
    for one in batches:
        lengths = [len(first.rows[row].ids) for row in one]
        assert len(one) <= 1 or (sum(lengths) if padding_free else len(one) * max(lengths)) <= budget
    for uid in first.whole:
        assert sum(any(first.rows[row].traj_uid == uid for row in one) for one in batches) == 1
    # One row is always whole; nothing is parted that fits and costs neither padding nor an uneven share.
    rows = [row.traj_uid for row in first.rows]
    assert {uid for uid in whole if rows.count(uid) == 1} <= first.whole
    if padding_free and processes == micro_steps == 1:
        tokens = {uid: sum(len(row.ids) for row in first.rows if row.traj_uid == uid) for uid in whole & set(rows)}
        assert {uid for uid, number in tokens.items() if number <= budget} <= first.whole


def test_nothing_is_kept_whole_that_pads_more_than_it_saves():
    """Rows of 3 and 30 tokens: apart the micro-batches hold 3 + 3 and 30 + 30, together 2 x 30 each."""
    turns = [turn([1, 2], [10]), turn(list(range(20, 49)), [10])]
    members = [trajectory(turns, uid) for uid in ("a", "b")]
    arguments = {"num_steps": 1, "max_tokens": 60, "whole": {"a", "b"}}
    assert plan_of(members, [1.0, -1.0], **arguments).whole == frozenset()
    assert plan_of(members, [1.0, -1.0], padding_free=True, **arguments).whole == {"a", "b"}
    like = [trajectory([turn([1, 2], [10]), turn([1, 3], [10])], uid) for uid in ("a", "b")]
    assert plan_of(like, [1.0, -1.0], **arguments).whole == {"a", "b"}


def test_nothing_is_kept_whole_that_leaves_a_process_waiting():
    """Three trajectories of four equal rows: two processes have six rows each, or eight and four."""
    members = [trajectory([turn(list(range(k, k + 9)), [10]) for k in range(4)], uid) for uid in "abc"]
    arguments = {"num_steps": 1, "max_tokens": 1000, "whole": {"a", "b", "c"}, "padding_free": True}
    assert plan_of(members, [1.0, -1.0, 1.0], **arguments).whole == {"a", "b", "c"}
    assert plan_of(members, [1.0, -1.0, 1.0], num_processes=2, **arguments).whole == frozenset()
    even = [trajectory([turn(list(range(k, k + 9)), [10]) for k in range(4)], uid) for uid in "abcd"]
    arguments["whole"] = set("abcd")
    assert plan_of(even, [1.0, -1.0, 1.0, 1.0], num_processes=2, **arguments).whole == set("abcd")


def test_several_steps_keep_nothing_whole():
    with pytest.raises(InvariantError, match="not in 2"):
        plan_of([trajectory([turn()], "a")], [1.0], num_steps=2, whole={"a"})


def test_batches_put_values_in_the_place_of_indices():
    members = [trajectory([turn([1, 2, 3], [10] * k)], f"t{k}") for k in (1, 2)]
    plan = plan_of(members, [1.0, -1.0], max_tokens=5)
    values = {k: with_credit(made, plan.rows[k], Credit(f"t{k}", 1.0, (1.0,))) for k, made in plan.loss_rows.items()}
    assert plan.batches(values) == [[[values[1]], [values[0]]]]  # the longest first


def test_advantages_must_match_the_trajectories():
    with pytest.raises(ValueError, match="zip"):
        plan_of([trajectory([turn()])], [1.0, 2.0])
