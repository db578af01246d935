"""Paired log-probabilities: equal to plain forwards, exactly 0 shift without guidance, nothing left behind."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from taspo_trl.generation.frozen import frozen_mode
from taspo_trl.scoring.paired import PairedRow, most_forwards, score_pairs, score_schedule
from taspo_trl.scoring.projection import add_selected_projection


VOCABULARY = 100
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, **SMALL)),
    # Learned absolute positions: the continuation must say where it stands.
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)),
    # Sliding-window layers drop keys, so their cache cannot be continued twice: both branches run in full.
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=2, sliding_window=8, **SMALL)
    ),
}


def policy(kind: str = "llama", dtype: torch.dtype = torch.float64, temperature: float = 1.0):
    torch.manual_seed(0)
    model = MODELS[kind]().to(dtype).eval()
    add_selected_projection(model, temperature)
    return model


def random_rows(num: int = 9, seed: int = 0, empty_every: int = 3) -> list[PairedRow]:
    generator = torch.Generator().manual_seed(seed)

    def ids(size):
        return tuple(torch.randint(0, VOCABULARY, (size,), generator=generator).tolist())

    rows = []
    for k in range(num):
        length, splice = 12 + 5 * k, 4 + 3 * k
        block = ids(0 if k % empty_every == 0 else 2 + k)
        rows.append(PairedRow(ids(length), splice, (block,), tuple(range(splice + k % 2, length, 1 + k % 3))))
    return rows


def plain_forward(model, sequence, positions, temperature=1.0):
    """log-probabilities from the model's own logits, one sequence at a time."""
    logits = model(input_ids=torch.tensor([sequence])).logits[0].double() / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    return [log_probs[p - 1, sequence[p]].item() for p in positions]


@pytest.mark.parametrize("kind", MODELS)
def test_both_branches_equal_plain_forwards(kind):
    model = policy(kind, temperature=0.7)
    rows = random_rows()
    with torch.no_grad():
        scored = score_pairs(model, rows, max_tokens=150)
        for row, one in zip(rows, scored, strict=True):
            guided = (*row.ids[: row.splice_index], *row.blocks[0], *row.ids[row.splice_index :])
            shifted = [p + len(row.blocks[0]) for p in row.positions]
            assert one.plain == pytest.approx(plain_forward(model, row.ids, row.positions, 0.7), abs=1e-10)
            assert one.guided[0] == pytest.approx(plain_forward(model, guided, shifted, 0.7), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_empty_guidance_shifts_nothing_at_all(kind, dtype):
    """Beside guided rows of other lengths in the same call, in any precision: exactly 0."""
    rows = random_rows(empty_every=2)
    with torch.no_grad():
        scored = score_pairs(policy(kind, dtype), rows, max_tokens=200)
    for row, one in zip(rows, scored, strict=True):
        assert (one.plain == one.guided[0]) is (len(row.blocks[0]) == 0)


@pytest.mark.parametrize("max_tokens", [1, 60, 150, 10_000])
def test_batching_and_order_change_nothing(max_tokens):
    model, rows = policy(), random_rows()
    with torch.no_grad():
        whole = score_pairs(model, rows, max_tokens=10_000)
        batched = score_pairs(model, rows[::-1], max_tokens=max_tokens)[::-1]
    for one, other in zip(whole, batched, strict=True):
        assert one.plain == pytest.approx(other.plain, abs=1e-12)
        assert one.guided[0] == pytest.approx(other.guided[0], abs=1e-12)


def noting(model, seen):
    """`model`, noting (rows, positions, positions of keys before) of each call."""

    def forward(**inputs):
        cache = inputs.get("cache") or inputs.get("past_key_values")
        seen.append((*inputs["input_ids"].shape, cache.get_seq_length() if cache is not None else 0))
        return model(**inputs)

    return forward


def test_batches_respect_the_token_budget():
    model, rows, seen = policy(), random_rows(), []
    with torch.no_grad():
        score_pairs(model, rows, max_tokens=150, forward=noting(model, seen))
    schedule = score_schedule(rows, 150)
    assert len(seen) == len(schedule) + sum(continued for continued, _ in schedule)
    assert all(num * (width + taken) <= 150 for num, width, taken in seen if num > 1)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_missing_forwards_are_filled_with_dummies(kind):
    model, rows, seen = policy(kind), random_rows(2), []
    schedule = most_forwards([score_schedule(rows, 1000), [(2, 1), (1, 0)]])
    with torch.no_grad():
        scored = score_pairs(model, rows, max_tokens=1000, forward=noting(model, seen), schedule=schedule)
        assert scored == score_pairs(model, rows, max_tokens=1000)
        assert len(seen) == 2 + (2 + 1) + 1
        assert score_pairs(model, [], max_tokens=1000, forward=noting(model, seen), schedule=[(1, 0)]) == []
    assert len(seen) == 6 + 2


def test_a_guided_branch_computes_block_and_tail_alone():
    """Two turns of unlike lengths and two blocks; blocks before the chat are computed whole."""
    model, seen = policy(), []
    rows = [
        PairedRow(tuple(range(1, 41)), 30, ((5, 6, 7), (8,)), (32, 39)),
        PairedRow(tuple(range(1, 21)), 15, ((9,), ()), (16, 19)),
        PairedRow(tuple(range(1, 11)), 0, ((9, 9),), (5, 9)),
    ]
    with torch.no_grad():
        score_pairs(model, rows, max_tokens=1000, forward=noting(model, seen))
    plain, continued, whole = seen
    assert plain == (3, 40, 0) and continued == (3, 13, 30) and whole == (1, 12, 0)


def test_only_wanted_positions_meet_the_head():
    model, rows, seen = policy(), random_rows(), []
    model.get_output_embeddings().register_forward_hook(lambda *_: seen.append("full head"))
    with torch.no_grad():
        score_pairs(model, rows, max_tokens=200)
    assert not seen


def test_projection_agrees_with_the_models_own_logits_and_gradient():
    """Soft caps and logit scales included (Gemma 2 has a cap, Granite a scale)."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

    for make in (
        lambda: Gemma2ForCausalLM(
            Gemma2Config(
                vocab_size=VOCABULARY, head_dim=8, num_key_value_heads=2, final_logit_softcapping=3.0, **SMALL
            )
        ),
        lambda: GraniteForCausalLM(
            GraniteConfig(vocab_size=VOCABULARY, num_key_value_heads=2, logits_scaling=0.5, **SMALL)
        ),
        MODELS["llama"],
    ):
        torch.manual_seed(0)
        model = make().double()
        ids = torch.randint(0, VOCABULARY, (2, 10))
        reference = torch.log_softmax(model(input_ids=ids).logits / 0.9, dim=-1)
        picked = torch.stack([reference[0, 3, ids[0, 4]], reference[1, 7, ids[1, 8]]])
        entropy = -(reference.exp() * reference).sum(-1)[[0, 1], [3, 7]]
        parameter = model.get_input_embeddings().weight
        wanted = torch.autograd.grad(picked.sum() + entropy.sum(), parameter)[0]
        add_selected_projection(model, temperature=0.9)
        output = model(
            input_ids=ids,
            selected_positions=torch.tensor([3, 17]),
            selected_targets=torch.stack([ids[0, 4], ids[1, 8]]),
            selected_entropies=True,
        )
        assert torch.allclose(output.logps, picked, atol=1e-12)
        assert torch.allclose(output.entropies, entropy, atol=1e-12)
        got = torch.autograd.grad(output.logps.sum() + output.entropies.sum(), parameter)[0]
        assert torch.allclose(got, wanted, atol=1e-12)


def test_float32_kernel_agrees_with_float64():
    rows = random_rows()
    with torch.no_grad():
        exact = score_pairs(policy(), rows, max_tokens=300)
        single = score_pairs(policy(dtype=torch.float32), rows, max_tokens=300)
    for one, other in zip(exact, single, strict=True):
        assert one.guided[0] == pytest.approx(other.guided[0], abs=2e-5)


def test_patched_model_still_generates_and_saves(tmp_path):
    model = policy(dtype=torch.float32)
    ids = torch.randint(0, VOCABULARY, (1, 5))
    assert model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape[1] > 5
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_frozen_mode_restores_every_flag():
    model = policy()
    model.train()
    model.model.layers[1].eval()
    flags = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError), frozen_mode(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == flags
