"""A real `vllm serve` on the CPU: where its environment is, how it is started, and how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.launching import free_port


ROOT = Path(__file__).resolve().parents[2]


def environment_folder() -> Path:
    """Where the environment with vLLM is: `TASPO_VLLM_ENVIRONMENT`, else `.venv-vllm` in the project."""
    return Path(os.environ.get("TASPO_VLLM_ENVIRONMENT") or ROOT / ".venv-vllm")


def make_environment() -> Path:
    """The environment, made where it is missing (minutes, 4 GB)."""
    folder = environment_folder()
    script = Path(__file__).with_name("make_environment.sh")
    subprocess.run(
        ["bash", str(script), str(folder)], cwd=ROOT, check=True, env={**os.environ, "PYTHON": sys.executable}
    )
    return folder


def vllm_variables() -> dict[str, str]:
    """Environment variables for a small vLLM on few cores, without a network."""
    return {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Serving:
    """One running server.

    Args:
        model (`Path`):
            Model folder.
        log (`Path`):
            File for the server's output.
        dtype (`str`):
            Weights and arithmetic of the server.
        port (`int`, *optional*):
            None takes a free one.
        max_model_len (`int`, *optional*, defaults to `2048`):
            Tokens of prompt and reply.
    """

    def __init__(
        self, model: Path, log: Path, dtype: str = "bfloat16", port: int | None = None, max_model_len: int = 2048
    ):
        self.model, self.log, self.dtype = model, log, dtype
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            str(environment_folder() / "bin" / "vllm"),
            *("serve", str(model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--enforce-eager", "--dtype", dtype, "--max-model-len", str(max_model_len)),
            *("--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "nccl"}'),
        ]
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Serving:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=vllm_variables(),
                cwd=self.log.parent,
                start_new_session=True,
            )
        deadline = time.monotonic() + 400
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(1.0)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server and the processes that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for one in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, one)
                process.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def _is_up(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=2).status == 200
        except OSError:
            return False
