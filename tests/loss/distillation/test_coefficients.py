"""m_k: over which turns and tokens a distillation term averages."""

import math

import pytest

from taspo_trl.loss.distillation import distill_coefficients
from taspo_trl.rows import Row, RowTurn


def row(uid, *turns):
    """A row whose replies have the given (turn index, length)."""
    return Row(uid, (0,) * 50, tuple(RowTurn(turn_idx, 5, length) for turn_idx, length in turns), 2)


ROWS = [row("a", (0, 3), (1, 2)), row("a", (2, 4)), row("b", (0, 5)), row("c", (0, 1), (1, 1))]
SCORED = {("a", 0), ("a", 2), ("b", 0)}


def test_nested_counts_trajectories_and_turns_that_have_a_score():
    found = distill_coefficients(ROWS, [0] * 4, SCORED, reduction="nested")
    assert found[0] == pytest.approx((1 / (2 * 2 * 3),) * 3 + (0.0, 0.0))
    assert found[1] == pytest.approx((1 / (2 * 2 * 4),) * 4)
    assert found[2] == pytest.approx((1 / (2 * 1 * 5),) * 5)
    assert found[3] == (0.0, 0.0)
    assert math.fsum(one for row in found for one in row) == pytest.approx(1.0)


def test_token_mean_counts_the_distilled_tokens_of_the_optimizer_step():
    found = distill_coefficients(ROWS, [0, 0, 1, 1], SCORED, reduction="token_mean")
    assert found[:2] == [(1 / 7,) * 3 + (0.0, 0.0), (1 / 7,) * 4]
    assert found[2:] == [(1 / 5,) * 5, (0.0, 0.0)]


def test_nested_steps_average_to_the_whole_batch():
    whole = distill_coefficients(ROWS, [0] * 4, SCORED, reduction="nested")
    split = distill_coefficients(ROWS, [0, 1, 1, 0], SCORED, reduction="nested")
    assert split[0] == pytest.approx([3 * one for one in whole[0]])  # 1 of 3 rows with a score
    assert split[1] == pytest.approx([1.5 * one for one in whole[1]])
    assert split[2] == pytest.approx([1.5 * one for one in whole[2]])


@pytest.mark.parametrize("reduction", ["nested", "token_mean"])
def test_a_share_of_a_step_and_masked_turns(reduction):
    half = distill_coefficients(ROWS, [0] * 4, SCORED, reduction=reduction, share=0.5)
    whole = distill_coefficients(ROWS, [0] * 4, SCORED, reduction=reduction)
    for one, other in zip(half, whole, strict=True):
        assert one == pytest.approx([value / 2 for value in other])
    masked = distill_coefficients(ROWS, [0] * 4, SCORED, reduction=reduction, masked={("b", 0), ("c", 0)})
    assert masked[2] == (0.0,) * 5
    if reduction == "nested":
        assert masked[:2] == whole[:2]  # its place in B stays
    else:
        assert masked[0][0] == pytest.approx(1 / 7)


@pytest.mark.parametrize("reduction", ["nested", "token_mean"])
def test_without_scores_nothing_counts(reduction):
    found = distill_coefficients(ROWS, [0, 1, 0, 1], (), reduction=reduction)
    assert [set(one) for one in found] == [{0.0}] * 4
    assert distill_coefficients([], [], (), reduction=reduction) == []
