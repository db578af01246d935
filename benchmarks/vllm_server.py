"""What server mode does through the HTTP server of a real vLLM: continuous generation, and agreement with the trainer.

    python benchmarks/vllm_server.py [--url http://localhost:8000 --model FOLDER] [--episodes 12]

- barrier: the same episodes, with the same seeds, generated continuously and with a barrier for each turn (a turn's
  requests go out when the last environment has answered, and wait for one another's replies).
- agreement: |log pi of the trainer's model - log pi of the engine| of sampled tokens, in float32 and bfloat16.

Without `--url` it starts SmolLM2-135M on the CPU, in the environment of `tests/vllm/make_environment.sh`, once for
each precision. Prints tables and writes `benchmarks/results/vllm_server.json`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import save
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.base import PromptTemplate
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import Generation, GenerationRequest, SamplingSettings
from taspo_trl.generation.vllm_server import VLLMServer, VLLMServerEngine
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups


ROOT = Path(__file__).resolve().parents[1]
SYSTEM = "You live in a small house and look for things. Think aloud for as long as you need, then act. " * 4
MAX_TURNS = 6
MAX_NEW_TOKENS = 48
REPEATS = 2
DELAYS = (0.0, 0.5, 2.0)


class Waiting(TextEnvironment):
    """Answers after a while: most at once, some late, as retrievers and web pages do; episodes differ in length."""

    prompt = PromptTemplate(
        first=SYSTEM + "\n{task}\n{observation}",
        later=SYSTEM + "\n{task}\n{history}\n{observation}",
        reply="{observation}",
        history_item="{observation} > {action}",
    )
    max_turns = MAX_TURNS
    mean_seconds = 0.0

    def reset(self, *, seed: int, number: int, **row: Any) -> ResetResult:
        self._random = random.Random(number)
        self._left = self._random.randint(2, MAX_TURNS)
        return ResetResult(f"You are in room {number}.", {"task": f"Find thing {number}."})

    def step(self, action: str) -> StepResult:
        time.sleep(self._random.expovariate(1 / self.mean_seconds) if self.mean_seconds else 0.0)
        self._left -= 1
        return StepResult(f"Nothing here. {self._left} rooms are left.", 0.0, self._left <= 0, False, {})


class Barrier:
    """A policy that generates turn by turn, as an engine does that is called once for all."""

    def __init__(self, policy: VLLMServerEngine):
        self._policy = policy
        self._queue: list[tuple[GenerationRequest, Future[Generation]]] = []

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self._policy.begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        future: Future[Generation] = Future()
        self._queue.append((request, future))
        return future

    def flush(self) -> None:
        queue, self._queue = self._queue, []
        running = [self._policy.submit(request) for request, _ in queue]
        wait(running)
        for (_, future), done in zip(queue, running, strict=True):
            future.set_result(done.result())


def play(policy: Any, tokenizer: Any, num_episodes: int) -> tuple[float, list]:
    """(seconds, trajectories) of one batch of episodes."""
    specs = [
        spec for number in range(num_episodes) for spec in plan_groups([{"number": number}], 1, 0, 0, f"r0-{number}")
    ]
    pool = EnvironmentPool({None: Waiting}, "thread")
    try:
        policy.begin(SamplingSettings(), 0)
        started = time.perf_counter()
        trajectories = play_episodes(
            specs,
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(tokenizer),
            settings=RolloutSettings(max_completion_length=MAX_NEW_TOKENS, model_window=2048),
        )
        return time.perf_counter() - started, trajectories
    finally:
        pool.close()


def measure_barrier(policy: VLLMServerEngine, tokenizer: Any, num_episodes: int) -> list[dict[str, Any]]:
    """Seconds of a rollout batch in both ways, for environments without and with a delay."""
    found = []
    play(policy, tokenizer, 4)  # the server compiles and warms up
    for mean_seconds in DELAYS:
        Waiting.mean_seconds = mean_seconds
        seconds: dict[str, list[float]] = {"continuous": [], "barrier": []}
        num_turns = num_tokens = 0
        for _ in range(REPEATS):  # in turn, so that a busy machine disturbs both alike
            for name, one in (("continuous", policy), ("barrier", Barrier(policy))):
                taken, trajectories = play(one, tokenizer, num_episodes)
                seconds[name].append(taken)
                turns = [turn for t in trajectories for turn in t.turns]
                num_turns, num_tokens = len(turns), sum(len(turn.reply_ids) for turn in turns)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        found.append(
            {
                "environment_mean_seconds": mean_seconds,
                "episodes": num_episodes,
                "turns": num_turns,
                "reply_tokens": num_tokens,
                "continuous_seconds": round(medians["continuous"], 2),
                "barrier_seconds": round(medians["barrier"], 2),
                "barrier_over_continuous": round(medians["barrier"] / medians["continuous"], 2),
                "all_seconds": {name: [round(one, 2) for one in values] for name, values in seconds.items()},
            }
        )
    return found


def measure_agreement(policy: VLLMServerEngine, tokenizer: Any, folder: str, engine_dtype: str) -> list[dict]:
    """Differences of log-probabilities between the engine and transformers, on replies of the engine."""
    questions = ["Name a colour.", "Count to five.", "Say hello to a friend.", "What is a mug used for?"]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False)
        for q in questions
    ]
    policy.begin(SamplingSettings(), 0)
    requests = [GenerationRequest(tuple(p), 48, f"{q}-{k}") for q, p in enumerate(prompts) for k in range(4)]
    futures = [policy.submit(request) for request in requests]
    played = [(request, future.result()) for request, future in zip(requests, futures, strict=True)]
    found = []
    for dtype in ("float32", "bfloat16"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        gaps, sums = [], []
        for request, generation in played:
            whole = torch.tensor([[*request.prompt_ids, *generation.reply_ids]])
            with torch.no_grad():
                logps = model(whole).logits[0].float().log_softmax(-1)
            start = len(request.prompt_ids)
            own = [logps[start + k - 1, one].item() for k, one in enumerate(generation.reply_ids)]
            differences = [a - b for a, b in zip(own, generation.logps or (), strict=True)]
            gaps += [abs(one) for one in differences]
            sums.append(sum(differences))
        found.append(
            {
                "engine": engine_dtype,
                "trainer": dtype,
                "tokens": len(gaps),
                "mean": statistics.fmean(gaps),
                "max": max(gaps),
                "largest_sequence_difference": max(map(abs, sums)),
            }
        )
    return found


@contextmanager
def served(options: argparse.Namespace, dtype: str) -> Iterator[tuple[str, str]]:
    """(address, model folder) of a server."""
    if options.url:
        yield options.url, options.model
        return
    sys.path.insert(0, str(ROOT))
    from taspo_trl.quickstart.smollm2 import smollm2_folder
    from tests.vllm.serving import Serving, make_environment

    make_environment()
    folder = smollm2_folder()
    with tempfile.TemporaryDirectory() as logs, Serving(folder, Path(logs) / "vllm.log", dtype) as serving:
        yield serving.url, str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a running server; its weights must be those of --model")
    parser.add_argument("--model", help="the model folder that --url serves")
    parser.add_argument("--episodes", type=int, default=12)
    options = parser.parse_args()
    if bool(options.url) != bool(options.model):
        parser.error("--url and --model belong together")

    results: dict[str, Any] = {"barrier": [], "agreement": []}
    for dtype in ("as served",) if options.url else ("bfloat16", "float32"):
        with served(options, dtype) as (url, folder):
            tokenizer = AutoTokenizer.from_pretrained(folder)
            server = VLLMServer(url, timeout=600.0)
            results["server"] = {"max_model_length": server.check().max_model_length}
            policy = VLLMServerEngine(server, stop_token_ids=[tokenizer.eos_token_id])
            if not results["barrier"]:
                results["barrier"] = measure_barrier(policy, tokenizer, options.episodes)
            results["agreement"] += measure_agreement(policy, tokenizer, folder, dtype)
            server.close()
    show(results)
    print(save("vllm_server", results))


def show(results: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table("environment (mean s)", "episodes", "turns", "tokens", "continuous s", "barrier s", "ratio")
    for row in results["barrier"]:
        table.add_row(
            *(
                str(row[name])
                for name in (
                    "environment_mean_seconds",
                    "episodes",
                    "turns",
                    "reply_tokens",
                    "continuous_seconds",
                    "barrier_seconds",
                    "barrier_over_continuous",
                )
            )
        )
    console.print(table)
    table = Table("engine", "trainer", "tokens", "mean |difference|", "max", "largest of a sequence")
    for row in results["agreement"]:
        numbers = (f"{row[name]:.2e}" for name in ("mean", "max", "largest_sequence_difference"))
        table.add_row(row["engine"], row["trainer"], str(row["tokens"]), *numbers)
    console.print(table)


if __name__ == "__main__":
    main()
