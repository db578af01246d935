"""Whether our forwards say what a model's own forward says: LM head, padding or none, and keys shared by two branches.

A few random tokens, once, before a trainer or an analysis scores anything. A model class may do more to its hidden
states than the projection knows, or may place its keys otherwise than a continuation expects; both would be wrong in
silence.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.utils.generic import is_flash_attention_requested

from ..errors import ConfigurationError
from ..generation.frozen import frozen_mode
from ..rows import insert_block
from .layout import lay_out, run_without_padding, runs_without_padding
from .paired import PairedRow, continue_from_shared_keys, score_pairs
from .projection import backbone_of, cache_keyword, selected_forward


logger = logging.getLogger(__name__)

_LARGE_LOGIT = 30.0
"""Small models have small logits, which a soft cap hardly bends: hidden states are stretched until it would show."""
_MIN_VOCABULARY = 8
_SLOW_WITHOUT_PADDING = {"eager": "up to 8 times", "sdpa": "up to 1.7 times"}
"""Implementations of attention that know no rows, and what a row of rows costs with them (docs/scaling.md)."""


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
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether rows stand one behind the other in a forward.
        why_padded (`str`, *optional*, defaults to `""`):
            Why not, where it was looked into.
    """

    refused: str = ""
    skipped: str = ""
    difference: float = 0.0
    continues: bool = True
    why_whole: str = ""
    padding_free: bool = False
    why_padded: str = ""


def require_reproduction(
    model: Any,
    temperature: float = 1.0,
    *,
    is_sharded: bool = False,
    gather: Callable[[list], list] = list,
    padding_free: bool | None = False,
) -> Finding:
    """Refuse a model whose log-probabilities would be wrong; score in whole forwards where shared keys would be.

    Says for all forwards behind it whether rows are padded.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The causal language model itself, with [`~taspo_trl.scoring.projection.add_selected_projection`].
        temperature (`float`, *optional*, defaults to `1.0`):
            As given to it.
        is_sharded (`bool`, *optional*, defaults to `False`):
            Whether no process has all weights: nothing is compared then.
        gather (`Callable`, *optional*):
            All processes' lists, joined: they must come to one decision, since they run the same forwards.
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether rows are to stand one behind the other; None = where the model runs with flash attention and
            allows it.

    Returns:
        [`Finding`]: of this process, with the common decisions in `continues` and `padding_free`.

    Raises:
        ConfigurationError: the selected forward differs from the model's own, or rows without padding are asked for
            and do so.
    """
    if padding_free is None:
        padding_free, is_asked = is_flash_attention_requested(model.config.get_text_config()), False
    else:
        is_asked = padding_free
    if is_sharded:
        own = _with_padding(Finding(skipped="its weights are sharded"), _why_padded(model) if padding_free else None)
    else:
        own = compare(model, temperature, padding_free=padding_free)
    found: Sequence[Finding] = gather([own])
    refused = next((one.refused for one in found if one.refused), None)
    if refused is not None:
        raise ConfigurationError(refused)
    continues = all(one.continues for one in found)
    continue_from_shared_keys(model, continues)
    packs = all(one.padding_free for one in found)
    run_without_padding(model, packs)
    why_padded = next((one.why_padded for one in found if one.why_padded), "")
    if is_asked and why_padded:
        raise ConfigurationError(f"`padding_free` is True, but {why_padded}. Leave it out: rows are then padded.")
    if why_padded:
        logger.info("Rows are padded: %s.", why_padded)
    attention = getattr(model.config.get_text_config(), "_attn_implementation", None)
    if packs and attention in _SLOW_WITHOUT_PADDING:
        warnings.warn(
            f"`padding_free` is True with `{attention}` attention, which computes each row against all rows of the "
            f"forward and masks the result: forward and backward take {_SLOW_WITHOUT_PADDING[attention]} as long as "
            "with padding (measured on a CPU). Leave `padding_free` out, or load the model with flash attention "
            "(`model_init_kwargs: {attn_implementation: flash_attention_2}`).",
            UserWarning,
            stacklevel=4,
        )
    if own.skipped:
        logger.info("%s was not compared with its own forward: %s.", type(model).__name__, own.skipped)
    reason = next((one.why_whole for one in found if one.why_whole), None)
    if reason is not None:
        warnings.warn(reason, UserWarning, stacklevel=4)
    return replace(own, continues=continues, padding_free=packs)


def why_training_differs(model: Any) -> str:
    """Why training computes something else than the frozen policy does (dropout, jitter); empty where it does not.

    Args:
        model:
            With [`~taspo_trl.scoring.projection.add_selected_projection`], in whatever adapters it trains with.
    """
    # A fresh adapter adds nothing yet, so that its dropout would not show in a forward.
    rates = [one.p for one in model.modules() if isinstance(one, torch.nn.modules.dropout._DropoutNd)]
    for one in getattr(model, "peft_config", {}).values():
        rates += [value for name, value in vars(one).items() if name.endswith("dropout") and value]
    if any(rates):
        return "it has dropout"
    device = _device(model)
    if device.type not in ("cpu", "cuda"):
        return f"random numbers of {device.type} cannot be put back"
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    with torch.no_grad(), frozen_mode(model), torch.random.fork_rng(devices):
        try:
            rows = [pair.ids for pair in _pairs(model)]
            frozen = _selected_logps(model, rows)
            model.train()
            is_alike = all(map(torch.equal, frozen, _selected_logps(model, rows)))
        except Exception as error:  # a model that cannot run alone is the training's to report
            return f"its forward raises {type(error).__name__}"
    return "" if is_alike else "a forward of training says something else than one of evaluation"


def compare(model: Any, temperature: float = 1.0, *, padding_free: bool = False) -> Finding:
    """Compare a model with its own forward. No gradient; every flag is as before afterwards.

    Args:
        model ([`~transformers.PreTrainedModel`]), temperature (`float`, *optional*, defaults to `1.0`):
            As in [`require_reproduction`].
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether rows without padding are looked into.
    """
    why_padded = _why_padded(model) if padding_free else None
    unseen = _why_unseen(model)
    if unseen:
        return _with_padding(Finding(skipped=unseen), why_padded)
    name = type(model).__name__
    with torch.no_grad(), frozen_mode(model):
        pairs = _pairs(model)
        rows = [insert_block(pair.ids, pair.splice_index, pair.blocks[0]) for pair in pairs]
        try:
            truth = [_own_logps(model, row, temperature) for row in rows]
        except Exception as error:  # a model that cannot run alone is the training's to report
            return _with_padding(Finding(skipped=f"its own forward raises {type(error).__name__}"), why_padded)
        largest = max(largest for _, largest in truth)
        if not all(torch.isfinite(logps).all() for logps, _ in truth):
            return _with_padding(Finding(skipped="its log-probabilities are not finite"), why_padded)
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
        if why_padded == "":
            why_padded = _why_rows_mix(model, rows, truth, largest)
        before = runs_without_padding(model)
        run_without_padding(model, why_padded == "")
        try:
            found = _compare_continued(model, pairs, truth, largest, max(difference, 0.0))
        finally:
            run_without_padding(model, before)
        return _with_padding(found, why_padded)


def _with_padding(found: Finding, why_padded: str | None) -> Finding:
    """With what was found of rows without padding: None = not looked into, "" = they are right."""
    return replace(found, padding_free=why_padded == "", why_padded=why_padded or "")


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


_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers that see the same distances wherever in a row a sequence stands."""


def _why_padded(model: Any) -> str:
    """Why rows of this model cannot stand one behind the other, as far as its class tells; empty = nothing says so."""
    base, config = backbone_of(model), model.config.get_text_config()
    name = type(model).__name__
    if "position_ids" not in inspect.signature(type(base).forward).parameters:
        return f"the forward of {type(base).__name__} takes no `position_ids`, which would tell rows apart"
    if getattr(model, "_is_stateful", False):
        return f"{name} carries a state from token to token, over the end of a row"
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if kinds or getattr(config, "alibi", False):
        return f"{name} attends by places in the batch ({kinds[0] if kinds else 'alibi'})"
    return ""


def _why_rows_mix(
    model: Any, rows: list[tuple[int, ...]], truth: list[tuple[torch.Tensor, float]], largest: float
) -> str:
    """What is wrong with two rows one behind the other; empty = nothing."""
    name = type(model).__name__
    try:
        together = _selected_logps(model, rows, padding_free=True)
        (_, beside_another) = _selected_logps(model, [rows[0][::-1], rows[1]], padding_free=True)
    except Exception as error:
        return f"{name} cannot compute rows one behind the other: it raises {type(error).__name__}: {str(error)[:200]}"
    away = _largest_difference(together, [logps for logps, _ in truth])
    if not away <= _tolerance(model, largest):
        return f"{name} does not keep rows one behind the other apart: log-probabilities differ by up to {away:.3g}"
    seen = _largest_difference([beside_another], together[1:])
    if not seen <= _tolerance(model, largest) / 100:
        return f"{name} lets a row see the one before it: log-probabilities differ by up to {seen:.3g}"
    return ""


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


def _selected_logps(model: Any, rows: list[tuple[int, ...]], padding_free: bool = False) -> list[torch.Tensor]:
    """The same by the projection, in one rectangle that is padded on the right, or without padding."""
    layout = lay_out(rows, padding_free=padding_free, pad_token_id=_ordinary_ids(model)[0])
    starts = zip(layout.starts, rows, strict=True)
    tensors = {
        **layout.inputs,
        "positions": torch.tensor([start + p for start, row in starts for p in range(len(row) - 1)]),
        "targets": torch.tensor([token for row in rows for token in row[1:]]),
    }
    device = _device(model)
    logps = selected_forward(model, {name: one.to(device) for name, one in tensors.items()}).logps.double().cpu()
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
