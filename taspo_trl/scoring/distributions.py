"""Next-token distributions at chosen positions, reduced chunk by chunk: never (N, V) values of a whole batch at once.

A reduction turns the distributions of a few positions into what is kept of them: the top k, the values at given ids, a
divergence. With gradient, each chunk is computed again in the backward, so that one chunk's distributions are alive at
a time there too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint


CHUNK_ELEMENTS = 2**24
"""Positions x vocabulary of a chunk: 64 MiB for each tensor of float32 that a reduction makes, about 1 GiB at the peak
of a divergence's backward."""


@dataclass(frozen=True)
class Chunk:
    """The distributions of some of the positions.

    Args:
        all_logps (`torch.Tensor` of shape `(n, V)`):
            At the temperature that was asked for.
        logps (`torch.Tensor` of shape `(n,)`):
            Of the targets, at the model's own temperature.
        part (`slice`):
            Which of the positions that were asked for.
    """

    all_logps: torch.Tensor
    logps: torch.Tensor
    part: slice


Reduce = Callable[[Chunk], tuple[torch.Tensor, ...]]
"""Chunk -> tensors whose first dimension is n."""


@dataclass(frozen=True)
class Distribution:
    """What is asked of the distributions in a forward with `selected_positions`.

    Args:
        reduce (`Callable`, *optional*):
            [`Chunk`] -> what is kept; None = nothing, for `keep_hidden` alone.
        temperature (`float`, *optional*):
            The logits are divided by it; None = the model's own temperature.
        vocabulary (`int`, *optional*):
            Only the first so many ids are possible, for two models whose LM heads are padded differently; None = all.
        keep_hidden (`bool`, *optional*, defaults to `False`):
            Return the (N, H) hidden states too, detached.
        chunk (`int`, *optional*):
            Positions at once; None = as many as `CHUNK_ELEMENTS` allows.
    """

    reduce: Reduce | None = None
    temperature: float | None = None
    vocabulary: int | None = None
    keep_hidden: bool = False
    chunk: int | None = None


@dataclass(frozen=True)
class Head:
    """What turns hidden states into logits, with the weights of one moment.

    Args:
        weight (`torch.Tensor` of shape `(V, H)`), bias (`torch.Tensor` of shape `(V,)`, *optional*):
            Of the LM head.
        scale (`float`, *optional*, defaults to `1.0`), softcap (`float`, *optional*):
            What the model's own forward does to its logits.
        temperature (`float`, *optional*, defaults to `1.0`):
            The model's own.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @property
    def size(self) -> int:
        """V."""
        return self.weight.shape[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, H) -> (n, V), before any temperature, in float32 at least."""
        logits = torch.nn.functional.linear(hidden, self.weight, self.bias)
        logits = (logits if logits.dtype == torch.float64 else logits.float()) * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def log_probs(
        self, hidden: torch.Tensor, temperature: float | None = None, vocabulary: int | None = None
    ) -> torch.Tensor:
        """(n, H) -> (n, V) log-probabilities."""
        return self._log_softmax(self.logits(hidden), temperature, vocabulary)

    def _log_softmax(self, logits: torch.Tensor, temperature: float | None, vocabulary: int | None) -> torch.Tensor:
        divisor = self.temperature if temperature is None else temperature
        return torch.log_softmax(logits[:, :vocabulary] / divisor, dim=-1)

    def chunk(self, hidden: torch.Tensor, targets: torch.Tensor, asked: Distribution, part: slice) -> Chunk:
        """The distributions of a few positions."""
        logits = self.logits(hidden)
        all_logps = self._log_softmax(logits, asked.temperature, asked.vocabulary)
        if asked.temperature in (None, self.temperature) and asked.vocabulary is None:
            own = all_logps
        else:
            own = self._log_softmax(logits, None, None)
        return Chunk(all_logps, own.gather(-1, targets.unsqueeze(-1)).squeeze(-1), part)


def reduce_chunks(
    hidden: torch.Tensor, head: Head, targets: torch.Tensor, asked: Distribution
) -> tuple[torch.Tensor, ...]:
    """What `asked.reduce` gives for all positions, one chunk after the other.

    Args:
        hidden (`torch.Tensor` of shape `(N, H)`), targets (`torch.Tensor` of shape `(N,)`):
            Of the chosen positions; N > 0.
        head (`Head`):
            The LM head; gradient flows to its weights too.
        asked (`Distribution`):
            With a `reduce`.
    """
    reduce = asked.reduce
    assert reduce is not None
    size = asked.chunk or max(1, CHUNK_ELEMENTS // head.size)
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad)
    parts = []
    for start in range(0, len(hidden), size):
        part = slice(start, min(start + size, len(hidden)))

        def run(states: torch.Tensor, part: slice = part) -> tuple[torch.Tensor, ...]:
            return reduce(head.chunk(states, targets[part], asked, part))

        if needs_gradient:
            parts.append(checkpoint(run, hidden[part], use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(run(hidden[part]))
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


# ---- reductions -----------------------------------------------------------------------------------------------------


def everything(chunk: Chunk) -> tuple[torch.Tensor, ...]:
    """(N, V) log-probabilities. Their memory is not bounded: for a few positions or a small vocabulary."""
    return (chunk.all_logps,)


@dataclass(frozen=True)
class TopK:
    """(N, K) ids of the k likeliest tokens, (N, K) log-probabilities, (N,) log-probability of all others.

    Args:
        k (`int`):
            At most V are returned.
    """

    k: int

    def __call__(self, chunk: Chunk) -> tuple[torch.Tensor, ...]:
        values, ids = chunk.all_logps.topk(min(self.k, chunk.all_logps.shape[-1]), dim=-1)
        return ids, values, tail_of(chunk.all_logps, ids)


@dataclass(frozen=True)
class AtIds:
    """(N, K) log-probabilities of given ids, (N,) log-probability of all others.

    Args:
        ids (`torch.Tensor` of shape `(N, K)`):
            Different ids at each position.
    """

    ids: torch.Tensor

    def __call__(self, chunk: Chunk) -> tuple[torch.Tensor, ...]:
        ids = self.ids[chunk.part].to(chunk.all_logps.device)
        return chunk.all_logps.gather(-1, ids), tail_of(chunk.all_logps, ids)


def tail_of(all_logps: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(n,) log of the probability outside `ids`, summed up there; minus infinity where nothing is left."""
    if ids.shape[-1] >= all_logps.shape[-1]:
        return all_logps.new_full((len(all_logps),), -math.inf)
    return all_logps.scatter(-1, ids, -math.inf).logsumexp(-1)
