"""Whether a policy reads guidance: its success with blocks in the prompt, by who wrote them.

An engine inserts a block at the place where scoring would; everything else is played as in training. This shows blocks
to a policy that acts, which no method does: it only tells whether scores under such blocks can mean anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..generation import Engine, EngineAround, Generation, GenerationRequest
from ..guidance.block import Composer
from ..rows import MIN_SPLICE_INDEX, insert_block
from ..types import Guidance


class GuidedEngine(EngineAround):
    """An engine that shows each episode its block.

    Args:
        engine (`Engine`):
            Samples.
        blocks (`Mapping[str, tuple[int, ...]]`):
            Episode uid -> block; none for the others.
        splice_of (`Callable`):
            Prompt ids -> where the block goes, None where it cannot.
    """

    def __init__(
        self,
        engine: Engine,
        blocks: Mapping[str, tuple[int, ...]],
        splice_of: Callable[[tuple[int, ...]], int | None],
    ):
        super().__init__(engine)
        self._blocks, self._splice_of = blocks, splice_of

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        block = self._blocks.get(request.episode_uid, ())
        place = self._splice_of(request.prompt_ids) if block else None
        if place is not None and place >= MIN_SPLICE_INDEX:
            request = replace(request, prompt_ids=insert_block(request.prompt_ids, place, block))
        return super().submit(request)


def splice_by_tail(prompt_ids: Sequence[int], splice_index: int) -> Callable[[tuple[int, ...]], int | None]:
    """Where a block goes, from one prompt whose place is known: what follows it ends every prompt alike.

    Args:
        prompt_ids (`Sequence[int]`), splice_index (`int`):
            A recorded prompt and its place.
    """
    tail = tuple(prompt_ids[splice_index:])

    def place(ids: tuple[int, ...]) -> int | None:
        return len(ids) - len(tail) if tail and ids[-len(tail) :] == tail else None

    return place


def plan_blocks(plans: Mapping[str, Sequence[str] | None], composer: Composer) -> dict[str, tuple[int, ...]]:
    """Group -> the block that lists its plan, as an analyzer lists actions."""
    return {
        name: composer.block("\n".join(f"- {composer.neutralized(action)}" for action in plan))
        for name, plan in plans.items()
        if plan
    }


def blocks_as_made(guidance: Mapping[str, Guidance], group_of: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Group -> the first block that was made for one of its members."""
    found: dict[str, tuple[int, ...]] = {}
    for uid, one in guidance.items():
        if one.block_ids:
            found.setdefault(group_of[uid], one.block_ids)
    return found


def of_another_task(blocks: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Group -> the block of the next group whose task reads differently."""
    names = list(blocks)
    found = {}
    for k, name in enumerate(names):
        for other in (*names[k + 1 :], *names[:k]):
            if texts[other] != texts[name]:
                found[name] = blocks[other]
                break
    return found
