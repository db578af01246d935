"""DeepSpeed on two CPU processes: ZeRO-2 and ZeRO-3 train as one process without it."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from . import worker
from .test_processes import launch, results


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="no extra of this package installs it: pip install deepspeed",
    ),
]


def zero(stage: int) -> dict:
    """A DeepSpeed configuration for the CPU; `auto` takes the trainer's value."""
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,  # the CPU has no streams
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


@pytest.mark.parametrize(("stage", "tied"), [(2, False), (3, False), (3, True)])
def test_sharded_processes_train_as_one(tmp_path, monkeypatch, stage, tied):
    """Straddling groups, KL against a frozen copy, several micro-batches in a step; SGD, so that errors stay small."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    config = {"beta": 0.1, "entropy_coef": 0.01, "optim": "sgd"}
    options: dict = {"dtype": "float32", "episodes": 12, "model": {"tie_word_embeddings": tied}}
    options["output"] = str(tmp_path)
    worker.run({**options, "config": config})
    done = launch([{**options, "config": {**config, "deepspeed": zero(stage)}}])
    assert done.returncode == 0, done.stderr[-3000:]
    (one,), several = results(tmp_path, 1), results(tmp_path, 2)
    moved = 0.0
    for name, value in one["parameters"].items():
        moved = max(moved, (value - one["initial"][name]).abs().max().item())
        assert torch.allclose(value, several[0]["parameters"][name], atol=1e-6, rtol=0), f"{name} differs"
    assert moved > 1e-4, "nothing was trained, so the comparison shows nothing"
    for entry, other in zip(one["log"], several[0]["log"], strict=True):
        for key in ("loss", "kl", "entropy", "policy_loss", "guidance/coverage", "credit/weight_std", "tokens/reply"):
            assert other[key] == pytest.approx(entry[key], abs=1e-5), key


@pytest.mark.parametrize("gather", [True, False], ids=["gathered weights", "sharded weights"])
def test_model_sharded_over_processes_plays_episodes_of_different_lengths(tmp_path, monkeypatch, gather):
    """Each forward of a sharded model needs all processes; none may wait for one whose episodes have ended."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    config = {
        "entropy_coef": 0.1,
        "optim": "sgd",
        "ds3_gather_for_generation": gather,
        "shuffle_dataset": False,
        "generation_tokens": 128,
        "deepspeed": zero(3),
    }
    run = {"output": str(tmp_path), "scenario": "sampled", "dtype": "float32", "episodes": 12, "config": config}
    done = launch([run], timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = results(tmp_path, 2)
    assert first["plays"] == second["plays"] == 5
    assert any(not torch.equal(value, first["initial"][name]) for name, value in first["parameters"].items())
