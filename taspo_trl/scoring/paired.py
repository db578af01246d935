"""Paired log-probabilities: the frozen rollout policy's view of its own tokens with and without guidance (E3).

A pass runs rows as they stand and keeps their keys and values. Each guided branch continues from those before the
splice point, so that block and tail alone are computed in addition. A branch without a block is the pass itself, and
its shift is 0 exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from ..generation.decoder import base_model
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
    setattr(base_model(model), _CONTINUES, allowed)


def continues_from_shared_keys(model: Any) -> bool:
    """What [`continue_from_shared_keys`] said; yes where nobody has."""
    return getattr(base_model(model), _CONTINUES, True)


Forwards = tuple[int, int]
"""(guided forwards that continue from keys, guided forwards of whole rows) of one pass."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A row of a pass with a block in it."""

    source: int
    """Its row in the pass."""
    start: int
    """How many positions of that row it takes over; 0 = none."""
    ids: tuple[int, ...]
    """The whole sequence, block included."""
    positions: tuple[int, ...]
    """Indices into `ids` of the tokens whose log-probability is needed."""


@dataclass(frozen=True)
class PassKeys:
    """Keys and values of the rows of a pass, padded on the right."""

    cache: Any


def pass_keys(cache: Any) -> PassKeys | None:
    """What a pass kept; None where it kept nothing, or nothing that can be continued more than once."""
    return PassKeys(cache) if _is_plain_cache(cache) else None


def branches_of(row: PairedRow, source: int, *, with_empty: bool = False) -> list[Branch | None]:
    """The guided branches of a row, in the order of its blocks; None for an empty block: that is the pass itself.

    Args:
        row (`PairedRow`):
            What is scored.
        source (`int`):
            Its row in the pass.
        with_empty (`bool`, *optional*, defaults to `False`):
            A branch for empty blocks too: another model than the one of the pass plays it.
    """
    made: list[Branch | None] = []
    for block in row.blocks:
        if not block and not with_empty:
            made.append(None)
            continue
        # What predicts the first wanted token is computed anew: the block's end, or the last position before it.
        start = row.splice_index if block else max(row.splice_index - 1, 0)
        ids = insert_block(row.ids, row.splice_index, block)
        made.append(Branch(source, start, ids, tuple(p + len(block) for p in row.positions)))
    return made


def num_branch_forwards(branches: Sequence[Branch], max_tokens: int) -> Forwards:
    """How many forwards [`branch_logps`] makes of `branches`."""
    continued, whole = _plan(branches, max_tokens)
    return len(continued), len(whole)


def most_forwards(schedules: Sequence[Sequence[Forwards]]) -> list[Forwards]:
    """What all processes run, each of them by its own schedule at least: the most of each pass."""
    passes = zip_longest(*schedules, fillvalue=(0, 0))
    return [(max(c for c, _ in one), max(w for _, w in one)) for one in passes]


def branch_logps(
    model: Any,
    branches: Sequence[Branch],
    keys: PassKeys | None,
    *,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Forward | None = None,
    least: Forwards = (0, 0),
) -> list[tuple[float, ...]]:
    """The log-probabilities of guided branches, in token-budget batches.

    Args:
        model:
            The policy of the pass, as in [`score_pairs`].
        branches (`Sequence[Branch]`):
            Branches of rows of one pass; the result has the same order.
        keys ([`PassKeys`], *optional*):
            Of that pass. If `None`, every branch is computed whole.
        max_tokens (`int`):
            Bound on branches x (longest part taken over + longest part computed) of a forward.
        pad_token_id (`int`, *optional*, defaults to `0`), forward (`Callable`, *optional*):
            As in [`score_pairs`].
        least (`Forwards`, *optional*, defaults to `(0, 0)`):
            At least so many forwards are run, the missing ones on a dummy.
    """
    call, device = forward or model, device_of(model)
    continued, whole = _plan(branches, max_tokens)
    results: list[tuple[float, ...]] = [()] * len(branches)

    def run(members: Sequence[Branch], from_keys: bool) -> list[list[float]]:
        sequences, wanted = [one.ids for one in members], [list(one.positions) for one in members]
        if not from_keys or keys is None:
            return full_logps(call, sequences, wanted, pad_token_id, device)
        starts = [one.start for one in members]
        prefix = taken_over(keys, [one.source for one in members], starts, device)
        return continued_logps(model, call, prefix, sequences, starts, wanted, pad_token_id, device)

    for plan, from_keys, number in ((continued, True, least[0]), (whole, False, least[1])):
        for batch in plan:
            for index, values in zip(batch, run([branches[k] for k in batch], from_keys), strict=True):
                results[index] = tuple(values)
        for _ in range(number - len(plan)):
            run([Branch(0, int(from_keys), (0, 0, 0), (2,))], from_keys)
    return results


def _plan(branches: Sequence[Branch], max_tokens: int) -> tuple[list[list[int]], list[list[int]]]:
    """Batches of branches that continue, and of those that take nothing over."""
    # By what is computed, which is what padding costs.
    order = sorted(range(len(branches)), key=lambda k: (branches[k].start - len(branches[k].ids), -branches[k].start))
    plans: tuple[list[list[int]], list[list[int]]] = ([], [])
    for plan, takes_over in zip(plans, (True, False), strict=True):
        taken = tail = 0  # of the open batch, whose first member has the longest tail
        for k in (k for k in order if bool(branches[k].start) is takes_over):
            start = branches[k].start
            if plan and (max(taken, start) + tail) * (len(plan[-1]) + 1) <= max_tokens:
                plan[-1].append(k)
                taken = max(taken, start)
            else:
                plan.append([k])
                taken, tail = start, len(branches[k].ids) - start
    return plans


def score_pairs(
    model: Any,
    rows: Sequence[PairedRow],
    *,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Forward | None = None,
    schedule: Sequence[Forwards] = (),
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
            Bound on rows x longest row of a pass, and on the guided forwards behind it as in [`branch_logps`].
        pad_token_id (`int`, *optional*, defaults to `0`):
            Fills the rectangle; never attended to.
        forward (`Callable`, *optional*):
            How the policy is called; defaults to `model`.
        schedule (`Sequence[Forwards]`, *optional*):
            At least so many passes with at least so many guided forwards behind each are run, the missing ones on
            dummies, because sharded models need the same number of forwards on every process.
        teacher (*optional*):
            Another model that plays the guided branches, prepared like `model`; None = `model` itself, whose keys and
            values both branches share.

    Returns:
        `list[PairedLogps]`: plain floats, as the model gave them; non-finite values are the caller's to judge.
    """
    plan = pack_rows([len(row.ids) for row in rows], max_tokens)
    results: list[PairedLogps | None] = [None] * len(rows)
    for k, least in enumerate(most_forwards([[(0, 0)] * len(plan), schedule])):
        batch = plan[k] if k < len(plan) else []
        members = [rows[i] for i in batch] or [_DUMMY]
        branches = [branches_of(row, source, with_empty=teacher is not None) for source, row in enumerate(members)]
        guided = [one for of_row in branches for one in of_row if one is not None]
        who, call = (model, forward) if teacher is None else (teacher, teacher)
        needs_keys = (any(one.start for one in guided) or least[0] > 0) and continues_from_shared_keys(who)
        plain, cache = _pass(forward or model, members, needs_keys and teacher is None, pad_token_id, device_of(model))
        if teacher is not None and needs_keys and len(guided) > len(members):  # several branches of a row
            _, cache = _pass(teacher, members, True, pad_token_id, device_of(teacher))
        keys = pass_keys(cache)
        values = iter(
            branch_logps(
                who, guided, keys, max_tokens=max_tokens, pad_token_id=pad_token_id, forward=call, least=least
            )
        )
        for index, own, of_row in zip(batch, plain, branches, strict=False):  # a dummy has no index
            own_logps = tuple(own)
            results[index] = PairedLogps(own_logps, tuple(own_logps if b is None else next(values) for b in of_row))
    return [result for result in results if result is not None]


def score_schedule(rows: Sequence[PairedRow], max_tokens: int) -> list[Forwards]:
    """The passes that [`score_pairs`] makes of `rows`, with the guided forwards behind each."""
    return [
        num_branch_forwards([b for i in batch for b in branches_of(rows[i], 0) if b is not None], max_tokens)
        for batch in pack_rows([len(row.ids) for row in rows], max_tokens)
    ]


_DUMMY = PairedRow((0, 0, 0), 0, (), (2,))


def _pass(
    call: Forward, rows: Sequence[PairedRow], keep_keys: bool, pad_token_id: int, device: torch.device
) -> tuple[list[list[float]], Any]:
    """The plain log-probabilities of rows as they stand, and what the model keeps of them."""
    wanted = [list(row.positions) for row in rows]
    return _run_whole(call, [row.ids for row in rows], wanted, pad_token_id, device, keep_keys)


def taken_over(keys: PassKeys, sources: list[int], starts: list[int], device: torch.device) -> _Prefix:
    """The first positions of some rows of a pass, once for each branch."""
    width = max(starts)
    cache = copy.copy(keys.cache)
    cache.layers = [copy.copy(layer) for layer in keys.cache.layers]
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :width], layer.values[:, :, :width]
        if sources != list(range(layer.keys.shape[0])):
            index = torch.tensor(sources, device=layer.keys.device)
            layer.keys, layer.values = layer.keys.index_select(0, index), layer.values.index_select(0, index)
    mask = (torch.arange(width) < torch.tensor(starts).unsqueeze(1)).long()
    return _Prefix(cache, mask.to(device))


def device_of(model: Any) -> torch.device:
    return next(model.parameters()).device


@dataclass(frozen=True)
class _Prefix:
    """Keys and values of the common prefixes, left-aligned, and which of them are real."""

    cache: Any
    mask: torch.Tensor  # (B, W), 1 = real


def prefix_keys(
    call: Forward, prefixes: Sequence[tuple[int, ...]], pad_token_id: int, device: torch.device
) -> PassKeys | None:
    """The keys of sequences of which nothing is scored; None for models whose cache cannot be continued twice."""
    input_ids, mask = _rectangle(prefixes, pad_token_id)
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    output = call(
        input_ids=input_ids.to(device),
        attention_mask=mask.to(device),
        use_cache=True,
        selected_positions=nothing,
        selected_targets=nothing,
    )
    return pass_keys(output.cache)


def _is_plain_cache(cache: Any) -> bool:
    """Whether every layer keeps all keys and values, appended by concatenation."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    return type(cache) is DynamicCache and all(type(layer) is DynamicLayer for layer in cache.layers)


def continued_logps(
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


def full_logps(
    call: Forward, sequences: list[tuple[int, ...]], wanted: list[list[int]], pad_token_id: int, device: torch.device
) -> list[list[float]]:
    return _run_whole(call, sequences, wanted, pad_token_id, device, False)[0]


def _run_whole(
    call: Forward,
    sequences: list[tuple[int, ...]],
    wanted: list[list[int]],
    pad_token_id: int,
    device: torch.device,
    keep_keys: bool,
) -> tuple[list[list[float]], Any]:
    input_ids, mask = _rectangle(sequences, pad_token_id)
    selected, targets = _selection(input_ids.shape[1], sequences, [0] * len(sequences), wanted)
    output = call(
        input_ids=input_ids.to(device),
        attention_mask=mask.to(device),
        use_cache=keep_keys,
        selected_positions=selected.to(device),
        selected_targets=targets.to(device),
    )
    return _split(output.logps, wanted), output.cache


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
    return cache_keyword(base_model(model))
