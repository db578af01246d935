"""The generalised Jensen-Shannon divergence between two distributions over the same outcomes, per token.

Pure tensor arithmetic. Its gradient is written down instead of derived, so that it is 0 exactly where the branches are
the same, and so that no intermediate value of the size of the vocabulary is kept for the backward.
"""

from __future__ import annotations

import math

import torch


def divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """beta * KL(T || M) + (1 - beta) * KL(S || M) with M = (1 - beta) * S + beta * T.

    At the ends this is 0 everywhere; there, as in TRL's GKD, `beta` 0 stands for KL(T || S) and 1 for KL(S || T).

    Args:
        student (`torch.Tensor` of shape `(N, V)`):
            log S, with gradient. Each row is a whole distribution: the gradient leaves out what cancels for those.
        teacher (`torch.Tensor` of shape `(N, V)`):
            log T, each row a whole distribution. Minus infinity = impossible, in either.
        beta (`float`):
            0 to 1.

    Returns:
        `torch.Tensor` of shape `(N,)`.
    """
    with torch.no_grad():
        log_s, log_t = student.detach(), teacher.detach()
        s, t = log_s.exp(), log_t.exp()
        gap = log_t - log_s
        if beta == 0.0:
            value, slope = _times(t, gap), s - t
        elif beta == 1.0:
            slope = _times(s, -gap)
            value = slope
        else:
            from_s, from_t = _log_mixture(gap, beta)
            slope = (1 - beta) * _times(s, -from_s)
            value = beta * _times(t, -from_t) + slope
        value = value.sum(-1)
    # slope is the derivative with respect to log S, up to a multiple of S, which does not move a distribution.
    moving = torch.where(log_s > -math.inf, student - log_s, 0.0)
    return value + (slope * moving).sum(-1)


def _log_mixture(gap: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """log M - log S and log M - log T of gap = log T - log S; 0 exactly for gap 0, without overflow."""
    below = torch.log1p(beta * torch.expm1(gap.clamp(max=0.0)))
    above = torch.log1p((1 - beta) * torch.expm1(-gap.clamp(min=0.0)))
    is_above = gap > 0
    return torch.where(is_above, gap + above, below), torch.where(is_above, above, below - gap)


def _times(probabilities: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    """p * log, 0 where p is 0."""
    return torch.where(probabilities > 0, probabilities * logs, 0.0)


def renormalised(logps: torch.Tensor) -> torch.Tensor:
    """(N, K) log-probabilities of some outcomes as a distribution over these alone."""
    return logps - logps.logsumexp(-1, keepdim=True)


def with_tail(top_logps: torch.Tensor, tail_logps: torch.Tensor) -> torch.Tensor:
    """(N, K + 1): some outcomes, and all others as one."""
    return torch.cat([top_logps, tail_logps.unsqueeze(-1)], dim=-1)


def bounded_ratio(logps: torch.Tensor, old_logps: torch.Tensor, cap: float | None) -> torch.Tensor | float:
    """pi / pi_old without gradient, at most `cap`; 1 without a cap."""
    if cap is None:
        return 1.0
    return (logps - old_logps).detach().clamp(max=math.log(cap)).exp()
