"""Whole rows scored by one model: chosen tokens, and on request their top k or what gives their distributions again.

A row is scored in one plain forward, so it may be spliced anywhere, also before the chat. No gradient; the caller
freezes the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ..errors import InvariantError
from ..rows import insert_block, pack_rows
from .distributions import AtIds, Distribution, TopK
from .layout import lay_out, runs_without_padding
from .projection import SelectedOutput, selected_forward


@dataclass(frozen=True)
class WholeRow:
    """A row to be scored as it stands, any block included.

    Args:
        ids (`tuple[int, ...]`):
            The whole sequence.
        positions (`tuple[int, ...]`):
            Indices into `ids` of the n tokens that are scored, all at least 1.
        at_ids (`torch.Tensor` of shape `(n, K)`, *optional*):
            Ids whose log-probabilities are wanted too, in place of the model's own top k.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    at_ids: torch.Tensor | None = None


def spliced_row(
    ids: Sequence[int], positions: Sequence[int], block_ids: Sequence[int] = (), splice_index: int = 0
) -> WholeRow:
    """A row with a block in it.

    Args:
        ids (`Sequence[int]`), positions (`Sequence[int]`):
            The row as it was played, and the indices of the tokens to score, all at or behind `splice_index`.
        block_ids (`Sequence[int]`, *optional*, defaults to `()`), splice_index (`int`, *optional*, defaults to `0`):
            The block, and where it goes: 0 = before the whole chat.
    """
    if any(position < splice_index for position in positions):
        raise InvariantError(f"A block at {splice_index} cannot change tokens before it: {list(positions)[:3]}.")
    moved = tuple(position + len(block_ids) for position in positions)
    return WholeRow(insert_block(ids, splice_index, block_ids), moved)


@dataclass(frozen=True)
class TokenScores:
    """What a model says of n tokens; on the CPU.

    Args:
        logps (`torch.Tensor` of shape `(n,)`):
            Of the tokens themselves, at the sampling temperature; NaN where there is a `reason`.
        top_ids (`torch.Tensor` of shape `(n, K)`, *optional*), top_logps (`torch.Tensor` of shape `(n, K)`, \
        *optional*), tail_logps (`torch.Tensor` of shape `(n,)`, *optional*):
            The top k, or the values at given ids, and all other tokens together, at the temperature asked for.
        hidden (`torch.Tensor` of shape `(n, H)`, *optional*):
            With the model's LM head they give the whole distributions again.
        reason (`str`, *optional*, defaults to `""`):
            Why there is no score.
    """

    logps: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logps: torch.Tensor | None = None
    tail_logps: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    reason: str = ""

    def columns(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by name."""
        named = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "reason"}
        return {name: value for name, value in named.items() if value is not None}

    def at(self, which: Any) -> TokenScores:
        """The scores of some of the tokens: a slice, a mask or indices."""
        changed: dict[str, Any] = {name: value[which] for name, value in self.columns().items()}
        return replace(self, **changed)

    def blank(self, num: int) -> TokenScores:
        """Finite scores of `num` tokens that nobody scored, with the same columns; their coefficient has to be 0."""
        changed: dict[str, Any] = {
            name: value.new_zeros((num, *value.shape[1:])) for name, value in self.columns().items()
        }
        return replace(self, **changed, reason="")


def unscored(num: int, reason: str) -> TokenScores:
    """The scores of a row that could not be scored."""
    return TokenScores(torch.full((num,), math.nan), reason=reason)


def joined(scores: Sequence[TokenScores]) -> TokenScores:
    """The scores of several rows, one after the other; all have the same columns."""
    changed: dict[str, Any] = {name: torch.cat([getattr(one, name) for one in scores]) for name in scores[0].columns()}
    return replace(scores[0], **changed)


_DUMMY = (0, 0)


def score_rows(
    model: Any,
    rows: Sequence[WholeRow],
    *,
    vocabulary: int = 0,
    temperature: float | None = None,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Callable[..., SelectedOutput] | None = None,
    num_batches: int | None = None,
) -> list[TokenScores]:
    """Score every row, in length-sorted token-budget batches.

    Args:
        model:
            The causal language model with [`~taspo_trl.scoring.projection.add_selected_projection`], already frozen.
        rows (`Sequence[WholeRow]`):
            What to score; the result has the same order. With `at_ids` in one row, all rows have them.
        vocabulary (`int`, *optional*, defaults to `0`):
            0 = the tokens alone, k > 0 = the top k too, -1 = the hidden states too.
        temperature (`float`, *optional*):
            Of the top k; None = the model's own.
        max_tokens (`int`), pad_token_id (`int`, *optional*, defaults to `0`):
            As in [`~taspo_trl.scoring.paired.score_pairs`].
        forward (`Callable`, *optional*):
            How the model is called; defaults to `model`.
        num_batches (`int`, *optional*):
            At least this many batches are run, the missing ones on a dummy row: sharded models need the same number of
            forwards on every process.
    """
    call = forward or model
    device = next(model.parameters()).device
    width = next((row.at_ids.shape[1] for row in rows if row.at_ids is not None), None)
    padding_free = runs_without_padding(model)
    plan = pack_rows([len(row.ids) for row in rows], max_tokens, padding_free)
    results: list[TokenScores | None] = [None] * len(rows)
    for batch in plan:
        scored = _score_batch(
            call, [rows[k] for k in batch], vocabulary, temperature, pad_token_id, padding_free, device
        )
        for k, one in zip(batch, scored, strict=True):
            results[k] = one
    dummy = WholeRow(_DUMMY, (1,), None if width is None else torch.arange(width).unsqueeze(0))
    for _ in range((num_batches or 0) - len(plan)):
        _score_batch(call, [dummy], vocabulary, temperature, pad_token_id, padding_free, device)
    return [one for one in results if one is not None]


def num_row_batches(rows: Sequence[WholeRow], max_tokens: int, padding_free: bool = False) -> int:
    """How many batches [`score_rows`] makes of `rows`."""
    return len(pack_rows([len(row.ids) for row in rows], max_tokens, padding_free))


def _score_batch(
    call: Callable[..., SelectedOutput],
    rows: Sequence[WholeRow],
    vocabulary: int,
    temperature: float | None,
    pad_token_id: int,
    padding_free: bool,
    device: torch.device,
) -> list[TokenScores]:
    layout = lay_out([row.ids for row in rows], padding_free=padding_free, pad_token_id=pad_token_id)
    starts = zip(layout.starts, rows, strict=True)
    tensors = {
        **layout.inputs,
        "positions": torch.tensor([start + p - 1 for start, row in starts for p in row.positions], dtype=torch.long),
        "targets": torch.tensor([row.ids[p] for row in rows for p in row.positions], dtype=torch.long),
    }
    given = [row.at_ids for row in rows if row.at_ids is not None]
    asked = None
    if given:
        asked = Distribution(AtIds(torch.cat(given)), temperature)
    elif vocabulary > 0:
        asked = Distribution(TopK(vocabulary), temperature)
    elif vocabulary == -1:
        asked = Distribution(keep_hidden=True)
    output = selected_forward(call, {name: one.to(device) for name, one in tensors.items()}, distribution=asked)
    top_ids = top_logps = tail_logps = None
    if given:
        top_ids, (top_logps, tail_logps) = torch.cat(given), output.reduced
    elif vocabulary > 0:
        top_ids, top_logps, tail_logps = output.reduced
    whole = TokenScores(output.logps, top_ids, top_logps, tail_logps, output.hidden)
    on_cpu: dict[str, Any] = {name: one.cpu() for name, one in whole.columns().items()}
    whole = replace(whole, **on_cpu)
    ends = torch.tensor([len(row.positions) for row in rows]).cumsum(0).tolist()
    return [whole.at(slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
