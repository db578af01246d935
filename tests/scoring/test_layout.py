"""Rows without padding: what padded ones say, no row sees another, and what cannot keep rows apart is refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import flash_attention_mask

from taspo_trl.errors import ConfigurationError
from taspo_trl.rows import pack_rows
from taspo_trl.scoring.layout import lay_out, run_without_padding, runs_without_padding
from taspo_trl.scoring.paired import continue_from_shared_keys, score_pairs, score_schedule
from taspo_trl.scoring.projection import selected_forward
from taspo_trl.scoring.reproduces import require_reproduction
from taspo_trl.scoring.whole import WholeRow, num_row_batches, score_rows
from tests.scoring.test_paired import MODELS, policy, random_rows
from tests.scoring.test_reproduces import build


def test_rows_without_padding_by_hand():
    rows = [(5, 6, 7), (8,), (9, 4)]
    made = lay_out(rows, padding_free=True, pad_token_id=1, pad_to_multiple_of=4)
    assert made.inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4, 1, 1]]
    assert made.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1]]  # what fills is a row of its own
    assert "attention_mask" not in made.inputs  # flash attention would look for rows in it
    assert made.starts == (0, 3, 4)
    padded = lay_out(rows, pad_token_id=1, pad_to_multiple_of=4)
    assert padded.inputs["input_ids"].tolist() == [[5, 6, 7, 1], [8, 1, 1, 1], [9, 4, 1, 1]]
    assert padded.starts == (0, 4, 8)


def test_without_padding_the_tokens_themselves_are_bounded():
    lengths = [6, 2, 5, 1, 3]
    assert pack_rows(lengths, 8) == [[0], [2], [4, 1], [3]]  # 2 x 6 and 2 x 5 are too many; 3 x 3 too
    assert pack_rows(lengths, 8, padding_free=True) == [[0, 1], [2, 4], [3]]  # 6 + 2, 5 + 3, 1
    assert pack_rows([9, 1], 8, padding_free=True) == [[0], [1]]  # a longer row stands alone


def scored(model, rows, max_tokens, padding_free):
    run_without_padding(model, padding_free)
    assert runs_without_padding(model) is padding_free
    with torch.no_grad():
        return score_pairs(model, rows, max_tokens=max_tokens)


def largest_difference(some, others):
    return max(
        abs(a - b)
        for one, other in zip(some, others, strict=True)
        for mine, theirs in zip((one.plain, *one.guided), (other.plain, *other.guided), strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize("kind", MODELS)
def test_pairs_score_as_padded_ones_whatever_stands_together(kind):
    """Continued from keys (Llama, Qwen2, GPT-2) and in whole forwards (Mistral's window of 8)."""
    model, rows = policy(kind), random_rows()
    padded = scored(model, rows, 10_000, False)
    for max_tokens in (1, 120, 10_000):
        found = scored(model, rows, max_tokens, True)
        assert largest_difference(found, padded) < 1e-9
        assert all(pair.guided[0] == pair.plain for pair, row in zip(found, rows, strict=True) if not row.blocks[0])
    assert largest_difference(scored(model, rows[::-1], 120, True)[::-1], padded) < 1e-9
    assert len(score_schedule(rows, 120, True)) < len(score_schedule(rows, 120))
    continue_from_shared_keys(model, False)
    assert largest_difference(scored(model, rows, 10_000, True), padded) < 1e-9


def test_whole_rows_score_as_padded_ones():
    model = policy()
    rows = [WholeRow(pair.ids, pair.positions) for pair in random_rows()]
    with torch.no_grad():
        padded = score_rows(model, rows, vocabulary=3, max_tokens=1000)
        run_without_padding(model, True)
        found = score_rows(model, rows, vocabulary=3, max_tokens=120)
    for one, other in zip(found, padded, strict=True):
        assert torch.equal(one.top_ids, other.top_ids)
        torch.testing.assert_close(one.logps, other.logps, atol=1e-9, rtol=0)
        torch.testing.assert_close(one.tail_logps, other.tail_logps, atol=1e-9, rtol=0)
    assert num_row_batches(rows, 120, True) < num_row_batches(rows, 120)


def together(model, rows):
    layout = lay_out(rows, padding_free=True)
    positions = [start + p for start, row in zip(layout.starts, rows, strict=True) for p in range(len(row) - 1)]
    tensors = {
        **layout.inputs,
        "positions": torch.tensor(positions),
        "targets": torch.tensor([token for row in rows for token in row[1:]]),
    }
    logps = selected_forward(model, tensors).logps
    return logps.split([len(row) - 1 for row in rows])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_row_sees_another_and_neither_do_gradients(attention):
    model = policy("qwen2")
    model.set_attn_implementation(attention)
    rows = [tuple(range(10, 21)), tuple(range(40, 47)), tuple(range(60, 75))]
    before = together(model, rows)
    after = together(model, [rows[0], tuple(range(90, 83, -1)), rows[2]])
    assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])
    assert not torch.allclose(before[1], after[1])
    embeddings = model.get_input_embeddings().weight
    (gradient,) = torch.autograd.grad(before[1].sum(), embeddings)
    # Only tokens of its own row; the LM head, which is not tied, has its own weight.
    assert torch.nonzero(gradient.abs().sum(1)).flatten().tolist() == list(rows[1][:-1])


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Mpt", "takes no `position_ids`"), ("RecurrentGemma", "carries a state|attends by places")],
)
def test_what_cannot_keep_rows_apart_is_refused_by_name_or_padded(name, reason):
    model = build(name)
    with pytest.raises(ConfigurationError, match=rf"`padding_free` is True, but .*{name}.*({reason})"):
        require_reproduction(model, 0.7, padding_free=True)
    assert not runs_without_padding(model)
    assert not require_reproduction(model, 0.7, padding_free=None).padding_free


def test_a_row_that_is_seen_by_another_is_found_by_the_forward_itself(monkeypatch):
    model = build("Llama")
    own = type(model.model).forward

    def forward(self, *args, position_ids=None, **kwargs):  # takes positions, and forgets them
        return own(self, *args, **kwargs)

    monkeypatch.setattr(type(model.model), "forward", forward)
    with pytest.raises(ConfigurationError, match="LlamaForCausalLM does not keep rows one behind the other apart"):
        require_reproduction(model, 0.7, padding_free=True)


@pytest.mark.filterwarnings("ignore:`padding_free` is True with")
@pytest.mark.parametrize("name", ["Llama", "GPT2", "Gemma2", "Mistral"])
def test_what_keeps_rows_apart_passes(name):
    model = build(name)
    assert not require_reproduction(model, 0.7).padding_free  # unasked
    assert not require_reproduction(model, 0.7, padding_free=None).padding_free  # no flash attention
    assert require_reproduction(model, 0.7, padding_free=True).padding_free
    assert runs_without_padding(model)
    other = require_reproduction(build("Llama"), 0.7)
    assert not require_reproduction(model, 0.7, padding_free=None, gather=lambda mine: [*mine, other]).padding_free


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_that_computes_all_rows_against_each_other_is_warned_of_once(attention):
    model = policy("qwen2")
    model.set_attn_implementation(attention)
    with pytest.warns(
        UserWarning, match=rf"`{attention}` attention, .* times as long .* Leave `padding_free` out"
    ) as told:
        require_reproduction(model, padding_free=True)
    assert len(told) == 1


def by_lengths(module, query, key, value, attention_mask, scaling, cu_seq_lens_q=None, max_length_q=None, **kwargs):
    """What flash attention of variable length does: (1, H, T, D), each row by itself."""
    CALLS.append(None if cu_seq_lens_q is None else (cu_seq_lens_q.tolist(), max_length_q))
    key, value = (repeat_kv(one, module.num_key_value_groups) for one in (key, value))
    ends = [query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()[1:]
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        bottom = key.shape[2] - query.shape[2]  # keys that were there before
        own = (query[:, :, start:end], key[:, :, start if cu_seq_lens_q is not None else 0 : bottom + end])
        values = value[:, :, start if cu_seq_lens_q is not None else 0 : bottom + end]
        rows, columns = own[0].shape[2], own[1].shape[2]
        mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool() | torch.eye(columns, dtype=torch.bool)[-rows:]
        parts.append(torch.nn.functional.scaled_dot_product_attention(*own, values, attn_mask=mask, scale=scaling))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


CALLS: list = []


def test_flash_attention_is_told_the_lengths_and_needs_no_asking():
    """By a stand-in on the CPU, to which transformers gives what it gives flash attention."""
    AttentionInterface.register("flash_stand_in", by_lengths)
    AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    model, rows = policy("qwen2"), random_rows()
    padded = scored(model, rows, 10_000, False)
    model.config._attn_implementation = "flash_stand_in"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert require_reproduction(model, padding_free=None).padding_free
    CALLS.clear()
    found = scored(model, rows, 60, True)
    assert largest_difference(found, padded) < 1e-9
    assert [len(row.ids) for row in rows] == [12, 17, 22, 27, 32, 37, 42, 47, 52]
    assert ([0, 52], 52) in CALLS and ([0, 47, 59], 47) in CALLS and ([0, 42, 59], 42) in CALLS
