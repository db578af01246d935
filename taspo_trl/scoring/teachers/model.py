"""Another model in this process plays the teacher's branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigurationError
from ..distributions import Head
from ..projection import add_selected_projection, head_of
from .base import PolicyAccess
from .rollout import RolloutTeacher, detached


class ModelTeacher(RolloutTeacher):
    """Another causal language model with the policy's tokenizer; it is never trained.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The teacher, on its device.
        policy (`PolicyAccess`):
            Budget, precision and temperature of its forwards.
    """

    def __init__(self, model: Any, policy: PolicyAccess):
        model.requires_grad_(False).eval()
        add_selected_projection(model, policy.temperature, policy.in_fp32)
        super().__init__(replace(policy, get_model=lambda: model, unwrap=lambda one: one))

    def _kept_head(self, model: Any) -> Head:
        return detached(head_of(model, self.policy.temperature, self.policy.in_fp32), copied=False)

    def state_dict(self) -> dict[str, Any]:
        """Nothing of it changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing of it changes."""


def load_model(model: Any, tokenizer: Any, *, model_tokenizer: Any = None, device: Any = None, **options: Any) -> Any:
    """The teacher on its device, checked against the policy's tokenizer.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            A model id, a folder, or an instance.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            The policy's.
        model_tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            The teacher's. A model that is named brings its own; of an instance without one, only the number of
            embeddings can be checked.
        device (*optional*):
            Where it runs.
        options:
            For `from_pretrained`, for example `dtype`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if isinstance(model, str):
        model_tokenizer = model_tokenizer or AutoTokenizer.from_pretrained(model)
        model = AutoModelForCausalLM.from_pretrained(model, **{"dtype": "auto", **options})
    check_tokenizers(tokenizer, model_tokenizer or tokenizer, model)
    return model if device is None else model.to(device)


def check_tokenizers(policy: Any, teacher: Any, teacher_model: Any = None) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] unless the teacher reads the policy's token ids as the policy.

    Args:
        policy ([`~transformers.PreTrainedTokenizerBase`]), teacher ([`~transformers.PreTrainedTokenizerBase`]):
            Their tokenizers.
        teacher_model ([`~transformers.PreTrainedModel`], *optional*):
            Must have an embedding for each id.
    """
    ours, theirs = policy.get_vocab(), teacher.get_vocab()
    if ours != theirs:
        different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        raise ConfigurationError(
            f"The teacher's tokenizer differs from the policy's in {len(different)} of {len(ours)} tokens, for "
            f"example {different[0]!r} ({ours.get(different[0])} here, {theirs.get(different[0])} there). Its "
            "log-probabilities would be those of other texts. Choose a teacher of the same family."
        )
    if teacher_model is not None:
        size = teacher_model.get_input_embeddings().weight.shape[0]
        if size <= max(ours.values()):
            raise ConfigurationError(
                f"The teacher has embeddings for {size} ids, but the tokenizer has the id {max(ours.values())}. "
                "Choose a teacher that was made for this tokenizer."
            )
