"""How a trajectory's outcome advantage is dealt to its turns: one file for each rule."""

from .taspo import action_support, assign_credit, credit_weights, token_weights


__all__ = ["action_support", "assign_credit", "credit_weights", "token_weights"]
