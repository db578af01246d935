"""Paired log-probabilities: the frozen rollout policy's view of its own tokens with and without guidance (E3).

Both branches run in the same engine with the same numerics. The positions before the splice point are the same in
both, so they are computed once: each branch continues from the same keys and values. With an empty block both
continuations are the same computation, and the shift is 0 exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..rows import insert_block, pack_rows
from .projection import SelectedOutput, cache_keyword


Forward = Callable[..., SelectedOutput]
"""`forward(input_ids=..., attention_mask=..., selected_positions=..., selected_targets=...)` of the policy."""


@dataclass(frozen=True, slots=True)
class PairedRow:
    """A row to be scored with and without a guidance block."""

    ids: tuple[int, ...]
    splice_index: int
    """The block goes before `ids[splice_index]`; at least `MIN_SPLICE_INDEX`."""
    block_ids: tuple[int, ...]
    positions: tuple[int, ...]
    """Indices into `ids` of the tokens whose log-probability is needed, all >= `splice_index`."""


@dataclass(frozen=True, slots=True)
class PairedLogps:
    """log pi_old(y | h) and log pi_old(y | P, h) of a row's positions."""

    plain: tuple[float, ...]
    guided: tuple[float, ...]


def score_pairs(
    model: Any,
    rows: Sequence[PairedRow],
    *,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Forward | None = None,
    num_batches: int | None = None,
) -> list[PairedLogps]:
    """Score every row in both branches, in length-sorted token-budget batches.

    Args:
        model:
            The policy with [`~taspo_trl.scoring.projection.add_selected_projection`], already frozen (eval mode, no
            gradient).
        rows (`Sequence[PairedRow]`):
            What to score; the result has the same order.
        max_tokens (`int`):
            Bound on rows x (longest row + block) of a batch.
        pad_token_id (`int`, *optional*, defaults to `0`):
            Fills the rectangle; never attended to.
        forward (`Callable`, *optional*):
            How the policy is called; defaults to `model`.
        num_batches (`int`, *optional*):
            At least this many batches are run, the missing ones on a dummy row, because sharded models need the same
            number of forwards on every process.

    Returns:
        `list[PairedLogps]`: plain floats, as the model gave them; non-finite values are the caller's to judge.
    """
    call = forward or model
    batches = _plan(rows, max_tokens)
    results: list[PairedLogps | None] = [None] * len(rows)
    for batch in batches:
        for index, scored in zip(
            batch, _score_batch(model, call, [rows[i] for i in batch], pad_token_id), strict=True
        ):
            results[index] = scored
    for _ in range((num_batches or 0) - len(batches)):
        _score_batch(model, call, [_DUMMY], pad_token_id)
    return [result for result in results if result is not None]


def num_score_batches(rows: Sequence[PairedRow], max_tokens: int) -> int:
    """How many batches [`score_pairs`] makes of `rows`."""
    return len(_plan(rows, max_tokens))


_DUMMY = PairedRow(ids=(0, 0, 0), splice_index=2, block_ids=(), positions=(2,))


def _plan(rows: Sequence[PairedRow], max_tokens: int) -> list[list[int]]:
    # Rows with an empty block share no batch with others: padding would differ between their branches, and with it the
    # last bits that make an empty block's shift exactly 0.
    plan: list[list[int]] = []
    for is_empty in (False, True):
        members = [i for i, row in enumerate(rows) if (len(row.block_ids) == 0) is is_empty]
        lengths = [len(rows[i].ids) + len(rows[i].block_ids) for i in members]
        plan.extend([members[k] for k in batch] for batch in pack_rows(lengths, max_tokens))
    return plan


def _score_batch(model: Any, call: Forward, rows: list[PairedRow], pad_token_id: int) -> list[PairedLogps]:
    # One position of the common prefix stays in the continuation: it predicts the first spliced token's successor
    # even where the reply follows at once.
    starts = [row.splice_index - 1 for row in rows]
    device = next(model.parameters()).device
    prefix = _shared_prefix(model, call, rows, starts, pad_token_id, device)
    branches = []
    for is_guided in (False, True):
        blocks = [row.block_ids if is_guided else () for row in rows]
        sequences = [insert_block(row.ids, row.splice_index, block) for row, block in zip(rows, blocks, strict=True)]
        wanted = [[p + len(block) for p in row.positions] for row, block in zip(rows, blocks, strict=True)]
        if prefix is None:
            branches.append(_full_logps(call, sequences, wanted, pad_token_id, device))
        else:
            branches.append(_continued_logps(model, call, prefix, sequences, starts, wanted, pad_token_id, device))
    return [PairedLogps(tuple(plain), tuple(guided)) for plain, guided in zip(*branches, strict=True)]


@dataclass(frozen=True)
class _Prefix:
    """Keys and values of the common prefixes, left-aligned, and which of them are real."""

    cache: Any
    mask: torch.Tensor  # (B, W), 1 = real


def _shared_prefix(
    model: Any, call: Forward, rows: list[PairedRow], starts: list[int], pad_token_id: int, device: torch.device
) -> _Prefix | None:
    """The cache of `ids[:start]` of each row; None for models whose cache cannot be continued twice."""
    input_ids, mask = _rectangle([row.ids[:start] for row, start in zip(rows, starts, strict=True)], pad_token_id)
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    output = call(
        input_ids=input_ids.to(device),
        attention_mask=mask.to(device),
        use_cache=True,
        selected_positions=nothing,
        selected_targets=nothing,
    )
    return _Prefix(output.cache, mask.to(device)) if _is_plain_cache(output.cache) else None


def _is_plain_cache(cache: Any) -> bool:
    """Whether every layer keeps all keys and values, appended by concatenation."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    return type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)


def _continued_logps(
    model: Any,
    call: Forward,
    prefix: _Prefix,
    sequences: list[tuple[int, ...]],
    starts: list[int],
    wanted: list[list[int]],
    pad_token_id: int,
    device: torch.device,
) -> list[list[float]]:
    tails = [sequence[start:] for sequence, start in zip(sequences, starts, strict=True)]
    input_ids, mask = _rectangle(tails, pad_token_id)
    positions = torch.tensor(starts).unsqueeze(1) + torch.arange(input_ids.shape[1])  # (B, W') absolute positions
    # Appending concatenates into new tensors, so a shallow copy leaves the prefix as it was for the other branch.
    cache = copy.copy(prefix.cache)
    cache.layers = [copy.copy(layer) for layer in prefix.cache.layers]
    selected, targets = _selection(input_ids.shape[1], sequences, starts, wanted)
    output = call(
        input_ids=input_ids.to(device),
        attention_mask=torch.cat([prefix.mask, mask.to(device)], dim=1),
        position_ids=positions.to(device),
        use_cache=True,
        selected_positions=selected.to(device),
        selected_targets=targets.to(device),
        **{_cache_keyword_of(model): cache},
    )
    return _split(output.logps, wanted)


def _full_logps(
    call: Forward, sequences: list[tuple[int, ...]], wanted: list[list[int]], pad_token_id: int, device: torch.device
) -> list[list[float]]:
    input_ids, mask = _rectangle(sequences, pad_token_id)
    selected, targets = _selection(input_ids.shape[1], sequences, [0] * len(sequences), wanted)
    output = call(
        input_ids=input_ids.to(device),
        attention_mask=mask.to(device),
        use_cache=False,
        selected_positions=selected.to(device),
        selected_targets=targets.to(device),
    )
    return _split(output.logps, wanted)


def _selection(
    width: int, sequences: list[tuple[int, ...]], starts: list[int], wanted: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat positions whose distribution predicts the wanted tokens, and these tokens."""
    selected = [row * width + (p - 1 - start) for row, start in enumerate(starts) for p in wanted[row]]
    targets = [sequence[p] for sequence, places in zip(sequences, wanted, strict=True) for p in places]
    return torch.tensor(selected, dtype=torch.long), torch.tensor(targets, dtype=torch.long)


def _rectangle(sequences: Sequence[Sequence[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, W) ids, padded on the right, and the mask of real positions (1 = real)."""
    width = max(len(sequence) for sequence in sequences)
    input_ids = torch.full((len(sequences), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(sequences), width), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return input_ids, mask


def _split(values: torch.Tensor | None, wanted: list[list[int]]) -> list[list[float]]:
    flat = iter([] if values is None else values.double().tolist())
    return [[next(flat) for _ in places] for places in wanted]


def _cache_keyword_of(model: Any) -> str:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return cache_keyword(base)
