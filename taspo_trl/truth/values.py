"""What the policy makes of a state: the mean outcome of several continuations from it (Monte-Carlo).

V(t) is the value before turn t of a recorded episode, under the policy that is given, with the full context of that
moment; the turn's advantage is V(t + 1) - V(t). Any environment that replays will do.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError, ReplayError
from ..files import append_line, go_on
from ..generation import Engine, SamplingSettings
from ..rollout.contexts import ChatRenderer
from ..rollout.loop import RolloutSettings, play_episodes
from ..rollout.replay import check_text
from ..rollout.tasks import EpisodeSpec
from ..seeds import derive_seed
from ..types import Trajectory
from .forced import ForcedPrefixes
from .progress import Labels


State = tuple[str, int]
"""(trajectory uid, t): the state before turn t."""


@dataclass(frozen=True)
class TurnValues:
    """The outcomes of the continuations.

    Args:
        outcomes (`Mapping[State, tuple[float, ...]]`):
            One value for each continuation that came to its end; one alone for a state that ends the episode, whose
            outcome is known. None at all where fewer than two came to theirs.
        num_turns (`Mapping[str, int]`):
            Trajectory uid -> T_i, for the trajectories that were asked for.
        num_replies (`int`):
            Replies that were sampled for it: the cost.
        lost (`Mapping[str, str]`, *optional*):
            Trajectory uid -> why it could not be replayed.
        dropped (`Mapping[State, tuple[str, ...]]`, *optional*):
            State -> why continuations of it are not among its outcomes: what broke off through infrastructure says
            nothing of the policy. Standard errors are of those that remain.
    """

    outcomes: Mapping[State, tuple[float, ...]]
    num_turns: Mapping[str, int]
    num_replies: int = 0
    lost: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[State, tuple[str, ...]] = field(default_factory=dict)

    def means(self) -> Labels:
        """V(t) of each state that has outcomes."""
        return {state: _mean(outcomes) for state, outcomes in self.outcomes.items() if outcomes}

    def labels(self, half: int | None = None) -> Labels:
        """V(t + 1) - V(t) of each turn.

        Args:
            half (`int`, *optional*):
                0 or 1: from every second continuation only. Two halves share no continuation, so their agreement says
                how much of the labels is not noise.
        """
        values = {state: _mean(_part(outcomes, half)) for state, outcomes in self.outcomes.items()}
        labels = {(uid, t): values[uid, t + 1] - values[uid, t] for uid, t in self._turns()}
        return {turn: label for turn, label in labels.items() if math.isfinite(label)}

    def standard_errors(self) -> Labels:
        """Of each label."""
        return {
            (uid, t): math.sqrt(
                _variance_of_mean(self.outcomes[uid, t]) + _variance_of_mean(self.outcomes[uid, t + 1])
            )
            for uid, t in self._turns()
        }

    def _turns(self) -> Iterator[State]:
        for uid, num_turns in self.num_turns.items():
            for t in range(num_turns):
                if self.outcomes.get((uid, t)) and self.outcomes.get((uid, t + 1)):
                    yield uid, t


def sampled_trajectories(trajectories: Sequence[Trajectory], num_turns: int, seed: int = 0) -> list[Trajectory]:
    """Whole usable trajectories in random order until they have `num_turns` turns: credit is compared inside them."""
    usable = [t for t in trajectories if t.is_usable]
    random.Random(seed).shuffle(usable)
    chosen, total = [], 0
    for one in usable:
        if total >= num_turns:
            break
        chosen.append(one)
        total += len(one.turns)
    return chosen


def num_replies_expected(trajectories: Sequence[Trajectory], num_continuations: int) -> int:
    """Replies that [`play_values`] will sample if continuations are as long as the episodes themselves were."""
    return num_continuations * sum(len(t.turns) * (len(t.turns) + 1) // 2 for t in trajectories)


def play_values(
    trajectories: Sequence[Trajectory],
    *,
    engine: Engine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    rollout: RolloutSettings,
    sampling: SamplingSettings,
    num_continuations: int = 8,
    seed: int = 0,
    value_of: Callable[[Trajectory], float] | None = None,
    first_turn: int = 0,
    is_strict: bool = True,
    states_in_flight: int = 32,
    progress_path: str | os.PathLike | None = None,
    on_states: Callable[[int, int], None] | None = None,
) -> TurnValues:
    """Continue every trajectory from each of its states.

    Args:
        trajectories (`Sequence[Trajectory]`):
            Recorded episodes, with their seeds.
        engine (`Engine`), pool (`EnvironmentPool`), renderer (`ChatRenderer`), rollout (`RolloutSettings`), \
        sampling (`SamplingSettings`):
            The policy and the settings that played them; other settings give other prompts, which is refused.
        num_continuations (`int`, *optional*, defaults to `8`):
            K for each state. The standard error of a value is at most 0.5 / sqrt(K) for outcomes of 0 and 1.
        seed (`int`, *optional*, defaults to `0`):
            Of the sampling.
        value_of (`Callable`, *optional*):
            A finished trajectory's value. If `None`, 1.0 for a verified success, else 0.0.
        first_turn (`int`, *optional*, defaults to `0`):
            States before this turn are not continued.
        is_strict (`bool`, *optional*, defaults to `True`):
            Whether an episode that does not come back raises. Else it is left out, and told in
            [`TurnValues.lost`]. A single continuation that breaks off through infrastructure (a time-out, a worker
            that died) does neither: the others of its state are kept, and [`TurnValues.dropped`] tells why. An episode
            is lost when none of a state's continuations came to that state.
        states_in_flight (`int`, *optional*, defaults to `32`):
            States that are continued at the same time, K episodes each.
        progress_path (`str` or `PathLike`, *optional*):
            JSON-lines file to which finished states are appended. What is found there is not played again, and the
            result is the same. It belongs to one set of trajectories and settings: others raise.
        on_states (`Callable`, *optional*):
            Called with (states that are done, all states).

    Raises:
        ReplayError: an episode does not come back.
        ConfigurationError: fewer than two continuations, or a progress file of something else.
    """
    if num_continuations < 2:
        raise ConfigurationError(
            f"`num_continuations` ({num_continuations}) must be at least 2: a standard error needs two values."
        )
    value, lost = value_of or _success, dict[str, str]()

    def lose(uid: str, error: ReplayError) -> None:
        if is_strict:
            raise error
        lost.setdefault(uid, str(error))

    for one in trajectories:
        if one.seed is None:
            lose(one.uid, ReplayError(f"Episode {one.uid} was recorded without its seed, so it cannot be replayed."))
    states = [(one, t) for one in trajectories for t in range(first_turn, len(one.turns)) if one.uid not in lost]
    facts = {
        "trajectories": f"{derive_seed(*(part for one in trajectories for part in _identity(one))):016x}",
        "num_continuations": num_continuations,
        "states_in_flight": states_in_flight,
        "seed": seed,
        "sampling": asdict(sampling),
        "rollout": asdict(rollout),
        **({"first_turn": first_turn} if first_turn else {}),
    }
    done, dropped, num_replies = _read_progress(progress_path, facts)
    outcomes: dict[State, tuple[float, ...]] = {(one.uid, len(one.turns)): (value(one),) for one in trajectories}
    for start in range(0, len(states), states_in_flight):
        chunk = states[start : start + states_in_flight]
        if not all((one.uid, t) in done for one, t in chunk):
            engine_of_chunk = ForcedPrefixes(
                engine, {_uid(one, t, k): one.turns[:t] for one, t in chunk for k in range(num_continuations)}
            )
            # A seed for each chunk: an interrupted run goes on with the same draws.
            engine_of_chunk.begin(sampling, derive_seed("values", seed, start))
            specs = [_spec(one, t, k) for one, t in chunk for k in range(num_continuations)]
            played = play_episodes(specs, engine=engine_of_chunk, pool=pool, renderer=renderer, settings=rollout)
            new, broken = dict[State, tuple[float, ...]](), dict[State, tuple[str, ...]]()
            for place, (one, t) in enumerate(chunk):
                of_state = played[place * num_continuations : (place + 1) * num_continuations]
                try:
                    kept, gone = _sorted_out(one, t, of_state, engine_of_chunk.refused)
                except ReplayError as error:
                    lose(one.uid, error)
                    continue
                new[one.uid, t] = tuple(value(continued) for continued in kept)
                if gone:
                    broken[one.uid, t] = gone
            _append(progress_path, new, broken, engine_of_chunk.num_sampled)
            num_replies += engine_of_chunk.num_sampled
            done |= new
            dropped |= broken
        outcomes |= {(one.uid, t): done[one.uid, t] for one, t in chunk if (one.uid, t) in done}
        if on_states is not None:
            on_states(min(start + states_in_flight, len(states)), len(states))
    return TurnValues(
        {state: values for state, values in outcomes.items() if state[0] not in lost},
        {one.uid: len(one.turns) for one in trajectories if one.uid not in lost},
        num_replies,
        lost,
        {state: reasons for state, reasons in dropped.items() if state[0] not in lost},
    )


def _success(trajectory: Trajectory) -> float:
    return float(trajectory.success)


def _identity(trajectory: Trajectory) -> tuple[Any, ...]:
    return trajectory.uid, trajectory.seed, *(turn.action for turn in trajectory.turns)


def _uid(trajectory: Trajectory, t: int, k: int) -> str:
    return f"{trajectory.uid}-t{t}-c{k}"


def _spec(trajectory: Trajectory, t: int, k: int) -> EpisodeSpec:
    assert trajectory.seed is not None
    row, environment = trajectory.task, trajectory.environment
    return EpisodeSpec(_uid(trajectory, t, k), f"{trajectory.uid}-t{t}", k, row, trajectory.seed, environment)


def _sorted_out(
    recorded: Trajectory, t: int, played: Sequence[Trajectory], refused: Mapping[str, str]
) -> tuple[list[Trajectory], tuple[str, ...]]:
    """A state's continuations that came to their end, and why the others did not; no single one, which has no error.

    Raises:
        ReplayError: the recorded part came out differently, or nobody got through it.
    """
    kept, gone, reached = [], [], 0
    for continued in played:
        if continued.uid in refused:
            raise ReplayError(f"Episode {recorded.uid} does not replay: {refused[continued.uid]}.")
        _check(recorded, t, continued)
        # One that ended otherwise was there: `_check` let it pass.
        reached += not continued.stop_reason.is_infrastructure or _num_answered(continued) >= max(t, 1)
        if continued.stop_reason.is_infrastructure:
            gone.append(f"{continued.stop_reason.value}: {continued.error}")
        else:
            kept.append(continued)
    if not reached:
        raise ReplayError(
            f"Episode {recorded.uid} does not replay: none of its {len(played)} continuations came to turn {t} "
            f"({gone[0]}). Its turns cannot be labelled."
        )
    return (kept if len(kept) > 1 else []), tuple(gone)


def _check(recorded: Trajectory, t: int, continued: Trajectory) -> None:
    """Refuse a continuation whose recorded part came out differently, as far as it got."""
    turns, num_answered = continued.turns, _num_answered(continued)
    if len(turns) < t and not continued.stop_reason.is_infrastructure:
        raise ReplayError(
            f"Episode {recorded.uid} does not replay: it ended before turn {t} ({continued.stop_reason.value}). Its "
            "turns cannot be labelled."
        )
    for number, (old, new) in enumerate(zip(recorded.turns[:t], turns, strict=False)):
        check_text(recorded, number, old.observation, new.observation)
        if number < num_answered:
            check_text(recorded, number + 1, old.next_observation, new.next_observation)
    if len(turns) > t and t < len(recorded.turns):
        check_text(recorded, t, recorded.turns[t].observation, turns[t].observation)


def _num_answered(continued: Trajectory) -> int:
    """Turns whose action was answered: where a world broke off, the last one may not have been."""
    turns = continued.turns
    is_open = continued.stop_reason.is_infrastructure and bool(turns) and not turns[-1].next_observation
    return len(turns) - is_open


def _part(outcomes: Sequence[float], half: int | None) -> Sequence[float]:
    # A single value is an outcome that is known: both halves have it.
    return outcomes if half is None or len(outcomes) == 1 else outcomes[half::2]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _variance_of_mean(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _read_progress(
    path: str | os.PathLike | None, facts: Mapping[str, Any]
) -> tuple[dict[State, tuple[float, ...]], dict[State, tuple[str, ...]], int]:
    if path is None:
        return {}, {}, 0
    done: dict[State, tuple[float, ...]] = {}
    dropped: dict[State, tuple[str, ...]] = {}
    num_replies = 0

    def take(data: Mapping[str, Any]) -> None:
        nonlocal num_replies
        states = {(uid, t): tuple(values) for uid, t, values in data["states"]}
        broken = {(uid, t): tuple(reasons) for uid, t, reasons in data.get("dropped", ())}
        num_replies += data["replies"]
        done.update(states)
        dropped.update(broken)

    what, other = "measured states, which are played again,", "the values of other episodes or settings"
    go_on(Path(path), facts, take, what=what, other=other)
    return done, dropped, num_replies


def _append(
    path: str | os.PathLike | None,
    states: Mapping[State, tuple[float, ...]],
    dropped: Mapping[State, tuple[str, ...]],
    num_replies: int,
) -> None:
    if path is None:
        return
    line: dict[str, Any] = {
        "replies": num_replies,
        "states": [[uid, t, values] for (uid, t), values in states.items()],
    }
    if dropped:
        line["dropped"] = [[uid, t, reasons] for (uid, t), reasons in dropped.items()]
    append_line(path, line)
