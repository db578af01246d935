"""What each method computes beyond GRPO: tokens of forwards without gradient, counted on the same scripted rollouts.

    python benchmarks/methods.py

The episodes are scripted: of each group of four two members solve a household task, two do not. One update each; the
tokens are those of prompts, contexts and replies that a model was shown. The household's prompts are short beside the
contexts, so that shares are far larger than in a world with long prompts: compare methods, not shares.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaModel


ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import save  # noqa: E402
from taspo_trl.methods import METHODS  # noqa: E402
from tests import tiny  # noqa: E402
from tests.methods.test_training import ROWS, acting  # noqa: E402


@contextlib.contextmanager
def counted() -> Iterator[Counter]:
    """Counts forwards and their tokens inside, by whether a gradient is kept."""
    found: Counter = Counter()
    original = LlamaModel.forward

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids", args[0] if args else None)
        shown = ids if ids is not None else kwargs["inputs_embeds"][..., 0]
        mask = kwargs.get("attention_mask")
        is_plain = isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape == shown.shape
        kind = "update" if torch.is_grad_enabled() else "scoring"
        found[f"{kind}_forwards"] += 1
        found[f"{kind}_tokens"] += int(mask.sum()) if is_plain else shown.numel()
        return original(self, *args, **kwargs)

    LlamaModel.forward = counting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        LlamaModel.forward = original  # type: ignore[method-assign]


def count(name: str, folder: Path, teacher: str) -> dict[str, float]:
    """Tokens and forwards of one update."""
    made = tiny.trainer(
        folder,
        policy=tiny.ScriptedPolicy(acting),
        method=name,
        train_dataset=Dataset.from_list(ROWS),
        shuffle_dataset=False,
        max_turns=6,
        max_completion_length=16,
        teacher_model=teacher if name == "opd" else None,
    )
    with counted() as found:
        made.train()
    made.close()
    return dict(found)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        teacher = Path(folder) / "teacher"
        tiny.model(seed=1).save_pretrained(teacher)
        tiny.tokenizer().save_pretrained(teacher)
        counts = {name: count(name, Path(folder) / name, str(teacher)) for name in METHODS}
    plain = counts["grpo"]
    rows = {}
    for name, found in counts.items():
        extra = {key: found.get(key, 0) - plain.get(key, 0) for key in sorted({*found, *plain})}
        rows[name] = {
            "costs": METHODS[name].cost_words,
            "extra": extra,
            "extra_share": round(extra.get("scoring_tokens", 0) / plain["update_tokens"], 3),
        }
        print(
            f"{name:<16} {extra.get('scoring_tokens', 0):>7} {rows[name]['extra_share']:>7.1%}  {rows[name]['costs']}"
        )
    print(save("methods", {"episodes": 8, "grpo": plain, "methods": rows}))


if __name__ == "__main__":
    main()
