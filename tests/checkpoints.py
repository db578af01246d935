"""Checkpoint folders as a trainer saves them, small and without a trainer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def put_checkpoint(folder: Path, step: int, *, model_only: bool = False) -> Path:
    """A whole `checkpoint-<step>` in `folder`."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.full((4, 3), float(step))}, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text("{}")
    if not model_only:
        torch.save({"state": step}, path / "optimizer.pt")
        torch.save({"python": step}, path / "rng_state.pth")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path
