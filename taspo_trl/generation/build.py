"""The engine that a trainer plays with, whatever it is: its weights, its place in a step, its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from trl.models import unwrap_model_for_generation

from ..errors import ConfigurationError
from . import sync_watch, vllm_llm, weight_transfer
from .base import Engine
from .checks import check_adapters, check_unquantized
from .engine_parameters import EngineParameters
from .transformers import TransformersEngine
from .vllm_colocate import VLLMColocateEngine
from .vllm_server import VLLMServer, VLLMServerEngine
from .weight_sync import ServerWeights, WeightSync


def _nothing() -> None:
    """For engines that have nothing to do here."""


class Weights(Protocol):
    """How the policy's weights reach an engine."""

    def before_generation(self, step: int) -> bool:
        """Bring those of optimizer step `step`, unless they are there; whether anything was brought."""

    def forget(self) -> None:
        """What the engine has may be other weights from here on."""


class SharedWeights:
    """The engine samples with the very model that is trained: there is nothing to bring."""

    def before_generation(self, step: int) -> bool:
        return False

    def forget(self) -> None:
        pass


@dataclass(frozen=True)
class HostedEngine:
    """An engine in a trainer: what samples, and what every process does around it."""

    engine: Engine
    weights: Weights
    max_model_length: int | None = None
    """Tokens of prompt and reply together; None = the model's window."""
    has_own_weights: bool = True
    """Whether it samples from a copy of the policy's weights."""
    check: Callable[[], object] = _nothing
    """Raises when the engine is not there any more, or not the one of before."""
    check_unchanged: Callable[[], None] = _nothing
    """Called when all episodes here have ended; raises when what was generated may come from other weights."""
    wake: Callable[[], None] = _nothing
    rest: Callable[[], None] = _nothing
    """Give up what is unfinished, and memory that is needed for generation only."""
    close: Callable[[], None] = _nothing

    @contextlib.contextmanager
    def generating(self, step: int) -> Iterator[float]:
        """Generation is allowed inside, with the weights of optimizer step `step`.

        Every process enters at the same time. Yields the seconds that loading the weights took.
        """
        self.check()
        started = time.perf_counter()
        self.weights.before_generation(step)
        seconds = time.perf_counter() - started
        self.wake()
        try:
            yield seconds
            self.check_unchanged()
        finally:
            self.rest()


def make_engine(
    args: Any,
    *,
    get_model: Callable[[], Any],
    get_wrapped_model: Callable[[], Any],
    accelerator: Any,
    distribution: Any,
    gather: Callable[[list], list],
    pad_token_id: int,
    eos_token_ids: list[int],
) -> HostedEngine:
    """The engine that `args` asks for, ready to play.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            `use_vllm`, TRL's `vllm_*`, `generation_tokens`, `cache_implementation`.
        get_model (`Callable`), get_wrapped_model (`Callable`):
            Give the policy as the trainer calls it now, and as it is wrapped for training.
        accelerator ([`~accelerate.Accelerator`]), distribution:
            The trainer's, and TRL's account of how the model is sharded.
        gather (`Callable`):
            All processes' lists, joined in the order of the processes.
        pad_token_id (`int`), eos_token_ids (`list[int]`):
            The tokenizer's and the model's.

    Raises:
        ServiceError, ConfigurationError: see [`make_vllm_engine`].
    """
    if args.use_vllm:
        return make_vllm_engine(args, get_model=get_model, accelerator=accelerator, stop_token_ids=eos_token_ids)

    @contextlib.contextmanager
    def unwrapped() -> Iterator[Any]:
        wrapped = get_wrapped_model()
        with (
            unwrap_model_for_generation(
                wrapped,
                accelerator,
                gather_deepspeed3_params=args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
            ) as model,
            distribution.summon_full_params(wrapped, recurse=False),
        ):
            yield model

    is_sharded = distribution.is_zero3 or distribution.is_fsdp
    engine = TransformersEngine(
        get_model(),
        pad_token_id=pad_token_id,
        eos_token_ids=eos_token_ids,
        batch_tokens=args.generation_tokens,
        cache_implementation=args.cache_implementation,
        unwrap=unwrapped,
        most=(lambda number: max(gather([number]))) if is_sharded and accelerator.num_processes > 1 else None,
        is_sharded=is_sharded,
        in_step=args.full_determinism,
    )
    return HostedEngine(
        engine, SharedWeights(), has_own_weights=False, check_unchanged=engine.finish, rest=engine.drop
    )


def make_vllm_engine(
    args: Any, *, get_model: Callable[[], Any], accelerator: Any, stop_token_ids: list[int]
) -> HostedEngine:
    """The engine that `args` asks for, ready to take weights.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            TRL's `vllm_*` options.
        get_model (`Callable`):
            Gives the policy as the trainer calls it now.
        accelerator ([`~accelerate.Accelerator`]):
            Processes and devices.
        stop_token_ids (`list[int]`):
            End tokens.

    Raises:
        ServiceError: the server is not up within `vllm_server_timeout`, or does not open the weight-transfer group.
        ConfigurationError: the engine cannot do what the options ask for.
    """
    check_unquantized(args, get_model())
    check_adapters(get_model(), accelerator)
    parameters = EngineParameters(get_model, accelerator)
    make = _make_server_engine if args.vllm_mode == "server" else _make_colocate_engine
    engine = make(args, get_model(), parameters, accelerator, stop_token_ids)
    try:
        assert engine.max_model_length is not None
        _check_length(args, get_model(), engine.max_model_length)
        # vLLM's start takes processes differently long, which DeepSpeed and collective time limits do not forgive.
        accelerator.wait_for_everyone()
    except BaseException:
        engine.close()
        raise
    return engine


def server_url(args: Any) -> str:
    """The server's address in TRL's options."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


def _make_server_engine(
    args: Any, model: Any, parameters: EngineParameters, accelerator: Any, stop_token_ids: list[int]
) -> HostedEngine:
    server = VLLMServer(server_url(args), args.vllm_server_timeout)
    try:
        facts = server.check()
        client = None
        if accelerator.is_main_process:
            if args.vllm_importance_sampling_correction:
                weight_transfer.warn_about_logprobs(server.url, facts)
            client = weight_transfer.open_client(server, group_port=args.vllm_group_port, device=accelerator.device)
    except BaseException:
        server.close()
        raise
    policy = VLLMServerEngine(
        server, stop_token_ids=stop_token_ids, structured_outputs_regex=args.vllm_structured_outputs_regex
    )
    reason = (
        f"The vLLM server at {server.url} took no weights for `vllm_server_timeout` ({server.timeout:g} s): it is "
        "gone, hangs or was restarted. This process ends, since the exchange cannot be interrupted. See the server's "
        "log; start it again and resume from the last checkpoint."
    )
    sink = ServerWeights(client, lambda: sync_watch.watched(server.timeout, reason))

    def close() -> None:
        policy.abandon()
        sink.close()
        server.close()

    return HostedEngine(
        policy,
        WeightSync(parameters, sink),
        facts.max_model_length,
        check=server.check,
        check_unchanged=server.check_unchanged,
        rest=policy.abandon,
        close=close,
    )


def _make_colocate_engine(
    args: Any, model: Any, parameters: EngineParameters, accelerator: Any, stop_token_ids: list[int]
) -> HostedEngine:
    llm = vllm_llm.make_llm(args, model, accelerator)
    sink = vllm_llm.ColocateWeights(llm, args.vllm_enable_sleep_mode)
    weights = WeightSync(parameters, sink)
    device = accelerator.device
    policy = VLLMColocateEngine(
        llm.llm_engine,
        make_parameters=vllm_llm.parameter_maker(args.vllm_structured_outputs_regex),
        stop_token_ids=stop_token_ids,
        prepare_thread=lambda: torch.cuda.set_device(device) if device.type == "cuda" else None,
    )

    def rest() -> None:
        policy.abandon()
        if sink.sleep():
            weights.forget()

    return HostedEngine(
        policy,
        weights,
        llm.llm_engine.model_config.max_model_len,
        wake=sink.wake,
        rest=rest,
        close=policy.close,
    )


def _check_length(args: Any, model: Any, max_model_length: int) -> None:
    """Refuse an engine that would cut prompts which the configuration allows."""
    if args.max_prompt_length is None:
        return
    wanted = args.max_prompt_length + args.max_completion_length
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or wanted
    if max_model_length < min(wanted, window):
        remedy = "`--max-model-len` of `vllm serve`" if args.vllm_mode == "server" else "`vllm_max_model_length`"
        raise ConfigurationError(
            f"vLLM takes {max_model_length} tokens of prompt and reply, but `max_prompt_length` "
            f"({args.max_prompt_length}) + `max_completion_length` ({args.max_completion_length}) need "
            f"{min(wanted, window)}. Raise {remedy}, or shorten the prompts."
        )
