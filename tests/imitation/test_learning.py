"""What is learned of a demonstration: the replies, whatever the split into forwards."""

from __future__ import annotations

import pytest
import torch

from taspo_trl.errors import ConfigurationError
from taspo_trl.imitation import Demonstration, Imitation, imitate
from tests import tiny


DATA = [
    Demonstration((5, 6, 7, 8), (9, 10)),
    Demonstration((5, 6), (11,)),
    Demonstration((12, 13, 14, 15, 16, 17), (18, 19, 20)),
]


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """Numbers that can be compared, also where the machine multiplies bfloat16."""
    monkeypatch.setattr("taspo_trl.config.has_bf16_cpu", lambda: False)


def after_one_step(**values):
    model, losses = tiny.model(), []
    imitate(model, DATA, Imitation(1, **values), 0, lambda step, loss: losses.append(loss))
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_the_loss_is_that_of_replies_under_their_whole_prompts():
    losses, _ = after_one_step()
    model, found = tiny.model(), []
    for one in DATA:
        ids = torch.tensor([one.prompt_ids + one.reply_ids])
        logps = model(input_ids=ids).logits.float().log_softmax(-1)[0]
        found += [-logps[k - 1, ids[0, k]].item() for k in range(len(one.prompt_ids), ids.shape[1])]
    assert losses == pytest.approx([sum(found) / len(found)], rel=1e-6) and len(found) == 6
    assert after_one_step(prompt_loss=1.0)[0] != losses


def test_forwards_of_few_tokens_learn_the_same():
    whole, parts = after_one_step(), after_one_step(micro_batch_tokens=9)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    for one, other in zip(whole[1], parts[1], strict=True):
        assert torch.allclose(one, other, atol=2e-6), "AdamW moves by the learning rate, 1e-5, at the first step"


def test_a_demonstration_is_learned_by_heart():
    model, losses = tiny.model(), []
    imitate(model, DATA, Imitation(60, learning_rate=3e-2), 0, lambda step, loss: losses.append(loss))
    assert losses[-1] < 0.1 < losses[0] and not model.training
    for one in DATA:
        greedy = model(input_ids=torch.tensor([one.prompt_ids + one.reply_ids])).logits[0].argmax(-1)
        assert tuple(greedy[len(one.prompt_ids) - 1 : -1].tolist()) == one.reply_ids


def test_refusals():
    with pytest.raises(ConfigurationError, match="no turn to imitate"):
        imitate(tiny.model(), [], Imitation(1), 0)
    for values in ({"num_steps": 0}, {"num_steps": 1, "batch_size": 0}, {"num_steps": 1, "prompt_loss": -1.0}):
        with pytest.raises(ConfigurationError, match=r"must (be positive|not be negative), got"):
            Imitation(**values)
