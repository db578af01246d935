"""Saved trajectories scored with a model: the paired log-probabilities that training computes, on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..errors import ConfigurationError
from ..types import Guidance, ReplyScore, Trajectory
from .pairs import ScoreScope


def score_saved(
    model: Any,
    trajectories: Sequence[Trajectory],
    guidance: Mapping[str, Guidance],
    *,
    temperature: float = 1.0,
    max_tokens: int = 16384,
    pad_token_id: int = 0,
    scope: ScoreScope | None = None,
    teacher: Any = None,
) -> dict[str, list[ReplyScore]]:
    """The scores of the turns of every guided trajectory, by trajectory uid.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The policy that sampled the trajectories; left as it is.
        trajectories (`Sequence[Trajectory]`):
            Played trajectories with their prompt ids.
        guidance (`Mapping[str, Guidance]`):
            By trajectory uid, composed with the model's tokenizer.
        temperature (`float`, *optional*, defaults to `1.0`):
            The sampling temperature.
        max_tokens (`int`, *optional*, defaults to `16384`):
            Bound on rows x longest row of a forward.
        pad_token_id (`int`, *optional*, defaults to `0`):
            Fills the rectangle; never attended to.
        scope (`ScoreScope`, *optional*):
            Which blocks and tokens. If `None`, the action under every block that a trajectory has.
        teacher (`PreTrainedModel`, *optional*):
            Another model that plays the guided branches. If `None`, `model`.

    Raises:
        ConfigurationError: the records were saved without prompt ids, or the model is of a class whose
            log-probabilities would be wrong.
    """
    import torch

    from ..generation.frozen import frozen_mode
    from ..rows import build_rows
    from .paired import score_pairs
    from .pairs import plan_pairs, scores_of, turn_scores

    is_plain = scope is not None and "" in scope.blocks
    guided = {t.uid: t for t in trajectories if is_plain or guidance.get(t.uid)}
    for t in guided.values():
        require_scorable(t)
    rows = [row for t in guided.values() for row in build_rows(t)]
    plan = plan_pairs(rows, guided, guidance, window_of(model), scope)
    with ExitStack() as stack:
        for one in (model,) if teacher is None else (model, teacher):
            stack.enter_context(projecting(one, temperature))
            stack.enter_context(frozen_mode(one))
        stack.enter_context(torch.no_grad())
        logps = score_pairs(model, plan.pairs, max_tokens=max_tokens, pad_token_id=pad_token_id, teacher=teacher)
    scores = turn_scores(plan, logps)
    return {uid: scores_of(t, scores) for uid, t in guided.items()}


def require_scorable(trajectory: Trajectory, vocab_size: int | None = None) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] for a saved trajectory that a model cannot score.

    Args:
        trajectory (`Trajectory`):
            As it was read.
        vocab_size (`int`, *optional*):
            Token ids that the model knows.
    """
    if any(turn.reply_ids and not turn.prompt_ids for turn in trajectory.turns):
        raise ConfigurationError(
            f"The record of {trajectory.uid} holds no prompt ids, so it cannot be scored. Train with "
            '`save_trajectories="full"` to keep them, or analyze without a model.'
        )
    if vocab_size is not None:
        largest = max((max(*turn.prompt_ids, *turn.reply_ids, 0, 0) for turn in trajectory.turns), default=0)
        if largest >= vocab_size:
            raise ConfigurationError(
                f"The record of {trajectory.uid} holds the token id {largest}, but the model knows {vocab_size} ids: "
                "another model has sampled it. Score with that one."
            )


@contextmanager
def projecting(model: Any, temperature: float) -> Iterator[None]:
    """The model with the projection inside, as it was afterwards.

    Raises:
        ConfigurationError: its log-probabilities would be wrong.
    """
    from ..generation.decoder import base_model
    from .projection import add_selected_projection
    from .reproduces import require_reproduction

    base = base_model(model)
    own_forward = base.__dict__.get("forward")
    add_selected_projection(base, temperature)
    try:
        require_reproduction(base, temperature)
        yield
    finally:
        del base.forward
        if own_forward is not None:
            base.forward = own_forward


def window_of(model: Any) -> int | None:
    """Positions of the model; None where it names no limit."""
    from ..generation.decoder import base_model

    return getattr(base_model(model).config.get_text_config(), "max_position_embeddings", None)
