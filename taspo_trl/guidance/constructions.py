"""The table of privileged contexts: name -> how it is made, what it shows, what it needs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..analyzer.prompts import PROMPTS, Prompts
from ..types import Trajectory, TrajectoryGroup
from . import contrast, futures, outcome, own_workflow, placebos, serl, transcripts
from .aligned import AlignedConstruction
from .anchors import anchor
from .base import Construction, FromSources, Source, other_successes
from .block import Composer
from .combined import Combined
from .generic_skill import generic_skill
from .judge import Judge
from .oracle_plan import oracle_plan
from .sibling_or_feedback import sibling_or_feedback


@dataclass(frozen=True)
class Materials:
    """What constructions are made of.

    Args:
        composer ([`~taspo_trl.guidance.block.Composer`]):
            Makes the blocks.
        skill_of (`Callable`, *optional*):
            Trajectory -> generic skill. By default there is none.
        max_evidence_items, max_guidance_items, max_chars (`int`, *optional*), prompts (`Prompts`, *optional*):
            As in [`~taspo_trl.guidance.aligned.AlignedConstruction`].
        place (`str`, *optional*, defaults to `"splice"`):
            Where blocks of whole trajectories stand, see [`~taspo_trl.types.Block`]; those of single turns are always
            spliced in.
    """

    composer: Composer
    skill_of: Callable[[Trajectory], str] = lambda trajectory: ""
    max_evidence_items: int = 12
    max_guidance_items: int = 8
    max_chars: int = 12000
    prompts: Prompts = PROMPTS
    place: Literal["splice", "start"] = "splice"


@dataclass(frozen=True)
class Entry:
    """One privileged context.

    Args:
        make (`Callable`, *optional*):
            Its construction; None for `"none"`.
        shows (`str`):
            Its content in one line.
        blocks (`tuple[str, ...]`):
            Names of its blocks.
        needs (`str`, *optional*):
            What it needs, in words.
        needs_success (`bool`, *optional*, defaults to `False`):
            Whether a target needs a verified success other than itself.
        own (`bool`, *optional*, defaults to `False`):
            Whether a trajectory may be shown something of its own record.
        per_turn (`bool`, *optional*, defaults to `False`):
            Whether its turns have different blocks.
        asks (`bool`, *optional*, defaults to `False`):
            Whether it asks the analyzer.
        is_oracle (`bool`, *optional*, defaults to `False`):
            Whether it needs the environment's `oracle_plan`.
    """

    make: Callable[[Materials], Construction] | None
    shows: str
    blocks: tuple[str, ...]
    needs: str = ""
    needs_success: bool = False
    own: bool = False
    per_turn: bool = False
    asks: bool = False
    is_oracle: bool = False


def _aligned(of: Materials) -> AlignedConstruction:
    return AlignedConstruction(
        of.composer,
        max_evidence_items=of.max_evidence_items,
        max_guidance_items=of.max_guidance_items,
        max_chars=of.max_chars,
        prompts=of.prompts,
    )


def _judge(of: Materials, with_success: bool) -> Judge:
    return Judge(of.composer, with_success=with_success, max_chars=of.max_chars, prompts=of.prompts)


def _needs_success(group: TrajectoryGroup, member: Trajectory) -> str:
    return "" if other_successes(group, member) else "no_other_success"


Refusal = Callable[[TrajectoryGroup, Trajectory], str]


def _one(
    name: str, shows: str, source: Source, *, needs: str = "", refusal: Refusal | None = None, own: bool = False
) -> Entry:
    """One block for the whole trajectory."""
    return Entry(
        lambda of: FromSources(name, of.composer, {name: source}, refusal=refusal, place=of.place),
        shows,
        (name,),
        needs=needs,
        needs_success=refusal in (_needs_success, transcripts.failures_only, contrast.both_outcomes),
        own=own,
    )


def _turns(name: str, shows: str, source: Source, *, needs: str = "", refusal: Refusal | None = None) -> Entry:
    """A block for each turn, drawn from the target's own record too."""
    return Entry(
        lambda of: FromSources(name, of.composer, {name: source}, refusal=refusal),
        shows,
        (name,),
        needs=needs,
        needs_success=refusal is _needs_success,
        own=True,
        per_turn=True,
    )


def _anchor(name: str) -> Entry:
    whole = f"serl_anchor_{name}"
    table = "action -> feedback of every action" if name == "immediate" else "counts and returns of every action"
    examples = {"immediate": "", "success": ", a success"}.get(name, f", with what `serl_{name}` shows of one visit")
    return Entry(
        lambda of: FromSources(whole, of.composer, {whole: anchor(name, of.composer)}),
        f"{table} that the group tried in the turn's state{examples}",
        (whole,),
        needs="a state key",
        own=True,
        per_turn=True,
    )


_SUCCESS = "a success other than itself"
_FUTURES = {f"own_future_{horizon}": futures.own_future(horizon) for horizon in (1, 2, 3)}
_COMPARED: Mapping[str, Source] = {"right": transcripts.first_success, "wrong": transcripts.first_failure}
_WORKFLOW: Mapping[str, Source] = {"episode": own_workflow.episode, "step": own_workflow.step}

_SERL_SHOWS = {
    "immediate": "the answer to the turn's action",
    "next": "the next observation and what can be done then",
    "future": "the replies of all later turns",
    "success_or_immediate": "the first success's replies, else the answer to the turn's action",
    "success_and_immediate": "the answer to the turn's action and the first success's replies",
    "success_and_next": "the next observation and the first success's replies",
    "success_and_future": "the later replies and the first success's",
    "success_and_future_immediate": "answer, later replies and the first success's",
    "success_and_future_next": "next observation, later replies and the first success's",
}

CONSTRUCTIONS: Mapping[str, Entry] = {
    "aligned": Entry(
        _aligned,
        "quoted evidence from other successes that applies to the target",
        ("aligned",),
        needs=_SUCCESS,
        needs_success=True,
        asks=True,
    ),
    "random_success": _one(
        "random_success",
        "the transcript of a random success",
        transcripts.random_success,
        needs=_SUCCESS,
        refusal=_needs_success,
    ),
    "nearest_success": _one(
        "nearest_success",
        "the transcript of the success with the most similar actions",
        transcripts.nearest_success,
        needs=_SUCCESS,
        refusal=_needs_success,
    ),
    "generic_skill": Entry(
        lambda of: FromSources(
            "generic_skill", of.composer, {"generic_skill": generic_skill(of.skill_of)}, place=of.place
        ),
        "a fixed text for the task family",
        ("generic_skill",),
        needs="the environment's `generic_skill`",
    ),
    "none": Entry(None, "nothing: plain GRPO", ()),
    "first_success_failed_only": _one(
        "first_success_failed_only",
        "the transcript of the first success, for failures alone",
        transcripts.first_success,
        needs="a failed target and a success",
        refusal=transcripts.failures_only,
    ),
    "sibling_or_feedback": _one(
        "sibling_or_feedback",
        "the transcript of the first success, else the environment's last answer to the target",
        sibling_or_feedback,
        own=True,
    ),
    "outcome": _one(
        "outcome",
        "the last answer of a success, of the target itself if it is one",
        outcome.outcome,
        needs="a success",
        refusal=outcome.needs_a_success,
        own=True,
    ),
    "own_workflow": Entry(
        lambda of: FromSources("own_workflow", of.composer, _WORKFLOW),
        "a digest of the target's own episode, and what up to five of its actions led to",
        tuple(_WORKFLOW),
        own=True,
        per_turn=True,
    ),
    "contrast": _one(
        "contrast",
        "accepted actions that only the other successes have, and only the other failures",
        contrast.contrast,
        needs="a success and a failure other than itself",
        refusal=contrast.both_outcomes,
    ),
    "right_wrong": Entry(
        lambda of: FromSources(
            "right_wrong",
            of.composer,
            _COMPARED,
            refusal=contrast.both_outcomes,
            all_or_none=True,
            place=of.place,
        ),
        "the transcripts of the first success and of the first failure, as two blocks",
        tuple(_COMPARED),
        needs="a success and a failure other than itself",
        needs_success=True,
    ),
    **{
        name: _turns(name, f"the target's own actions and answers of {horizon} turns from this one", source)
        for horizon, (name, source) in enumerate(_FUTURES.items(), 1)
    },
    "own_future": Entry(
        lambda of: FromSources("own_future", of.composer, _FUTURES),
        "the three horizons above, as three blocks",
        tuple(_FUTURES),
        own=True,
        per_turn=True,
    ),
    "serl_success": _one(
        "serl_success",
        "the first success's replies, without reasoning and observations",
        serl.success,
        needs=_SUCCESS,
        refusal=_needs_success,
    ),
    **{
        f"serl_{name}": _turns(
            f"serl_{name}",
            shows,
            serl.SOURCES[name],
            needs=_SUCCESS if "_and_" in name else "",
            refusal=_needs_success if "_and_" in name else None,
        )
        for name, shows in _SERL_SHOWS.items()
    },
    **{f"serl_anchor_{name}": _anchor(name) for name in serl.EXAMPLES},
    "serl_judge": Entry(
        lambda of: _judge(of, with_success=False),
        "the verdict and the analyzer's two to four sentences on the attempt",
        ("serl_judge",),
        own=True,
        asks=True,
    ),
    "serl_judge_success": Entry(
        lambda of: _judge(of, with_success=True),
        "the same by a judge that also saw the first success",
        ("serl_judge_success",),
        needs=_SUCCESS,
        needs_success=True,
        own=True,
        asks=True,
    ),
    "oracle_plan": Entry(
        lambda of: FromSources("oracle_plan", of.composer, {"oracle_plan": oracle_plan}),
        "the simulator's plan from the turn's state: an upper bound, no method",
        ("oracle_plan",),
        needs="the environment's `oracle_plan`",
        own=True,
        per_turn=True,
        is_oracle=True,
    ),
    "shuffled": Entry(
        lambda of: placebos.Shuffled(_aligned(of)),
        "a placebo: the aligned block of another task",
        ("shuffled",),
        needs=f"{_SUCCESS}, and another task in the batch",
        needs_success=True,
        asks=True,
    ),
    "empty": _one("empty", "a placebo: the empty block, every shift is 0", placebos.empty),
}
"""Name -> entry. A construction with one block names it like itself."""
WHOLE = tuple(name for name, entry in CONSTRUCTIONS.items() if len(entry.blocks) <= 1 and not entry.per_turn)
"""Names of the contexts with one block for all turns of a trajectory, and `"none"`."""


def make_construction(name: str, materials: Materials) -> Construction | None:
    """The construction called `name`; None for `"none"`.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in CONSTRUCTIONS:
        close = difflib.get_close_matches(name, CONSTRUCTIONS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`name` must be one of {', '.join(map(repr, CONSTRUCTIONS))}, got {name!r}.{hint}")
    make = CONSTRUCTIONS[name].make
    return make(materials) if make is not None else None


def construction_of_blocks(blocks: Sequence[str], materials: Materials) -> Construction | None:
    """What makes all of these blocks together; None for no block.

    Args:
        blocks (`Sequence[str]`):
            Names of blocks, as in [`Needs.blocks`] of the credit rules. `own_future_<D>` is known for every D.
        materials ([`Materials`]):
            What constructions are made of.

    Raises:
        ValueError: nothing makes a block of that name.
    """
    names = dict.fromkeys(maker_of(block) for block in blocks)
    made = [_made(name, materials) for name in names]
    parts = [one for one in made if one is not None]
    return parts[0] if len(parts) == 1 else Combined(parts) if parts else None


def maker_of(block: str) -> str:
    """The construction that makes a block: the one of its name, else the one that lists it."""
    if block in CONSTRUCTIONS or _FUTURE.fullmatch(block):
        return block
    makers = [name for name, entry in CONSTRUCTIONS.items() if block in entry.blocks]
    if not makers:
        raise ValueError(f"No construction makes a block {block!r}.")
    return makers[0]


_FUTURE = re.compile(r"own_future_([1-9]\d*)")


def _made(name: str, materials: Materials) -> Construction | None:
    horizon = _FUTURE.fullmatch(name)
    if horizon and name not in CONSTRUCTIONS:
        return FromSources(name, materials.composer, {name: futures.own_future(int(horizon[1]))})
    return make_construction(name, materials)
