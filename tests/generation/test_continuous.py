"""Decoding token by token: the replies of `generate`, whoever is in the batch, with keys kept, shared and lost."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from taspo_trl.errors import NonFiniteError
from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings, TransformersEngine
from taspo_trl.generation.choosing import Chooser
from taspo_trl.generation.continuous import common_length
from taspo_trl.generation.decoder import disagreement


VOCABULARY, PAD, END = 64, 0, 1
GREEDY, WARM = SamplingSettings(0.0), SamplingSettings(1.0)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,  # far from uniform, so that greedy replies differ
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}


def build(kind: Any, config: Any, attention: str = "sdpa") -> Any:
    torch.manual_seed(5)
    return kind._from_config(config, attn_implementation=attention).eval()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Any:
    return build(LlamaForCausalLM, LlamaConfig(**GROUPED))


def make_engine(model: Any, **values: Any) -> TransformersEngine:
    return TransformersEngine(model, pad_token_id=PAD, eos_token_ids=[END], **values)


def batched(model: Any) -> TransformersEngine:
    """The same model by `model.generate`."""
    engine = make_engine(model)
    engine._why_model = "the test compares"
    return engine


Replies = dict[tuple[int, str], Generation]


def play(
    engine: TransformersEngine,
    sampling: SamplingSettings = GREEDY,
    seed: int = 0,
    *,
    turns: int = 3,
    arrange: Callable[[list[str], int], list[str]] = lambda uids, turn: uids,
    lag: Callable[[str, int], int] | None = None,
) -> Replies:
    """Six episodes in three groups, in growing chats of unequal lengths; with `lag`, steps until an answer comes."""
    opening = tuple(random.Random(3).choices(range(2, VOCABULARY), k=20))
    chats = {f"e{k}": opening + (10 + k // 2,) * (2 + k // 2) for k in range(6)}
    limits = {uid: 4 + (int(uid[1:]) * 3) % 7 for uid in chats}
    replies: Replies = {}
    engine.begin(sampling, seed)
    asked: dict[str, Any] = {}
    due = {uid: (0, 0 if lag is None else lag(uid, 0)) for uid in chats}  # (turn, step)
    step = 0
    while due or asked:
        ready = [uid for uid, (_, when) in due.items() if when <= step]
        for uid in arrange(ready, step):
            turn, _ = due.pop(uid)
            asked[uid] = (turn, engine.submit(GenerationRequest(chats[uid], limits[uid], uid)))
        if lag is None:
            engine.flush()
        else:
            engine.step()
        step += 1
        for uid, (turn, future) in list(asked.items()):
            if future.done():
                del asked[uid]
                replies[turn, uid] = future.result()
                chats[uid] += future.result().reply_ids + (20 + turn,) * (1 + int(uid[1:]) % 4)
                if turn + 1 < turns:
                    due[uid] = (turn + 1, step + (0 if lag is None else lag(uid, turn + 1)))
    return replies


# ---- the replies of `generate` -------------------------------------------------------------------------------------

CLASSES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**GROUPED), "sdpa"),
    "llama eager": (LlamaForCausalLM, LlamaConfig(**GROUPED), "eager"),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=8), "sdpa"),
    "qwen2 experts": (Qwen2MoeForCausalLM, Qwen2MoeConfig(**GROUPED, **EXPERTS, num_experts_per_tok=2), "sdpa"),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5, eos_token_id=END),
        "sdpa",
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_greedy_replies_are_those_of_generate(name):
    made = build(*CLASSES[name])
    engine = make_engine(made)
    replies = play(engine)
    assert engine.why_generate == "" and engine.counts["forwards"]
    assert replies == play(batched(made))
    assert len(set(replies.values())) > 6
    lengths = {len(one.reply_ids) for one in replies.values()}
    assert len(lengths) > 2, "replies of one length would not tell rows apart"


def test_an_adapter_decodes_token_by_token_and_its_weights_count():
    peft = pytest.importorskip("peft")
    base = build(LlamaForCausalLM, LlamaConfig(**GROUPED))
    plain = play(make_engine(base))
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    engine = make_engine(adapted.eval())
    replies = play(engine)
    assert engine.counts["forwards"] and replies == play(batched(adapted)) and replies != plain


def test_halves_decode_token_by_token(model):
    made = build(LlamaForCausalLM, LlamaConfig(**GROUPED)).to(torch.bfloat16)
    engine = make_engine(made)
    assert len(play(engine)) == 18
    assert engine.counts["forwards"] and not engine.why_generate


# ---- whoever is in the batch ---------------------------------------------------------------------------------------


def test_neither_order_nor_company_nor_delays_change_a_sample(model):
    expected = play(make_engine(model), WARM, 1)
    assert play(make_engine(model), WARM, 1, arrange=lambda uids, _: uids[::-1]) == expected
    for salt in range(3):
        rng = random.Random(salt)
        assert play(make_engine(model), WARM, 1, lag=lambda uid, turn, rng=rng: rng.randrange(9)) == expected
    assert play(make_engine(model), WARM, 2) != expected


def test_a_reply_goes_on_while_another_episode_waits_and_a_newcomer_joins(model):
    engine = make_engine(model)
    engine.begin(GREEDY, 0)
    long = engine.submit(GenerationRequest((5, 6, 7), 12, "long"))
    short = engine.submit(GenerationRequest((8, 9), 2, "short"))
    for _ in range(2):
        assert engine.step()
    assert short.done() and not long.done()
    late = engine.submit(GenerationRequest((8, 9, *short.result().reply_ids, 30), 2, "short"))
    for _ in range(2):
        engine.step()
    assert late.done() and not long.done()
    engine.flush()
    assert long.done() and not engine.step()


# ---- what is kept --------------------------------------------------------------------------------------------------


def test_a_growing_chat_computes_what_is_new_and_a_group_s_first_prompt_once(model):
    engine = make_engine(model)
    replies = play(engine)
    firsts = sum(22 + k for k in range(3))
    # The last token of a reply was sampled, never computed; then what the environment said.
    later = sum(1 + 1 + int(uid[1:]) % 4 for turn, uid in replies if turn < 2)
    assert engine.counts["computed_prompt_tokens"] == firsts + later
    assert engine.counts["prompt_tokens"] > 4 * (firsts + later)


def test_a_prompt_that_parts_from_the_last_one_is_cut_where_they_differ(model):
    """As a window context's prompts do, whose middle changes."""
    first, second = tuple(range(2, 40)), (*range(2, 20), *range(45, 60))
    engine = make_engine(model)
    engine.begin(GREEDY, 0)
    found = []
    for prompt in (first, second, first, second[:10], second[:10]):
        future = engine.submit(GenerationRequest(prompt, 5, "e"))
        before = engine.counts["computed_prompt_tokens"]
        engine.flush()
        found.append((future.result(), engine.counts["computed_prompt_tokens"] - before))
    assert [computed for _, computed in found] == [38, 15, 20, 1, 1]
    alone = []
    for prompt in (first, second, first, second[:10], second[:10]):
        engine.begin(GREEDY, 0)
        future = engine.submit(GenerationRequest(prompt, 5, "e"))
        engine.flush()
        alone.append(future.result())
    assert [one for one, _ in found] == alone


@pytest.mark.parametrize("budget", [1, 90, 130, 260])
def test_a_small_budget_costs_computing_and_changes_no_sample(model, budget):
    engine = make_engine(model, batch_tokens=budget)
    plain = play(make_engine(model), WARM, 1)
    assert play(engine, WARM, 1, lag=lambda uid, turn: turn) == plain
    assert engine.counts["evictions"] > 0


def test_no_buffer_outgrows_the_budget(model, monkeypatch):
    """Up to the rounding of its columns, and but for a single request that is larger alone."""
    from taspo_trl.generation import continuous
    from taspo_trl.generation.keys import RowsCache

    shapes = []
    resize = RowsCache.resize

    def watched(cache: RowsCache, num_rows: int, num_columns: int, kept: Any) -> None:
        shapes.append((num_rows, num_columns))
        resize(cache, num_rows, num_columns, kept)

    monkeypatch.setattr(RowsCache, "resize", watched)
    monkeypatch.setattr(continuous, "COLUMNS", 1)
    for budget in (130, 200):
        shapes.clear()
        play(make_engine(model, batch_tokens=budget), WARM, 1, lag=lambda uid, turn: turn)
        whole = [(rows, columns) for rows, columns in shapes if rows > 3 or columns > 16]  # not the first look
        assert whole and all(rows == 1 or rows * columns <= budget for rows, columns in whole)
        assert max(rows for rows, _ in whole) > 1


def test_the_next_rollout_and_a_drop_forget_everything(model):
    engine = make_engine(model)
    play(engine)
    once = dict(engine.counts)
    play(engine)
    assert engine.counts["computed_prompt_tokens"] == 2 * once["computed_prompt_tokens"]
    future = engine.submit(GenerationRequest((3, 4), 5, "e"))
    engine.step()
    engine.drop()
    assert not engine.step() and not future.done()


def test_what_an_ended_episode_kept_makes_room(model):
    engine = make_engine(model, batch_tokens=100)
    engine.begin(GREEDY, 0)
    for k in range(6):
        future = engine.submit(GenerationRequest(tuple(range(2 + k, 30 + k)), 4, f"e{k}"))
        engine.flush()
        assert future.done()
        engine.forget(f"e{k}")
    assert engine.counts["evictions"] == 0


def test_when_all_episodes_have_ended_nothing_is_held(model):
    """Scoring that follows with the same model has the memory; further episodes find room again."""
    engine = make_engine(model)
    engine.begin(GREEDY, 0)
    replies = []
    for names in (("a", "b"), ("c",)):
        futures = [engine.submit(GenerationRequest(tuple(range(2, 30)), 4, name)) for name in names]
        engine.flush()
        replies += [future.result().reply_ids for future in futures]
        cache = engine._decoding._decoder.cache
        for name in names:
            assert cache.num_rows > 0
            engine.forget(name)
        assert cache.num_rows == 0 and all(layer.keys.numel() == 0 for layer in cache.layers)
    assert replies[0] == replies[1] == replies[2]


# ---- the model's state ---------------------------------------------------------------------------------------------


def test_the_model_is_ready_while_replies_are_under_way_and_as_before_afterwards():
    made = build(LlamaForCausalLM, LlamaConfig(**GROUPED)).train()
    made.model.layers[0].eval()
    flags = [module.training for module in made.modules()]
    engine = make_engine(made)
    engine.begin(GREEDY, 0)
    engine.submit(GenerationRequest((3, 4), 3, "e"))
    engine.step()
    assert not made.training
    engine.flush()
    assert [module.training for module in made.modules()] == flags
    engine.submit(GenerationRequest((3, 4), 3, "e"))
    engine.step()
    engine.drop()
    assert [module.training for module in made.modules()] == flags


def test_a_forward_that_fails_leaves_the_model_as_it_was():
    made = build(LlamaForCausalLM, LlamaConfig(**GROUPED)).train()
    engine = make_engine(made)
    engine.begin(GREEDY, 0)
    engine.submit(GenerationRequest((3, 4), 3, "e"))
    engine.step()

    def fail(*args: Any) -> None:
        raise MemoryError

    handle = made.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        engine.step()
    handle.remove()
    assert made.training and not engine.step()


# ---- who goes through `generate` -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        (MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=8), "do not keep all keys"),
        (LlamaForCausalLM, LlamaConfig(**GROUPED), "an attention of its own"),
    ],
    ids=["sliding window", "attention"],
)
def test_models_that_cannot_are_named_and_generate(kind, config, why, caplog):
    made = build(kind, config)
    if "attention" in why:
        made.config._attn_implementation = "flash_attention_2"
        why = "'flash_attention_2' takes no mask"
    engine = make_engine(made)
    assert why in engine.why_generate and not engine.is_stepped
    if kind is MistralForCausalLM:
        with caplog.at_level(logging.INFO):
            replies = play(engine, turns=1)
        assert len(replies) == 6 and not engine.counts and why in caplog.text


def test_settings_and_shards_that_cannot_generate(model):
    assert "shards" in make_engine(model, is_sharded=True).why_generate
    assert "shards" in make_engine(model, most=lambda number: number).why_generate
    assert "'static'" in make_engine(model, cache_implementation="static").why_generate
    engine = make_engine(model)
    engine.begin(SamplingSettings(1.0, extra={"min_new_tokens": 2}), 0)
    assert "`min_new_tokens`" in engine.why_generate
    engine.begin(SamplingSettings(1.0, extra={"suppress_tokens": [5], "typical_p": 0.9, "min_new_tokens": None}), 0)
    assert engine.why_generate == "" and engine.is_stepped
    assert not make_engine(model, in_step=True).is_stepped


def test_a_model_that_would_go_on_wrongly_is_found_out_by_its_first_prompt(caplog):
    class Forgetful(LlamaForCausalLM):
        """Counts places in the batch, as a model with a buffer of its own may do."""

        def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None, **kwargs):
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache, **kwargs)

        forward.__signature__ = __import__("inspect").signature(LlamaForCausalLM.forward)

    made = build(Forgetful, LlamaConfig(**GROUPED))
    engine = make_engine(made)
    assert engine.why_generate == ""
    with caplog.at_level(logging.WARNING):
        replies = play(engine)
    assert "does not go on from kept keys (log-probabilities differ" in caplog.text
    assert replies == play(batched(made)) and not engine.counts
    good = build(LlamaForCausalLM, LlamaConfig(**GROUPED))
    assert disagreement(good, [3], PAD) == disagreement(good, range(2, 60), PAD) == ""


def test_positions_of_opt_are_its_own():
    """A class with learned positions and an offset either agrees or is named."""
    made = build(
        OPTForCausalLM,
        OPTConfig(
            vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
            word_embed_proj_dim=32, init_std=0.5, eos_token_id=END, pad_token_id=PAD, bos_token_id=None,
        ),
    )  # fmt: skip
    assert play(make_engine(made)) == play(batched(made))


# ---- choosing ------------------------------------------------------------------------------------------------------


def test_a_token_is_chosen_where_the_cumulative_probability_passes_the_number():
    logits = torch.log(torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25]])).repeat(6, 1)
    chooser = Chooser(WARM, logits.device)
    assert chooser.choose(logits, [0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-40]) == [1, 1, 3, 3, 4, 4]


def test_a_policy_without_probabilities_is_no_policy():
    """As in `generate`: a search among nan would give the vocabulary's last token, reply for reply."""
    logits = torch.zeros(2, 5)
    logits[1] = torch.nan
    with pytest.raises(NonFiniteError, match="diverged"):
        Chooser(WARM, logits.device).choose(logits, [0.5, 0.5])


def test_every_filter_that_is_kept_here_is_the_one_of_generate(model):
    """Each alone, strong enough to leave one token or to change many."""
    prompt, count = tuple(range(2, 9)), 300
    for sampling in (
        SamplingSettings(1.0, top_k=1),
        SamplingSettings(0.7, top_p=0.5, min_p=0.05, top_k=20),
        SamplingSettings(1.0, extra={"typical_p": 0.3}),
        SamplingSettings(1.0, extra={"epsilon_cutoff": 0.05}),
        SamplingSettings(1.0, extra={"eta_cutoff": 0.1}),
        SamplingSettings(1.0, extra={"suppress_tokens": list(range(2, 50))}),
    ):
        found = []
        for engine in (make_engine(model), batched(model)):
            engine.begin(sampling, 0)
            futures = [engine.submit(GenerationRequest(prompt, 1, f"e{k}")) for k in range(count)]
            engine.flush()
            drawn = [future.result().reply_ids[0] for future in futures]
            found.append({token: drawn.count(token) / count for token in set(drawn)})
        assert bool(engine.counts) is False
        for token in {*found[0], *found[1]}:
            assert abs(found[0].get(token, 0) - found[1].get(token, 0)) < 0.17, (sampling, token)


def test_common_length():
    for first, second, expected in (((), (1,), 0), ((1, 2, 3), (1, 2, 3, 4), 3), ((1, 2), (2, 1), 0)):
        assert common_length(first, second) == common_length(second, first) == expected
    for k in range(9):
        assert common_length(range(9), [*range(k), 99, *range(9)]) == k
