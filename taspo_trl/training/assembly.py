"""From a configuration to the settings and stages of a rollout batch; nothing is computed here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from datasets import Dataset

from ..analyzer.base import Analyzer
from ..analyzer.extractive import ExtractiveAnalyzer
from ..analyzer.prompts import load_prompts
from ..credit.states import state_key
from ..environments.base import attribute
from ..environments.workers import EnvironmentPool
from ..errors import ConfigurationError
from ..generation.build import HostedEngine
from ..guidance.base import GuidanceContext
from ..guidance.block import Composer
from ..guidance.constructions import Materials, construction_of_blocks
from ..guidance.stage import GuidanceStage
from ..loss.importance import importance_settings
from ..methods import Recipe
from ..rollout.contexts import ChatRenderer
from ..rollout.groups import Collector
from ..rollout.loop import RolloutSettings
from ..rollout.plans import PlanOracle, WorldStates
from ..rollout.rewards import RewardFunction, RewardSettings
from ..scoring.reproduces import why_training_differs
from ..scoring.teachers import RolloutTeacher, ServedTeacher, TeacherScorer, load_model, make_teacher
from .alternatives import AlternativeScoring
from .checks import check_live_instances
from .distilling import Distilling
from .passes import PolicyPasses
from .rollout_batch import ExperienceMaker, ExperienceSettings
from .simulator import Simulator


logger = logging.getLogger(__name__)


def make_experience_maker(
    args: Any,
    recipe: Recipe,
    *,
    get_model: Callable[[], Any],
    ref_model: Any,
    ref_adapter: str | None,
    tokenizer: Any,
    engine: HostedEngine,
    pool: EnvironmentPool,
    renderer: ChatRenderer,
    analyzer: Analyzer,
    rewards: RewardSettings,
    accelerator: Accelerator,
    is_sharded: bool,
    gather: Callable[[list], list],
    generating: Callable[[], AbstractContextManager[Any]],
) -> ExperienceMaker:
    """The stages of a rollout batch, put together.

    Args:
        args ([`~taspo_trl.TASPOConfig`]), recipe (`Recipe`):
            The configuration, and the method that it names.
        get_model (`Callable`), ref_model (*optional*), ref_adapter (`str`, *optional*):
            As in [`~taspo_trl.training.passes.PolicyPasses`].
        tokenizer:
            The policy's.
        engine (`HostedEngine`), pool (`EnvironmentPool`), renderer (`ChatRenderer`), rewards (`RewardSettings`):
            What episodes are played and rated with.
        analyzer (`Analyzer`):
            Who writes guidance.
        accelerator (`Accelerator`), gather (`Callable`):
            Device and processes; all processes' lists, joined in the order of the processes.
        is_sharded (`bool`):
            Whether a forward needs all processes.
        generating (`Callable`):
            As in [`~taspo_trl.rollout.groups.Collector`].

    Raises:
        ConfigurationError: the method's teacher is missing, or the environments do not allow the method.
    """
    model_config = get_model().config.get_text_config()
    window = getattr(model_config, "max_position_embeddings", None)
    limits = [limit for limit in (window, engine.max_model_length) if limit is not None]
    guidance = make_guidance(args, recipe, tokenizer, pool, analyzer)
    collector = Collector(
        engine=engine.engine,
        pool=pool,
        renderer=renderer,
        rollout=rollout_settings(args, min(limits) if limits else None, getattr(model_config, "vocab_size", None)),
        rewards=rewards,
        guidance=guidance,
        num_generations=args.num_generations,
        gather=gather,
        process_index=accelerator.process_index,
        num_processes=accelerator.num_processes,
        generating=generating,
    )
    passes = PolicyPasses(
        get_model=get_model,
        ref_model=ref_model,
        accelerator=accelerator,
        gather=gather,
        max_tokens=args.micro_batch_tokens,
        pad_token_id=tokenizer.pad_token_id,
        pad_to_multiple_of=args.pad_to_multiple_of if isinstance(args.pad_to_multiple_of, int) else None,
        ref_adapter=ref_adapter,
        temperature=args.temperature,
        in_fp32=args.cast_lm_head_to_fp32,
    )
    beside = scores_during_rollout(args, is_sharded=is_sharded)
    in_update = not beside and all(gather([scores_in_update(args, recipe, get_model(), accelerator)]))
    settings = experience_settings(args, recipe, window, scores_during_rollout=beside, scores_in_update=in_update)
    teacher = teacher_of(recipe, passes, tokenizer, is_sharded)
    distilling = None
    if recipe.distill is not None and teacher is not None:
        rollout = RolloutTeacher(passes.policy_access)
        distilling = Distilling(recipe.distill, teacher, rollout, gather, args.mask_truncated_completions, window)
    simulator = Simulator(recipe)
    alternatives = AlternativeScoring(recipe, passes, tokenizer, window)
    return ExperienceMaker(
        collector,
        guidance,
        passes,
        settings,
        teacher,
        distilling,
        simulator if simulator.is_asked else None,
        alternatives if recipe.rule_needs.alternatives else None,
    )


def make_guidance(
    args: Any, recipe: Recipe, tokenizer: Any, pool: EnvironmentPool, analyzer: Analyzer
) -> GuidanceStage:
    """The stage that gives each trajectory the contexts of the method."""
    probes, timeout = pool.probes, args.environment_timeout
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
            state_key=(
                WorldStates(pool.factories, timeout=timeout)
                if recipe.state_key == "world"
                else state_key(recipe.state_key)
            ),
            oracle=PlanOracle(pool.factories, timeout) if recipe.asks_oracle else None,
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
    args: Any,
    recipe: Recipe,
    model_window: int | None,
    *,
    scores_during_rollout: bool = False,
    scores_in_update: bool = False,
) -> ExperienceSettings:
    """What the stages after the rollout need to know."""
    return ExperienceSettings(
        recipe=recipe,
        max_tokens=args.micro_batch_tokens,
        scale_rewards=args.scale_rewards,
        mask_truncated=args.mask_truncated_completions,
        has_reference=args.beta != 0.0,
        has_entropy_bonus=args.entropy_coef != 0.0,
        model_window=model_window,
        correction=importance_settings(args),
        records_folder=Path(args.output_dir) / "_trajectories" if args.save_trajectories != "no" else None,
        records_with_prompt_ids=args.save_trajectories == "full",
        waits_for_guidance=args.full_determinism,
        scores_during_rollout=scores_during_rollout,
        scores_in_update=scores_in_update,
    )


def scores_during_rollout(args: Any, *, is_sharded: bool) -> bool:
    """Whether finished groups are scored while others play; with `score_during_rollout=None`, with vLLM's server.

    Args:
        args ([`~taspo_trl.TASPOConfig`]):
            The options.
        is_sharded (`bool`):
            Whether several processes hold the model in pieces: each forward then needs all of them at the same time.

    Raises:
        ConfigurationError: it is asked for and cannot be.
    """
    is_served = args.use_vllm and args.vllm_mode == "server"
    if not is_sharded:
        return is_served if args.score_during_rollout is None else args.score_during_rollout
    if args.score_during_rollout:
        raise ConfigurationError(
            "`score_during_rollout=True` has each process compute by itself while episodes play, but the model is "
            "sharded (ZeRO-3 or FSDP) and every forward needs all processes at the same time. Leave it out to score "
            "after the rollout, or use DDP or ZeRO-2."
        )
    if is_served and args.score_during_rollout is None:
        logger.warning(
            "Groups are scored after the rollout and not beside it: the model is sharded (ZeRO-3 or FSDP), and every "
            "forward needs all processes at the same time. `score_during_rollout=False` says so without this line."
        )
    return False


def scores_in_update(args: Any, recipe: Recipe, model: Any, accelerator: Any) -> bool:
    """Whether the update's forward may be the plain branch of scoring, where a batch is used for a single one.

    It has to say what the frozen policy says and to leave its keys for guided branches: not with anything random in
    training, nor with gradient checkpointing, which keeps no keys; nor where a wrapper counts on a backward behind
    each forward (sharded models).

    Args:
        args ([`~taspo_trl.TASPOConfig`]), recipe (`Recipe`):
            The options, and the method.
        model:
            The policy.
        accelerator ([`~accelerate.Accelerator`]):
            How the processes share it.
    """
    needs = recipe.needs
    if (
        not recipe.weight.guarantees.per_trajectory
        or recipe.advantage.needs.scope != "none"
        or recipe.distill is not None
        or needs.teacher != "rollout"
        or args.beta != 0.0  # the reference's pass hides the analyzer
    ):
        return False
    whole = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    if accelerator.distributed_type not in whole:
        reason = f"the model is wrapped for {accelerator.distributed_type.value}"
    elif args.gradient_checkpointing or any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        reason = "gradient checkpointing keeps no keys"
    else:
        reason = why_training_differs(model)
    if reason:
        logger.info("Scoring has passes of its own beside the update: %s.", reason)
    return not reason


def tasks_without_rows(args: Any) -> Dataset:
    """As many empty rows as a rollout batch has groups, for an environment that draws its tasks from the seed.

    Their one column is None, and such a column does not reach `reset`.
    """
    return Dataset.from_dict({"prompt": [None] * (args.generation_batch_size // args.num_generations)})


def configured_analyzer(args: Any, recipe: Recipe) -> Analyzer:
    """[`~taspo_trl.analyzer.LiteLLMAnalyzer`] when `analyzer_model` is set and used, else the embedded analyzer.

    Raises:
        ConfigurationError: there is no such provider, no key, no usable address or cache.
    """
    if args.analyzer_model is None or not recipe.asks_analyzer:
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
