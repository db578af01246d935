"""What else could have been done in each turn, scored behind the same prefix with and without blocks.

The prefix (prompt, block, reply up to the action) is computed once for all actions of a turn; each action continues
from its keys and values. A branch with the empty block is the plain branch: its scores are the same numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..rows import MIN_SPLICE_INDEX, insert_block
from ..seeds import derive_seed
from ..types import Alternatives, Block, Guidance, Trajectory, Turn
from .paired import (
    Forward,
    continued_logps,
    continues_from_shared_keys,
    device_of,
    full_logps,
    prefix_keys,
    taken_over,
)
from .pairs import TurnKey
from .saved import projecting, window_of


Sampled = Callable[[Sequence[tuple[Trajectory, int]]], Mapping[TurnKey, Sequence[tuple[str, tuple[int, ...]]]]]
"""Turns, by trajectory and index -> for each other actions that the policy would take: text and token ids."""

_TAG = re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class AlternativeTurn:
    """One turn with what could have been done in it."""

    key: TurnKey
    texts: tuple[str, ...]
    """The actions; the executed one comes first."""
    actions: tuple[tuple[int, ...], ...]
    """Their tokens, the tags included."""
    prefix: tuple[int, ...]
    """The prompt, and the reply up to the action."""
    splice_index: int
    blocks: Mapping[str, tuple[int, ...]]
    """Name -> token ids; `()` is the empty block."""

    @property
    def branches(self) -> dict[str | None, tuple[int, ...]]:
        """Block -> the prefix with it; None = without any. A branch that another one equals is left out."""
        found: dict[str | None, tuple[int, ...]] = {None: self.prefix}
        for name, ids in self.blocks.items():
            if ids:
                found[name] = insert_block(self.prefix, self.splice_index, ids)
        return found

    @property
    def longest(self) -> int:
        """Positions of the longest row."""
        return max(map(len, self.branches.values())) + max(map(len, self.actions))

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens of its prefixes, each once."""
        return sum(map(len, self.branches.values()))

    @property
    def num_action_tokens(self) -> int:
        """Tokens of the actions, over all branches."""
        return len(self.branches) * sum(map(len, self.actions))


@dataclass(frozen=True)
class AlternativeScores:
    """What was scored, and what it cost."""

    alternatives: Mapping[TurnKey, Alternatives]
    num_prefix_tokens: int
    num_action_tokens: int


def alternative_turns(
    trajectories: Sequence[Trajectory],
    guidance: Mapping[str, Guidance],
    tokenizer: Any,
    *,
    blocks: Sequence[str],
    window: int | None = None,
    most: int = 0,
    sampled: Sampled | None = None,
) -> list[AlternativeTurn]:
    """The turns of guided trajectories that can be compared with what else could have been done.

    These are the admissible actions; where a world lists none, what `sampled` finds. A turn without either, whose
    action cannot be located, or whose rows do not fit the model is left out.

    Args:
        trajectories (`Sequence[Trajectory]`):
            With their prompt ids.
        guidance (`Mapping[str, Guidance]`):
            By trajectory uid.
        tokenizer:
            The policy's: admissible actions are texts that nobody has sampled.
        blocks (`Sequence[str]`):
            Names of the blocks, a branch each.
        window (`int`, *optional*):
            Positions of the model.
        most (`int`, *optional*, defaults to `0`):
            Most actions of a turn, the executed one included; of more, so many are drawn with a seed from the turn.
            0 = all.
        sampled (`Callable`, *optional*):
            Asked once, with all turns that list no actions.
    """
    found, unlisted = [], []
    for t in trajectories:
        of = guidance.get(t.uid)
        for turn_idx, turn in enumerate(t.turns if of else ()):
            made = _turn((t.uid, turn_idx), turn, of.blocks if of else {}, blocks)
            if made is None:
                continue
            if turn.admissible_actions is None:
                unlisted.append((made, t))
            else:
                found.append(_with(made, _admissible(made, turn, tokenizer), most))
    if unlisted and sampled is not None:
        answers = sampled([(t, made.key[1]) for made, t in unlisted])
        found += [_with(made, answers.get(made.key, ()), most) for made, _ in unlisted]
    return [one for one in found if len(one.actions) > 1 and (window is None or one.longest <= window)]


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
    most: int = 0,
    sampled: Sampled | None = None,
) -> AlternativeScores:
    """Score what could have been done in the turns of guided trajectories, with a model that is not being trained.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The policy; left as it is.
        trajectories, guidance, tokenizer, blocks, most, sampled:
            As in [`alternative_turns`].
        temperature, max_tokens, pad_token_id:
            As in [`~taspo_trl.scoring.saved.score_saved`].
    """
    from ..generation.frozen import frozen_mode

    turns = alternative_turns(
        trajectories, guidance, tokenizer, blocks=blocks, window=window_of(model), most=most, sampled=sampled
    )
    with ExitStack() as stack:
        stack.enter_context(projecting(model, temperature))
        stack.enter_context(frozen_mode(model))
        stack.enter_context(torch.no_grad())
        scored = score_turns(model, turns, max_tokens=max_tokens, pad_token_id=pad_token_id)
    return AlternativeScores(
        scored, sum(one.num_prefix_tokens for one in turns), sum(one.num_action_tokens for one in turns)
    )


def score_turns(
    model: Any,
    turns: Sequence[AlternativeTurn],
    *,
    max_tokens: int,
    pad_token_id: int = 0,
    forward: Forward | None = None,
    num_forwards: int = 0,
) -> dict[TurnKey, Alternatives]:
    """Score the actions of every turn in all its branches.

    Args:
        model, max_tokens, pad_token_id, forward:
            As in [`~taspo_trl.scoring.paired.score_pairs`].
        turns (`Sequence[AlternativeTurn]`):
            What to score.
        num_forwards (`int`, *optional*, defaults to `0`):
            At least so many forwards are run, the missing ones on a dummy row, because sharded models need the same
            number on every process.
    """
    call = forward or model
    branches = _branches(turns)
    results: list[tuple[tuple[float, ...], ...]] = [()] * len(branches)
    for batch in _batches(branches, max_tokens):
        members = [branches[k] for k in batch]
        for k, found in zip(batch, _score_batch(model, call, members, max_tokens, pad_token_id), strict=True):
            results[k] = found
    for _ in range(num_forwards - num_alternative_forwards(model, turns, max_tokens)):
        full_logps(model, call, [(0, 0)], [[1]], pad_token_id)
    scores = {(one.key, one.block): found for one, found in zip(branches, results, strict=True)}
    return {
        one.key: Alternatives(
            one.texts,
            scores[one.key, None],
            {name: scores[one.key, name if ids else None] for name, ids in one.blocks.items()},
        )
        for one in turns
    }


def num_alternative_forwards(model: Any, turns: Sequence[AlternativeTurn], max_tokens: int) -> int:
    """How many forwards [`score_turns`] runs."""
    branches = _branches(turns)
    batches = [[branches[k] for k in batch] for batch in _batches(branches, max_tokens)]
    prefixes = len(batches) if continues_from_shared_keys(model) else 0
    return prefixes + sum(len(_slices(members, max_tokens)) for members in batches)


# ---- turns ----------------------------------------------------------------------------------------------------------


def _turn(key: TurnKey, turn: Turn, of: Mapping[str, Block], names: Sequence[str]) -> AlternativeTurn | None:
    """The turn with its executed action alone; None where it cannot be scored."""
    if not turn.action or not turn.prompt_ids or turn.splice_index is None or turn.splice_index < MIN_SPLICE_INDEX:
        return None
    places = [k for k, is_action in enumerate(turn.action_mask) if is_action]
    if not places or places[-1] - places[0] != len(places) - 1:
        return None  # not located, or several blocks
    blocks = {}
    for name in names:
        block = of.get(name)
        ids = None if block is None or block.place != "splice" else block.turns[key[1]]
        if ids is not None:
            blocks[name] = ids
    if not blocks:
        return None
    own = turn.reply_ids[places[0] : places[-1] + 1]
    prefix = turn.prompt_ids + turn.reply_ids[: places[0]]
    return AlternativeTurn(key, (turn.action,), (own,), prefix, turn.splice_index, blocks)


def _admissible(made: AlternativeTurn, turn: Turn, tokenizer: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The admissible actions between the tags of the executed one."""
    tag = _TAG.match(tokenizer.decode(made.actions[0], clean_up_tokenization_spaces=False).strip())
    if tag is None:
        return []  # a tool call: what else could have been called is no text between tags
    return [
        (one, tuple(tokenizer.encode(f"<{tag[1]}>{one}</{tag[1]}>", add_special_tokens=False)))
        for one in turn.admissible_actions or ()
    ]


def _with(made: AlternativeTurn, others: Sequence[tuple[str, tuple[int, ...]]], most: int) -> AlternativeTurn:
    """The turn with other actions: each text once, not what was done, and not too many."""
    known = {_plain(made.texts[0])}
    new = []
    for text, ids in others:
        if ids and _plain(text) not in known:
            known.add(_plain(text))
            new.append((text, ids))
    if most and len(new) > most - 1:
        drawn = random.Random(derive_seed("alternatives", *made.key)).sample(range(len(new)), most - 1)
        new = [new[k] for k in sorted(drawn)]
    return replace(
        made, texts=made.texts + tuple(text for text, _ in new), actions=made.actions + tuple(ids for _, ids in new)
    )


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


# ---- forwards -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Branch:
    """One prefix with all its actions."""

    key: TurnKey
    block: str | None
    """None = plain."""
    prefix: tuple[int, ...]
    actions: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The longest row that it makes."""
        return len(self.prefix) + max(map(len, self.actions))


def _branches(turns: Sequence[AlternativeTurn]) -> list[_Branch]:
    return [_Branch(one.key, name, prefix, one.actions) for one in turns for name, prefix in one.branches.items()]


def _batches(branches: Sequence[_Branch], max_tokens: int) -> list[list[int]]:
    """Branches of similar length, each with as many rows as it has actions: rows x longest is bounded."""
    batches: list[list[int]] = []
    width = rows = 0
    for k in sorted(range(len(branches)), key=lambda k: (-branches[k].size, k)):
        of_branch = len(branches[k].actions)
        if batches and width * (rows + of_branch) <= max_tokens:
            batches[-1].append(k)
            rows += of_branch
        else:
            batches.append([k])
            width, rows = branches[k].size, of_branch
    return batches


def _slices(members: Sequence[_Branch], max_tokens: int) -> list[slice]:
    """The rows of a batch in forwards: all at once, but for a turn whose actions alone are too many."""
    num_rows, width = sum(len(one.actions) for one in members), max(one.size for one in members)
    rows = num_rows if len(members) > 1 else max(1, max_tokens // width)
    return [slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows)]


def _score_batch(
    model: Any, call: Forward, members: Sequence[_Branch], max_tokens: int, pad_token_id: int
) -> list[tuple[tuple[float, ...], ...]]:
    device = device_of(model)
    keys = None
    if continues_from_shared_keys(model):
        # One position of the prefix is left over: it predicts the action's first token.
        keys = prefix_keys(call, [one.prefix[:-1] for one in members], pad_token_id, device)
    owners = [k for k, one in enumerate(members) for _ in one.actions]
    sequences = [one.prefix + action for one in members for action in one.actions]
    lengths = [len(members[k].prefix) for k in owners]
    wanted = [list(range(start, len(sequence))) for start, sequence in zip(lengths, sequences, strict=True)]
    flat: list[list[float]] = []
    for part in _slices(members, max_tokens):
        if keys is None:
            flat += full_logps(model, call, sequences[part], wanted[part], pad_token_id)
        else:
            starts = [length - 1 for length in lengths[part]]
            shared = taken_over(keys, owners[part], starts, device)
            flat += continued_logps(model, call, shared, sequences[part], starts, wanted[part], pad_token_id, device)
    found = iter(flat)
    return [tuple(tuple(next(found)) for _ in one.actions) for one in members]
