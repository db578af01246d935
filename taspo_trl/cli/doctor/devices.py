"""What this machine can compute with."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from .findings import Finding, Status, one_line


@dataclass(frozen=True, slots=True)
class Devices:
    """Accelerators and memory that torch sees."""

    gpus: tuple[GPU, ...] = ()
    has_mps: bool = False
    cores: int = 1
    memory: int = 0
    """Bytes of main memory."""


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    memory: int
    """Bytes."""
    has_bf16: bool


def look() -> Devices:
    """The devices of this machine; imports torch."""
    import psutil
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(k) for k in range(count)]
    return Devices(
        # bf16 in hardware begins with compute capability 8 (Ampere).
        gpus=tuple(GPU(one.name, one.total_memory, one.major >= 8) for one in properties),
        has_mps=torch.backends.mps.is_available(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
    )


def device_findings() -> tuple[Devices, list[Finding]]:
    """(the devices, a finding for each). A torch that cannot be loaded is a failure."""
    try:
        devices = look()
    except (ImportError, OSError, RuntimeError) as error:
        remedy = "Install PyTorch again for this machine: https://pytorch.org/get-started/locally"
        return Devices(), [Finding("devices", "torch", Status.FAILURE, one_line(error), remedy)]
    return devices, findings_of(devices)


def findings_of(devices: Devices) -> list[Finding]:
    """Pure: one line for each device."""
    found = [
        Finding("devices", f"cuda:{k}", Status.OK, f"{gpu.name}, {gigabytes(gpu.memory)}, {_bf16(gpu)}")
        for k, gpu in enumerate(devices.gpus)
    ]
    if devices.has_mps:
        found.append(Finding("devices", "mps", Status.OK, "Apple GPU; memory is the machine's"))
    if not found:
        found.append(
            Finding(
                "devices",
                "gpu",
                Status.WARNING,
                "torch sees no GPU",
                "For models beyond a few hundred million parameters use one; `nvidia-smi` tells whether the driver "
                "sees it, and a CPU build of torch never does.",
            )
        )
    processor = platform.processor() or platform.machine()
    found.append(
        Finding("devices", "cpu", Status.OK, f"{processor}, {devices.cores} cores, {gigabytes(devices.memory)}")
    )
    return found


def gigabytes(size: float) -> str:
    """Bytes in GiB, as `nvidia-smi` and torch count; small sizes in MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _bf16(gpu: GPU) -> str:
    return "bf16" if gpu.has_bf16 else "no bf16 (use `fp16`)"
