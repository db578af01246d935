"""One process of the FSDP2 test: scoring and loss on a model whose parameters are sharded over CPU processes.

Accelerate runs FSDP on accelerators only (with `use_cpu` it falls back to DDP), so the model is sharded here by
torch's own `fully_shard`, which accelerate calls too.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from taspo_trl.loss.batches import EMPTY_ROW, LossRow, collate
from taspo_trl.loss.objective import taspo_loss
from taspo_trl.scoring.paired import PairedRow, most_forwards, score_pairs, score_schedule
from taspo_trl.scoring.projection import add_selected_projection, selected_forward
from tests import tiny


def rows() -> list[LossRow]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for k in range(5):
        ids = tuple(torch.randint(5, 100, (12 + 3 * k,), generator=generator).tolist())
        positions = tuple(range(8, len(ids)))
        made.append(LossRow(ids, positions, (0.01,) * len(positions), (1.0 - k,) * len(positions)))
    return made


def pairs() -> list[PairedRow]:
    return [PairedRow(row.ids, 6, ((7, 8, 9)[: k % 4],), row.positions[1:]) for k, row in enumerate(rows())]


def loss_of(model, batch):
    tensors = collate(batch, dtype=torch.float64)
    output = selected_forward(model, tensors, want_entropies=True)
    return taspo_loss(
        output.logps,
        output.logps.detach(),
        tensors["advantages"],
        tensors["coefficients"],
        entropies=output.entropies,
        entropy_coef=0.1,
    ).loss


def main() -> None:
    dist.init_process_group("gloo")
    for tied in (False, True):
        run(Path(sys.argv[1]), tied)
    dist.destroy_process_group()


def run(output: Path, tied: bool) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = tiny.model(dtype=torch.float64, tie_word_embeddings=tied)
    add_selected_projection(model)
    if world > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model.eval()
    # The shares differ in number of batches; zero rows and dummy batches keep the processes in step.
    everything = pairs()
    mine = everything[rank::world]
    schedule = most_forwards([score_schedule(everything[r::world], 30) for r in range(world)])
    with torch.no_grad():
        scored = score_pairs(model, mine, max_tokens=30, schedule=schedule)
    share = rows()[rank::world]
    most = -(-len(rows()) // world)
    batches = [[row] for row in share] + [[EMPTY_ROW]] * (most - len(share))
    total = 0.0
    for batch in batches:
        loss = loss_of(model, batch) * world  # FSDP averages gradients
        loss.backward()
        total += loss.item() / world
    gradients = {
        name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
        for name, p in model.named_parameters()
    }
    found = {"scored": scored, "loss": total, "gradients": gradients}
    torch.save(found, output / f"sharded-{int(tied)}-{world}-{rank}.pt")


if __name__ == "__main__":
    main()
    gc.collect()  # of the model, with which the group's threads end; they may abort the process while it exits
