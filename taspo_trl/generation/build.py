"""The vLLM engine of a trainer: policy, weight synchronisation and the order in which they are used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ConfigurationError
from . import sync_watch, vllm_llm, weight_transfer
from .base import Policy
from .checks import check_adapters, check_unquantized
from .engine_parameters import EngineParameters
from .vllm_colocate import VLLMColocatePolicy
from .vllm_server import VLLMServer, VLLMServerPolicy
from .weight_sync import ServerWeights, WeightSync


def _nothing() -> None:
    """For engines that have nothing to do here."""


@dataclass(frozen=True)
class VLLMEngine:
    """An engine that holds its own copy of the weights."""

    policy: Policy
    weights: WeightSync
    max_model_length: int
    """Tokens of prompt and reply together."""
    check: Callable[[], object] = _nothing
    """Raises when the engine is not there any more, or not the one of before."""
    check_unchanged: Callable[[], None] = _nothing
    """Raises when what was generated may come from other weights."""
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


def make_vllm_engine(
    args: Any, *, get_model: Callable[[], Any], accelerator: Any, stop_token_ids: list[int]
) -> VLLMEngine:
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
) -> VLLMEngine:
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
    policy = VLLMServerPolicy(
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

    return VLLMEngine(
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
) -> VLLMEngine:
    llm = vllm_llm.make_llm(args, model, accelerator)
    sink = vllm_llm.ColocateWeights(llm, args.vllm_enable_sleep_mode)
    weights = WeightSync(parameters, sink)
    device = accelerator.device
    policy = VLLMColocatePolicy(
        llm.llm_engine,
        make_parameters=vllm_llm.parameter_maker(args.vllm_structured_outputs_regex),
        stop_token_ids=stop_token_ids,
        prepare_thread=lambda: torch.cuda.set_device(device) if device.type == "cuda" else None,
    )

    def rest() -> None:
        policy.abandon()
        if sink.sleep():
            weights.forget()

    return VLLMEngine(
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
