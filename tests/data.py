"""Where the tests find public benchmark data, which is never part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]


def real_data(*parts: str) -> Path:
    """The path of a file below `shared/data` beside the project (or below `TASPO_TEST_DATA`); skips where absent."""
    base = Path(os.environ.get("TASPO_TEST_DATA") or ROOT.parent / "shared" / "data")
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"public benchmark data {'/'.join(parts)} is not here (looked in {base})")
    return path
