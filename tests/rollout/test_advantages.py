"""`group_advantages`: baselines over trajectories."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.rollout.advantages import group_advantages
from tests import reference


def of_one_group(rewards, scale_rewards="group"):
    advantages_G, flat_G = group_advantages([rewards], scale_rewards)
    return advantages_G[0], flat_G[0]


def test_one_long_and_one_short_episode_weigh_alike():
    # NRM-1: mean 0.5, sample std sqrt(0.5): 0.5 / (0.70711 + 1e-4) = 0.70701. Over rows the mean would be 0.75.
    advantages, is_flat = of_one_group([1.0, 0.0])
    assert advantages == pytest.approx([0.70701, -0.70701], abs=1e-5)
    assert not is_flat


def test_one_success_of_four_by_hand():
    # mean 0.25, sample variance (0.5625 + 3 * 0.0625) / 3 = 0.25, std 0.5
    advantages, _ = of_one_group([1.0, 0.0, 0.0, 0.0])
    assert advantages == pytest.approx([0.75 / 0.5001, *[-0.25 / 0.5001] * 3], abs=1e-12)


@pytest.mark.parametrize(
    "rewards",
    [[], [1.0], [None, 1.0], [None, None], [0.0] * 4, [1.0] * 4, [0.1 + 0.2, 0.3], [0.0, 1e-8], [1.0, None, 1.0]],
)
def test_group_without_contrast_has_advantages_of_exactly_zero(rewards):
    # CRD-1, and groups that lost so many members that they have no contrast left.
    assert of_one_group(rewards) == ([0.0] * len(rewards), True)


def test_small_but_real_contrast_is_kept():
    advantages, is_flat = of_one_group([0.0, 2e-8])
    assert not is_flat
    assert advantages[1] > 0 > advantages[0]


def test_unusable_trajectories_leave_mean_and_std():
    advantages, _ = of_one_group([1.0, None, 0.0, None])
    assert [advantages[0], advantages[2]] == of_one_group([1.0, 0.0])[0]
    assert [advantages[1], advantages[3]] == [0.0, 0.0]


def test_scale_of_the_batch_uses_the_std_of_all_usable_rewards():
    advantages_G, flat_G = group_advantages([[1.0, 0.0], [0.5, 0.5], [None, 3.0]], "batch")
    std = statistics.stdev([1.0, 0.0, 0.5, 0.5, 3.0])
    assert advantages_G[0] == pytest.approx([0.5 / (std + 1e-4), -0.5 / (std + 1e-4)])
    assert advantages_G[1:] == [[0.0, 0.0], [0.0, 0.0]]
    assert flat_G == [False, True, True]


def test_no_scale_subtracts_the_mean_only():
    assert of_one_group([3.0, 1.0], "none")[0] == [1.0, -1.0]


@pytest.mark.parametrize("value", ["std", True, None])
def test_unknown_scale_is_refused(value):
    with pytest.raises(ValueError, match=f"scale_rewards.*{value!r}"):
        group_advantages([[1.0, 0.0]], value)


@given(rewards=st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_advantages_agree_with_the_reference_and_sum_to_zero(rewards):
    advantages, _ = of_one_group(rewards)
    assert advantages == pytest.approx(reference.advantages(rewards).tolist(), abs=1e-9)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)


@given(rewards=st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_advantages_agree_with_the_arithmetic_of_trl(rewards):
    # TRL 1.16: (r - mean) / (torch.std + 1e-4), here in float64.
    values = torch.tensor(rewards, dtype=torch.float64)
    if values.max() - values.min() > 1e-8:
        expected = (values - values.mean()) / (values.std() + 1e-4)
        assert of_one_group(rewards)[0] == pytest.approx(expected.tolist(), abs=1e-9)


@given(
    group=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=6),
    other=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=6),
    data=st.data(),
)
def test_groups_are_independent_and_order_is_kept(group, other, data):
    order = data.draw(st.permutations(range(len(group))))
    alone = of_one_group(group)[0]
    advantages_G, _ = group_advantages([other, [group[k] for k in order]])
    assert advantages_G[1] == pytest.approx([alone[k] for k in order], abs=1e-12)
