"""Token rows as the tensors of one forward: a rectangle padded on the right, or one row without padding.

Without padding the rows stand one behind the other and their positions begin anew, which is how transformers tells
them apart: flash attention by lengths, other implementations by a block-diagonal mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ..generation.decoder import base_model


_PADDING_FREE = "_runs_rows_without_padding"


def run_without_padding(model: Any, allowed: bool) -> None:
    """Say whether rows may stand one behind the other in a forward of `model`; padded to one length otherwise."""
    setattr(base_model(model), _PADDING_FREE, allowed)


def runs_without_padding(model: Any) -> bool:
    """What [`run_without_padding`] said; no where nobody has."""
    return getattr(base_model(model), _PADDING_FREE, False)


@dataclass(frozen=True)
class Layout:
    """B rows in one forward.

    Args:
        inputs (`dict[str, torch.Tensor]`):
            `input_ids` and `attention_mask` of shape (B, W), padded on the right (1 = real); or `input_ids` and
            `position_ids` of shape (1, T).
        starts (`tuple[int, ...]`):
            Flat index of the first token of each row.
    """

    inputs: dict[str, torch.Tensor]
    starts: tuple[int, ...]


def lay_out(
    rows: Sequence[Sequence[int]],
    *,
    padding_free: bool = False,
    pad_token_id: int = 0,
    pad_to_multiple_of: int | None = None,
) -> Layout:
    """The tensors of a forward.

    Args:
        rows (`Sequence[Sequence[int]]`):
            Token ids of each row.
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether they stand one behind the other.
        pad_token_id (`int`, *optional*, defaults to `0`):
            Fills what is no token.
        pad_to_multiple_of (`int`, *optional*):
            Of the length of the rectangle, or of the one row: what fills it is then a row of its own.
    """
    lengths = [len(row) for row in rows]
    if padding_free:
        total = sum(lengths)
        filling = -total % pad_to_multiple_of if pad_to_multiple_of else 0
        ids = [token for row in rows for token in row] + [pad_token_id] * filling
        places = [position for length in (*lengths, filling) for position in range(length)]
        inputs = {
            "input_ids": torch.tensor([ids], dtype=torch.long),
            "position_ids": torch.tensor([places], dtype=torch.long),
        }
        return Layout(inputs, tuple(accumulate([0, *lengths[:-1]])))
    width = max(lengths)
    if pad_to_multiple_of:
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    input_ids = torch.full((len(rows), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for k, row in enumerate(rows):
        input_ids[k, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[k, : len(row)] = 1
    return Layout({"input_ids": input_ids, "attention_mask": mask}, tuple(range(0, len(rows) * width, width)))
