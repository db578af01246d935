"""Top k, given ids and divergences of chosen positions: equal to the model's own logits, in any chunks."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

from taspo_trl.errors import ConfigurationError
from taspo_trl.scoring.distributions import AtIds, Chunk, Distribution, Head, TopK, everything, reduce_chunks, tail_of
from taspo_trl.scoring.projection import add_selected_projection, head_of, selected_forward
from tests import tiny


def model(kind="llama", dtype=torch.float64, temperature=0.7, **options):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = {
        "llama": lambda: tiny.model(),
        # A soft cap on the logits.
        "gemma2": lambda: Gemma2ForCausalLM(
            Gemma2Config(vocab_size=60, head_dim=8, num_key_value_heads=2, final_logit_softcapping=0.5, **small)
        ),
        "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=60, **small)),
    }[kind]()
    made = made.to(dtype).eval()
    add_selected_projection(made, temperature, **options)
    return made


def batch(num=7):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (2, 9), generator=generator)
    positions = torch.tensor([1, 2, 3, 6, 10, 11, 14])[:num]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "positions": positions,
        "targets": ids.flatten()[positions + 1],
    }


def own_log_probs(policy, tensors, temperature):
    logits = policy(input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"]).logits
    return torch.log_softmax(logits.flatten(0, 1)[tensors["positions"]] / temperature, -1)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "neox"])
@pytest.mark.parametrize("temperature", [None, 1.1])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_distributions_are_those_of_the_models_own_logits(kind, temperature, chunk):
    policy, tensors = model(kind), batch()
    expected = own_log_probs(policy, tensors, temperature or 0.7)
    (found,) = selected_forward(
        policy, tensors, distribution=Distribution(everything, temperature, chunk=chunk)
    ).reduced
    torch.testing.assert_close(found, expected)
    ids, values, tail = selected_forward(
        policy, tensors, distribution=Distribution(TopK(5), temperature, chunk=chunk)
    ).reduced
    torch.testing.assert_close(values, expected.sort(-1, descending=True).values[:, :5])
    torch.testing.assert_close(expected.gather(-1, ids), values)
    torch.testing.assert_close(tail, torch.log1p(-values.exp().sum(-1)))
    given = torch.tensor([[4, 9]]).repeat(7, 1)
    values, tail = selected_forward(
        policy, tensors, distribution=Distribution(AtIds(given), temperature, chunk=chunk)
    ).reduced
    torch.testing.assert_close(values, expected.gather(-1, given))
    torch.testing.assert_close(tail, torch.log1p(-values.exp().sum(-1)))


def test_a_chunk_tells_the_sampled_log_probability_at_the_models_own_temperature():
    policy, tensors = model(), batch()
    asked = Distribution(lambda chunk: (chunk.logps,), 1.1, chunk=2)
    output = selected_forward(policy, tensors, distribution=asked)
    torch.testing.assert_close(output.reduced[0], output.logps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_was_there_before_is_bit_identical_beside_a_distribution(dtype):
    policy, tensors = model(dtype=dtype), batch()
    before = selected_forward(policy, tensors, want_entropies=True)
    beside = selected_forward(policy, tensors, want_entropies=True, distribution=Distribution(TopK(3)))
    assert torch.equal(before.logps, beside.logps) and torch.equal(before.entropies, beside.entropies)
    assert before.reduced is None and before.hidden is None
    assert beside.reduced[1].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def gradients(policy, tensors, chunk, k=None):
    policy.zero_grad()
    reduce = everything if k is None else AtIds(torch.arange(k).repeat(7, 1))
    output = selected_forward(policy, tensors, distribution=Distribution(reduce, 1.1, chunk=chunk))
    sum((values * torch.linspace(-1, 1, values.numel()).view_as(values)).sum() for values in output.reduced).backward()
    return {name: value.grad.clone() for name, value in policy.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("k", [None, 4])
def test_gradients_do_not_depend_on_the_chunks(k):
    policy, tensors = model(), batch()
    whole = gradients(policy, tensors, 7, k)
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(whole)
    for chunk in (1, 3):
        for name, value in gradients(policy, tensors, chunk, k).items():
            torch.testing.assert_close(value, whole[name], msg=name)


def test_gradients_are_those_of_the_models_own_logits():
    policy, tensors = model(), batch()
    found = gradients(policy, tensors, 3)
    policy.zero_grad()
    expected = own_log_probs(policy, tensors, 1.1)
    (expected * torch.linspace(-1, 1, expected.numel()).view_as(expected)).sum().backward()
    for name, value in policy.named_parameters():
        torch.testing.assert_close(found[name], value.grad, msg=name)


def test_the_hidden_states_and_the_head_give_the_distribution_again():
    for kind in ("llama", "gemma2"):
        policy, tensors = model(kind), batch()
        output = selected_forward(policy, tensors, distribution=Distribution(keep_hidden=True))
        assert not output.hidden.requires_grad and output.reduced is None
        head = head_of(policy, 0.7)
        torch.testing.assert_close(head.log_probs(output.hidden), own_log_probs(policy, tensors, 0.7))
        torch.testing.assert_close(head.log_probs(output.hidden, 1.1), own_log_probs(policy, tensors, 1.1))


def test_a_head_in_float32_projects_in_float32():
    policy, tensors = model(dtype=torch.bfloat16, cast_lm_head_to_fp32=True), batch()
    output = selected_forward(policy, tensors, distribution=Distribution(everything))
    hidden = selected_forward(policy, tensors, distribution=Distribution(keep_hidden=True)).hidden
    expected = torch.log_softmax(hidden.float() @ policy.lm_head.weight.float().T / 0.7, -1)
    torch.testing.assert_close(output.reduced[0], expected)
    torch.testing.assert_close(output.reduced[0].gather(-1, tensors["targets"][:, None])[:, 0], output.logps)


def test_only_the_first_ids_where_two_heads_differ_in_size():
    policy, tensors = model(), batch()
    size = policy.lm_head.weight.shape[0] - 5
    logits = policy(input_ids=tensors["input_ids"]).logits.flatten(0, 1)[tensors["positions"]]
    output = selected_forward(policy, tensors, distribution=Distribution(everything, 1.0, vocabulary=size))
    torch.testing.assert_close(output.reduced[0], torch.log_softmax(logits[:, :size], -1))


def test_the_tail_of_everything_is_impossible_and_harmless():
    logps = torch.log_softmax(torch.randn(2, 4), -1).requires_grad_()
    tail = tail_of(logps, torch.arange(4).repeat(2, 1))
    assert tail.tolist() == [-math.inf, -math.inf] and not tail.requires_grad
    almost = tail_of(logps, torch.arange(3).repeat(2, 1))
    torch.testing.assert_close(almost, logps[:, 3])


def test_zero3_is_refused_by_name():
    policy = model()
    policy.lm_head.weight.ds_status = "not available"
    with pytest.raises(ConfigurationError, match=r"ZeRO-3.*ZeRO-2, DDP or FSDP2"):
        head_of(policy)


def test_no_values_of_all_positions_times_the_vocabulary_are_kept():
    num, size, chunk = 96, 40_000, 8
    weight = torch.randn(size, 8).requires_grad_()
    hidden = torch.randn(num, 8).requires_grad_()
    seen, kept = [], []

    def entropy(one: Chunk):
        seen.append(one.all_logps.numel())
        return ((one.all_logps.exp() * one.all_logps).sum(-1),)

    def saved(asked):
        seen.clear(), kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.numel()) or one, lambda one: one):
            return reduce_chunks(hidden, Head(weight), torch.zeros(num, dtype=torch.long), asked)[0]

    values = saved(Distribution(entropy, chunk=chunk))
    assert sum(kept) <= num * (8 + 1) + weight.numel() * num // chunk  # inputs of the chunks, nothing of size V
    assert all(one < chunk * size or one == weight.numel() for one in kept)
    values.sum().backward()
    assert seen == [chunk * size] * (2 * num // chunk)  # each chunk again in the backward
    assert weight.grad.any() and hidden.grad.any()


def test_the_default_chunk_follows_the_vocabulary(monkeypatch):
    monkeypatch.setattr("taspo_trl.scoring.distributions.CHUNK_ELEMENTS", 2500)
    seen = []

    def watch(one: Chunk):
        seen.append(one.all_logps.shape)
        return (one.logps,)

    reduce_chunks(torch.randn(5, 4), Head(torch.randn(1000, 4)), torch.zeros(5, dtype=torch.long), Distribution(watch))
    assert seen == [(2, 1000), (2, 1000), (1, 1000)]
