"""Groups, guidance and credit to a flat dict of floats, in names that a TRL user knows.

Pure. Trajectory metrics are averages over trajectories, whatever the number of rows, micro-batches and processes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ..analyzer.base import AnalyzerReply, AnalyzerRequest
from ..guidance.stage import GuidanceBatch
from ..rollout.groups import CollectedGroup
from ..truth.measures import Labelled, agreement
from ..types import Credit, Extraction, FinishReason, Guidance, StopReason, Trajectory


COUNTS = ("evidence/rejected/", "guidance/none/", "credit/fallback/", "credit/unscorable/", "analyzer/errors/")
"""Beginnings of names that a batch has only where there is something to count."""


MOVING = "moving/"
"""Beginning of the names of TRL's metrics where they cover only the trajectories that move the policy."""


def rollout_report(
    collected: Sequence[CollectedGroup],
    advantages: Sequence[float],
    flat_G: Sequence[bool],
    guided: GuidanceBatch,
    credits: Sequence[Credit],
    calls: Sequence[tuple[AnalyzerRequest, AnalyzerReply]],
) -> dict[str, float]:
    """All numbers of one rollout batch, those that the user's reward functions logged included."""
    trajectories = [member for one in collected for member in one.group.trajectories]
    num_usable_G = [sum(t.is_usable for t in one.group.trajectories) for one in collected]
    values = {
        **rollout_metrics(trajectories),
        **group_metrics(flat_G, num_usable_G),
        **guidance_metrics(guided.guidance, guided.extractions, trajectories, advantages),
        **credit_metrics(credits, trajectories),
        **analyzer_metrics(calls),
        "time/analyzer": guided.work_seconds,
    }
    logged: dict[str, list[float]] = {}
    for one in collected:
        for name, numbers in one.extra_metrics.items():
            logged.setdefault(name, []).extend(numbers)
    return values | {name: _mean(numbers) for name, numbers in logged.items()}


def update_metrics(
    totals: Mapping[str, float], clip_shares: Sequence[Sequence[float]] = (), is_whole: bool = True
) -> dict[str, float]:
    """TRL's loss metrics of one micro-step.

    Args:
        totals (`Mapping[str, float]`):
            Sums over its loss tokens, see [`~taspo_trl.loss.objective.token_sums`].
        clip_shares (`Sequence[Sequence[float]]`, *optional*):
            (low, high) for each of its rows, see [`~taspo_trl.loss.objective.clip_shares`].
        is_whole (`bool`, *optional*, defaults to `True`):
            Whether every usable trajectory is among the rows, as with TRL. Else only those that move the policy are
            computed, and the names say so: `moving/entropy`, `moving/clip_ratio/...`.
    """
    values = {"policy_loss": totals["policy_loss"]}
    if "distill_loss" in totals:
        values["distill/loss"] = totals["distill_loss"]
    if totals["tokens"] > 0:
        prefix = "" if is_whole else MOVING
        means = {name: totals[name] / totals["tokens"] for name in totals}
        values |= {
            f"{prefix}entropy": means["entropy"],
            f"{prefix}clip_ratio/low_mean": means["clip_low"],
            f"{prefix}clip_ratio/high_mean": means["clip_high"],
            f"{prefix}clip_ratio/region_mean": means["clip_low"] + means["clip_high"],
        }
        if clip_shares:
            values[f"{prefix}clip_ratio/low_min"] = min(low for low, _ in clip_shares)
            values[f"{prefix}clip_ratio/high_max"] = max(high for _, high in clip_shares)
        if "kl" in means:
            values["kl"] = means["kl"]
    return values


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Outcome, lengths, ends and actions of a batch of episodes, failed ones left out of the outcome."""
    usable = [t for t in trajectories if t.is_usable]
    turns = [turn for t in trajectories for turn in t.turns]
    replies = [len(turn.reply_ids) for turn in turns]
    cut = [turn.finish_reason is FinishReason.LENGTH for turn in turns]
    # What TRL calls a completion is the whole episode: its sampled tokens, and whether the last of them is an end.
    episodes = [t for t in trajectories if t.turns]
    sampled = [sum(len(turn.reply_ids) for turn in t.turns) for t in episodes]
    is_cut = [t.turns[-1].finish_reason is FinishReason.LENGTH for t in episodes]
    values: dict[str, float] = {
        "success": _mean([float(t.success) for t in usable]),
        "reward": _mean([t.reward for t in usable]),
        "reward_std": _std([t.reward for t in usable]),
        "environment_reward": _mean([t.environment_reward for t in usable]),
        "turns/mean": _mean([len(t.turns) for t in usable]),
        "turns/mean_success": _mean([len(t.turns) for t in usable if t.success]),
        "turns/max": float(max((len(t.turns) for t in usable), default=0)),
        "actions/invalid_share": _mean([float(not turn.valid) for turn in turns]),
        "actions/empty_reply_share": _mean([float(not turn.reply_ids) for turn in turns]),
        "actions/unlocated_share": _mean([float(not any(turn.action_mask)) for turn in turns]),
        "prompts/cut_share": _mean([float(turn.prompt_cuts > 0) for turn in turns]),
        "prompts/mean_length": _mean([len(turn.prompt_ids) for turn in turns]),
        **_lengths("replies", replies, cut),
        **_lengths("completions", sampled, is_cut),
        "episodes/failed_share": _mean([float(not t.is_usable) for t in trajectories]),
        "tokens/prompt": float(sum(len(turn.prompt_ids) for turn in turns)),
        "tokens/reply": float(sum(replies)),
    }
    ends = Counter(t.stop_reason for t in trajectories)
    values |= {f"stop/{reason.value}": ends[reason] / max(1, len(trajectories)) for reason in StopReason}
    names = sorted({name for t in usable for name in t.rewards})
    for name in names:
        scores = [value for t in usable if (value := t.rewards.get(name)) is not None]
        values[f"rewards/{name}/mean"] = _mean(scores)
        values[f"rewards/{name}/std"] = _std(scores)
    families = sorted({t.family for t in usable})
    if len(families) > 1:
        for family in families:
            values[f"success/{family}"] = _mean([float(t.success) for t in usable if t.family == family])
    return values


def _lengths(name: str, lengths: Sequence[int], is_cut: Sequence[bool]) -> dict[str, float]:
    """TRL's seven numbers about the lengths of completions, for whatever `name` says."""
    ended = [length for length, was_cut in zip(lengths, is_cut, strict=True) if not was_cut]
    return {
        f"{name}/mean_length": _mean(lengths),
        f"{name}/min_length": float(min(lengths, default=0)),
        f"{name}/max_length": float(max(lengths, default=0)),
        f"{name}/clipped_ratio": _mean([float(was_cut) for was_cut in is_cut]),
        f"{name}/mean_terminated_length": _mean(ended),
        f"{name}/min_terminated_length": float(min(ended, default=0)),
        f"{name}/max_terminated_length": float(max(ended, default=0)),
    }


def tokens_seen(trajectory: Trajectory) -> int:
    """What TRL counts in `num_tokens`: the prompt that opens an episode, and its sampled tokens.

    What the environment answers does not count, whether it makes a chat grow or the next prompt anew.
    """
    if not trajectory.turns:
        return 0
    return len(trajectory.turns[0].prompt_ids) + sum(len(turn.reply_ids) for turn in trajectory.turns)


def group_metrics(flat_G: Sequence[bool], num_usable_G: Sequence[int]) -> dict[str, float]:
    """How many groups have no contrast, and how many lost so many members that they cannot have any."""
    return {
        "frac_reward_zero_std": _mean([float(is_flat) for is_flat in flat_G]),
        "groups/too_few_usable": _mean([float(count < 2) for count in num_usable_G]),
    }


def guidance_metrics(
    guidance: Mapping[str, Guidance],
    extractions: Mapping[str, Extraction],
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
) -> dict[str, float]:
    """Coverage, evidence kept and rejected by reason, and why trajectories have no guidance.

    Coverage is trajectories with guidance / trajectories with A_i != 0 (docs/method.md, section 4). The latter include
    ones that no analyzer is asked about, for want of another success or of a second turn to compare with:
    `guidance/none/<reason>` says how many these are.
    """
    wanted = [t.uid for t, advantage in zip(trajectories, advantages, strict=True) if advantage != 0]
    given = [one for one in guidance.values() if one]
    rejections = [r for one in guidance.values() for r in one.rejections]
    rejections += [r for extraction in extractions.values() for r in extraction.rejections]
    values = {
        "guidance/coverage": sum(bool(guidance[uid]) for uid in wanted) / len(wanted) if wanted else 0.0,
        "guidance/coverage_all": len(given) / len(trajectories) if trajectories else 0.0,
        "guidance/eligible_groups": float(len(extractions)),
        "guidance/statements": _mean([len(one.statements) for one in given]),
        "guidance/tokens": _mean([len(one.block_ids) for one in given]),
        "evidence/kept": float(sum(len(extraction.evidence) for extraction in extractions.values())),
        "evidence/rejected": float(len(rejections)),
    }
    reasons = Counter(f"{r.stage}_{r.reason}" for r in rejections)
    values |= {f"evidence/rejected/{reason}": float(count) for reason, count in sorted(reasons.items())}
    missing = Counter(one.abstain_reason.split(":")[0] for one in guidance.values() if not one)
    values |= {f"guidance/none/{reason}": float(count) for reason, count in sorted(missing.items()) if reason}
    return values


def credit_metrics(credits: Sequence[Credit], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Weight spread, support of accepted and rejected actions, scorable share, fallbacks by reason."""
    moved = [credit for credit in credits if not credit.fallback]
    weights = [weight for credit in moved for weight in credit.weights]
    scored = [(credit, t) for credit, t in zip(credits, trajectories, strict=True) if credit.scores]
    supports = [
        (support, turn.valid)
        for credit, t in scored
        for support, turn in zip(credit.supports, t.turns, strict=True)
        if support is not None
    ]
    num_turns = sum(len(credit.scores) for credit, _ in scored)
    values = {
        "credit/weighted_share": len(moved) / len(credits) if credits else 0.0,
        "credit/weight_std": _std(weights),
        "credit/weight_min": min(weights, default=1.0),
        "credit/weight_max": max(weights, default=1.0),
        "credit/scorable_share": len(supports) / num_turns if num_turns else 0.0,
        "credit/support_accepted": _mean([support for support, valid in supports if valid]),
        "credit/support_rejected": _mean([support for support, valid in supports if not valid]),
    }
    fallbacks = Counter(credit.fallback.split(":")[0] for credit in credits if credit.fallback)
    values |= {f"credit/fallback/{reason}": float(count) for reason, count in sorted(fallbacks.items())}
    unscorable = Counter(score.unscorable for credit, _ in scored for score in credit.scores if score.unscorable)
    values |= {f"credit/unscorable/{reason}": float(count) for reason, count in sorted(unscorable.items())}
    return values | _agreement(credits, trajectories)


def _agreement(credits: Sequence[Credit], trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`credit/auc_progress`, where the environment tells progress and credit was moved."""
    rows = []
    for credit, t in zip(credits, trajectories, strict=True):
        turns = [(w, turn.progress) for w, turn in zip(credit.weights, t.turns, strict=True)]
        known = [(credit.advantage * w, progress) for w, progress in turns if progress is not None]
        if credit.advantage and not credit.fallback and known:
            rows.append(Labelled("", *zip(*known, strict=True)))
    auc = agreement(rows, num_resamples=0).auc.value
    return {} if math.isnan(auc) else {"credit/auc_progress": auc}


def analyzer_metrics(calls: Sequence[tuple[AnalyzerRequest, AnalyzerReply]]) -> dict[str, float]:
    """Calls by stage, errors by reason, tokens, latency and cost; nothing for a batch without calls."""
    if not calls:
        return {}
    replies = [reply for _, reply in calls]
    values = {f"analyzer/calls_{stage}": float(count) for stage, count in Counter(r.stage for r, _ in calls).items()}
    values |= {
        "analyzer/calls": float(len(calls)),
        "analyzer/cached_share": _mean([float(reply.is_cached) for reply in replies]),
        "analyzer/seconds_per_call": _mean([reply.seconds for reply in replies]),
        "analyzer/tokens_prompt": float(sum(reply.prompt_tokens or 0 for reply in replies)),
        "analyzer/tokens_completion": float(sum(reply.completion_tokens or 0 for reply in replies)),
        "analyzer/truncated": float(sum(reply.finish_reason == "length" for reply in replies)),
    }
    costs = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    if costs:
        values["analyzer/cost_usd"] = math.fsum(costs)
    errors = Counter(reply.error for reply in replies if reply.error)
    values |= {f"analyzer/errors/{reason}": float(count) for reason, count in sorted(errors.items())}
    details: Counter[str] = Counter()
    for reply in replies:
        details.update(reply.details)
    values |= {f"analyzer/{name}": float(count) for name, count in sorted(details.items())}
    return values


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing, which TRL's `log` leaves out of its averages."""
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
