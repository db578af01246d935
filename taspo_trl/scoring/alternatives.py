"""The admissible actions of each turn, scored behind the same prefix with and without blocks.

The prefix (prompt, block, reply up to the action) is computed once for all actions of a turn; each action continues
from its keys and values.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from ..rows import MIN_SPLICE_INDEX, insert_block, pack_rows
from ..types import Alternatives, Block, Guidance, Trajectory, Turn
from .paired import PairedRow, _continued_logps, _device, _full_logps, _Prefix, _shared_prefix
from .saved import projecting, window_of


_TAG = re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class AlternativeScores:
    """What was scored, and what it cost."""

    alternatives: Mapping[tuple[str, int], Alternatives]
    num_prefix_tokens: int
    num_action_tokens: int


@dataclass(frozen=True)
class _Branch:
    """One prefix with all its actions."""

    key: tuple[str, int]
    block: str | None
    """None = plain."""
    prefix: tuple[int, ...]
    actions: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The longest row that it makes."""
        return len(self.prefix) + max(map(len, self.actions))


def score_alternatives(
    model: Any,
    trajectories: Sequence[Trajectory],
    guidance: Mapping[str, Guidance],
    tokenizer: Any,
    *,
    blocks: Sequence[str],
    temperature: float = 1.0,
    max_tokens: int = 16384,
    pad_token_id: int = 0,
) -> AlternativeScores:
    """Score every admissible action of the turns of guided trajectories.

    A turn whose world lists no actions, whose action cannot be located, or whose rows do not fit the model has none.
    The executed action comes first, whether it was admissible or not.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The policy; left as it is.
        trajectories (`Sequence[Trajectory]`):
            With their prompt ids.
        guidance (`Mapping[str, Guidance]`):
            By trajectory uid.
        tokenizer:
            The policy's: alternatives are texts that nobody has sampled.
        blocks (`Sequence[str]`):
            Names of the blocks, a branch each.
        temperature, max_tokens, pad_token_id:
            As in [`~taspo_trl.scoring.saved.score_saved`].
    """
    from ..generation.frozen import frozen_mode

    branches: list[_Branch] = []
    texts: dict[tuple[str, int], tuple[str, ...]] = {}
    for t in trajectories:
        of = guidance.get(t.uid)
        if not of:
            continue
        for turn_idx, turn in enumerate(t.turns):
            key = (t.uid, turn_idx)
            made = _branches(key, turn, of.blocks, blocks, tokenizer, window_of(model))
            if made:
                branches += made[1]
                texts[key] = made[0]
    with ExitStack() as stack:
        stack.enter_context(projecting(model, temperature))
        stack.enter_context(frozen_mode(model))
        stack.enter_context(torch.no_grad())
        logps = _score(model, branches, max_tokens, pad_token_id)
    plain = {one.key: found for one, found in zip(branches, logps, strict=True) if one.block is None}
    guided: dict[tuple[str, int], dict[str, tuple[tuple[float, ...], ...]]] = {}
    for one, found in zip(branches, logps, strict=True):
        if one.block is not None:
            guided.setdefault(one.key, {})[one.block] = found
    return AlternativeScores(
        {key: Alternatives(texts[key], plain[key], guided[key]) for key in texts},
        sum(len(one.prefix) for one in branches),
        sum(len(action) for one in branches for action in one.actions),
    )


def _branches(
    key: tuple[str, int],
    turn: Turn,
    of: Mapping[str, Block],
    blocks: Sequence[str],
    tokenizer: Any,
    window: int | None,
) -> tuple[tuple[str, ...], list[_Branch]] | None:
    """(actions, branches) of a turn; None where it has none."""
    if not turn.admissible_actions or not turn.action or not turn.prompt_ids:
        return None
    if turn.splice_index is None or turn.splice_index < MIN_SPLICE_INDEX:
        return None
    places = [k for k, is_action in enumerate(turn.action_mask) if is_action]
    if not places or places[-1] - places[0] != len(places) - 1:
        return None  # not located, or several blocks
    first, own = places[0], turn.reply_ids[places[0] : places[-1] + 1]
    tag = _TAG.match(tokenizer.decode(own, clean_up_tokenization_spaces=False).strip())
    if tag is None:
        return None  # a tool call: what else could have been called is no text between tags
    said = " ".join(turn.action.lower().split())
    others = [one for one in dict.fromkeys(turn.admissible_actions) if " ".join(one.lower().split()) != said]
    if not others:
        return None
    actions = (
        own,
        *(tuple(tokenizer.encode(f"<{tag[1]}>{one}</{tag[1]}>", add_special_tokens=False)) for one in others),
    )
    prefix = turn.prompt_ids + turn.reply_ids[:first]
    found = [_Branch(key, None, prefix, actions)]
    for name in blocks:
        block = of.get(name)
        ids = None if block is None or block.place != "splice" else block.turns[key[1]]
        if ids is not None:
            found.append(_Branch(key, name, insert_block(prefix, turn.splice_index, ids), actions))
    if len(found) == 1 or (window is not None and max(one.size for one in found) > window):
        return None
    return (turn.action, *others), found


def _score(
    model: Any, branches: Sequence[_Branch], max_tokens: int, pad_token_id: int
) -> list[tuple[tuple[float, ...], ...]]:
    """Log-probabilities of the tokens of each branch's actions."""
    results: list[tuple[tuple[float, ...], ...]] = [()] * len(branches)
    # A branch takes as many rows as it has actions.
    sizes = [one.size * len(one.actions) for one in branches]
    for batch in pack_rows(sizes, max_tokens):
        members = [branches[k] for k in batch]
        for k, found in zip(batch, _score_batch(model, members, pad_token_id), strict=True):
            results[k] = found
    return results


def _score_batch(model: Any, members: Sequence[_Branch], pad_token_id: int) -> list[tuple[tuple[float, ...], ...]]:
    device = _device(model)
    # One position of the prefix is left over: it predicts the action's first token.
    rows = [PairedRow(one.prefix, 0, (), ()) for one in members]
    prefix = _shared_prefix(model, model, rows, [len(one.prefix) - 1 for one in members], pad_token_id, device)
    owners = [k for k, one in enumerate(members) for _ in one.actions]
    sequences = [one.prefix + action for one in members for action in one.actions]
    lengths = [len(members[k].prefix) for k in owners]
    wanted = [list(range(start, len(sequence))) for start, sequence in zip(lengths, sequences, strict=True)]
    if prefix is None:
        flat = _full_logps(model, sequences, wanted, pad_token_id, device)
    else:
        starts = [length - 1 for length in lengths]
        flat = _continued_logps(
            model, model, _repeated(prefix, owners), sequences, starts, wanted, pad_token_id, device
        )
    found = iter(flat)
    return [tuple(tuple(next(found)) for _ in one.actions) for one in members]


def _repeated(prefix: _Prefix, owners: Sequence[int]) -> _Prefix:
    """The prefixes once for each of their continuations."""
    index = torch.tensor(owners, device=prefix.mask.device)
    cache = copy.copy(prefix.cache)
    cache.layers = [copy.copy(layer) for layer in prefix.cache.layers]
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.index_select(0, index), layer.values.index_select(0, index)
    return _Prefix(cache, prefix.mask.index_select(0, index))
