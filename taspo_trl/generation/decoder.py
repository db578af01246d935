"""Forwards of a causal language model over sequences whose keys and values are kept.

Every forward is told its positions and its whole mask, so that rows of any lengths go together.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .keys import Places, RowsCache


@dataclass(frozen=True)
class Feed:
    """What one forward computes.

    Args:
        rows (`Sequence[int]`):
            Row of the cache of each batch row; a range is read without copying.
        starts (`Sequence[int]`):
            How many tokens of each row's sequence are kept and valid.
        ids (`Sequence[Sequence[int]]`):
            The tokens that follow; none for a batch row that only fills a gap in a range.
    """

    rows: Sequence[int]
    starts: Sequence[int]
    ids: Sequence[Sequence[int]]


class Decoder:
    """A model with the keys and values of its sequences.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            Called as it is: adapters, quantised layers and wrappers included.
        pad_token_id (`int`):
            Stands where a batch row has no token.
    """

    def __init__(self, model: Any, pad_token_id: int):
        self._model, self._pad_token_id = model, pad_token_id
        base = base_model(model)
        parameters = inspect.signature(type(base).forward).parameters
        self._keyword = cache_keyword(parameters)
        self._options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self._is_additive = attention_of(base.config) == "eager"
        self._dtype = next((p.dtype for p in base.parameters() if p.is_floating_point()), torch.float32)
        self.cache = RowsCache(len(full_attention_layers(base.config)))

    def forward(self, feed: Feed) -> torch.Tensor:
        """(B, V) logits behind the last token of every batch row, and the new keys and values in their places."""
        device = self._model.device
        ids, positions, places = _tensors(feed, self._pad_token_id)
        self.cache.place(places)
        positions = positions.to(device)
        # A token sees the columns up to its own position; padding sees column 0, so that no row is masked whole.
        mask = torch.arange(places.width, device=device) <= positions[:, None, :, None]  # (B, 1, M, W)
        with torch.no_grad():
            output = self._model(
                input_ids=ids.to(device),
                position_ids=positions,
                attention_mask=self._additive(mask) if self._is_additive else mask,
                use_cache=True,
                **{self._keyword: self.cache},
                **self._options,
            )
        return output.logits[:, -1]

    def _additive(self, mask: torch.Tensor) -> torch.Tensor:
        least = torch.finfo(self._dtype).min
        return torch.zeros(mask.shape, dtype=self._dtype, device=mask.device).masked_fill_(~mask, least)


def _tensors(feed: Feed, padding: int) -> tuple[torch.Tensor, torch.Tensor, Places]:
    """(B, M) ids and positions, padded on the left, and the places of their keys."""
    sizes = [len(one) for one in feed.ids]
    most = max(sizes)
    ids = torch.tensor([[padding] * (most - len(one)) + list(one) for one in feed.ids])
    starts, lengths = torch.tensor(feed.starts), torch.tensor(sizes)
    offsets = torch.arange(most) - (most - lengths[:, None])  # (B, M), negative in the padding
    is_real = offsets >= 0
    positions = torch.where(is_real, starts[:, None] + offsets, 0)
    source = is_real.nonzero(as_tuple=True)
    rows = torch.tensor(feed.rows)
    consecutive = range(feed.rows[0], feed.rows[0] + len(feed.rows))
    places = Places(
        rows=consecutive if list(feed.rows) == list(consecutive) else rows,
        width=max(start + size for start, size in zip(feed.starts, sizes, strict=True) if size),
        source=(source[0], source[1]),
        target=(rows[source[0]], positions[is_real]),
    )
    return ids, positions, places


def base_model(model: Any) -> Any:
    """The transformers model inside an adapter, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def cache_keyword(parameters: Any) -> str:
    """The name of the key-value cache argument: newer transformers renamed it to `cache`."""
    return "cache" if "cache" in parameters else "past_key_values"


def attention_of(config: Any) -> str:
    """The attention implementation of the text model."""
    return getattr(config.get_text_config(decoder=True), "_attn_implementation", None) or "eager"


def full_attention_layers(config: Any) -> list[Any]:
    """The layers of the cache that transformers would make; empty unless every one keeps all keys and nothing else."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    layers = list(DynamicCache(config=config).layers)
    return layers if all(type(layer) is DynamicLayer for layer in layers) else []


def keeps_all_keys(config: Any) -> bool:
    """Whether every layer's cache keeps all keys, appended in their order."""
    try:
        return bool(full_attention_layers(config))
    except Exception:  # configurations that transformers' own cache does not read
        return False


def disagreement(model: Any, ids: Sequence[int], pad_token_id: int) -> str:
    """What is wrong with forwards over kept keys, by a few of them; empty when they say what the model's own says.

    Two sequences of different lengths are begun, one is cut, both are extended.

    Args:
        ids (`Sequence[int]`):
            Any tokens; 12 or fewer are used.
    """
    drawn = (list(ids) * 12)[:12]
    long, short = drawn, drawn[3:10]
    expected = []
    for row in (long, short):
        input_ids = torch.tensor([row], device=model.device)
        with torch.no_grad():
            output = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False)
        expected.append(output.logits[0, -1].cpu().double())
    try:
        decoder = Decoder(model, pad_token_id)
        decoder.cache.resize(3, 16, ())
        decoder.forward(Feed((0, 1), (0, 0), (long[:9] + short[:1], short[:4])))
        decoder.cache.copy(1, (2,), 4)
        found = decoder.forward(Feed((0, 2), (9, 3), (long[9:11], short[3:6])))
        found = decoder.forward(Feed(range(3), (11, 0, 6), (long[11:], (), short[6:])))[[0, 2]].cpu().double()
    except Exception as error:  # whatever a model class raises that is not made for this
        return f"it raises {type(error).__name__}: {str(error)[:200]}"
    away = max(
        float((one.log_softmax(-1) - other.log_softmax(-1)).abs().max())
        for one, other in zip(found, expected, strict=True)
    )
    largest = max(float(one.abs().max()) for one in expected)
    # Under autocast logits come in float32 although keys and products are halves; TF32 keeps three digits.
    bound = largest * max(
        1e-3, 16 * max(torch.finfo(one).eps for one in (output.logits.dtype, decoder.cache.kept_dtype) if one)
    )
    return "" if away <= bound else f"log-probabilities differ by {away:.3g}, at most {bound:.3g} would be rounding"
