"""Next-token learning on demonstrated turns: the one implementation of a warm start.

On one device, without an engine. Everything that is random follows from the seed, so that a recipe gives the same
policy on machines of one kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn to imitate."""

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]


@dataclass(frozen=True)
class Imitation:
    """How demonstrations are learned.

    Args:
        num_steps (`int`), batch_size (`int`, *optional*, defaults to `32`):
            Optimizer steps and turns in each; fewer turns than `batch_size` are all taken at every step.
        learning_rate (`float`, *optional*, defaults to `1e-5`):
            AdamW, linear decay to 0.
        prompt_loss (`float`, *optional*, defaults to `0.0`):
            Weight of the language-model loss on prompts, beside 1.0 on replies.
        seed (`int`, *optional*, defaults to `0`):
            Order of the turns.
        micro_batch_tokens (`int`, *optional*):
            Bound on rows x longest row of one forward; the gradients of a step are those of the whole batch. If
            `None`, a batch is one forward.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    num_steps: int
    batch_size: int = 32
    learning_rate: float = 1e-5
    prompt_loss: float = 0.0
    seed: int = 0
    micro_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_size", "learning_rate", "micro_batch_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"`{name}` must be positive, got {value!r}.")
        if not self.prompt_loss >= 0:
            raise ConfigurationError(f"`prompt_loss` must not be negative, got {self.prompt_loss!r}.")


def imitate(
    model: Any,
    data: Sequence[Demonstration],
    settings: Imitation,
    pad_token_id: int,
    on_step: Callable[[int, float], None] | None = None,
) -> Any:
    """`model` after imitating `data`, in eval mode; its parameters that require gradients are trained in place.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            On its device. In bfloat16 where the hardware multiplies it, with weights of the type that they have.
        data (`Sequence[Demonstration]`):
            Turns to imitate.
        settings (`Imitation`):
            How.
        pad_token_id (`int`):
            Fills rows; it is masked.
        on_step (`Callable`, *optional*):
            Called with (step, loss) after each step.

    Raises:
        ConfigurationError: there is nothing to imitate.
    """
    import torch

    from ..config import has_bf16_cpu, has_bf16_gpu

    if not data:
        raise ConfigurationError("There is no turn to imitate: no recorded episode is a verified success.")
    rng = random.Random(settings.seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(iter(trained)).device.type
    has_bf16 = has_bf16_cpu() if device == "cpu" else has_bf16_gpu()
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / settings.num_steps)
    model.train()
    batch_size = min(settings.batch_size, len(data))
    batches: list[list[int]] = []
    for step in range(settings.num_steps):
        if not batches:
            batches = _batches([len(one.prompt_ids) for one in data], batch_size, rng)
        batch = [data[place] for place in batches.pop()]
        parts = [
            _Rows(rows, settings.prompt_loss, pad_token_id, trained[0].device) for rows in _parts(batch, settings)
        ]
        total = sum(part.weights[:, 1:].sum() for part in parts)
        value = 0.0
        for part in parts:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=has_bf16):
                loss = part.weighted_losses(model).sum() / total
            loss.backward()
            value += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if on_step is not None:
            on_step(step + 1, value)
    return model.eval()


_POOL = 8
"""Batches that are drawn together and sorted by length: blocks make some prompts three times as long as others."""


def _batches(lengths: list[int], batch_size: int, rng: random.Random) -> list[list[int]]:
    """One pass over the data in random batches of rows of similar length; what does not fill a batch is left out."""
    order = rng.sample(range(len(lengths)), len(lengths))
    batches = []
    for start in range(0, len(order), _POOL * batch_size):
        pool = sorted(order[start : start + _POOL * batch_size], key=lengths.__getitem__)
        batches += [pool[k : k + batch_size] for k in range(0, len(pool) - batch_size + 1, batch_size)]
    rng.shuffle(batches)
    return batches


def _parts(batch: Sequence[Demonstration], settings: Imitation) -> Iterator[Sequence[Demonstration]]:
    """The batch in forwards of at most `micro_batch_tokens`, a row that is longer by itself alone."""
    part: list[Demonstration] = []
    width = 0
    for one in batch:
        length = len(one.prompt_ids) + len(one.reply_ids)
        limit = settings.micro_batch_tokens
        if part and limit is not None and max(width, length) * (len(part) + 1) > limit:
            yield part
            part, width = [], 0
        part.append(one)
        width = max(width, length)
    yield part


class _Rows:
    """Demonstrations as tensors [B, L]: ids, mask (1 = token of the row) and the weight of each token's loss."""

    def __init__(self, batch: Sequence[Demonstration], prompt_loss: float, pad_token_id: int, device: Any):
        import torch

        width = max(len(one.prompt_ids) + len(one.reply_ids) for one in batch)
        ids = torch.full((len(batch), width), pad_token_id)
        weights, mask = torch.zeros(len(batch), width), torch.zeros(len(batch), width, dtype=torch.long)
        for row, one in enumerate(batch):
            start, end = len(one.prompt_ids), len(one.prompt_ids) + len(one.reply_ids)
            ids[row, :end] = torch.tensor(one.prompt_ids + one.reply_ids)
            mask[row, :end] = 1
            weights[row, 1:start] = prompt_loss
            weights[row, start:end] = 1.0
        self.ids, self.mask, self.weights = ids.to(device), mask.to(device), weights.to(device)

    def weighted_losses(self, model: Any) -> Any:
        """The loss of each token but the first, times its weight [B, L - 1]."""
        import torch

        logits = model(input_ids=self.ids, attention_mask=self.mask).logits
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), self.ids[:, 1:].flatten(), reduction="none"
        ).view(len(self.ids), -1)
        return losses * self.weights[:, 1:]
