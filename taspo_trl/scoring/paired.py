"""Paired log-probabilities: the frozen rollout policy's view of its own tokens with and without guidance (E3).

Both branches run in the same engine with the same numerics. The positions before the splice point are the same in
both, so they are computed once: each branch continues from the same keys and values. With an empty block both
continuations are the same computation, and the shift is 0 exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..rows import insert_block, pack_rows
from .projection import SelectedOutput, cache_keyword


Forward = Callable[..., SelectedOutput]
"""`forward(input_ids=..., attention_mask=..., selected_positions=..., selected_targets=...)` of the policy."""


@dataclass(frozen=True, slots=True)
class PairedRow:
    """A row to be scored without and with one block or more."""

    ids: tuple[int, ...]
    splice_index: int
    """The blocks go before `ids[splice_index]`; at least `MIN_SPLICE_INDEX`, or 0: before the whole chat."""
    blocks: tuple[tuple[int, ...], ...]
    """One guided branch for each."""
    positions: tuple[int, ...]
    """Indices into `ids` of the tokens whose log-probability is needed, all >= `splice_index`."""


@dataclass(frozen=True, slots=True)
class PairedLogps:
    """log pi_old(y | h) and log pi_T(y | P, h) of a row's positions."""

    plain: tuple[float, ...]
    guided: tuple[tuple[float, ...], ...]
    """One entry for each block."""


_CONTINUES = "_continues_from_shared_keys"


def continue_from_shared_keys(model: Any, allowed: bool) -> None:
    """Say whether [`score_pairs`] may continue `model` from the keys of a common prefix; whole forwards otherwise."""
    setattr(_base(model), _CONTINUES, allowed)


def continues_from_shared_keys(model: Any) -> bool:
    """What [`continue_from_shared_keys`] said; yes where nobody has."""
    return getattr(_base(model), _CONTINUES, True)


Kind = tuple[int, bool, bool]
"""(number of blocks, whether one is empty, whether they stand before the chat): rows of one kind share forwards."""


def score_pairs(
    model: Any,
    rows: Sequence[PairedRow],
    *,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Forward | None = None,
    num_batches: Mapping[Kind, int] | None = None,
    teacher: Any = None,
) -> list[PairedLogps]:
    """Score every row in all its branches, in length-sorted token-budget batches.

    Args:
        model:
            The policy with [`~taspo_trl.scoring.projection.add_selected_projection`], already frozen (eval mode, no
            gradient).
        rows (`Sequence[PairedRow]`):
            What to score; the result has the same order.
        max_tokens (`int`):
            Bound on rows x (longest row + longest block) of a batch.
        pad_token_id (`int`, *optional*, defaults to `0`):
            Fills the rectangle; never attended to.
        forward (`Callable`, *optional*):
            How the policy is called; defaults to `model`.
        num_batches (`Mapping[Kind, int]`, *optional*):
            At least so many batches of each kind are run, the missing ones on a dummy row, because sharded models need
            the same number of forwards on every process.
        teacher (*optional*):
            Another model that plays the guided branches, prepared like `model`; None = `model` itself, with the keys
            and values of the common prefix shared between the branches.

    Returns:
        `list[PairedLogps]`: plain floats, as the model gave them; non-finite values are the caller's to judge.
    """
    scorer = _Scorer(model, forward or model, teacher, pad_token_id)
    batches = _plan(rows, max_tokens)
    results: list[PairedLogps | None] = [None] * len(rows)
    for kind in sorted({*batches, *(num_batches or {})}):
        for batch in batches.get(kind, ()):
            for index, scored in zip(batch, scorer.score([rows[i] for i in batch]), strict=True):
                results[index] = scored
        for _ in range((num_batches or {}).get(kind, 0) - len(batches.get(kind, ()))):
            scorer.score([_dummy(kind)])
    return [result for result in results if result is not None]


def num_score_batches(rows: Sequence[PairedRow], max_tokens: int) -> dict[Kind, int]:
    """How many batches of each kind [`score_pairs`] makes of `rows`."""
    return {kind: len(batches) for kind, batches in _plan(rows, max_tokens).items()}


def _dummy(kind: Kind) -> PairedRow:
    num_blocks, is_empty, at_start = kind
    return PairedRow((0, 0, 0), 0 if at_start else 2, (() if is_empty else (0,),) * num_blocks, (2,))


def _kind(row: PairedRow) -> Kind:
    # Rows with an empty block share no batch with others: padding would differ between their branches, and with it the
    # last bits that make an empty block's shift exactly 0.
    return len(row.blocks), any(not block for block in row.blocks), row.splice_index == 0


def _plan(rows: Sequence[PairedRow], max_tokens: int) -> dict[Kind, list[list[int]]]:
    members: dict[Kind, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(_kind(row), []).append(i)
    plan = {}
    for kind in sorted(members):
        lengths = [len(rows[i].ids) + max(map(len, rows[i].blocks)) for i in members[kind]]
        plan[kind] = [[members[kind][k] for k in batch] for batch in pack_rows(lengths, max_tokens)]
    return plan


@dataclass(frozen=True)
class _Scorer:
    """Scores batches of rows of one kind."""

    model: Any
    call: Forward
    teacher: Any
    pad_token_id: int

    def score(self, rows: list[PairedRow]) -> list[PairedLogps]:
        # One position of the common prefix stays in the continuation: it predicts the first spliced token's successor
        # even where the reply follows at once.
        starts = [row.splice_index - 1 for row in rows]
        prefix = self._prefix(self.model, self.call, rows, starts)
        plain = self._branch(self.model, self.call, prefix, rows, starts, None)
        model, call = self.model, self.call
        if self.teacher is not None:
            model = call = self.teacher
            prefix = self._prefix(model, call, rows, starts)
        guided = [self._branch(model, call, prefix, rows, starts, k) for k in range(len(rows[0].blocks))]
        return [
            PairedLogps(tuple(plain[row]), tuple(tuple(branch[row]) for branch in guided)) for row in range(len(rows))
        ]

    def _prefix(self, model: Any, call: Forward, rows: list[PairedRow], starts: list[int]) -> _Prefix | None:
        if starts[0] < 0 or not continues_from_shared_keys(model):
            return None
        return _shared_prefix(model, call, rows, starts, self.pad_token_id, _device(model))

    def _branch(
        self,
        model: Any,
        call: Forward,
        prefix: _Prefix | None,
        rows: list[PairedRow],
        starts: list[int],
        block: int | None,
    ) -> list[list[float]]:
        blocks = [() if block is None else row.blocks[block] for row in rows]
        sequences = [insert_block(row.ids, row.splice_index, one) for row, one in zip(rows, blocks, strict=True)]
        wanted = [[p + len(one) for p in row.positions] for row, one in zip(rows, blocks, strict=True)]
        if prefix is None:
            return _full_logps(call, sequences, wanted, self.pad_token_id, _device(model))
        return _continued_logps(model, call, prefix, sequences, starts, wanted, self.pad_token_id, _device(model))


def _device(model: Any) -> torch.device:
    return next(model.parameters()).device


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
    return cache_keyword(_base(model))


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
