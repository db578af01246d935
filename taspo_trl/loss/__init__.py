"""Rows, micro-batches and the objective (E8)."""

from .objective import LossTerms, taspo_loss, token_sums


__all__ = ["LossTerms", "taspo_loss", "token_sums"]
