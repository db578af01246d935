"""One of several training processes against a server: `python -m tests.generation.process_worker URL FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import torch

from taspo_trl.generation import weight_transfer
from tests import tiny
from tests.generation.recording import RecordingClient
from tests.trainer.test_trainer import Script, rows


def main(url: str, folder: str) -> None:
    client = RecordingClient()
    opened = []

    def open_client(server, **_):
        opened.append(server.url)
        return client

    with mock.patch.object(weight_transfer, "open_client", open_client):
        trainer = tiny.trainer(
            folder,
            train_dataset=rows(8),
            environment_factory=Script,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=url,
            per_device_train_batch_size=4,
            max_completion_length=12,
            max_steps=2,
            ddp_backend="gloo",
        )
    policy, submitted = trainer.engine.engine, []
    submit = policy.submit
    policy.submit = lambda request: submitted.append(request.episode_uid) or submit(request)
    trainer.train()
    rank = trainer.accelerator.process_index
    found = {
        "num_opened": len(opened),
        "num_requests": len(submitted),
        "updates": client.updates,
        "parameters": tiny.parameters(trainer),
        "missing": [one["sampling/missing_logp_share"] for one in trainer.state.log_history if "loss" in one],
    }
    torch.save(found, Path(folder) / f"{rank}.pt")
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
