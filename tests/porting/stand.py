"""One script of TRL's, played in TRL's trainer and in ours with the same replies."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import taspo_trl
from taspo_trl.records import read_records
from tests import tiny
from tests.documents import DOCS, split
from tests.environments.test_tools import template
from tests.tokenizers import byte_bpe


MODEL = "Qwen/Qwen3-0.6B"
ON_A_CPU = {
    "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "per_device_train_batch_size": 8,
    "max_steps": 1, "logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False,
    "shuffle_dataset": False, "generation_kwargs": None,
}  # fmt: skip
"""What a script of the page lacks on the machine of a test. Its own options win."""

Plays = Mapping[Any, Sequence[str]]
"""Member of its group, or (group, member) -> its replies."""


def page_blocks(language: str) -> list[str]:
    """The blocks of the porting page in their order."""
    return [block.text for block in split(DOCS / "porting.md")[1] if block.language == language]


def patched(text: str, diffs: Sequence[str]) -> str:
    """`text` after the diffs, each of which replaces the lines without "+" by the lines without "-"."""
    for diff in diffs:
        lines = diff.split("\n")
        old = "\n".join(line[1:] for line in lines if line[:1] != "+")
        new = "\n".join(line[1:] for line in lines if line[:1] != "-")
        assert text.count(old) == 1, f"the diff\n{diff}\nfits {text.count(old)} places"
        text = text.replace(old, new)
    return text


def tokenizer():
    return byte_bpe(template("qwen3"))


def save_model(folder: Path) -> None:
    """A random policy where the scripts look for theirs, below the working directory."""
    policy().save_pretrained(folder / MODEL)
    tokenizer().save_pretrained(folder / MODEL)


def policy() -> LlamaForCausalLM:
    tok = tokenizer()
    config = LlamaConfig(
        vocab_size=len(tok), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def scripted_trl(plays: Plays) -> type[trl.GRPOTrainer]:
    """TRL's trainer, whose every generation is taken from `plays`."""

    class Scripted(trl.GRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            if not hasattr(self, "_histories"):
                self._histories = [list(ids) for ids in prompt_ids]
                self._counts = [0] * len(prompt_ids)
            found, start = [], 0
            for ids in prompt_ids:  # a call has the episodes that go on, in their order
                k = next(
                    k
                    for k in range(start, len(self._histories))
                    if self._counts[k] < len(plays[k % self.num_generations])
                    and ids[: len(self._histories[k])] == self._histories[k]
                )
                text = plays[k % self.num_generations][self._counts[k]]
                reply = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
                found.append(reply)
                self._histories[k] = [*ids, *reply]
                self._counts[k] += 1
                start = k + 1
            return found, None

    return Scripted


def scripted_taspo(plays: Plays) -> type[taspo_trl.TASPOTrainer]:
    """Our trainer, whose every generation is taken from `plays`."""

    class Scripted(taspo_trl.TASPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            tiny.use_policy(self, tiny.ScriptedPolicy(reply, self._tokenizer))

    def reply(uid: str, turn: int) -> str:
        key = key_of(uid)
        return (plays[key] if key in plays else plays[key[1]])[turn]

    return Scripted


def run(script: str, plays: Plays, monkeypatch: Any, **values: Any) -> Any:
    """The trainer of a script, after it has run; `values` are further options on this machine."""
    options = {**ON_A_CPU, **values}
    monkeypatch.setattr(trl, "GRPOTrainer", scripted_trl(plays))
    monkeypatch.setattr(trl, "GRPOConfig", functools.partial(_config, trl.GRPOConfig, options))
    monkeypatch.setattr(taspo_trl, "TASPOTrainer", scripted_taspo(plays))
    monkeypatch.setattr(taspo_trl, "TASPOConfig", functools.partial(_config, taspo_trl.TASPOConfig, options))
    try:
        names: dict[str, Any] = {"__name__": "script"}
        exec(compile(script, "script", "exec"), names)
    finally:
        monkeypatch.undo()
    made = names["trainer"]
    if isinstance(made, taspo_trl.TASPOTrainer):
        made.close()
    return made


def _config(made: Any, options: Mapping[str, Any], **values: Any) -> Any:
    return made(**{**options, **values})


def first_entry(made: Any) -> dict[str, float]:
    """What a trainer logged of its first step."""
    return next(entry for entry in made.state.log_history if "reward" in entry)


def trained(factory: Any, plays: Plays, folder: Path, rows: Sequence[Mapping[str, Any]] | None, **values: Any) -> Any:
    """Our trainer after one step on `factory`: eight episodes of two rows, unless `values` say otherwise."""
    functions = values.pop("reward_funcs", None)
    made = scripted_taspo(plays)(
        model=policy(),
        reward_funcs=functions,
        processing_class=tokenizer(),
        args=taspo_trl.TASPOConfig(
            output_dir=str(folder), **{**ON_A_CPU, "num_generations": 4, "max_completion_length": 256, **values}
        ),
        train_dataset=_dataset(rows) if rows is not None else None,
        environment_factory=factory,
    )
    made.train()
    made.close()
    return made


def _dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    names = dict.fromkeys(name for row in rows for name in row)  # `from_list` takes the columns of the first row
    return Dataset.from_list([dict.fromkeys(names) | dict(row) for row in rows])


def trajectories(folder: Path) -> dict[tuple[int, int], Any]:
    """(group, member) -> trajectory, of the first rollout batch."""
    found = [record.trajectory for record in read_records(folder / "_trajectories")]
    return {key_of(one.uid): one for one in found}


def key_of(uid: str) -> tuple[int, int]:
    """(group, member) of an episode."""
    group, member = re.fullmatch(r"r0-g(\d+)-k(\d+)", uid).groups()
    return int(group), int(member)


def is_refusal(text: str) -> bool:
    """Whether a tool's answer is TRL's form of an exception."""
    return re.match(r"\{'error': ", text) is not None
