"""The keys and values of many sequences: one buffer for each layer, a sequence in each row, its tokens from column 0.

Rows never move. A sequence is cut by forgetting how long it was, and extended in place, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


@dataclass(frozen=True)
class Places:
    """Where one forward writes and what it reads. B batch rows, N new tokens in all.

    Args:
        rows (`range` or `torch.Tensor`):
            (B,) row of each batch row; a range is read without copying.
        width (`int`):
            Columns that are read.
        source (`tuple[torch.Tensor, torch.Tensor]`):
            (N,) batch row and (N,) column within the forward of every token that is written; all others are padding.
        target (`tuple[torch.Tensor, torch.Tensor]`):
            (N,) row and (N,) column of the buffer where it goes.
    """

    rows: range | torch.Tensor
    width: int
    source: tuple[torch.Tensor, torch.Tensor]
    target: tuple[torch.Tensor, torch.Tensor]

    def to(self, device: torch.device) -> Places:
        rows = self.rows if isinstance(self.rows, range) else self.rows.to(device)
        source, target = ((a.to(device), b.to(device)) for a, b in (self.source, self.target))
        return Places(rows, self.width, source, target)


class RowsLayer(DynamicLayer):
    """One layer's part of a [`RowsCache`]."""

    def __init__(self, cache: RowsCache):
        super().__init__()
        self._cache = cache

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store (B, H, M, D) new keys and values; all of the rows' keys and values, (B, H, width, D) each."""
        if self.keys is None or self.values is None:
            self.device, self.is_initialized = key_states.device, True
            self.keys, self.values = self._cache.buffer(key_states), self._cache.buffer(value_states)
        places = self._cache.places_on(key_states.device)
        (rows, columns), (to_rows, to_columns) = places.source, places.target
        self.keys[to_rows, :, to_columns] = key_states[rows, :, columns]
        self.values[to_rows, :, to_columns] = value_states[rows, :, columns]
        return _read(self.keys, places), _read(self.values, places)

    def get_seq_length(self) -> int:
        return 0  # the mask and the positions of a forward are given to the model whole

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class RowsCache(Cache):
    """Keys and values of `num_rows` sequences of up to `num_columns` tokens; grows when told to.

    Args:
        num_layers (`int`):
            Of the model.
    """

    def __init__(self, num_layers: int):
        self.num_rows = self.num_columns = 0
        self._places: Places | None = None
        self._placed: dict[torch.device, Places] = {}
        self._rows_layers = [RowsLayer(self) for _ in range(num_layers)]
        super().__init__(layers=[*self._rows_layers])

    @property
    def kept_dtype(self) -> torch.dtype | None:
        """Of the keys; None before the first forward. (accelerate takes what has a `dtype` for a tensor.)"""
        first = self._rows_layers[0].keys
        return None if first is None else first.dtype

    def place(self, places: Places) -> None:
        """Say where the next forward reads and writes."""
        self._places = places
        self._placed.clear()

    def places_on(self, device: torch.device) -> Places:
        assert self._places is not None
        if device not in self._placed:
            self._placed[device] = self._places.to(device)
        return self._placed[device]

    def buffer(self, states: torch.Tensor) -> torch.Tensor:
        """Room for all rows' (B, H, M, D) states."""
        return states.new_zeros(self.num_rows, states.shape[1], self.num_columns, states.shape[-1])

    def resize(self, num_rows: int, num_columns: int, kept: Sequence[int]) -> None:
        """Take another shape: rows `kept` become rows 0, 1, ...; the others are lost, and columns that are cut."""
        columns = min(num_columns, self.num_columns)
        for layer in self._rows_layers:
            if layer.keys is not None and layer.values is not None:
                layer.keys = _resized(layer.keys, num_rows, num_columns, kept, columns)
                layer.values = _resized(layer.values, num_rows, num_columns, kept, columns)
        self.num_rows, self.num_columns = num_rows, num_columns

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Give the rows `targets` the first `length` tokens of the row `source`."""
        for layer in self._rows_layers:
            for one in (layer.keys, layer.values):
                if one is not None:
                    one[list(targets), :, :length] = one[source, :, :length].clone()


def _read(buffer: torch.Tensor, places: Places) -> torch.Tensor:
    if isinstance(places.rows, range):
        return buffer[places.rows.start : places.rows.stop, :, : places.width]
    return buffer[:, :, : places.width].index_select(0, places.rows)


def _resized(buffer: torch.Tensor, num_rows: int, num_columns: int, kept: Sequence[int], columns: int) -> torch.Tensor:
    made = buffer.new_zeros(num_rows, buffer.shape[1], num_columns, buffer.shape[3])
    if kept:
        made[: len(kept), :, :columns] = buffer[list(kept), :, :columns]
    return made
