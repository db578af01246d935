"""E8 on tensors: hand-worked tokens, TRL's algebra, the independent reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.loss.objective import LossTerms, clip_shares, taspo_loss, token_sums
from tests import reference


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def one_token(ratio, advantage, **kwargs):
    """The loss of one token with coefficient 1."""
    return taspo_loss(tensor(math.log(ratio)), tensor(0.0), tensor(advantage), tensor(1.0), **kwargs)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 0.5, -0.5),
        (1.1, 2.0, -2.2),
        (1.5, 2.0, -2.4),  # clipped at 1.2
        (0.5, 2.0, -1.0),  # below the region with A > 0: not clipped
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # above the region with A < 0: not clipped
        (2.9, -2.0, 5.8),
        (4.0, -2.0, 6.0),  # dual clip at 3
        (4.0, 2.0, -2.4),
        (4.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss):
    assert one_token(ratio, advantage).loss.item() == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high"),
    [
        (0.79, -1.0, True, False),
        (0.79, 1.0, False, False),
        (0.81, -1.0, False, False),
        (1.21, 1.0, False, True),
        (1.21, -1.0, False, False),
        (1.19, 1.0, False, False),
        (5.0, 0.0, False, False),
        (0.1, 0.0, False, False),
        (3.5, -1.0, False, False),
    ],
)
def test_clip_flags_say_where_the_ratio_left_the_region_in_the_wrong_direction(ratio, advantage, low, high):
    terms = one_token(ratio, advantage)
    assert (terms.is_low_clipped.item(), terms.is_high_clipped.item()) == (low, high)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.5, 2.0), (0.5, -2.0), (4.0, -2.0)])
def test_clipped_token_has_no_gradient(ratio, advantage):
    logps = tensor(math.log(ratio)).requires_grad_()
    taspo_loss(logps, tensor(0.0), tensor(advantage), tensor(1.0)).loss.backward()
    assert logps.grad.item() == 0.0


@pytest.mark.parametrize(("ratio", "advantage"), [(1.0, 2.0), (1.0, -2.0), (0.5, 2.0), (2.0, -2.0)])
def test_gradient_of_a_free_token_is_the_negated_advantage_times_the_ratio(ratio, advantage):
    logps = tensor(math.log(ratio)).requires_grad_()
    taspo_loss(logps, tensor(0.0), tensor(advantage), tensor(0.25)).loss.backward()
    assert logps.grad.item() == pytest.approx(-0.25 * advantage * ratio, abs=1e-12)


def test_separate_bounds_and_no_dual_clip():
    assert one_token(1.5, 1.0, epsilon_high=0.28).loss.item() == pytest.approx(-1.28)
    assert one_token(0.5, -1.0, epsilon_low=0.1).loss.item() == pytest.approx(0.9)
    assert one_token(10.0, -1.0, delta=None).loss.item() == pytest.approx(10.0)


def test_small_batch_by_hand():
    # Three tokens with coefficients 1/2, 1/4, 1/4.
    #   surrogate: -(1.0 * 1) = -1;  ratio e^0.5 = 1.64872, A = -1: +1.64872;  ratio 1.2 cut, A = 2: -2.4
    #   k3 with log(ref / pi) = (0, 0.1, -0.2): 0, e^0.1 - 1.1 = 0.00517092, e^-0.2 - 0.8 = 0.01873075
    #   entropy: 1, 2, 4
    terms = taspo_loss(
        tensor(-1.0, -0.5, -1.0),
        tensor(-1.0, -1.0, -2.0),
        tensor(1.0, -1.0, 2.0),
        tensor(0.5, 0.25, 0.25),
        ref_logps=tensor(-1.0, -0.4, -1.2),
        beta=0.1,
        entropies=tensor(1.0, 2.0, 4.0),
        entropy_coef=0.01,
    )
    surrogate = -0.5 + 0.25 * 1.6487212707 - 0.25 * 2.4
    kl = 0.25 * 0.00517091808 + 0.25 * 0.01873075308
    entropy = 0.5 * 1 + 0.25 * 2 + 0.25 * 4
    assert terms.policy_loss.item() == pytest.approx(surrogate, abs=1e-9)
    assert terms.loss.item() == pytest.approx(surrogate + 0.1 * kl - 0.01 * entropy, abs=1e-9)
    assert terms.kl.tolist() == pytest.approx([0.0, 0.00517091808, 0.01873075308], abs=1e-9)
    assert terms.is_high_clipped.tolist() == [False, False, True]


def test_kl_with_bias_correction_is_multiplied_by_the_ratio():
    plain = one_token(1.1, 0.0, ref_logps=tensor(0.3), beta=1.0)
    corrected = one_token(1.1, 0.0, ref_logps=tensor(0.3), beta=1.0, use_bias_correction_kl=True)
    assert corrected.loss.item() == pytest.approx(1.1 * plain.loss.item(), abs=1e-12)


def test_importance_ratio_multiplies_the_surrogate_only():
    kwargs = {"ref_logps": tensor(0.3), "beta": 1.0, "entropies": tensor(2.0), "entropy_coef": 0.1}
    plain, corrected = one_token(1.1, 1.5, **kwargs), one_token(1.1, 1.5, **kwargs, importance_ratio=tensor(0.5))
    assert corrected.loss.item() == pytest.approx(plain.loss.item() + 0.5 * 1.1 * 1.5, abs=1e-12)
    assert corrected.policy_loss.item() == pytest.approx(0.5 * plain.policy_loss.item(), abs=1e-12)


def test_kl_and_entropy_need_their_inputs():
    with pytest.raises(ValueError, match=r"^`ref_logps` is needed"):
        one_token(1.0, 1.0, beta=0.1)
    with pytest.raises(ValueError, match=r"^`entropies` are needed"):
        one_token(1.0, 1.0, entropy_coef=0.1)


def test_without_coefficient_nothing_is_learned():
    # MSK-1 (b): all sampled tokens masked.
    logps = tensor(-0.5, -1.0).requires_grad_()
    terms = taspo_loss(logps, tensor(-1.0, -1.0), tensor(1.0, -1.0), tensor(0.0, 0.0))
    terms.loss.backward()
    assert terms.loss.item() == 0.0
    assert logps.grad.tolist() == [0.0, 0.0]


def test_entropy_bonus_and_kl_reach_the_gradient():
    logps, entropies = tensor(-1.0).requires_grad_(), tensor(2.0).requires_grad_()
    terms = taspo_loss(
        logps,
        tensor(-1.0),
        tensor(0.0),
        tensor(0.5),
        ref_logps=tensor(-0.5),
        beta=0.2,
        entropies=entropies,
        entropy_coef=0.1,
    )
    terms.loss.backward()
    assert logps.grad.item() == pytest.approx(
        0.5 * 0.2 * (1 - math.exp(0.5)), abs=1e-12
    )  # d k3 / d logp = 1 - ref / pi
    assert entropies.grad.item() == pytest.approx(-0.05, abs=1e-12)
    assert not terms.policy_loss.requires_grad
    assert not terms.kl.requires_grad


def trl_per_token_loss(logps, old_logps, advantages, ref_logps, low, high, delta, beta):
    """The token loss of TRL 1.16's `_compute_loss` for `loss_type="grpo"`, from its description."""
    coef_1 = torch.exp(logps - old_logps)
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    coef_1 = torch.clamp(coef_1, max=delta)
    kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1
    return -torch.min(coef_1 * advantages, coef_2 * advantages) + beta * kl


numbers = st.floats(-3, 3)


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(
        st.tuples(numbers, numbers, numbers, numbers, st.floats(0, 1), st.floats(0, 3)), min_size=1, max_size=8
    ),
    low=st.floats(0.05, 0.5),
    high=st.floats(0.05, 0.5),
    delta=st.floats(1.6, 5),
    beta=st.sampled_from([0.0, 0.04]),
    entropy_coef=st.sampled_from([0.0, 0.001]),
)
def test_loss_equals_the_dual_clip_of_the_reference_and_of_trl(tokens, low, high, delta, beta, entropy_coef):
    logps, old, ref, advantages, coefficients, entropies = (tensor(*column) for column in zip(*tokens, strict=True))
    terms = taspo_loss(
        logps,
        old,
        advantages,
        coefficients,
        epsilon_low=low,
        epsilon_high=high,
        delta=delta,
        ref_logps=ref,
        beta=beta,
        entropies=entropies,
        entropy_coef=entropy_coef,
    )
    expected = sum(
        c
        * (
            -reference.surrogate(math.exp(new - o), a, low, high, delta)
            + beta * (math.exp(r - new) - (r - new) - 1)
            - entropy_coef * h
        )
        for new, o, r, a, c, h in tokens
    )
    assert terms.loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    trl = trl_per_token_loss(logps, old, advantages, ref, low, high, delta, beta) - entropy_coef * entropies
    assert terms.loss.item() == pytest.approx((coefficients * trl).sum().item(), rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 10**6), cut=st.integers(0, 12))
def test_loss_is_the_sum_over_any_partition_and_order(seed, cut):
    rng = np.random.default_rng(seed)
    columns = [torch.from_numpy(rng.normal(size=12)) for _ in range(3)]
    columns.append(torch.from_numpy(rng.uniform(size=12)))
    whole = taspo_loss(*columns).loss.item()
    parts = taspo_loss(*(c[:cut] for c in columns)).loss + taspo_loss(*(c[cut:] for c in columns)).loss
    assert parts.item() == pytest.approx(whole, abs=1e-12)
    order = torch.from_numpy(rng.permutation(12))
    assert taspo_loss(*(c[order] for c in columns)).loss.item() == pytest.approx(whole, abs=1e-12)


def test_clip_shares_are_those_of_each_row_s_own_tokens():
    terms = LossTerms(
        loss=tensor(0.0)[0],
        policy_loss=tensor(0.0)[0],
        kl=None,
        is_low_clipped=torch.tensor([True, False, False, True, True, True]),
        is_high_clipped=torch.tensor([False, False, True, False, False, False]),
    )
    rows = torch.tensor([0, 0, 0, 0, 2, 3])
    shares = clip_shares(terms, tensor(1.0, 1.0, 1.0, 0.0, 0.5, 0.0), rows)
    # Row 0 has three tokens that count, row 1 none at all, row 2 one, row 3 only one that does not count.
    assert shares.flatten().tolist() == pytest.approx([1 / 3, 1 / 3, 1.0, 0.0])
    nothing = torch.zeros(0)
    none = LossTerms(nothing.sum(), nothing.sum(), None, nothing.bool(), nothing.bool())
    assert clip_shares(none, nothing, torch.zeros(0, dtype=torch.long)).shape == (0, 2)


def test_token_sums_leave_out_tokens_without_coefficient():
    terms = LossTerms(
        loss=tensor(0.0)[0],
        policy_loss=tensor(-0.75)[0],
        kl=tensor(0.1, 0.2, 9.0),
        is_low_clipped=torch.tensor([True, False, True]),
        is_high_clipped=torch.tensor([False, True, True]),
    )
    sums = token_sums(terms, tensor(1.0, 2.0, 9.0), tensor(0.5, 0.25, 0.0))
    values = {name: value.item() for name, value in sums.items()}
    assert values == pytest.approx(
        {"tokens": 2, "policy_loss": -0.75, "entropy": 3.0, "clip_low": 1, "clip_high": 1, "kl": 0.3}
    )
