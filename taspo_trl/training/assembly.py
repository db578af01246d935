"""From a configuration to the settings and stages of a rollout batch; only names are translated here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from ..analyzer.base import Analyzer
from ..analyzer.extractive import ExtractiveAnalyzer
from ..analyzer.prompts import load_prompts
from ..credit.states import state_key
from ..environments.base import attribute
from ..environments.workers import EnvironmentPool
from ..guidance.base import GuidanceContext
from ..guidance.block import Composer
from ..guidance.constructions import Materials, construction_of_blocks
from ..guidance.stage import GuidanceStage
from ..loss.importance import importance_settings
from ..methods import Recipe, recipe_for
from ..rollout.loop import RolloutSettings
from ..rollout.plans import PlanOracle, WorldStates
from ..rollout.rewards import RewardFunction, RewardSettings
from ..scoring.teachers import ServedTeacher, TeacherScorer, load_model, make_teacher
from .checks import check_live_instances
from .passes import PolicyPasses
from .rollout_batch import ExperienceSettings


def make_guidance(args: Any, tokenizer: Any, pool: EnvironmentPool, analyzer: Analyzer) -> GuidanceStage:
    """The stage that gives each trajectory the contexts of the method."""
    recipe = recipe_for(args)
    probes = pool.probes
    tags = tuple(tag for probe in probes.values() for tag in attribute(probe, "action_tags"))
    materials = Materials(
        Composer(tokenizer, args.max_guidance_tokens, tags),
        skill_of=lambda t: attribute(probes[t.environment], "generic_skill")(t.family),
        max_evidence_items=args.max_evidence_items,
        max_guidance_items=args.max_guidance_items,
        max_chars=args.analyzer_context_chars,
        prompts=load_prompts(args.analyzer_prompts),
        place=recipe.place,
    )
    return GuidanceStage(
        construction_of_blocks(recipe.needs.blocks, materials),
        args.analyzer_workers,
        recipe.wanted,
        args.analyzer_time_budget,
        GuidanceContext(
            analyzer,
            state_key=WorldStates(pool.factories) if recipe.state_key == "world" else state_key(recipe.state_key),
            oracle=PlanOracle(pool.factories) if recipe.asks_oracle else None,
        ),
    )


def rollout_settings(args: Any, model_window: int | None, vocab_size: int | None = None) -> RolloutSettings:
    """What bounds and shapes an episode."""
    return RolloutSettings(
        context=args.context,
        history_length=args.history_length,
        max_turns=args.max_turns,
        max_completion_length=args.max_completion_length,
        max_episode_tokens=args.max_episode_tokens,
        max_prompt_length=args.max_prompt_length,
        model_window=model_window,
        vocab_size=vocab_size,
        environment_timeout=args.environment_timeout,
    )


def reward_settings(
    args: Any,
    pool: EnvironmentPool,
    functions: Sequence[RewardFunction],
    weights: Sequence[float],
    names: Sequence[str],
    columns: Sequence[str] = (),
) -> RewardSettings:
    """Where the training reward comes from, for each environment."""
    check_live_instances(functions, pool, args)
    return RewardSettings(
        source=args.training_reward or "success",
        source_of={name: args.training_reward or one.training_reward for name, one in pool.traits.items()},
        functions=functions,
        weights=weights,
        names=names,
        invalid_action_penalty=args.invalid_action_penalty,
        columns=columns,
    )


def experience_settings(
    args: Any, model_window: int | None, *, has_reference: bool, has_entropy_bonus: bool
) -> ExperienceSettings:
    """What the stages after the rollout need to know."""
    return ExperienceSettings(
        recipe=recipe_for(args),
        max_tokens=args.micro_batch_tokens,
        scale_rewards=args.scale_rewards,
        mask_truncated=args.mask_truncated_completions,
        has_reference=has_reference,
        has_entropy_bonus=has_entropy_bonus,
        model_window=model_window,
        correction=importance_settings(args),
        records_folder=Path(args.output_dir) / "_trajectories" if args.save_trajectories != "no" else None,
        records_with_prompt_ids=args.save_trajectories == "full",
        waits_for_guidance=args.full_determinism,
    )


def tasks_without_rows(args: Any) -> Dataset:
    """As many empty rows as a rollout batch has groups, for an environment that draws its tasks from the seed.

    Their one column is None, and such a column does not reach `reset`.
    """
    return Dataset.from_dict({"prompt": [None] * (args.generation_batch_size // args.num_generations)})


def configured_analyzer(args: Any) -> Analyzer:
    """[`~taspo_trl.analyzer.LiteLLMAnalyzer`] when `analyzer_model` is set and used, else the embedded analyzer.

    Raises:
        ConfigurationError: there is no such provider, no key, no usable address or cache.
    """
    if args.analyzer_model is None or not recipe_for(args).asks_analyzer:
        return ExtractiveAnalyzer()
    from ..analyzer.llm.analyzer import LiteLLMAnalyzer

    return LiteLLMAnalyzer(
        args.analyzer_model,
        api_base=args.analyzer_api_base,
        timeout=args.analyzer_timeout,
        attempts=args.analyzer_attempts,
        max_output_tokens=args.analyzer_max_tokens,
        requests_per_minute=args.analyzer_requests_per_minute,
        tokens_per_minute=args.analyzer_tokens_per_minute,
        budget_usd=args.analyzer_budget_usd,
        budget_tokens=args.analyzer_budget_tokens,
        cache=None if args.analyzer_cache == "no" else args.analyzer_cache,
        run=str(Path(args.output_dir or ".").resolve()),
        required=args.analyzer_required,
    )


def keep_trained_weights_in_float32(model: torch.nn.Module) -> None:
    """Turn trained parameters of half precision into float32, in place.

    float16's loss scaler refuses gradients of any other type, and TRL keeps the adapter of a quantised base in
    bfloat16.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


def teacher_of(recipe: Recipe, passes: PolicyPasses, tokenizer: Any, is_sharded: bool) -> TeacherScorer | None:
    """Who plays the guided branch of a method; None where the policy does, with shared keys and values.

    Raises:
        ConfigurationError: the method's teacher is missing, or sharded weights do not allow it.
    """
    needs = recipe.needs
    if recipe.distill is None and (needs.teacher == "rollout" or not (needs.blocks or needs.plain_only)):
        return None
    model: Any = recipe.teacher_model
    if needs.teacher == "model" and isinstance(model, str):
        if model.startswith(("http://", "https://")):
            model = ServedTeacher(model, temperature=passes.temperature, tokenizer=tokenizer)
            model.check()
        else:
            model = load_model(model, tokenizer, device=passes.accelerator.device)
    return make_teacher(
        needs.teacher,
        passes.policy_access,
        every=needs.teacher_every,
        rate=needs.teacher_rate,
        model=model,
        is_sharded=is_sharded,
    )
