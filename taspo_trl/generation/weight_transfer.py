"""Opens the weight-transfer group between the trainer and a vLLM server, without waiting longer than it may.

The tensors then go through TRL's `VLLMClient`. Its own start-up is replaced: it has no time limits, and joins the
rendezvous before it looks whether the server came.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import torch

from ..errors import ConfigurationError, MissingDependencyError, ServiceError
from .vllm_server import START_COMMAND, ServerFacts, VLLMServer


logger = logging.getLogger(__name__)

_REFUSAL_SECONDS = 1.0


def open_client(server: VLLMServer, *, group_port: int, device: torch.device) -> Any:
    """TRL's client, connected for weight updates. Called on the main process only.

    Args:
        server (`VLLMServer`):
            A server that is up.
        group_port (`int`):
            TRL's `vllm_group_port`.
        device (`torch.device`):
            Where the main process has its weights.

    Raises:
        ConfigurationError: the server or the trainer's device cannot exchange weights.
        MissingDependencyError: vllm is not installed beside the trainer.
        ServiceError: the server refuses, or does not join within the time-out.
    """
    facts = server.facts or server.check()
    check_transfer(server.url, facts, device)
    trl_client = _trl_client()
    info: dict[str, Any] = {
        "master_address": trl_client.get_ip(),
        "master_port": group_port,
        "rank_offset": 1,  # the trainer is rank 0
        "world_size": _num_workers(server) + 1,
    }
    if trl_client._HAS_STATEFUL_TRAINER_ENGINE:
        info["packed"] = True
        join_group = trl_client.open_trainer_endpoint
    else:
        join_group = trl_client.NCCLWeightTransferEngine.trainer_init

    def join(info: Mapping[str, Any]) -> Any:
        if device.index is not None:
            torch.cuda.set_device(device)  # of this thread; vLLM joins on the current device
        return join_group(dict(info))

    communicator = meet(server, info, join)
    client = trl_client.VLLMClient(base_url=server.client.base_url, group_port=group_port)
    client.communicator = communicator
    atexit.register(client.close_communicator)
    return client


def check_transfer(url: str, facts: ServerFacts, device: torch.device) -> None:
    """Refuse what cannot take weights, before anything is opened."""
    if facts.has_weight_transfer is None:
        raise ConfigurationError(
            f"The vLLM server at {url} does not expose its development endpoints, through which weights are "
            f"synchronised. Restart it with `{START_COMMAND}`."
        )
    if not facts.has_weight_transfer:
        raise ConfigurationError(
            f"The vLLM server at {url} has no weight-transfer engine. Restart it with `{START_COMMAND}`."
        )
    if device.type != "cuda":
        raise ConfigurationError(
            f"Weights go to the vLLM server at {url} through NCCL, which needs a CUDA device; the trainer runs on "
            f"{str(device)!r}. Train on a GPU, or generate with transformers (`use_vllm=False`)."
        )


def warn_about_logprobs(url: str, facts: ServerFacts) -> None:
    """The importance-sampling correction needs log-probabilities after temperature, as scoring has them."""
    if facts.logprobs_mode not in (None, "processed_logprobs"):
        logger.warning(
            "The vLLM server at %s runs with `--logprobs-mode %s`, which biases the importance-sampling correction. "
            "Restart it with `--logprobs-mode processed_logprobs`, or set "
            "`vllm_importance_sampling_correction=False`.",
            url,
            facts.logprobs_mode,
        )


def meet(server: VLLMServer, info: Mapping[str, Any], join: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Tell the server to open the group, and open the trainer's side of it.

    A server that refuses does so at once; one that agrees answers only after both sides have joined. Hence the
    trainer joins a moment later, and nothing is left waiting in a rendezvous to which the server does not come.

    Args:
        server (`VLLMServer`), info (`Mapping`):
            Whom to ask, and what for.
        join (`Callable`):
            Opens the trainer's side; blocks until the server has joined.
    """
    answer = server.client.start(
        server.client.post("/init_weight_transfer_engine", {"init_info": dict(info)}, server.timeout)
    )
    try:
        wait([answer], _REFUSAL_SECONDS)
        if answer.done():
            answer.result()
        joined: Future[Any] = Future()
        threading.Thread(target=_run, args=(joined, join, info), name="taspo-vllm-join", daemon=True).start()
        done, _ = wait([joined, answer], server.timeout, FIRST_COMPLETED)
        if answer in done:
            answer.result()
        communicator = joined.result(server.timeout)
        answer.result(server.timeout)
    except TimeoutError as error:
        raise _not_joined(server, info, "it did not join in time") from error
    except ServiceError as error:
        raise _not_joined(server, info, str(error)) from error
    finally:
        answer.cancel()
    return communicator


def _num_workers(server: VLLMServer) -> int:
    try:
        return int(server.client.start(server.client.get("/get_world_size", server.timeout)).result()["world_size"])
    except (ServiceError, KeyError, TypeError, ValueError) as error:
        raise ServiceError(
            f"The vLLM server at {server.url} does not say how many workers it has (`/get_world_size`): {error}. "
            f"Restart it with `{START_COMMAND}`."
        ) from error


def _run(future: Future[Any], function: Callable[..., Any], *arguments: Any) -> None:
    with contextlib.suppress(Exception):
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # it belongs to whoever waits for the future
            future.set_exception(error)


def _not_joined(server: VLLMServer, info: Mapping[str, Any], why: str) -> ServiceError:
    return ServiceError(
        f"The vLLM server at {server.url} did not open the weight-transfer group on {info['master_address']}:"
        f"{info['master_port']} (`vllm_server_timeout` {server.timeout:g} s): {why}. Restart the server, which may "
        "still hold the group of a run that ended; give every run its own `vllm_group_port`; and let the server and "
        "the trainer have different GPUs."
    )


def _trl_client() -> Any:
    """TRL's module with vLLM's parts in it."""
    from trl.generation import vllm_client
    from trl.import_utils import is_vllm_available

    if not is_vllm_available():
        raise MissingDependencyError(
            "Weights go to a vLLM server through vLLM's own library, which is not installed beside the trainer: "
            '`pip install -e ".[vllm]"` in the clone.'
        )
    return vllm_client
