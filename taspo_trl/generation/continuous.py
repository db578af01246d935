"""Decoding in which no reply waits for another: requests join between two tokens, and what was computed is kept.

The keys and values of an episode's last turn stay. Its next prompt is computed from where the two differ; the first
prompt of a group is computed once, and a prompt that opens like a kept one continues from there.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..seeds import derive_seed
from ..types import FinishReason
from .base import Generation, GenerationRequest, SamplingSettings
from .choosing import Chooser
from .decoder import Decoder, Feed


PREFILL_TOKENS = 16384
"""Rows x new prompt tokens of one forward, which bounds its activations."""
OPENING = 16
"""Tokens in common from which on a prompt continues from the keys of another episode."""
JOINING_SHARE, JOINING_STEPS = 0.25, 4
"""Requests join when they are this share of the replies under way, or have waited for this many tokens: a forward for
each newcomer alone would cost more than the wait."""
COLUMNS = 64
"""Buffers grow by multiples of this many tokens."""


@dataclass(eq=False)
class _Sequence:
    """The tokens whose keys and values lie in a row, from its column 0."""

    uid: str
    row: int
    ids: list[int] = field(default_factory=list)
    used: int = 0
    """The step in which it was last decoded."""


@dataclass(eq=False)
class _Reply:
    """A reply that is being sampled, or waits to be."""

    request: GenerationRequest
    future: Future[Generation]
    random: random.Random
    arrived: int
    sequence: _Sequence | None = None
    ids: list[int] = field(default_factory=list)

    @property
    def width(self) -> int:
        return len(self.request.prompt_ids) + self.request.max_new_tokens


class _Room:
    """Who may join, within a bound on rows x longest.

    Args:
        bound (`int`):
            Of rows x longest, in tokens.
        active (`Sequence[_Reply]`), kept (`Mapping[str, _Sequence]`):
            The replies under way, and all rows by episode.
    """

    def __init__(self, bound: int, active: Sequence[_Reply], kept: Mapping[str, _Sequence]):
        self._bound = bound
        self._busy = {one.request.episode_uid for one in active}
        self._widest = max((one.width for one in active), default=0)
        idle = sorted((one.used, one.uid) for one in kept.values() if one.uid not in self._busy)
        self._idle = {uid: kept[uid] for _, uid in idle}
        self._longest = self._longest_idle()

    def make(self, reply: _Reply) -> tuple[bool, list[_Sequence]]:
        """Whether the reply joins, and whose rows are given up for it, the longest unused first."""
        uid = reply.request.episode_uid
        given_up: list[_Sequence] = []
        if uid in self._busy:
            return False, []  # an episode's second request waits for the first: they share a row
        own = self._idle.pop(uid, None)
        widest = max(self._widest, reply.width)
        while (len(self._busy) + 1 + len(self._idle)) * max(widest, self._longest) > self._bound:
            # While most episodes are being answered, those of the others will be asked for soon.
            if not self._idle or (own is None and len(self._idle) <= len(self._busy)):
                if self._busy or self._idle:
                    return False, given_up
                break  # alone, it always has room
            given_up.append(self._idle.pop(next(iter(self._idle))))
            self._longest = self._longest_idle()
        self._busy.add(uid)
        self._widest = widest
        return True, given_up

    def _longest_idle(self) -> int:
        return max((len(one.ids) for one in self._idle.values()), default=0)


class ContinuousDecoding:
    """Replies to requests, token by token.

    The numbers that decide a reply derive from the seed, the episode and the turn, whatever it is batched with. Its
    logits may differ in the last bits by what else is in the batch, as matrix products do.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            In eval mode whenever [`step`] is called.
        pad_token_id (`int`), eos_token_ids (`Sequence[int]`):
            As TRL resolves them.
        batch_tokens (`int`):
            Bound on rows x (longest prompt + new tokens), kept rows included: rows that wait for their next turn are
            given up for others, the longest unused first, and requests wait for room. One request always has room.
        sampling (`SamplingSettings`), seed (`int`):
            How to sample.
        counts (`Counter`, *optional*):
            Counts `prompt_tokens`, of which `computed_prompt_tokens`, `reply_tokens`, `forwards`, `evictions`.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_token_id: int,
        eos_token_ids: Sequence[int],
        batch_tokens: int,
        sampling: SamplingSettings,
        seed: int,
        counts: Counter[str] | None = None,
    ):
        self._decoder = Decoder(model, pad_token_id)
        self._chooser = Chooser(sampling, model.device)
        self._ends = frozenset(eos_token_ids)
        self._batch_tokens, self._seed = batch_tokens, seed
        self._turns: Counter[str] = Counter()
        self._waiting: list[_Reply] = []
        self._active: list[_Reply] = []
        self._kept: dict[str, _Sequence] = {}
        """Episode -> its row, active ones included."""
        self._gaps: list[int] = []
        """Rows between or before those of `_kept` that nobody has; a heap."""
        self._known: dict[tuple[int, ...], str] = {}
        """First prompt, and the opening of any prompt -> an episode whose row began with it."""
        self._num_steps = 0
        self.counts: Counter[str] = Counter() if counts is None else counts

    @property
    def is_idle(self) -> bool:
        """Whether no request waits and no reply is under way."""
        return not self._waiting and not self._active

    def submit(self, request: GenerationRequest, future: Future[Generation]) -> None:
        turn = self._turns[request.episode_uid]
        self._turns[request.episode_uid] += 1
        seed = derive_seed(self._seed, request.episode_uid, turn)
        self._waiting.append(_Reply(request, future, random.Random(seed), self._num_steps))

    def step(self) -> None:
        """Let requests join, and sample one token of each reply."""
        self._num_steps += 1
        joined = self._admit()
        done = self._prefill(joined) if joined else []
        if self._active:
            done += self._decode()
        for reply, generation in done:
            reply.future.set_result(generation)

    def forget(self, episode_uid: str) -> None:
        """The episode asks no more: its keys and values go."""
        sequence = self._kept.get(episode_uid)
        if sequence is not None and all(reply.sequence is not sequence for reply in self._active):
            self._release(sequence)
            if not self._kept:  # nobody plays: what follows, such as scoring, has the memory
                self._gaps.clear()
                self._decoder.cache.resize(0, 0, ())

    # ---- joining ---------------------------------------------------------------------------------------------------

    def _admit(self) -> list[_Reply]:
        """The waiting requests that have room now, each with its row."""
        # Those whose keys are here first, then by step and name, not by arrival: environments answer in any order.
        self._waiting.sort(
            key=lambda reply: (
                reply.request.episode_uid not in self._kept,
                reply.arrived,
                reply.request.episode_uid,
            )
        )
        joined: list[_Reply] = []
        if not self._waiting or (
            len(self._waiting) < JOINING_SHARE * len(self._active)
            and self._num_steps - min(reply.arrived for reply in self._waiting) < JOINING_STEPS
        ):
            return joined
        room = _Room(self._batch_tokens, self._active, self._kept)
        for reply in self._waiting:
            has_room, given_up = room.make(reply)
            for one in given_up:
                self._release(one)
            self.counts["evictions"] += len(given_up)
            if not has_room:
                break
            self._seat(reply)
            joined.append(reply)
        del self._waiting[: len(joined)]
        return joined

    def _seat(self, reply: _Reply) -> None:
        """Give a request a row, with as much of its prompt as is known."""
        uid, prompt = reply.request.episode_uid, reply.request.prompt_ids
        opening = prompt[:OPENING]
        sequence = self._kept.get(uid)
        if sequence is None:
            sequence = _Sequence(uid, self._free_row())
            sources = [self._kept[name] for key in (prompt, opening) if (name := self._known.get(key)) in self._kept]
            if sources:
                source = max(sources, key=lambda one: common_length(one.ids, prompt))
                shared = min(common_length(source.ids, prompt), len(prompt) - 1)
                if shared >= OPENING:
                    self._decoder.cache.copy(source.row, [sequence.row], shared)
                    sequence.ids = list(prompt[:shared])
            self._kept[uid] = sequence
            self._known[prompt] = uid
        self._known[opening] = uid
        # The last token is computed in any case: what follows it is sampled from its logits.
        del sequence.ids[min(common_length(sequence.ids, prompt), len(prompt) - 1) :]
        reply.sequence = sequence

    def _release(self, sequence: _Sequence) -> None:
        del self._kept[sequence.uid]
        heapq.heappush(self._gaps, sequence.row)

    def _free_row(self) -> int:
        if self._gaps:
            return heapq.heappop(self._gaps)
        row = len(self._kept)  # all rows before it are taken, so that none moves
        if row >= self._decoder.cache.num_rows:
            self._reshape(row + 1, self._decoder.cache.num_columns, spare=len(self._waiting))
        return row

    def _have_columns(self, number: int) -> None:
        cache = self._decoder.cache
        if number > cache.num_columns:
            most = max((one.width for one in self._active), default=0)
            self._reshape(0, max(number, min(cache.num_columns * 5 // 4, most)))

    def _reshape(self, num_rows: int, num_columns: int, spare: int = 0) -> None:
        """Buffers of at least this shape, with up to `spare` rows more if the bound has room for them."""
        cache = self._decoder.cache
        columns, rows = _rounded(num_columns), max(num_rows, cache.num_rows)
        kept: Sequence[int] = range(cache.num_rows)
        if rows * columns > self._batch_tokens:  # close the gaps, and cut what no row reaches
            sequences = sorted(self._kept.values(), key=lambda one: one.row)
            kept = [one.row for one in sequences]
            for row, one in enumerate(sequences):
                one.row = row
            self._gaps.clear()
            rows = max(num_rows, len(sequences))
            columns = _rounded(max(0 if num_rows else num_columns, *(len(one.ids) for one in sequences), 1))
        if columns:
            rows = max(rows, min(rows + spare, self._batch_tokens // columns))
        cache.resize(rows, columns, kept)

    # ---- computing -------------------------------------------------------------------------------------------------

    def _prefill(self, joined: list[_Reply]) -> list[tuple[_Reply, Generation]]:
        """Compute what is new of the prompts, equal ones once, and sample the first tokens."""
        by_prompt: dict[tuple[int, tuple[int, ...]], list[_Reply]] = {}
        for reply in joined:
            by_prompt.setdefault((len(_row(reply).ids), reply.request.prompt_ids), []).append(reply)
        self.counts["prompt_tokens"] += sum(len(reply.request.prompt_ids) for reply in joined)
        self._have_columns(max(len(reply.request.prompt_ids) for reply in joined))
        done: list[tuple[_Reply, Generation]] = []
        for teams in _chunks(sorted(by_prompt.values(), key=lambda team: _num_new(team[0]))):
            heads = [team[0] for team in teams]
            self.counts["computed_prompt_tokens"] += sum(map(_num_new, heads))
            logits = self._forward(
                [_row(one).row for one in heads],
                [len(_row(one).ids) for one in heads],
                [one.request.prompt_ids[len(_row(one).ids) :] for one in heads],
            )
            for lead, *others in teams:
                if others:
                    rows = [_row(one).row for one in others]
                    self._decoder.cache.copy(_row(lead).row, rows, len(lead.request.prompt_ids))
            replies = [reply for team in teams for reply in team]
            for reply in replies:
                _row(reply).ids = list(reply.request.prompt_ids)
            self._active += replies
            done += self._sample(replies, logits[[k for k, team in enumerate(teams) for _ in team]])
        return done

    def _decode(self) -> list[tuple[_Reply, Generation]]:
        """One more token of every active reply."""
        self._have_columns(1 + max(len(_row(reply).ids) for reply in self._active))
        replies = sorted(self._active, key=lambda reply: _row(reply).row)
        by_row = {_row(reply).row: reply for reply in replies}
        rows: Sequence[int] = list(by_row)
        span = range(rows[0], rows[-1] + 1)
        if 2 * len(rows) >= len(span):  # to compute a few idle rows costs less than to copy the keys of the others
            rows = span
        found = [by_row.get(row) for row in rows]
        logits = self._forward(
            rows,
            [len(_row(one).ids) if one else 0 for one in found],
            [(one.ids[-1],) if one else () for one in found],
        )
        for reply in replies:
            _row(reply).ids.append(reply.ids[-1])
        if len(replies) < len(found):
            logits = logits[[k for k, one in enumerate(found) if one]]
        return self._sample(replies, logits)

    def _forward(self, rows: Sequence[int], starts: Sequence[int], ids: Sequence[Sequence[int]]) -> Any:
        self.counts["forwards"] += 1
        return self._decoder.forward(Feed(rows, starts, ids))

    def _sample(self, replies: list[_Reply], logits: Any) -> list[tuple[_Reply, Generation]]:
        tokens = self._chooser.choose(logits, [reply.random.random() for reply in replies])
        done = []
        for reply, token in zip(replies, tokens, strict=True):
            reply.ids.append(token)
            has_ended = token in self._ends
            if has_ended or len(reply.ids) >= reply.request.max_new_tokens:
                reason = FinishReason.STOP if has_ended else FinishReason.LENGTH
                done.append((reply, Generation(tuple(reply.ids), reason)))
                _row(reply).used = self._num_steps
        self.counts["reply_tokens"] += len(replies)
        if done:
            over = {id(reply) for reply, _ in done}
            self._active = [reply for reply in self._active if id(reply) not in over]
        return done


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the front."""
    first, second = tuple(first), tuple(second)
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # equal up to low, different up to high
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _row(reply: _Reply) -> _Sequence:
    assert reply.sequence is not None
    return reply.sequence


def _num_new(reply: _Reply) -> int:
    return len(reply.request.prompt_ids) - len(_row(reply).ids)


def _rounded(number: int) -> int:
    return -(-number // COLUMNS) * COLUMNS


def _chunks(teams: list[list[_Reply]]) -> list[list[list[_Reply]]]:
    """Teams, sorted by new tokens, in forwards of bounded size."""
    chunks: list[list[list[_Reply]]] = []
    for team in teams:
        if chunks and (len(chunks[-1]) + 1) * _num_new(team[0]) <= PREFILL_TOKENS:
            chunks[-1].append(team)
        else:
            chunks.append([team])
    return chunks
