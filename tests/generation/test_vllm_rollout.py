"""Episodes with a vLLM engine: no turn waits for another, nothing is asked for who has finished, prompts extend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from itertools import takewhile

import pytest

from taspo_trl.environments import ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.base import PromptTemplate
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import GenerationRequest, SamplingSettings
from taspo_trl.generation.vllm_colocate import VLLMColocateEngine
from taspo_trl.generation.vllm_server import VLLMServer, VLLMServerEngine
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.types import StopReason
from tests.generation.fake_engine import EOS, FakeEngine, make_parameters
from tests.generation.fake_vllm import FakeVLLM
from tests.tokenizers import byte_bpe


SYSTEM = "You walk through a house. Think first, then act. " * 3


class Walk(TextEnvironment):
    """Ends after as many steps as its row says; with `waits`, a step takes until the gate opens."""

    prompt = PromptTemplate(
        first=SYSTEM + "\n{task}\n{observation}",
        later=SYSTEM + "\n{task}\n{history}\n{observation}",
        reply="{observation}",
        history_item="{observation} > {action}",
    )
    max_turns = 8
    gate: threading.Event
    patience = 20.0

    def reset(self, *, seed: int, length: int, waits: bool = False, **row: object) -> ResetResult:
        self._left, self._waits = length, waits
        return ResetResult("the first room", {"task": f"Walk {length} rooms."})

    def step(self, action: str) -> StepResult:
        self._left -= 1
        if self._waits and not self.gate.wait(self.patience):
            raise TimeoutError("the others were held up")
        return StepResult(f"{self._left} rooms left", 0.0, self._left <= 0, False, {})


class TurnByTurn:
    """A policy as engines are called that generate for all at once: a barrier for each turn."""

    def __init__(self, policy: VLLMServerEngine):
        self._policy = policy
        self._queue: list[tuple[GenerationRequest, Future]] = []

    def begin(self, sampling: SamplingSettings, seed: int) -> None:
        self._policy.begin(sampling, seed)

    def submit(self, request: GenerationRequest) -> Future:
        self._queue.append((request, Future()))
        return self._queue[-1][1]

    def flush(self) -> None:
        queue, self._queue = self._queue, []
        running = [self._policy.submit(request) for request, _ in queue]
        wait(running)
        for (_, future), done in zip(queue, running, strict=True):
            future.set_result(done.result())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    Walk.gate = threading.Event()
    yield Walk.gate
    Walk.gate.set()


@pytest.fixture
def fake() -> Iterator[FakeVLLM]:
    with FakeVLLM() as one:
        yield one


@pytest.fixture
def policy(fake: FakeVLLM) -> Iterator[VLLMServerEngine]:
    server = VLLMServer(fake.url, 5.0)
    server.check()
    yield VLLMServerEngine(server, stop_token_ids=[EOS])
    server.close()


@pytest.fixture(params=["server", "colocate"])
def engine(request, fake, policy):
    """(policy, how many requests its engine was given)."""
    if request.param == "server":
        yield policy, lambda: len(fake.requests)
        return
    inside = FakeEngine(max_model_len=1024)
    made = VLLMColocateEngine(inside, make_parameters=make_parameters, stop_token_ids=[EOS])
    yield made, lambda: len(inside.params)
    made.close()


def play(policy, rows, num_generations=1, on_episode_end=None, **settings):
    specs = plan_groups(rows, num_generations, 0, 0, "r0")
    pool = EnvironmentPool({None: Walk}, "thread")
    policy.begin(SamplingSettings(), 0)
    try:
        return play_episodes(
            specs,
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(byte_bpe()),
            settings=RolloutSettings(max_completion_length=4, model_window=1024, **settings),
            on_episode_end=on_episode_end,
        )
    finally:
        pool.close()


def ends(policy, gate):
    """How four episodes end of which the first cannot go on before the others are over."""
    over = []

    def on_episode_end(trajectory):
        over.append(trajectory.uid)
        if len(over) == 3:
            gate.set()

    rows = [{"length": 3, "waits": True}, {"length": 5}, {"length": 1}, {"length": 4}]
    return [one.stop_reason for one in play(policy, rows, on_episode_end=on_episode_end)]


def test_episodes_play_to_their_ends_while_another_waits_for_its_environment(engine, gate):
    policy, _ = engine
    assert ends(policy, gate) == [StopReason.FAILED] * 4


def test_a_barrier_would_hold_them_up(policy, gate, monkeypatch):
    """What the test above excludes, so that it is a test of something."""
    monkeypatch.setattr(Walk, "patience", 0.5)
    assert ends(TurnByTurn(policy), gate)[0] is StopReason.ENV_ERROR


def test_finished_episodes_ask_for_nothing(engine):
    policy, num_asked = engine
    lengths = [3, 1, 4, 1, 5]
    played = play(policy, [{"length": length} for length in lengths])
    assert [len(one.turns) for one in played] == lengths
    assert num_asked() == sum(lengths)


def test_a_conversation_extends_its_prompt_token_for_token(policy, fake):
    """What vLLM's prefix cache holds is then the whole past, the sampled ids included."""
    (played,) = play(policy, [{"length": 4}], context="conversation")
    prompts = [body["prompt"] for body in fake.requests]
    assert len(prompts) == 4
    for prompt, following, turn in zip(prompts, prompts[1:], played.turns, strict=False):
        past = [*prompt, *turn.reply_ids]
        assert following[: len(past)] == past and len(following) > len(past)


def test_members_of_a_group_share_their_first_prompt_and_windows_share_their_fixed_text(policy, fake):
    play(policy, [{"length": 3}], num_generations=4, context="window")
    prompts = [body["prompt"] for body in fake.requests]
    firsts = [prompt for prompt in prompts if len(prompt) == min(map(len, prompts))]
    assert firsts == [firsts[0]] * 4
    tokenizer = byte_bpe()
    fixed = len(tokenizer.encode(SYSTEM, add_special_tokens=False))
    shared = list(takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False)))
    assert len(shared) >= fixed
