"""The policy objective on tensors (docs/method.md, E8).

Pure tensor arithmetic over a flat list of N loss tokens: any rows, any micro-batch, any process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossTerms:
    """What [`taspo_loss`] computed. N = number of loss tokens."""

    loss: torch.Tensor
    """Scalar: sum over tokens of c_itk * l_itk."""
    policy_loss: torch.Tensor
    """Scalar, detached: the clipped surrogate's share of `loss`."""
    kl: torch.Tensor | None
    """(N,) k3 estimate of KL(pi || pi_ref), detached; None without a reference."""
    is_low_clipped: torch.Tensor
    """(N,) bool: the ratio left the region below and A < 0."""
    is_high_clipped: torch.Tensor
    """(N,) bool: the ratio left the region above and A > 0."""


def token_sums(terms: LossTerms, entropies: torch.Tensor, coefficients: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums over the loss tokens that count, for metrics that average over tokens, micro-batches and processes.

    Args:
        terms (`LossTerms`):
            Of one micro-batch.
        entropies (`torch.Tensor` of shape `(N,)`), coefficients (`torch.Tensor` of shape `(N,)`):
            As in [`taspo_loss`]; tokens with coefficient 0 do not count.
    """
    real = (coefficients != 0).to(entropies.dtype)
    sums = {
        "tokens": real.sum(),
        "policy_loss": terms.policy_loss,
        "entropy": (entropies.detach() * real).sum(),
        "clip_low": (terms.is_low_clipped * real).sum(),
        "clip_high": (terms.is_high_clipped * real).sum(),
    }
    if terms.kl is not None:
        sums["kl"] = (terms.kl * real).sum()
    return sums


def clip_shares(terms: LossTerms, coefficients: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The shares of each row's tokens that are clipped below and above: what TRL takes the extremes of.

    Args:
        terms (`LossTerms`), coefficients (`torch.Tensor` of shape `(N,)`):
            As in [`token_sums`]; tokens with coefficient 0 do not count.
        rows (`torch.Tensor` of shape `(N,)`):
            Index of each token's row in its micro-batch.

    Returns:
        `torch.Tensor` of shape `(R, 2)`: low and high, for the rows that have a token that counts.
    """
    real = (coefficients != 0).to(terms.loss.dtype)
    columns = torch.stack([real, terms.is_low_clipped * real, terms.is_high_clipped * real], dim=1)
    num_rows = int(rows.max()) + 1 if rows.numel() else 0
    sums = columns.new_zeros(num_rows, 3).index_add_(0, rows, columns)
    sums = sums[sums[:, 0] > 0]
    return sums[:, 1:] / sums[:, :1]


def taspo_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    coefficients: torch.Tensor,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    delta: float | None = 3.0,
    ref_logps: torch.Tensor | None = None,
    beta: float = 0.0,
    use_bias_correction_kl: bool = False,
    entropies: torch.Tensor | None = None,
    entropy_coef: float = 0.0,
    importance_ratio: torch.Tensor | None = None,
) -> LossTerms:
    """L = sum over tokens of c * l (E8).

    l = -min(min(r, delta) * A~, clip(r, 1 - eps_low, 1 + eps_high) * A~) + beta * k3 - entropy_coef * H with the ratio
    r = exp(logp - old_logp). For delta > 1 + eps_high this is PPO's dual clip with c = delta. KL and entropy are
    averaged with the same coefficients.

    Args:
        logps (`torch.Tensor` of shape `(N,)`):
            log pi of each sampled token, with gradient.
        old_logps (`torch.Tensor` of shape `(N,)`):
            log pi_old of the same tokens.
        advantages (`torch.Tensor` of shape `(N,)`):
            A~_it = A_i * w_it of the token's turn (or token).
        coefficients (`torch.Tensor` of shape `(N,)`):
            c_itk; 0 for tokens that do not count.
        epsilon_low (`float`, *optional*, defaults to `0.2`), epsilon_high (`float`, *optional*, defaults to `0.2`):
            Ratio clip.
        delta (`float`, *optional*, defaults to `3.0`):
            Upper bound of the ratio for A < 0; None = none.
        ref_logps (`torch.Tensor` of shape `(N,)`, *optional*):
            log pi_ref; needed when `beta` is not 0.
        beta (`float`, *optional*, defaults to `0.0`):
            KL coefficient.
        use_bias_correction_kl (`bool`, *optional*, defaults to `False`):
            TRL's option: multiply the KL by the ratio.
        entropies (`torch.Tensor` of shape `(N,)`, *optional*):
            Entropy at each position, with gradient; needed when `entropy_coef` is not 0.
        entropy_coef (`float`, *optional*, defaults to `0.0`):
            Entropy bonus.
        importance_ratio (`torch.Tensor` of shape `(N,)`, *optional*):
            pi_old / pi_engine, already truncated or masked; multiplies the surrogate only, as in TRL.
    """
    ratio = torch.exp(logps - old_logps)
    clipped = torch.clamp(ratio, 1 - epsilon_low, 1 + epsilon_high)
    bounded = ratio if delta is None else torch.clamp(ratio, max=delta)
    surrogate = -torch.min(bounded * advantages, clipped * advantages)
    if importance_ratio is not None:
        surrogate = surrogate * importance_ratio
    per_token = surrogate
    kl = None
    if beta != 0.0:
        if ref_logps is None:
            raise ValueError("`ref_logps` is needed when `beta` is not 0.")
        log_ratio = ref_logps - logps
        kl = torch.exp(log_ratio) - log_ratio - 1  # k3
        if use_bias_correction_kl:
            kl = kl * ratio
        per_token = per_token + beta * kl
    if entropy_coef != 0.0:
        if entropies is None:
            raise ValueError("`entropies` are needed when `entropy_coef` is not 0.")
        per_token = per_token - entropy_coef * entropies
    return LossTerms(
        loss=(coefficients * per_token).sum(),
        policy_loss=(coefficients * surrogate).sum().detach(),
        kl=kl.detach() if kl is not None else None,
        is_low_clipped=(ratio.detach() < 1 - epsilon_low) & (advantages < 0),
        is_high_clipped=(ratio.detach() > 1 + epsilon_high) & (advantages > 0),
    )
