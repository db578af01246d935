"""How tests start several processes, and on which port."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def torchrun(processes: int) -> list[str]:
    """Arguments of Python that start what follows in so many processes."""
    return ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", str(free_port())]
