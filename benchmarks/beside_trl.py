"""TRL's own GRPOTrainer and TASPOTrainer beside each other: one class, one model, one run.

    OMP_NUM_THREADS=1 python benchmarks/beside_trl.py [--repeats 3] [--episodes 32] [--without-generate]

Both play a class written for TRL's `environment_factory` (8 tool calls, 20 ms each) with a small Qwen3 whose weights
make it call the tool after some words, so that replies have very different lengths. Steps take turns, so that a
drifting machine treats all alike. A third trainer is ours with replies from `model.generate`, a batch for each turn,
as where a model cannot be decoded token by token. Prints a table and writes `benchmarks/results/trl.json`.

The file is not called trl.py, which would hide TRL from every script beside it.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import trl
from common import save
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from taspo_trl import TASPOConfig, TASPOTrainer


console = Console()
CALLS = 8
OPEN, CLOSE = '<tool_call>\n{"name": "walk", "arguments": {"steps": ', "}}\n</tool_call>"
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"
SPOKEN = "so now I think we go on and then walk along the long corridor to its other end"
WORDS = [f" {one}" for one in SPOKEN.split()]
TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()


class Corridor:
    """As a user of TRL writes it: nothing of this package is in it."""

    def __init__(self) -> None:
        self._place = self._calls = 0

    def reset(self, target: int, **kwargs: Any) -> str:
        self._place, self._calls, self._target = 0, 0, target
        return f"You stand at door 0 of a long corridor. Walk to door {target} or beyond it."

    def walk(self, steps: int) -> str:
        """
        Walk along the corridor, past one door with every step.

        Args:
            steps: How many steps to take, 1 to 9.

        Returns:
            Where you are now and what you see there.
        """
        time.sleep(0.02)
        self._place += int(steps)
        self._calls += 1
        return f"You walked {steps} steps and stand at door {self._place}. It is closed. The corridor goes on."

    def get_reward(self) -> float:
        return float(self._place >= self._target)


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and a few merges, with the parts of a call as single tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[PAD, START, END],
        show_progress=False,
    )  # fmt: skip
    texts = [TEMPLATE, Corridor.walk.__doc__ or "", "You walked 3 steps and stand at door 12."]
    made.train_from_iterator(texts * 4, trainer)
    made.add_tokens([AddedToken(one, normalized=False) for one in (OPEN, CLOSE, *WORDS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, chat_template=TEMPLATE, clean_up_tokenization_spaces=False
    )


def model(tok: PreTrainedTokenizerFast, words: float = 8.0, layers: int = 4, width: int = 256) -> Qwen3ForCausalLM:
    """A Qwen3 that says about `words` words and calls: what may follow a token is written into its LM head."""
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tok), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=2, head_dim=width // 4, max_position_embeddings=4096,
            tie_word_embeddings=False, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    ids = {name: tok.convert_tokens_to_ids(name) for name in (OPEN, CLOSE, END, *WORDS)}
    [newline] = tok("\n", add_special_tokens=False).input_ids
    digits = [tok(str(k), add_special_tokens=False).input_ids[0] for k in range(1, 10)]
    spoken = [ids[one] for one in WORDS]
    follows = {one: [*spoken, ids[OPEN]] for one in (newline, *spoken)} | {ids[OPEN]: digits}
    follows |= {digit: [ids[CLOSE]] for digit in digits} | {ids[CLOSE]: [ids[END]]}
    more = torch.log(torch.tensor(words / len(spoken)))  # a call comes once for `words` words
    with torch.no_grad():
        embedding, head = made.get_input_embeddings().weight, made.get_output_embeddings().weight
        embedding.normal_()
        head.zero_()
        for token, successors in follows.items():
            for one in successors:
                strength = 40.0 + (float(more) if one in spoken else 0.0)
                head[one] += strength * embedding[token] / width
    return made


def rows(number: int) -> Dataset:
    chats = [[{"role": "user", "content": "You are in an old house."}] for _ in range(number)]
    return Dataset.from_dict({"prompt": chats, "target": [30 + 4 * (k % 6) for k in range(number)]})


def options(episodes: int) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "num_generations": 8,
        "per_device_train_batch_size": episodes,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "learning_rate": 1e-6,
        "max_steps": 1,
        "beta": 0.0,
    }


class Timed:
    """One trainer, a step at a time, with the seconds of its rollouts."""

    def __init__(self, made: Any):
        self.made, self.seconds = made, 0.0
        if isinstance(made, GRPOTrainer) and not isinstance(made, TASPOTrainer):
            inner = made._generate

            def timed(*args: Any, **kwargs: Any) -> Any:
                started = time.perf_counter()
                found = inner(*args, **kwargs)
                self.seconds += time.perf_counter() - started
                return found

            made._generate = timed
        made.current_gradient_accumulation_steps = 1
        made.create_optimizer_and_scheduler(100)
        self.tokens = {"prompt": 0, "reply": 0}
        made.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        """Prompt tokens that were computed, padding included, and decoded ones, idle rows included."""
        if not torch.is_grad_enabled() and kwargs.get("use_cache"):
            ids = kwargs["input_ids"]
            self.tokens["prompt" if ids.shape[1] > 1 else "reply"] += ids.numel()

    def step(self, number: int) -> dict[str, float]:
        made, groups = self.made, self.made.args.generation_batch_size // self.made.num_generations
        data = made.train_dataset
        batch = [
            row for k in range(groups) for row in [data[(number * groups + k) % len(data)]] * made.num_generations
        ]
        self.seconds, self.tokens = 0.0, {"prompt": 0, "reply": 0}
        made._step, made._buffer, made._buffered_inputs = number, None, None
        started, worked = time.perf_counter(), time.process_time()
        made.training_step(made.model, batch, None)
        made.optimizer.step()
        made.model.zero_grad()
        total = time.perf_counter() - started
        self.seconds = self.seconds or made._metrics["train"]["time/rollout"][-1]
        made._metrics["train"].clear()
        return {
            "step": total,
            "generation": self.seconds,
            "update": total - self.seconds,
            "step_cpu": time.process_time() - worked,  # what a machine shared with others does not stretch
            "prompt_tokens_computed": self.tokens["prompt"],
            "reply_tokens_computed": self.tokens["reply"],
        }


def theirs(policy: Any, tok: Any, episodes: int, replies: list[int]) -> Timed:
    args = GRPOConfig(**options(episodes), max_completion_length=1500, max_tool_calling_iterations=CALLS)
    made = GRPOTrainer(
        copy.deepcopy(policy), args=args, processing_class=tok, train_dataset=rows(64), environment_factory=Corridor
    )
    inner = made._generate_single_turn

    def single(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        replies.extend(map(len, found[0]))
        return found

    made._generate_single_turn = single
    return Timed(made)


def ours(policy: Any, tok: Any, episodes: int, replies: list[int], generate: bool = False) -> Timed:
    args = TASPOConfig(
        **options(episodes),
        max_completion_length=256,
        max_tool_calling_iterations=CALLS,
        guidance="none",
        save_trajectories="no",
    )
    made = TASPOTrainer(
        copy.deepcopy(policy), args=args, processing_class=tok, train_dataset=rows(64), environment_factory=Corridor
    )
    engine = made.engine.engine
    if generate:
        engine._why_model = "the benchmark compares"
    inner = engine.submit

    def submit(request: Any) -> Any:
        future = inner(request)
        future.add_done_callback(lambda done: replies.append(len(done.result().reply_ids)))
        return future

    engine.submit = submit
    return Timed(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--without-generate", action="store_true", help="leave out ours with `model.generate`")
    parser.add_argument("--without-trl", action="store_true", help="leave out TRL's trainer")
    parsed = parser.parse_args()
    warnings.filterwarnings("ignore")
    tok = tokenizer()
    policy = model(tok)
    replies: dict[str, list[int]] = {"TRL": [], "ours, generate": [], "ours": []}
    made = {}
    if not parsed.without_trl:
        made["TRL"] = theirs(policy, tok, parsed.episodes, replies["TRL"])
    if not parsed.without_generate:
        made["ours, generate"] = ours(policy, tok, parsed.episodes, replies["ours, generate"], True)
    made["ours"] = ours(policy, tok, parsed.episodes, replies["ours"])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in made}
    warming: dict[str, dict[str, float]] = {}
    for number in range(parsed.repeats + 1):
        for name, one in made.items():
            entry = one.step(number)
            if number:  # the first warms up
                found[name].append(entry)
            else:
                warming[name] = entry
                replies[name].clear()
            print(number, name, {k: round(v, 2) for k, v in entry.items()}, flush=True)
    middle = {
        name: {key: statistics.median(e[key] for e in entries) for key in entries[0]}
        for name, entries in found.items()
    }
    for name, entry in middle.items():
        entry["replies"] = len(replies[name]) / parsed.repeats
        entry["reply_tokens"] = sum(replies[name]) / parsed.repeats
    table = Table(title=f"One step, median seconds ({parsed.episodes} episodes, {CALLS} tool calls of 20 ms)")
    for column in ("", *next(iter(middle.values()))):
        table.add_column(column.replace("_", " "), justify="right")
    for name, entry in middle.items():
        table.add_row(name, *(f"{value:.2f}" if value < 1000 else f"{value:,.0f}" for value in entry.values()))
    console.print(table)
    ratios = {
        f"{key}: {name} / ours": statistics.median(
            a[key] / b[key] for a, b in zip(found[name], found["ours"], strict=True)
        )
        for name in made
        if name != "ours"
        for key in ("step", "generation", "update", "step_cpu")
    }
    console.print(ratios)
    if not (parsed.without_trl or parsed.without_generate):
        results: dict[str, Any] = {
            "threads": torch.get_num_threads(),
            "repeats": parsed.repeats,
            "episodes": parsed.episodes,
        }
        results |= {"median": middle, "ratios": ratios, "first_steps": warming}
        console.print(f"written to {save('trl', results)}")


if __name__ == "__main__":
    main()
