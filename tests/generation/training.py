"""What the tests of TASPOTrainer with `use_vllm=True` share: a trainer against a server, and replies to script it."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig

from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from tests import tiny
from tests.trainer.test_trainer import Script, rows


TOKENIZER = tiny.tokenizer()
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)


def ids_of(text):
    return [*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id]


def by_seed(body, number):
    """Half of the replies succeed; which, follows from the seed."""
    return ids_of(f"<action>{'inventory' if body['seed'] % 2 else 'look'}</action>")


def wandering(body, number):
    """Episodes of different lengths: a third of the replies ends nothing."""
    return ids_of(f"<action>{('go to', 'look', 'inventory')[body['seed'] % 3]}</action>")


class CountingAnalyzer(ExtractiveAnalyzer):
    num_requests = 0

    def complete(self, request):
        type(self).num_requests += 1
        return super().complete(request)


def server_trainer(folder: Any, url: str, **values: Any) -> Any:
    """A trainer that generates with the server at `url`."""
    defaults = {
        "train_dataset": rows(8),
        "environment_factory": Script,
        "analyzer": CountingAnalyzer(),
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": url,
        "vllm_server_timeout": 5.0,
        "max_completion_length": 12,
    }
    return tiny.trainer(folder, **{**defaults, **values})
