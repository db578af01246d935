"""`TransformersEngine` on a tiny random Llama: what is sampled, from what, and that the model stays as it was.

What only decoding token by token does is in test_continuous.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings, TransformersEngine
from taspo_trl.generation.frozen import frozen_mode
from taspo_trl.types import FinishReason


VOCABULARY, PAD, END = 32, 0, 1
GREEDY, WARM = SamplingSettings(0.0), SamplingSettings(1.0)
BATCHED = {"renormalize_logits": True}
"""Changes nothing, but only `model.generate` takes it."""


def make_model(seed: int = 5, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.5,  # far from uniform, so that greedy replies differ
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        **config,
    }
    return LlamaForCausalLM(LlamaConfig(**values))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small is only slowed down by more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_model().eval()


def make_policy(model: Any, **kwargs: Any) -> TransformersEngine:
    return TransformersEngine(model, **{"pad_token_id": PAD, "eos_token_ids": [END], **kwargs})


def requests(*prompts: tuple[int, ...], max_new_tokens: int = 12) -> list[GenerationRequest]:
    return [GenerationRequest(prompt, max_new_tokens, f"e{k}") for k, prompt in enumerate(prompts)]


def generate(
    policy: TransformersEngine, asked: list[GenerationRequest], sampling: SamplingSettings = WARM, seed: int = 0
) -> list[Generation]:
    policy.begin(sampling, seed)
    futures = [policy.submit(one) for one in asked]
    policy.flush()
    return [future.result(timeout=0) for future in futures]


PROMPTS = [(3, 4, 5), (6, 7), (8, 9, 10, 11, 12), (13,), (14, 15, 16)]


def greedy_by_hand(model: LlamaForCausalLM, prompt: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
    """Argmax of full forwards, without cache or padding."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) - len(prompt) < max_new_tokens:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == END:
                break
    return tuple(ids[len(prompt) :])


# ---- what is sampled -----------------------------------------------------------------------------------------------


def test_temperature_zero_takes_the_likeliest_token_whatever_else_is_in_the_batch(model):
    expected = [greedy_by_hand(model, prompt, 12) for prompt in PROMPTS]
    assert len({reply[:3] for reply in expected}) > 1, "the model does not say the same to all"
    together = generate(make_policy(model), requests(*PROMPTS), GREEDY)
    alone = [generate(make_policy(model), requests(prompt), GREEDY)[0] for prompt in PROMPTS]
    assert [one.reply_ids for one in together] == [one.reply_ids for one in alone] == expected


def test_a_seed_decides_a_batch_and_the_order_of_arrival_does_not(model):
    policy, asked = make_policy(model), requests(*PROMPTS)
    first = generate(policy, asked, seed=1)
    assert generate(policy, asked, seed=1) == first
    assert generate(policy, asked[::-1], seed=1)[::-1] == first
    assert generate(policy, asked, seed=2) != first


def test_batches_of_one_rollout_are_drawn_independently(model):
    policy, asked = make_policy(model), requests((3, 4, 5))
    policy.begin(WARM, 1)
    replies = []
    for _ in range(4):
        future = policy.submit(asked[0])
        policy.flush()
        replies.append(future.result(timeout=0).reply_ids)
    assert len(set(replies)) > 1, "the same prompt in the next turn is not given the same reply"


def test_sampling_neither_reads_nor_moves_the_global_generator(model):
    policy, asked = make_policy(model), requests(*PROMPTS)
    torch.manual_seed(7)
    first = generate(policy, asked, seed=1)
    after = torch.rand(3)
    torch.manual_seed(8)
    assert generate(policy, asked, seed=1) == first
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), after)


def test_the_sampled_distribution_is_the_model_s(model):
    prompt, count = (3, 4, 5), 4000
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    drawn = Counter(
        one.reply_ids[0] for one in generate(make_policy(model), requests(*[prompt] * count, max_new_tokens=1))
    )
    for token in range(VOCABULARY):
        deviation = (expected[token] * (1 - expected[token]) / count).sqrt()
        assert abs(drawn[token] / count - expected[token]) < 5 * deviation + 1e-3


@pytest.mark.parametrize("sampling", [SamplingSettings(1.0, top_k=1), SamplingSettings(1.0, top_p=1e-6)])
def test_top_k_and_top_p_reach_the_engine(model, sampling):
    greedy = generate(make_policy(model), requests(*PROMPTS), GREEDY)
    assert generate(make_policy(model), requests(*PROMPTS), sampling) == greedy


def test_min_p_and_temperature_reach_the_engine(model):
    greedy = generate(make_policy(model), requests(*PROMPTS), GREEDY)
    assert generate(make_policy(model), requests(*PROMPTS), SamplingSettings(1.0, min_p=1.0)) == greedy
    assert generate(make_policy(model), requests(*PROMPTS), SamplingSettings(1e-4)) == greedy


def test_further_settings_reach_the_engine(model):
    banned = SamplingSettings(1.0, extra={"suppress_tokens": [t for t in range(VOCABULARY) if t != 5]})
    assert generate(make_policy(model), requests((3, 4)), banned)[0].reply_ids == (5,) * 12


# ---- the model's own settings --------------------------------------------------------------------------------------

HOSTILE = GenerationConfig(
    do_sample=True,
    temperature=0.1,
    top_k=1,
    top_p=0.01,
    min_p=0.9,
    typical_p=0.2,
    epsilon_cutoff=0.3,
    repetition_penalty=1.8,
    no_repeat_ngram_size=1,
    suppress_tokens=list(range(2, 12)),
    begin_suppress_tokens=list(range(12, 20)),
    bad_words_ids=[[20], [21]],
    min_new_tokens=3,
    max_new_tokens=2,
    max_length=4,
    num_return_sequences=1,
    eos_token_id=[7],
    pad_token_id=9,
    use_cache=True,
)


@pytest.fixture
def hostile() -> LlamaForCausalLM:
    """The fixture `model` with generation settings of its own, each of which would change what is sampled."""
    made = make_model().eval()
    made.generation_config = HOSTILE
    return made


def test_the_hostile_settings_would_change_a_reply(model, hostile):
    inputs = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    open_settings = GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=PAD, eos_token_id=[END])
    with torch.no_grad():
        plain = model.generate(**inputs, generation_config=open_settings)
        bent = hostile.generate(**inputs, generation_config=open_settings)
    assert plain.tolist() != bent.tolist(), "transformers takes open settings from the model; else this test is idle"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(0.0, extra=BATCHED),
        WARM,
        SamplingSettings(1.0, extra=BATCHED),
        SamplingSettings(0.7, top_p=0.95, extra=BATCHED),
    ],
    ids=["greedy", "token by token", "warm", "cool"],
)
def test_a_model_s_own_generation_settings_change_nothing(model, hostile, sampling):
    asked = requests(*PROMPTS)
    assert generate(make_policy(hostile), asked, sampling, 3) == generate(make_policy(model), asked, sampling, 3)


@pytest.mark.parametrize("name", [name for name in HOSTILE.to_diff_dict() if name != "transformers_version"])
def test_no_single_one_of_them_leaks(model, name):
    single = make_model().eval()
    single.generation_config = GenerationConfig(**{name: getattr(HOSTILE, name)})
    asked = requests(*PROMPTS)
    sampling = SamplingSettings(1.0, extra=BATCHED)
    assert generate(make_policy(single), asked, sampling, 3) == generate(make_policy(model), asked, sampling, 3)


def test_a_model_keeps_its_generation_settings(hostile):
    sampling = SamplingSettings(1.0, extra=BATCHED)
    generate(make_policy(hostile), requests(*PROMPTS), sampling)
    assert hostile.generation_config is HOSTILE

    class Broken(Exception): ...

    def fail(*args: Any, **kwargs: Any) -> None:
        raise Broken

    hostile.generate = fail
    with pytest.raises(Broken):
        generate(make_policy(hostile), requests(*PROMPTS), sampling)
    assert hostile.generation_config is HOSTILE


def test_an_adapter_samples_without_the_settings_of_its_base_and_leaves_them_there(model, hostile):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(hostile, peft.LoraConfig(target_modules=["q_proj"], r=2))
    asked = requests(*PROMPTS)
    assert generate(make_policy(adapted), asked, seed=3) == generate(make_policy(model), asked, seed=3)
    assert adapted.get_base_model().generation_config is HOSTILE


# ---- lengths and ends ----------------------------------------------------------------------------------------------


def test_each_request_keeps_its_own_limit(model):
    asked = [GenerationRequest((3, 4, 5), limit, f"e{limit}") for limit in (1, 2, 5, 20)]
    replies = generate(make_policy(model), asked, GREEDY)
    whole = greedy_by_hand(model, (3, 4, 5), 20)
    assert [one.reply_ids for one in replies] == [whole[:limit] for limit in (1, 2, 5, 20)]


def test_a_reply_ends_with_its_first_end_token_and_says_so(model):
    whole = greedy_by_hand(model, (3, 4, 5), 12)
    third = whole[2]
    end = whole.index(third)
    [stopped] = generate(make_policy(model, eos_token_ids=[third]), requests((3, 4, 5)), GREEDY)
    assert stopped == Generation(whole[: end + 1], FinishReason.STOP)
    [cut] = generate(make_policy(model, eos_token_ids=[31]), requests((3, 4, 5), max_new_tokens=4), GREEDY)
    assert cut.finish_reason is (FinishReason.STOP if 31 in whole[:4] else FinishReason.LENGTH)


def test_an_end_token_in_the_last_place_is_an_end(model):
    whole = greedy_by_hand(model, (3, 4, 5), 12)
    end = whole.index(whole[2]) + 1
    policy = make_policy(model, eos_token_ids=[whole[2]])
    [one] = generate(policy, requests((3, 4, 5), max_new_tokens=end), GREEDY)
    assert one.finish_reason is FinishReason.STOP and len(one.reply_ids) == end


def test_any_of_several_end_tokens_ends_a_reply_and_padding_may_be_one_of_them(model):
    replies = generate(
        make_policy(model, pad_token_id=END, eos_token_ids=[END, *range(10, 20)]), requests(*PROMPTS * 4)
    )
    ends = {END, *range(10, 20)}
    for one in replies:
        assert not set(one.reply_ids[:-1]) & ends
        assert (one.reply_ids[-1] in ends) is (one.finish_reason is FinishReason.STOP)
        assert one.finish_reason is FinishReason.STOP or len(one.reply_ids) == 12


def test_the_same_greedy_reply_with_another_padding_token(model):
    asked = requests(*PROMPTS)
    assert generate(make_policy(model, pad_token_id=17), asked, GREEDY) == generate(make_policy(model), asked, GREEDY)


# ---- batches -------------------------------------------------------------------------------------------------------


class Recording:
    """Stands in for the model and notes the shape of each batch."""

    def __init__(self, model: LlamaForCausalLM):
        self._model = model
        self.batches: list[tuple[int, int, int]] = []
        """(rows, longest prompt, new tokens)"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, input_ids: torch.Tensor, generation_config: GenerationConfig, **kwargs: Any) -> torch.Tensor:
        self.batches.append((*input_ids.shape, generation_config.max_new_tokens))
        return self._model.generate(input_ids=input_ids, generation_config=generation_config, **kwargs)


@pytest.mark.parametrize("budget", [1, 40, 64, 200, 10_000])
def test_no_batch_exceeds_the_token_budget_unless_it_is_a_single_request(model, budget):
    asked = [
        GenerationRequest(tuple(range(2, 2 + length)), limit, f"e{k}")
        for k, (length, limit) in enumerate([(1, 12), (2, 1), (20, 1), (3, 12), (19, 2), (5, 5), (1, 12), (20, 3)])
    ]
    recording = Recording(model)
    replies = generate(make_policy(recording, batch_tokens=budget), asked, GREEDY)
    for rows, prompt, new in recording.batches:
        assert rows == 1 or rows * (prompt + new) <= budget
    assert sum(rows for rows, _, _ in recording.batches) == len(asked)
    assert [one.reply_ids for one in replies] == [
        greedy_by_hand(model, one.prompt_ids, one.max_new_tokens) for one in asked
    ]


def test_short_and_long_prompts_are_not_mixed_needlessly(model):
    recording = Recording(model)
    prompts = [tuple(range(2, 2 + length)) for length in (1, 25, 2, 26)]
    generate(make_policy(recording, batch_tokens=80), requests(*prompts), GREEDY)
    assert recording.batches == [(2, 2, 12), (2, 26, 12)]


def test_flush_answers_everything_once_and_nothing_twice(model):
    recording = Recording(model)
    policy = make_policy(recording)
    policy.begin(GREEDY, 0)
    policy.flush()
    assert recording.batches == []
    future = policy.submit(requests((3, 4))[0])
    assert isinstance(future, Future) and not future.done()
    policy.flush()
    policy.flush()
    assert future.done() and len(recording.batches) == 1


def test_a_new_batch_forgets_what_an_interrupted_one_had_queued(model):
    recording = Recording(model)
    policy = make_policy(recording)
    policy.begin(GREEDY, 0)
    policy.submit(requests((3, 4))[0])
    policy.begin(GREEDY, 1)
    policy.flush()
    assert recording.batches == []


# ---- the model's state ---------------------------------------------------------------------------------------------


def test_dropout_is_off_and_every_flag_is_restored():
    dropping = make_model(attention_dropout=0.9).train()
    dropping.model.layers[0].eval()
    flags = {name: module.training for name, module in dropping.named_modules()}
    assert True in flags.values() and False in flags.values()
    asked = requests(*PROMPTS)
    greedy = generate(make_policy(dropping), asked, GREEDY)
    assert [one.reply_ids for one in greedy] == [greedy_by_hand(make_model().eval(), p, 12) for p in PROMPTS]
    assert {name: module.training for name, module in dropping.named_modules()} == flags


def test_flags_are_restored_after_an_exception():
    model = make_model().train()
    with pytest.raises(KeyboardInterrupt), frozen_mode(model):
        assert not model.training
        raise KeyboardInterrupt
    assert all(module.training for module in model.modules())


def test_no_gradient_and_no_parameter_is_touched():
    model = make_model().train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    generate(make_policy(model), requests(*PROMPTS))
    assert all(value.grad is None and torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.requires_grad for value in model.parameters())


def test_the_unwrapped_model_generates(model):
    other = make_model(seed=8).eval()
    entered: list[str] = []

    @contextlib.contextmanager
    def unwrap():
        entered.append("in")
        yield other
        entered.append("out")

    replies = generate(make_policy(model, unwrap=unwrap), requests(*PROMPTS), GREEDY)
    assert [one.reply_ids for one in replies] == [greedy_by_hand(other, prompt, 12) for prompt in PROMPTS]
    assert entered == ["in", "out"]


# ---- several processes ---------------------------------------------------------------------------------------------


def test_processes_of_a_sharded_model_call_it_equally_often_whatever_they_play(monkeypatch):
    """Two policies in two threads, 3 and 1 requests in 2 and 1 turns: each runs the batches of the busier one."""
    calls: dict[str, list[bool]] = {"busy": [], "idle": []}
    together, numbers = threading.Barrier(2), {}

    def play(name: str, turns: list[list[GenerationRequest]]) -> list[Generation]:
        def most(number: int) -> int:
            numbers[name] = number
            together.wait(timeout=30)
            largest = max(numbers.values())
            together.wait(timeout=30)
            return largest

        policy = make_policy(make_model().eval(), most=most, batch_tokens=16)
        monkeypatch.setattr(
            policy, "_generate", lambda model, asked: [calls[name].append(True), *map(_echo, asked)][1:]
        )
        policy.begin(WARM, 0)
        replies = []
        for turn in turns:
            futures = [policy.submit(one) for one in turn]
            policy.flush()
            replies += [future.result(timeout=0) for future in futures]
        policy.finish()
        return replies

    asked = requests(*PROMPTS[:3])
    with ThreadPoolExecutor(2) as threads:
        busy = threads.submit(play, "busy", [asked, asked[:1]])
        idle = threads.submit(play, "idle", [asked[:1]])
        assert busy.result(timeout=60) == [*map(_echo, asked), _echo(asked[0])]
        assert idle.result(timeout=60) == [_echo(asked[0])]
    assert len(calls["busy"]) == len(calls["idle"]) == 4


def _echo(request: GenerationRequest) -> Generation:
    return Generation(request.prompt_ids, FinishReason.STOP)
