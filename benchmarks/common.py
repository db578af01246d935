"""What all benchmarks share: facts about the machine, and a results file."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


RESULTS = Path(__file__).parent / "results"


def machine_facts() -> dict[str, Any]:
    """Processor, memory, load and versions: what a number means nothing without."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        **{name: found for name in ("torch", "transformers", "trl", "litellm") if (found := _version(name))},
    }


def save(name: str, results: dict[str, Any]) -> Path:
    """Write `benchmarks/results/<name>.json` with the machine's facts."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine_facts(), **results}, indent=2) + "\n")
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
