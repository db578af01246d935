"""VLLMColocateEngine on a real engine of vLLM (on the CPU, which cannot take new weights)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from tests.vllm.serving import ROOT, vllm_variables


pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def played(vllm_environment, model_folder):
    script = Path(__file__).with_name("engine_script.py")
    done = subprocess.run(
        [vllm_environment / "bin" / "python", script, model_folder],
        # In one process, as the trainer's engine is.
        env={**vllm_variables(), "PYTHONPATH": str(ROOT), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_replies_are_as_long_as_their_log_probabilities_and_their_limit(played):
    for k, (ids, logps, reason) in enumerate(played["first"]):
        assert len(ids) == len(logps) <= 6 + 6 * k
        assert all(logp is not None and logp <= 0 for logp in logps)
        assert (reason == "stop") == (ids[-1] == 2)


def test_short_replies_do_not_wait_for_long_ones(played):
    lengths = [len(ids) for ids, *_ in played["first"]]
    assert [lengths[k] for k in played["order_of_ends"]] == sorted(lengths)


def test_results_do_not_depend_on_the_order_of_arrival(played):
    assert all(played["is_reproducible"])


def test_a_prompt_that_is_too_long_is_refused(played):
    assert "maximum context length" in played["refusal"]


def test_abandoned_requests_leave_an_idle_engine_that_goes_on(played):
    assert played["is_cancelled"] and played["is_idle"] and played["again"] > 0
    assert played["threads"] == ["taspo-vllm-engine"]


def test_log_probabilities_are_close_to_those_of_transformers(played, model_folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16).eval()
    gaps = []
    for prompt, (ids, logps, _) in zip(played["prompts"], played["first"], strict=True):
        with torch.no_grad():
            own = model(torch.tensor([[*prompt, *ids]])).logits[0].float().log_softmax(-1)
        gaps += [abs(own[len(prompt) + k - 1, one].item() - logps[k]) for k, one in enumerate(ids)]
    assert sum(gaps) / len(gaps) < 0.1  # measured: 0.055, the rounding of bfloat16
