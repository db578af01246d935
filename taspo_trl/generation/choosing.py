"""From logits to tokens: transformers' own filters, then one number in [0, 1) for each token. No generator is touched.

The token is where the cumulative probability passes the number, so that a reply is decided by its own numbers and not
by what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import NonFiniteError
from .base import SamplingSettings


FILTERS = frozenset({"suppress_tokens", "typical_p", "epsilon_cutoff", "eta_cutoff"})
"""Keys of `generation_kwargs` that look at one position's logits only; with any other, `generate` decodes."""


class Chooser:
    """Samples as `sampling` says.

    Args:
        sampling (`SamplingSettings`):
            With no key in `extra` but those of [`FILTERS`].
        device (`torch.device`):
            Of the logits.
    """

    def __init__(self, sampling: SamplingSettings, device: torch.device):
        at: Any = device  # annotated as a string there
        from transformers.generation import logits_process as filters

        extra = sampling.extra
        self._filters: list[Any] = []
        self._is_greedy = not sampling.temperature > 0
        if extra.get("suppress_tokens") is not None:
            self._filters.append(filters.SuppressTokensLogitsProcessor(extra["suppress_tokens"], device=at))
        if self._is_greedy:
            return
        if sampling.temperature != 1.0:
            self._filters.append(filters.TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            self._filters.append(filters.TopKLogitsWarper(top_k=sampling.top_k))
        if sampling.top_p < 1.0:
            self._filters.append(filters.TopPLogitsWarper(top_p=sampling.top_p))
        if sampling.min_p is not None:
            self._filters.append(filters.MinPLogitsWarper(min_p=sampling.min_p))
        if (extra.get("typical_p") or 1.0) < 1.0:
            self._filters.append(filters.TypicalLogitsWarper(mass=extra["typical_p"]))
        if 0.0 < (extra.get("epsilon_cutoff") or 0.0) < 1.0:
            self._filters.append(filters.EpsilonLogitsWarper(epsilon=extra["epsilon_cutoff"]))
        if 0.0 < (extra.get("eta_cutoff") or 0.0) < 1.0:
            self._filters.append(filters.EtaLogitsWarper(epsilon=extra["eta_cutoff"], device=at))

    def choose(self, logits: torch.Tensor, numbers: Sequence[float]) -> list[int]:
        """One token for each row.

        Args:
            logits (`torch.Tensor`):
                (B, V).
            numbers (`Sequence[float]`):
                B numbers in [0, 1); without effect at temperature 0.

        Raises:
            NonFiniteError: a row has no probabilities.
        """
        scores = logits.float()
        for one in self._filters:
            scores = one(None, scores)
        if self._is_greedy:
            return scores.argmax(-1).tolist()
        exact = scores.softmax(-1)
        if exact.device.type == "mps":  # which has no doubles
            exact = exact.cpu()
        mass = exact.double().cumsum(-1)  # (B, V)
        if not bool(mass[:, -1].isfinite().all()):  # a search among nan would end at the last token, in silence
            raise NonFiniteError(
                "The policy's logits are no finite numbers, so no token can be sampled: its weights have diverged, or "
                "overflow in half precision. Go on from an earlier checkpoint with a lower `learning_rate`, or sample "
                "in bfloat16 or float32."
            )
        drawn = torch.tensor(numbers, dtype=torch.float64, device=mass.device)[:, None] * mass[:, -1:]
        # The first token whose mass lies beyond: never one of probability 0.
        return torch.searchsorted(mass, drawn, right=True).clamp_(max=mass.shape[-1] - 1).flatten().tolist()
