"""Paired log-probabilities: the frozen rollout policy's view of its own tokens with and without guidance (E3).

A pass runs rows as they stand and keeps their keys and values. Each guided branch continues from those before the
splice point, so that block and tail alone are computed in addition. A branch without a block is the pass itself, and
its shift is 0 exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any

import torch

from ..generation.decoder import base_model
from ..rows import insert_block, pack_rows
from .layout import lay_out, runs_without_padding
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
    """Keys and values of the rows of a pass."""

    cache: Any
    starts: tuple[int, ...] | None = None
    """Where each row begins, one behind the other; None = one row in each row of the cache, padded on the right."""


def pass_keys(cache: Any, lengths: Sequence[int] | None = None) -> PassKeys | None:
    """What a pass kept; None where it kept nothing, or nothing that can be continued more than once.

    Args:
        cache:
            Of the pass.
        lengths (`Sequence[int]`, *optional*):
            Of its rows, where they stand one behind the other.
    """
    starts = None if lengths is None else tuple(accumulate([0, *lengths[:-1]]))
    return PassKeys(cache, starts) if _is_plain_cache(cache) else None


def keys_in_bytes(cache: Any) -> int:
    """What a cache of [`pass_keys`] occupies."""
    return sum(one.numel() * one.element_size() for layer in cache.layers for one in (layer.keys, layer.values))


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
            return full_logps(model, call, sequences, wanted, pad_token_id)
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
            Bound on rows x longest row of a pass (without padding on its tokens), and on the guided forwards behind it
            as in [`branch_logps`].
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
    padding_free = all(runs_without_padding(one) for one in (model, teacher) if one is not None)
    plan = pack_rows([len(row.ids) for row in rows], max_tokens, padding_free)
    results: list[PairedLogps | None] = [None] * len(rows)
    for k, least in enumerate(most_forwards([[(0, 0)] * len(plan), schedule])):
        batch = plan[k] if k < len(plan) else []
        members = [rows[i] for i in batch] or [_DUMMY]
        branches = [branches_of(row, source, with_empty=teacher is not None) for source, row in enumerate(members)]
        guided = [one for of_row in branches for one in of_row if one is not None]
        who, call = (model, forward) if teacher is None else (teacher, teacher)
        needs_keys = (any(one.start for one in guided) or least[0] > 0) and continues_from_shared_keys(who)
        plain, cache = _pass(model, forward or model, members, needs_keys and teacher is None, pad_token_id)
        if teacher is not None and needs_keys and len(guided) > len(members):  # several branches of a row
            _, cache = _pass(teacher, teacher, members, True, pad_token_id)
        keys = pass_keys(cache, [len(row.ids) for row in members] if runs_without_padding(who) else None)
        values = iter(
            branch_logps(
                who, guided, keys, max_tokens=max_tokens, pad_token_id=pad_token_id, forward=call, least=least
            )
        )
        for index, own, of_row in zip(batch, plain, branches, strict=False):  # a dummy has no index
            own_logps = tuple(own)
            results[index] = PairedLogps(own_logps, tuple(own_logps if b is None else next(values) for b in of_row))
    return [result for result in results if result is not None]


def score_schedule(rows: Sequence[PairedRow], max_tokens: int, padding_free: bool = False) -> list[Forwards]:
    """The passes that [`score_pairs`] makes of `rows`, with the guided forwards behind each."""
    return [
        num_branch_forwards([b for i in batch for b in branches_of(rows[i], 0) if b is not None], max_tokens)
        for batch in pack_rows([len(row.ids) for row in rows], max_tokens, padding_free)
    ]


_DUMMY = PairedRow((0, 0, 0), 0, (), (2,))


def _pass(
    model: Any, call: Forward, rows: Sequence[PairedRow], keep_keys: bool, pad_token_id: int
) -> tuple[list[list[float]], Any]:
    """The plain log-probabilities of rows as they stand, and what the model keeps of them."""
    wanted = [list(row.positions) for row in rows]
    return _run_whole(model, call, [row.ids for row in rows], wanted, pad_token_id, keep_keys)


def taken_over(keys: PassKeys, sources: list[int], starts: list[int], device: torch.device) -> _Prefix:
    """The first positions of some rows of a pass, once for each branch."""
    width = max(starts)
    cache = copy.copy(keys.cache)
    cache.layers = [copy.copy(layer) for layer in keys.cache.layers]
    if keys.starts is not None:
        flat = torch.tensor([keys.starts[k] for k in sources]).unsqueeze(1) + torch.arange(width)  # (B, W)
        for layer in cache.layers:
            # What lies behind a row's part belongs to others, and is masked.
            index = flat.clamp(max=layer.keys.shape[2] - 1).to(layer.keys.device)
            layer.keys = layer.keys[0][:, index].transpose(0, 1).contiguous()
            layer.values = layer.values[0][:, index].transpose(0, 1).contiguous()
        return _Prefix(cache, _left_mask(starts).to(device))
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :width], layer.values[:, :, :width]
        if sources != list(range(layer.keys.shape[0])):
            index = torch.tensor(sources, device=layer.keys.device)
            layer.keys, layer.values = layer.keys.index_select(0, index), layer.values.index_select(0, index)
    return _Prefix(cache, _left_mask(starts).to(device))


def _left_mask(lengths: list[int]) -> torch.Tensor:
    """(B, W) 1 = real, for rows of these lengths."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()


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
    layout = lay_out(prefixes, pad_token_id=pad_token_id)
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    output = call(
        **{name: tensor.to(device) for name, tensor in layout.inputs.items()},
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
    layout = lay_out(tails, pad_token_id=pad_token_id)
    input_ids, mask = layout.inputs["input_ids"], layout.inputs["attention_mask"]
    positions = torch.tensor(starts).unsqueeze(1) + torch.arange(input_ids.shape[1])  # (B, W') absolute positions
    # Appending concatenates into new tensors, so a shallow copy leaves the prefix as it was for the other branch.
    cache = copy.copy(prefix.cache)
    cache.layers = [copy.copy(layer) for layer in prefix.cache.layers]
    selected, targets = _selection(layout.starts, sequences, starts, wanted)
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
    model: Any, call: Forward, sequences: list[tuple[int, ...]], wanted: list[list[int]], pad_token_id: int
) -> list[list[float]]:
    return _run_whole(model, call, sequences, wanted, pad_token_id, False)[0]


def _run_whole(
    model: Any,
    call: Forward,
    sequences: list[tuple[int, ...]],
    wanted: list[list[int]],
    pad_token_id: int,
    keep_keys: bool,
) -> tuple[list[list[float]], Any]:
    device = device_of(model)
    layout = lay_out(sequences, padding_free=runs_without_padding(model), pad_token_id=pad_token_id)
    selected, targets = _selection(layout.starts, sequences, [0] * len(sequences), wanted)
    output = call(
        **{name: tensor.to(device) for name, tensor in layout.inputs.items()},
        use_cache=keep_keys,
        selected_positions=selected.to(device),
        selected_targets=targets.to(device),
    )
    return _split(output.logps, wanted), output.cache


def _selection(
    origins: Sequence[int], sequences: list[tuple[int, ...]], starts: list[int], wanted: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat positions whose distribution predicts the wanted tokens, and these tokens.

    Row k of the forward begins at the flat position `origins[k]`, with token `starts[k]` of its sequence.
    """
    selected = [origins[row] + (p - 1 - start) for row, start in enumerate(starts) for p in wanted[row]]
    targets = [sequence[p] for sequence, places in zip(sequences, wanted, strict=True) for p in places]
    return torch.tensor(selected, dtype=torch.long), torch.tensor(targets, dtype=torch.long)


def _split(values: torch.Tensor | None, wanted: list[list[int]]) -> list[list[float]]:
    flat = iter([] if values is None else values.double().tolist())
    return [[next(flat) for _ in places] for places in wanted]


def _cache_keyword_of(model: Any) -> str:
    return cache_keyword(base_model(model))
