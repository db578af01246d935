"""Brings the policy's weights to the engine that generates: once per optimizer step, before the first generation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from ..errors import ServiceError
from ..redaction import redacted, shown_address


logger = logging.getLogger(__name__)


class WeightSink(Protocol):
    """Where weights go."""

    def load(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take all weights. Iterating is collective: every process does it, and to the end.

        `parameters` may be iterated more than once.
        """


class WeightSync:
    """Loads the weights into the engine when they have changed.

    Args:
        parameters (`Iterable`):
            (name, tensor) of all weights, anew at each iteration.
        sink (`WeightSink`):
            Takes them.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]], sink: WeightSink):
        self._parameters = parameters
        self._sink = sink
        self._step: int | None = None

    def before_generation(self, step: int) -> bool:
        """Load the weights unless those of this optimizer step are loaded. Every process calls it at the same time.

        Returns:
            `bool`: whether weights were loaded.
        """
        if step == self._step:
            return False
        self._step = None  # a load that fails leaves the engine with neither the old weights nor the new
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the update may still be under way, and vLLM reads on streams of its own
        self._sink.load(self._parameters)
        self._step = step
        return True

    def forget(self) -> None:
        """Load at the next generation in any case: the engine lost its weights, or the step count starts again."""
        self._step = None


def _unwatched() -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


class ServerWeights:
    """Streams weights to a vLLM server through TRL's client, from the main process.

    Args:
        client (*optional*):
            TRL's `VLLMClient` with an open weight-transfer group; None on the other processes.
        watch (`Callable`, *optional*):
            Gives the context manager that bounds an update in time ([`~taspo_trl.generation.sync_watch.watched`]): the
            client waits without limit for a server that is gone.
    """

    def __init__(
        self, client: Any | None, watch: Callable[[], AbstractContextManager[Callable[[], None]]] = _unwatched
    ):
        self._client = client
        self._watch = watch
        self._metadata: list[tuple[str, str, list[int]]] | None = None

    def load(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._metadata is None:
            # The server wants to know every tensor before the first one comes; names and shapes never change.
            self._metadata = [(name, _dtype_name(param), list(param.shape)) for name, param in parameters]
        if self._client is None:
            for _ in parameters:
                pass
            return
        try:
            with self._watch() as progress:
                self._client.update_named_params(self._metadata, _checked(parameters, self._metadata, progress))
                self._client.reset_prefix_cache()
        except RuntimeError:  # of the trainer's own side: the walk, CUDA, NCCL
            raise
        except Exception as error:  # TRL's client raises the bare class for what the server answers
            raise ServiceError(
                f"The vLLM server at {shown_address(self._client.base_url)} did not take the weights: "
                f"{type(error).__name__}: {redacted(str(error))}. See its log; start it again and resume from the "
                "last checkpoint."
            ) from error

    def close(self) -> None:
        """Leave the weight-transfer group."""
        if self._client is not None:
            self._client.close_communicator()
            self._client.session.close()


def _checked(
    parameters: Iterable[tuple[str, torch.Tensor]],
    metadata: list[tuple[str, str, list[int]]],
    progress: Callable[[], None],
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters, in the order that was announced: the server tells tensors apart by nothing else."""
    try:
        for (name, param), announced in zip(parameters, metadata, strict=True):
            progress()
            found = (name, _dtype_name(param), list(param.shape))
            if found != announced:
                raise RuntimeError(f"The weight {found} was announced to the vLLM server as {announced}.")
            yield name, param
    except Exception:
        # Raising alone would not show it: the client first waits for the server, which waits for the next tensor.
        logger.exception("The weights for the vLLM server could not be read.")
        raise


def _dtype_name(param: torch.Tensor) -> str:
    return str(param.dtype).removeprefix("torch.")
