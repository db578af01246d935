"""Whether our forwards say what a model's own forward says: LM head, right padding, and keys shared by two branches.

A few random tokens, once, before a trainer or an analysis scores anything. A model class may do more to its hidden
states than the projection knows, or may place its keys otherwise than a continuation expects; both would be wrong in
silence.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import ConfigurationError
from ..generation.frozen import frozen_mode
from ..rows import insert_block
from .paired import PairedRow, continue_from_shared_keys, score_pairs
from .projection import backbone_of, cache_keyword, selected_forward


logger = logging.getLogger(__name__)

_LARGE_LOGIT = 30.0
"""Small models have small logits, which a soft cap hardly bends: hidden states are stretched until it would show."""
_MIN_VOCABULARY = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found; differences are the largest ones of log-probabilities, in nats.

    Args:
        refused (`str`, *optional*, defaults to `""`):
            Why the model would be trained wrongly.
        skipped (`str`, *optional*, defaults to `""`):
            Why nothing could be compared.
        difference (`float`, *optional*, defaults to `0.0`):
            Of the selected forward from the model's own.
        continues (`bool`, *optional*, defaults to `True`):
            Whether both branches may continue from the keys and values of their common prefix.
        why_whole (`str`, *optional*, defaults to `""`):
            Why not; empty also where the cache itself is of a kind that [`~taspo_trl.scoring.paired.score_pairs`]
            never continues.
    """

    refused: str = ""
    skipped: str = ""
    difference: float = 0.0
    continues: bool = True
    why_whole: str = ""


def require_reproduction(
    model: Any, temperature: float = 1.0, *, is_sharded: bool = False, gather: Callable[[list], list] = list
) -> Finding:
    """Refuse a model whose log-probabilities would be wrong; score in whole forwards where shared keys would be.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The causal language model itself, with [`~taspo_trl.scoring.projection.add_selected_projection`].
        temperature (`float`, *optional*, defaults to `1.0`):
            As given to it.
        is_sharded (`bool`, *optional*, defaults to `False`):
            Whether no process has all weights: nothing is compared then.
        gather (`Callable`, *optional*):
            All processes' lists, joined: they must come to one decision, since they run the same forwards.

    Returns:
        [`Finding`]: of this process, with the common decision in `continues`.

    Raises:
        ConfigurationError: the selected forward differs from the model's own.
    """
    own = Finding(skipped="its weights are sharded") if is_sharded else compare(model, temperature)
    found: Sequence[Finding] = gather([own])
    refused = next((one.refused for one in found if one.refused), None)
    if refused is not None:
        raise ConfigurationError(refused)
    continues = all(one.continues for one in found)
    continue_from_shared_keys(model, continues)
    if own.skipped:
        logger.info("%s was not compared with its own forward: %s.", type(model).__name__, own.skipped)
    reason = next((one.why_whole for one in found if one.why_whole), None)
    if reason is not None:
        warnings.warn(reason, UserWarning, stacklevel=4)
    return replace(own, continues=continues)


def compare(model: Any, temperature: float = 1.0) -> Finding:
    """Compare a model with its own forward. No gradient; every flag is as before afterwards.

    Args:
        model ([`~transformers.PreTrainedModel`]), temperature (`float`, *optional*, defaults to `1.0`):
            As in [`require_reproduction`].
    """
    unseen = _why_unseen(model)
    if unseen:
        return Finding(skipped=unseen)
    name = type(model).__name__
    with torch.no_grad(), frozen_mode(model):
        pairs = _pairs(model)
        rows = [insert_block(pair.ids, pair.splice_index, pair.blocks[0]) for pair in pairs]
        try:
            truth = [_own_logps(model, row, temperature) for row in rows]
        except Exception as error:  # a model that cannot run alone is the training's to report
            return Finding(skipped=f"its own forward raises {type(error).__name__}")
        largest = max(largest for _, largest in truth)
        if not all(torch.isfinite(logps).all() for logps, _ in truth):
            return Finding(skipped="its log-probabilities are not finite")
        try:
            selected = _selected_logps(model, rows)
            difference = _largest_difference(selected, [logps for logps, _ in truth])
            stretch = max(1.0, _LARGE_LOGIT / max(largest, 1e-3))
            with _stretched(model, stretch) as calls:
                stretched, reached = _own_logps(model, rows[-1], temperature)
                # Some (OPT) call a part of their backbone: the hook of the whole would stretch our side alone.
                is_seen = bool(calls)
                bent = _largest_difference(_selected_logps(model, rows[-1:]), [stretched]) if is_seen else 0.0
        except Exception as error:
            return Finding(refused=_refusal(name, f"it raises {type(error).__name__}: {str(error)[:200]}"))
        for value, logit in ((difference, largest), (bent, reached)):
            if not value <= _tolerance(model, logit):
                return Finding(
                    refused=_refusal(name, f"log-probabilities differ by up to {value:.3g}"), difference=value
                )
        return _compare_continued(model, pairs, truth, largest, max(difference, 0.0))


def _refusal(name: str, what: str) -> str:
    return (
        f"{name} computes its logits in a way that this package does not reproduce: {what}. Its forward does more "
        "than backbone, LM head, a factor and a soft cap, or minds padding on the right. Use another model class "
        "(docs/models.md lists what passes)."
    )


def _compare_continued(
    model: Any, pairs: list[PairedRow], truth: list[tuple[torch.Tensor, float]], largest: float, difference: float
) -> Finding:
    keyword, continued = cache_keyword(model), []

    def forward(**inputs: Any) -> Any:
        continued.append(keyword in inputs)
        return model(**inputs)

    try:
        scored = score_pairs(model, pairs, max_tokens=1_000_000, forward=forward)
    except Exception as error:
        away = f"it raises {type(error).__name__}"
    else:
        if not any(continued):
            return Finding(difference=difference, continues=False)
        wanted = [
            logps[[p + len(pair.blocks[0]) - 1 for p in pair.positions]]
            for pair, (logps, _) in zip(pairs, truth, strict=True)
        ]
        got = [torch.tensor(one.guided[0], dtype=torch.float64) for one in scored]
        value = _largest_difference(got, wanted)
        if value <= 2 * _tolerance(model, largest):
            return Finding(difference=difference)
        away = f"log-probabilities differ by up to {value:.3g}"
    return Finding(
        difference=difference,
        continues=False,
        why_whole=(
            f"{type(model).__name__} cannot continue from shared keys with padding between ({away}): both branches "
            "of a pair are scored in whole forwards, which is exact and slower."
        ),
    )


def _why_unseen(model: Any) -> str:
    for parameter in model.parameters():
        if parameter.device.type == "meta":
            return "its weights are on the meta device"
        if hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor"):
            return "its weights are sharded"
    if len(_ordinary_ids(model)) < _MIN_VOCABULARY:
        return "its vocabulary is too small"
    return ""


def _ordinary_ids(model: Any) -> list[int]:
    """Ids without a meaning of their own: a padding or image token is treated apart by some models."""
    config = model.config.get_text_config()
    special: set[int] = set()
    for one in (model.config, config):
        for name, value in vars(one).items():
            if name.endswith(("_id", "_ids", "_index")):
                special |= {v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)}
    size = min(getattr(config, "vocab_size", 2048), model.get_output_embeddings().weight.shape[0], 2048)
    return [token for token in range(size) if token not in special]


def _pairs(model: Any) -> list[PairedRow]:
    """Two rows whose prefixes, tails and blocks all differ in length, so that each kind of padding occurs."""
    generator, ids = torch.Generator().manual_seed(0), _ordinary_ids(model)

    def draw(size: int) -> tuple[int, ...]:
        return tuple(ids[k] for k in torch.randint(0, len(ids), (size,), generator=generator).tolist())

    return [
        PairedRow(draw(11), 4, (draw(3),), tuple(range(4, 11))),
        PairedRow(draw(14), 9, (draw(2),), tuple(range(9, 14))),
    ]


def _own_logps(model: Any, row: tuple[int, ...], temperature: float) -> tuple[torch.Tensor, float]:
    """(n - 1,) log-probabilities of a row's tokens after the first, by the model's own logits; the largest logit."""
    input_ids = torch.tensor([row], device=_device(model))
    output = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False)
    logits = output.logits[0].double() / temperature
    logps = torch.log_softmax(logits[:-1], dim=-1).gather(-1, input_ids[0, 1:, None].to(logits.device))
    return logps.squeeze(-1).cpu(), float(output.logits.abs().max())


def _selected_logps(model: Any, rows: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """The same by the projection, in one rectangle that is padded on the right."""
    width, device = max(map(len, rows)), _device(model)
    padding = _ordinary_ids(model)[0]
    tensors = {
        "input_ids": torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], device=device),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device),
        "positions": torch.tensor([k * width + p for k, row in enumerate(rows) for p in range(len(row) - 1)]).to(
            device
        ),
        "targets": torch.tensor([token for row in rows for token in row[1:]], device=device),
    }
    logps = selected_forward(model, tensors).logps.double().cpu()
    return list(logps.split([len(row) - 1 for row in rows]))


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device


@contextlib.contextmanager
def _stretched(model: Any, factor: float) -> Iterator[list[None]]:
    """The backbone's last hidden states times `factor` inside; the list grows with each call of the backbone."""
    calls: list[None] = []

    def stretch(module: Any, args: Any, output: Any) -> Any:
        calls.append(None)
        if isinstance(output, tuple):
            return (output[0] * factor, *output[1:])
        output.last_hidden_state = output.last_hidden_state * factor
        return output

    handle = backbone_of(model).register_forward_hook(stretch)
    try:
        yield calls
    finally:
        handle.remove()


def _largest_difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def _tolerance(model: Any, largest_logit: float) -> float:
    """What rounding alone can do to a log-probability, generously: in 16 bits, logits are steps apart."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes == {torch.float64}:
        return 1e-5 + 1e-6 * largest_logit
    if any(not dtype.is_floating_point or dtype.itemsize <= 2 for dtype in dtypes):
        return 0.03 + 2**-7 * largest_logit
    uses_tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return 2e-3 + (2e-3 if uses_tf32 else 1e-4) * largest_logit
