"""The importance-sampling correction: hand-computed values, TRL's own lines beside ours, and nothing invented."""

from __future__ import annotations

import math

import pytest
import torch

from taspo_trl.generation.checks import MODES
from taspo_trl.loss.batches import LossRow
from taspo_trl.loss.importance import (
    CorrectionSums,
    ImportanceSettings,
    corrected_rows,
    correction_metrics,
    correction_sums,
    importance_ratios,
    importance_settings,
    log_differences,
)
from taspo_trl.loss.objective import taspo_loss
from taspo_trl.rows import Row, RowTurn
from tests.builders import trajectory, turn


OLD = (-1.0, -2.0, -0.5)
# Differences: log 2, 0, -log 4. Ratios: 2, 1, 1/4. The sequence's: 1/2.
ENGINE = (-1.0 - math.log(2), -2.0, -0.5 + math.log(4))


def settings(mode, low=None, high=3.0):
    return ImportanceSettings(mode, low, high)


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, 3.0, (2.0, 1.0, 0.25)),
        ("token_truncate", 0.5, 1.5, (1.5, 1.0, 0.5)),
        ("token_mask", None, 3.0, (2.0, 1.0, 0.25)),
        ("token_mask", 0.5, 1.5, (0.0, 1.0, 0.0)),
        ("token_mask", 0.5, None, (2.0, 1.0, 0.0)),
        ("sequence_truncate", None, 3.0, (0.5, 0.5, 0.5)),
        ("sequence_truncate", 0.8, 3.0, (0.8, 0.8, 0.8)),
        ("sequence_truncate", None, 0.4, (0.4, 0.4, 0.4)),
        ("sequence_mask", None, 3.0, (0.5, 0.5, 0.5)),
        ("sequence_mask", 0.8, 3.0, (0.0, 0.0, 0.0)),
        ("sequence_mask", None, 0.4, (0.0, 0.0, 0.0)),
    ],
)
def test_ratio_worked_by_hand(mode, low, high, expected):
    assert importance_ratios(OLD, ENGINE, settings(mode, low, high)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_agrees_is_not_corrected(mode):
    assert importance_ratios(OLD, OLD, settings(mode)) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_a_token_without_a_reported_probability_keeps_ratio_one(unknown):
    """CRD-2: neither a crash on None nor the silent claim of probability 1."""
    engine = (ENGINE[0], unknown, ENGINE[2])
    assert importance_ratios(OLD, engine, settings("token_truncate")) == pytest.approx((2.0, 1.0, 0.25))
    # The unknown token adds nothing to its sequence.
    assert importance_ratios(OLD, engine, settings("sequence_truncate")) == pytest.approx((0.5,) * 3)
    only = importance_ratios((-1.0,), (unknown,), settings("sequence_mask"))
    assert only == (1.0,)


@pytest.mark.parametrize("old", [math.nan, -math.inf])
def test_a_token_that_the_trainer_cannot_score_keeps_ratio_one(old):
    assert importance_ratios((old,), (-1.0,), settings("token_mask")) == (1.0,)


def test_tokens_without_loss_do_not_enter_the_sequence():
    ratios = importance_ratios(OLD, ENGINE, settings("sequence_truncate"), counts=[True, True, False])
    assert ratios == pytest.approx((2.0,) * 3)


@pytest.mark.parametrize(("mode", "expected"), [("token_truncate", 3.0), ("token_mask", 0.0)])
def test_a_ratio_beyond_all_numbers_is_bounded_too(mode, expected):
    assert importance_ratios((-1.0,), (-2000.0,), settings(mode)) == (expected,)
    assert importance_ratios((-1.0,), (-2000.0,), settings(mode, None, None)) == (math.inf,)


def trl_ratios(old, engine, mask, mode, low, high):
    """TRL 1.16's arithmetic on (B, T) tensors (`GRPOTrainer._generate_and_score_completions`)."""
    difference = torch.nan_to_num((old - engine) * mask, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high).expand_as(old)
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0).expand_as(old)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("low", "high"), [(None, 3.0), (0.5, 2.0), (0.9, None)])
def test_ratios_equal_trls_formula(mode, low, high):
    generator = torch.Generator().manual_seed(len(mode))
    old = -torch.rand(20, 9, generator=generator, dtype=torch.float64)
    engine = old + 0.4 * torch.randn(20, 9, generator=generator, dtype=torch.float64)
    engine[torch.rand(20, 9, generator=generator) < 0.1] = math.nan
    mask = (torch.rand(20, 9, generator=generator) < 0.8).double()
    expected = trl_ratios(old, engine, mask, mode, low, high)
    for row in range(20):
        ours = importance_ratios(
            old[row].tolist(), engine[row].tolist(), settings(mode, low, high), mask[row].bool().tolist()
        )
        real = mask[row].bool()
        assert torch.tensor(ours, dtype=torch.float64)[real].tolist() == pytest.approx(expected[row][real].tolist())


def test_differences_are_those_of_known_tokens():
    assert log_differences((-1.0, -2.0), (-1.5, None)) == [0.5, None]


# ---- rows -----------------------------------------------------------------------------------------------------------


def two_turns(first_logps, second_logps):
    """A conversation of two turns with two reply tokens each, in one row."""
    turns = (
        turn(prompt_ids=(1, 2), reply_ids=(3, 4), sampling_logps=first_logps),
        turn(prompt_ids=(1, 2, 3, 4, 5), reply_ids=(6, 7), sampling_logps=second_logps),
    )
    row = Row("t", (1, 2, 3, 4, 5, 6, 7), (RowTurn(0, 2, 2), RowTurn(1, 5, 2)), None)
    loss = LossRow(row.ids, (2, 3, 5, 6), (0.25,) * 4, (0.0,) * 4, old_logps=(-1.0, -1.0, -1.0, -1.0))
    return {0: loss}, [row], {"t": trajectory(uid="t", turns=turns)}


def test_a_row_takes_the_log_probabilities_of_its_own_turns():
    engine = ((-1.0 - math.log(2), -1.0), (-1.0, -1.0 + math.log(2)))
    corrected = corrected_rows(*two_turns(*engine), settings("token_truncate"))
    assert corrected[0].importance_ratios == pytest.approx((2.0, 1.0, 1.0, 0.5))
    assert corrected[0].old_logps == (-1.0,) * 4


def test_a_turn_whose_engine_reported_nothing_is_not_corrected():
    corrected = corrected_rows(*two_turns(None, (-1.0, -1.0 + math.log(2))), settings("token_truncate"))
    assert corrected[0].importance_ratios == pytest.approx((1.0, 1.0, 1.0, 0.5))


def test_the_sequence_is_the_row():
    engine = ((-1.0 - math.log(2), -1.0), (-1.0, -1.0 - math.log(3)))
    corrected = corrected_rows(*two_turns(*engine), settings("sequence_truncate", None, 10.0))
    assert corrected[0].importance_ratios == pytest.approx((6.0,) * 4)


def test_without_old_log_probabilities_there_is_no_correction():
    rows, plan, members = two_turns(None, None)
    bare = {0: LossRow(rows[0].ids, rows[0].positions, rows[0].coefficients, rows[0].advantages)}
    with pytest.raises(ValueError, match="log pi_old"):
        corrected_rows(bare, plan, members, settings("token_mask"))


def test_the_ratio_multiplies_the_surrogate_and_not_the_kl():
    logps = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    ratio = torch.tensor([0.5, 2.0], dtype=torch.float64)
    advantages, coefficients = torch.tensor([1.0, -1.0]).double(), torch.tensor([0.25, 0.75]).double()
    terms = taspo_loss(
        logps, logps, advantages, coefficients, ref_logps=logps - math.log(2), beta=0.1, importance_ratio=ratio
    )
    # Surrogate: 0.25 * -(0.5) + 0.75 * 2. k3 of a log ratio of -log 2: 1/2 + log 2 - 1, on all the weight of 1.
    assert terms.loss.item() == pytest.approx(-0.125 + 1.5 + 0.1 * (0.5 + math.log(2) - 1))


# ---- metrics --------------------------------------------------------------------------------------------------------


def sums(engine, mode, coefficients=(0.25,) * 4):
    rows, plan, members = two_turns(*engine)
    rows = {0: LossRow(rows[0].ids, rows[0].positions, coefficients, rows[0].advantages, rows[0].old_logps)}
    chosen = settings(mode)
    return correction_sums(corrected_rows(rows, plan, members, chosen), plan, members, chosen)


def test_metrics_are_over_all_tokens_of_all_processes():
    one = sums(((-1.5, -1.0), (-1.0, None)), "token_truncate")
    two = sums(((-1.0, -2.0), (-1.0, -1.0)), "token_truncate")
    metrics = correction_metrics([one, two])
    # |differences|: 0.5, 0, 0, unknown and 0, 1, 0, 0.
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(1.5 / 7)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(1.0)
    ratios = [math.exp(0.5), 1, 1, 1, 1, math.exp(1.0), 1, 1]
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(sum(ratios) / 8)
    assert metrics["sampling/importance_sampling_ratio/min"] == 1.0
    assert metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(math.exp(1.0))
    assert metrics["sampling/missing_logp_share"] == pytest.approx(1 / 8)


def test_a_sequence_counts_once_in_the_metrics():
    metrics = correction_metrics([sums(((-1.5, -1.0), (-1.0, -1.0)), "sequence_truncate")])
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(math.exp(0.5))


def test_tokens_without_loss_are_not_in_the_metrics():
    found = sums(((-1.5, -9.0), (-1.0, -1.0)), "token_truncate", coefficients=(0.25, 0.0, 0.25, 0.25))
    assert found.num_tokens == 3
    assert correction_metrics([found])["sampling/sampling_logp_difference/max"] == pytest.approx(0.5)


def test_metrics_without_any_known_token_hold_no_difference():
    metrics = correction_metrics([sums((None, None), "token_truncate")])
    assert metrics["sampling/missing_logp_share"] == 1.0
    assert metrics["sampling/importance_sampling_ratio/mean"] == 1.0
    assert "sampling/sampling_logp_difference/mean" not in metrics


def test_processes_without_rows_change_nothing():
    empty = CorrectionSums((0.0, 0, 0.0), (0.0, 0, math.inf, -math.inf), 0)
    one = sums(((-1.5, -1.0), (-1.0, -1.0)), "token_mask")
    assert correction_metrics([empty, one]) == correction_metrics([one])
    assert correction_metrics([empty]) == {}


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use_vllm", "correction", "expected"),
    [(True, True, ImportanceSettings("token_mask", 0.5, 2.0)), (True, False, None), (False, True, None)],
)
def test_the_correction_is_asked_for_with_trls_options(use_vllm, correction, expected):
    class Options:
        vllm_importance_sampling_correction = correction
        vllm_importance_sampling_mode = "token_mask"
        vllm_importance_sampling_clip_min = 0.5
        vllm_importance_sampling_clip_max = 2.0

    Options.use_vllm = use_vllm
    assert importance_settings(Options()) == expected
