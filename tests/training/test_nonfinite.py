"""A loss or gradient that is no number moves no weight, is counted, and ends the run after a few in a row."""

import types

import pytest
import torch

from taspo_trl.errors import NonFiniteError
from taspo_trl.training.nonfinite import FiniteSteps


NAN, INF = float("nan"), float("inf")


def steps(most=3, others=0.0, **values):
    """`others`: what the other processes add to the flag."""
    accelerator = types.SimpleNamespace(
        device="cpu", distributed_type="NO", scaler=None, reduce=lambda flag, reduction: flag + others
    )
    vars(accelerator).update(values)
    return FiniteSteps(most, accelerator)


def model_with_gradients():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return model


@pytest.mark.parametrize("losses", [[1.0, 2.0], [0.0], []])
def test_finite_steps_are_taken(losses):
    made, model = steps(), model_with_gradients()
    for loss in losses:
        made.note(torch.tensor(loss))
    assert made.allows(model, torch.tensor(3.0), 1) and made.allows(model, None, 2)
    assert model.weight.grad is not None and made.num_skipped == 0


@pytest.mark.parametrize(
    ("losses", "norm", "others"),
    [
        ([1.0, NAN, 2.0], 1.0, 0),
        ([INF, -INF], 1.0, 0),
        ([1.0], NAN, 0),
        ([1.0], torch.tensor(INF), 0),
        ([1.0], 1.0, 1),
    ],
    ids=["nan loss", "losses that cancel", "nan norm", "infinite norm", "another process"],
)
def test_step_with_a_value_that_is_no_number_moves_nothing(losses, norm, others, caplog):
    made, model = steps(others=others), model_with_gradients()
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for loss in losses:
        made.note(torch.tensor(loss))
    assert not made.allows(model, norm, 7)
    optimizer.step()
    assert torch.equal(model.weight, before), "neither by momentum nor by weight decay"
    assert made.num_skipped == 1 and "Optimizer step 7 is skipped" in caplog.text
    made.accelerator.reduce = lambda flag, reduction: flag
    made.note(torch.tensor(1.0))
    assert made.allows(model_with_gradients(), 1.0, 8), "the bad loss is not held against the next step"
    assert made.in_a_row == 0 and made.num_skipped == 1


def test_run_ends_after_several_in_a_row():
    made = steps(most=2)
    for norm in (NAN, 1.0, NAN):
        made.allows(model_with_gradients(), norm, 1)
    with pytest.raises(NonFiniteError, match=r"2 optimizer steps in a row .*`max_nonfinite_steps`"):
        made.allows(model_with_gradients(), NAN, 2)


def test_loss_scaler_finds_its_scale_alone_but_a_bad_loss_counts():
    made, model = steps(scaler=object()), model_with_gradients()
    assert all(made.allows(model, INF, step) for step in range(10))
    made.note(torch.tensor(NAN))
    assert not made.allows(model, INF, 11)
    assert model.weight.grad is not None, "the scaler asserts that there are gradients, and skips by itself"


def test_deepspeed_is_stopped_before_its_backward_pass():
    with pytest.raises(NonFiniteError):
        steps(distributed_type="DEEPSPEED").note(torch.tensor(NAN))
    steps(distributed_type="DEEPSPEED").note(torch.tensor(1.0))
