"""Small things for trainer tests: a random Llama over the household phrases, configurations, a scripted policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings
from taspo_trl.quickstart.tokenizer import make_tokenizer
from taspo_trl.types import FinishReason


def tokenizer():
    """The phrase tokenizer of the small household preset."""
    return make_tokenizer("small")


def model(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> LlamaForCausalLM:
    """A random Llama; `config` overrides its size."""
    torch.manual_seed(seed)
    tok = tokenizer()
    values = {
        "vocab_size": len(tok),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 1024,
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
        "bos_token_id": None,
        **config,
    }
    return LlamaForCausalLM(LlamaConfig(**values)).to(dtype)


def config(output_dir: Any, **values: Any) -> TASPOConfig:
    """A configuration for the CPU: two tasks of four episodes, one update, nothing reported or saved."""
    defaults = {
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
    }
    return TASPOConfig(output_dir=str(output_dir), **{**defaults, **values})


def household_rows(split: str = "train", size: int = 12):
    return HouseholdEnvironment.dataset(split, preset="small", size=size)


def trainer(output_dir: Any, *, policy: Any = None, **values: Any) -> TASPOTrainer:
    """A trainer on the small household. Keywords of the trainer and of the configuration may be mixed."""
    own = {name: values.pop(name) for name in list(values) if name in _TRAINER_KEYWORDS}
    arguments = {
        "model": model(),
        "processing_class": tokenizer(),
        "train_dataset": household_rows(),
        "environment_factory": HouseholdEnvironment,
        **own,
    }
    made = TASPOTrainer(args=config(output_dir, **values), **arguments)
    if policy is not None:
        use_policy(made, policy)
    return made


_TRAINER_KEYWORDS = (
    "model",
    "processing_class",
    "train_dataset",
    "eval_dataset",
    "environment_factory",
    "analyzer",
    "reward_funcs",
    "peft_config",
    "callbacks",
    "quantization_config",
)


def use_policy(made: TASPOTrainer, policy: Any) -> None:
    """Replace generation: the one seam through which tests decide what is sampled."""
    maker = made.experience_maker
    maker.collector = dataclasses.replace(maker.collector, engine=policy)


class ScriptedPolicy:
    """Answers each request with what `reply` says, and keeps all requests.

    Args:
        reply (`Callable`):
            (episode uid, turn index) -> text or token ids. Texts get the end token.
    """

    def __init__(self, reply: Callable[[str, int], str | Sequence[int]], tok: Any = None):
        self.reply = reply
        self.tokenizer = tok or tokenizer()
        self.requests: list[GenerationRequest] = []
        self.samplings: list[SamplingSettings] = []
        self._turns: dict[str, int] = {}

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self.samplings.append(sampling)
        self._turns.clear()

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        self.requests.append(request)
        turn = self._turns.get(request.episode_uid, 0)
        self._turns[request.episode_uid] = turn + 1
        answer = self.reply(request.episode_uid, turn)
        if isinstance(answer, str):
            answer = [*self.tokenizer.encode(answer, add_special_tokens=False), self.tokenizer.eos_token_id]
        ids = tuple(answer)[: request.max_new_tokens]
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        future: Future[Generation] = Future()
        future.set_result(Generation(ids, FinishReason.STOP if ended else FinishReason.LENGTH))
        return future

    def flush(self) -> None:
        """Everything is answered at once."""


def size_of(inputs: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """(rows, positions, positions taken over from kept keys, tokens that are no padding) of a backbone's forward."""
    cache, mask = inputs.get("past_key_values"), inputs.get("attention_mask")
    taken = cache.get_seq_length() if cache is not None else 0
    is_padded = mask is not None and mask.dim() == 2
    num_tokens = int(mask[:, taken:].sum()) if is_padded else inputs["input_ids"].numel()
    return (*inputs["input_ids"].shape, taken, num_tokens)


def parameters(made: TASPOTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in made.model.named_parameters()}
