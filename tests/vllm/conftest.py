"""A server for each precision, started once."""

from __future__ import annotations

from pathlib import Path

import pytest

from taspo_trl.errors import MissingDependencyError
from tests.vllm.serving import Serving, make_environment


@pytest.fixture(scope="session")
def vllm_environment() -> Path:
    return make_environment()


@pytest.fixture(scope="session")
def model_folder() -> Path:
    from taspo_trl.quickstart.smollm2 import smollm2_folder

    try:
        return smollm2_folder()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=["float32", "bfloat16"])
def serving(request, vllm_environment, model_folder, tmp_path_factory):
    """SmolLM2 behind `vllm serve`."""
    log = tmp_path_factory.mktemp("vllm") / f"{request.param}.log"
    with Serving(model_folder, log, request.param) as one:
        yield one
