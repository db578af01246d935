"""TASPOTrainer: TRL's GRPOTrainer for multi-turn environments, with turn credit from privileged guidance.

Only orchestration: play, guide, score, weigh, deal, update. Each stage lives in its own file and passes frozen records
on. This is the one file that knows TRL's trainer.
"""

from __future__ import annotations

import contextlib
import copy
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object, is_peft_model
from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from trl import GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import RepeatSampler

from .advantages import group_advantages
from .analyzer.base import Analyzer, AnalyzerReply, AnalyzerRequest
from .analyzer.compose import Composer
from .analyzer.constructions import Construction, make_construction
from .analyzer.extractive import ExtractiveAnalyzer
from .batches import LossRow, with_credit
from .checkpoint import Buffer, TrainingState, load_state, save_state
from .checks import check_arguments, check_model
from .collection import CollectedGroup, Collector
from .config import TASPOConfig
from .contexts import ChatRenderer
from .credit import assign_credit
from .environments.base import attribute
from .environments.workers import EnvironmentPool, Factory
from .errors import ConfigurationError
from .evaluation import EvaluationResult, evaluate_tasks
from .guidance import GuidanceBatch, GuidanceStage
from .loss import taspo_loss
from .metrics import rollout_report, update_metrics
from .pairs import plan_pairs, scores_of, turn_scores
from .passes import PolicyPasses
from .policy import SamplingSettings, TransformersPolicy
from .projection import add_selected_projection
from .records import TrajectoryRecord, write_records
from .rewards import RewardFunction, RewardSettings, conversation_of
from .rollout import RolloutSettings
from .tasks import derive_seed
from .types import Credit, Trajectory
from .update import UpdatePlan, plan_update


def _no_reward(**kwargs: Any) -> list[None]:
    """Stands in for TRL's mandatory reward source: the environment gives the reward."""
    return [None] * len(kwargs["prompts"])


class TASPOTrainer(GRPOTrainer):
    """
    Trainer for TASPO: group-relative policy optimization of language agents in multi-turn text environments, with the
    outcome advantage of a trajectory dealt to its turns by how strongly training-time guidance supports each action.
    The method is described in the paper [Reconciling Process Supervision with Outcome-Based Credit in Agentic Policy
    Optimization](https://huggingface.co/papers/2608.31077).

    Example:

    ```python
    >>> from taspo_trl import TASPOConfig, TASPOTrainer
    >>> from taspo_trl.environments import HouseholdEnvironment

    >>> trainer = TASPOTrainer(
    ...     model="Qwen/Qwen2.5-0.5B-Instruct",
    ...     args=TASPOConfig(output_dir="out", num_generations=8),
    ...     train_dataset=HouseholdEnvironment.dataset("train"),
    ...     environment_factory=HouseholdEnvironment,
    ... )
    >>> trainer.train()
    ```

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Model to be trained: a model id, a folder, or an instance, as in [`~trl.GRPOTrainer`].
        reward_funcs (`Callable` or `list[Callable]`, *optional*):
            Functions whose values are added to the environment's reward. Called once for each group with TRL's
            keywords and `trajectories`. Reward *models* are not supported.
        args ([`TASPOConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            One row for each task; its columns reach the environment's `reset`. No `prompt` column is needed.
        eval_dataset ([`~datasets.Dataset`] or `dict[str, Dataset]`, *optional*):
            Tasks that `evaluate` plays, each exactly once.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer with a chat template. If `None`, it is loaded from the model's name.
        environment_factory (`Callable` or `dict[str, Callable]`):
            Makes an environment instance (usually the class itself). With a dictionary, the row's `environment` column
            selects one.
        analyzer (`Analyzer`, *optional*):
            Who writes guidance for `guidance="aligned"`. If `None`, the embedded
            [`~taspo_trl.analyzer.ExtractiveAnalyzer`].
        callbacks (list of [`~transformers.TrainerCallback`], *optional*), optimizers (`tuple`, *optional*):
            As in [`~trl.GRPOTrainer`].
        quantization_config, peft_config (*optional*):
            As in [`~trl.GRPOTrainer`].
    """

    _tag_names: ClassVar = ["trl", "taspo"]
    _name = "TASPO"
    _paper: ClassVar = {
        "title": "Reconciling Process Supervision with Outcome-Based Credit in Agentic Policy Optimization",
        "id": "2608.31077",
        "citation": textwrap.dedent("""\
            @article{yang2026reconciling,
                title  = {{Reconciling Process Supervision with Outcome-Based Credit in Agentic Policy Optimization}},
                author = {Jingxiao Yang and Wangjie Gan and Yingxuan Zhuang and Wenqi Zhang and Jintao Chen and
                          Xuhong Zhang},
                year   = 2026,
                eprint = {arXiv:2608.31077},
            }"""),
    }

    args: TASPOConfig

    def __init__(
        self,
        model: str | PreTrainedModel | Any,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        args: TASPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | Mapping[str, Dataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        environment_factory: Factory | Mapping[str, Factory] | None = None,
        analyzer: Analyzer | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
    ):
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = TASPOConfig(f"{(name or 'model').split('/')[-1]}-TASPO")
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
        check_arguments(args, functions, train_dataset, environment_factory)
        # TRL would load a second copy of the model by name for the reference; an instance may have no name, or may
        # not be what its name says. The reference is a copy of the very model that was passed.
        reference_is_ours = args.beta != 0.0 and not isinstance(model, str) and not _has_adapter(model, peft_config)
        frozen_copy = copy.deepcopy(model) if reference_is_ours else None
        with _overridden(args, **({"beta": 0.0, "sync_ref_model": False} if reference_is_ours else {})):
            super().__init__(
                model=model,
                reward_funcs=functions or _no_reward,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        if frozen_copy is not None:
            self._adopt_reference(frozen_copy)
        check_model(self.model, self._is_vlm, self.aux_loss_enabled)
        base = self.model.get_base_model() if is_peft_model(self.model) else self.model
        for one in (base, self.ref_model):
            if one is not None:
                add_selected_projection(
                    self.accelerator.unwrap_model(one), self.temperature, args.cast_lm_head_to_fp32
                )

        if isinstance(environment_factory, Mapping):
            factories: Mapping[str | None, Factory] = dict(environment_factory)
        else:
            factories = {None: environment_factory}
        self.environment_pool = EnvironmentPool(factories, args.environment_backend)
        self.renderer = ChatRenderer(self._tokenizer, args.chat_template_kwargs)
        self.policy = TransformersPolicy(
            self.model,
            pad_token_id=self._tokenizer.pad_token_id,
            eos_token_ids=self.eos_token_ids,
            batch_tokens=args.generation_tokens,
            cache_implementation=args.cache_implementation,
            unwrap=self._model_for_generation,
        )
        self.rollout_settings = RolloutSettings(
            context=args.context,
            history_length=args.history_length,
            max_turns=args.max_turns,
            max_completion_length=args.max_completion_length,
            max_episode_tokens=args.max_episode_tokens,
            max_prompt_length=args.max_prompt_length,
            model_window=getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            environment_timeout=args.environment_timeout,
        )
        self.analyzer = analyzer if analyzer is not None else ExtractiveAnalyzer()
        self._analyzer_calls: list[tuple[AnalyzerRequest, AnalyzerReply]] = []
        self.guidance_stage = GuidanceStage(self._construction(), args.analyzer_workers, args.allocation)
        self.collector = Collector(
            policy=self.policy,
            pool=self.environment_pool,
            renderer=self.renderer,
            rollout=self.rollout_settings,
            rewards=RewardSettings(
                source=args.training_reward,
                functions=functions,
                weights=self.reward_weights.tolist() if functions else (),
                names=self.reward_func_names if functions else (),
                invalid_action_penalty=args.invalid_action_penalty,
                extra={"trainer_state": self.state},
            ),
            guidance=self.guidance_stage,
            num_generations=self.num_generations,
            gather=self._gather,
            process_index=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
        )
        self.passes = PolicyPasses(
            model=self.model,
            ref_model=self.ref_model,
            accelerator=self.accelerator,
            gather=self._gather,
            max_tokens=args.micro_batch_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            pad_to_multiple_of=self.pad_to_multiple_of if isinstance(self.pad_to_multiple_of, int) else None,
        )
        self._buffer: Buffer | None = None
        self._loss_sums: dict[str, torch.Tensor] = {}
        self._update_seconds = 0.0

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def _adopt_reference(self, model: PreTrainedModel) -> None:
        """Use `model` as the frozen reference pi_ref."""
        self.beta = self.args.beta
        model.requires_grad_(False)
        self.ref_model = self.accelerator.prepare_model(model.eval(), evaluation_mode=True)
        if self.args.sync_ref_model:
            self.add_callback(SyncRefModelCallback(ref_model=self.ref_model, accelerator=self.accelerator))

    def _construction(self) -> Construction | None:
        args, probes = self.args, self.environment_pool.probes
        tags = tuple(tag for probe in probes.values() for tag in attribute(probe, "action_tags"))
        return make_construction(
            args.guidance,
            Composer(self._tokenizer, args.max_guidance_tokens, tags),
            analyzer=self.analyzer,
            skill_of=lambda t: attribute(probes[t.environment], "generic_skill")(t.family),
            max_evidence_items=args.max_evidence_items,
            max_guidance_items=args.max_guidance_items,
            max_chars=args.analyzer_context_chars,
            on_reply=lambda request, reply: self._analyzer_calls.append((request, reply)),
        )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        sampler = super()._get_train_sampler(dataset)
        return _EpochSampler(sampler, lambda: int(self.state.epoch or 0))

    @contextlib.contextmanager
    def _model_for_generation(self) -> Iterator[Any]:
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            yield model

    # ---- one rollout batch -----------------------------------------------------------------------------------------

    def _new_rollout(self, local_rows: list[dict[str, Any]]) -> Buffer:
        """Play a rollout batch and turn it into this process's micro-batches."""
        rows = self._gather(local_rows)[:: self.num_generations]
        draw = self._step // self._steps_per_rollout
        sampling = SamplingSettings(
            self.temperature, self.top_p, self.top_k, self.min_p, self.args.generation_kwargs or {}
        )
        with self._timed("rollout"), self._progress(len(rows) * self.num_generations) as bar:
            collected = self.collector.play(rows, sampling, self.args.seed, draw, lambda trajectory: bar.update())
        trajectories = [member for one in collected for member in one.group.trajectories]
        advantages, flat_G = self._advantages(collected)
        guided: GuidanceBatch | None = None
        credits: dict[str, Credit] = {}
        try:
            plan = self._plan_update(trajectories, advantages, draw)
            # What needs no guidance is computed while the analyzer still works.
            loss_rows = self._with_policy_logps(plan)
            guided = self._collect_guidance()
            credits = self._credit(trajectories, advantages, plan, guided)
        finally:
            # Rollouts and analyzer answers are paid for: they are written even if what follows fails.
            self._write_records(collected, guided, credits, draw)
        self._log_rollout(collected, advantages, flat_G, guided, list(credits.values()))
        return plan.batches(
            {
                index: with_credit(row, plan.rows[index], credits[plan.rows[index].traj_uid])
                for index, row in loss_rows.items()
            }
        )

    @property
    def _steps_per_rollout(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    def _advantages(self, collected: Sequence[CollectedGroup]) -> tuple[list[float], list[bool]]:
        rewards = [[t.reward if t.is_usable else None for t in one.group.trajectories] for one in collected]
        advantages_G, flat_G = group_advantages(rewards, self.args.scale_rewards)
        return [advantage for group in advantages_G for advantage in group], flat_G

    def _plan_update(self, trajectories: Sequence[Trajectory], advantages: Sequence[float], draw: int) -> UpdatePlan:
        args = self.args
        return plan_update(
            trajectories,
            advantages,
            num_steps=max(1, args.steps_per_generation // args.gradient_accumulation_steps),
            num_micro_steps=min(args.gradient_accumulation_steps, args.steps_per_generation),
            max_tokens=args.micro_batch_tokens,
            seed=derive_seed("deal", args.seed, draw),
            all_contribute=self.beta != 0.0 or self.entropy_coef != 0.0,
            mask_truncated=args.mask_truncated_completions,
            process_index=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
        )

    def _with_policy_logps(self, plan: UpdatePlan) -> dict[int, LossRow]:
        """The plan's rows with log pi_old (when the update leaves the policy that acted) and log pi_ref."""
        is_off_policy = self._steps_per_rollout > self.args.gradient_accumulation_steps
        with self._timed("logps"):
            return self.passes.with_logps(plan, old=is_off_policy, reference=self.beta != 0.0)

    def _collect_guidance(self) -> GuidanceBatch:
        with self._timed("analyzer_visible"):
            local = self.guidance_stage.collect()
        shared = self._gather([local])
        return GuidanceBatch(
            guidance={uid: one for part in shared for uid, one in part.guidance.items()},
            extractions={group_id: one for part in shared for group_id, one in part.extractions.items()},
            work_seconds=max(part.work_seconds for part in shared),
            visible_seconds=max(part.visible_seconds for part in shared),
        )

    def _credit(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[float],
        plan: UpdatePlan,
        guided: GuidanceBatch,
    ) -> dict[str, Credit]:
        """Shifts, support and weights of every trajectory of the global batch."""
        args, by_uid = self.args, {t.uid: t for t in trajectories}
        pairs = plan_pairs(plan.rows, by_uid, guided.guidance, self.rollout_settings.model_window)
        with self._timed("scoring"):
            scores = turn_scores(pairs, self.passes.score(pairs.pairs), by_uid)
        return {
            t.uid: assign_credit(
                t.uid,
                advantage,
                scores_of(t, scores) if guided.guidance[t.uid] else (),
                [turn.action_mask for turn in t.turns],
                allocation=args.allocation,
                clip=args.shift_clip,
                threshold=args.shift_threshold,
                temperature=args.score_temperature,
                weight_range=args.weight_range,
                step_size=args.weight_step_size,
                no_guidance="" if guided.guidance[t.uid] else guided.guidance[t.uid].abstain_reason,
            )
            for t, advantage in zip(trajectories, advantages, strict=True)
        }

    # ---- the update ------------------------------------------------------------------------------------------------

    def training_step(self, model, inputs, num_items_in_batch=None):
        """One micro-step: its token-budget micro-batches, a forward and a backward each."""
        started = time.perf_counter()
        model.train()
        if self._buffer is None or self._step % self._steps_per_rollout == 0:
            self._buffer = self._new_rollout(inputs)
        micro_batches = self._buffer[self._step % self.args.steps_per_generation]
        update_started = time.perf_counter()
        self._loss_sums = {}
        losses = []
        for k, rows in enumerate(micro_batches):
            with self._synchronised(model, k == len(micro_batches) - 1):
                losses.append(Trainer.training_step(self, model, self.passes.collate(rows), num_items_in_batch))
        self._log_update()
        self._update_seconds += time.perf_counter() - update_started
        self._step += 1
        self._current_train_step_time += time.perf_counter() - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._metrics["train"]["time/update"].append(self._update_seconds)
            self._current_train_step_time = self._update_seconds = 0.0
        return torch.stack(losses).sum()

    def _prepare_inputs(self, inputs):
        return inputs  # `training_step` hands on tensors that are on the device already

    @contextlib.contextmanager
    def _synchronised(self, model: Any, is_last: bool) -> Iterator[None]:
        """Gradients of all but the last micro-batch of a micro-step stay local."""
        if is_last:
            yield
            return
        state = self.accelerator.gradient_state
        flag = state.sync_gradients
        state._set_sync_gradients(False)
        try:
            with self.accelerator.no_sync(model):
                yield
        finally:
            state._set_sync_gradients(flag)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """E8 of one micro-batch, with the credit weights applied.

        Processes average their gradients, so the local sum is multiplied by their number.
        """
        if return_outputs:
            raise ValueError("The TASPOTrainer does not support returning outputs")
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            use_cache=False,
            selected_positions=inputs["positions"],
            selected_targets=inputs["targets"],
            selected_entropies=True,
        )
        terms = taspo_loss(
            output.logps,
            inputs.get("old_logps", output.logps.detach()),
            inputs["advantages"],
            inputs["coefficients"],
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            delta=self.args.delta,
            ref_logps=inputs.get("ref_logps"),
            beta=self.beta if "ref_logps" in inputs else 0.0,
            use_bias_correction_kl=self.args.use_bias_correction_kl,
            entropies=output.entropies,
            entropy_coef=self.entropy_coef,
            importance_ratio=inputs.get("importance_ratios"),
        )
        real = (inputs["coefficients"] != 0).to(output.logps.dtype)  # tokens of zero rows are not counted
        sums = {
            "tokens": real.sum(),
            "policy_loss": terms.policy_loss,
            "entropy": (output.entropies.detach() * real).sum(),
            "clip_low": (terms.is_low_clipped * real).sum(),
            "clip_high": (terms.is_high_clipped * real).sum(),
        }
        if terms.kl is not None:
            sums["kl"] = (terms.kl * real).sum()
        for name, value in sums.items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value.detach()
        return terms.loss * self.accelerator.num_processes

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        raise NotImplementedError("TASPOTrainer evaluates by playing episodes: use `evaluate`.")

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Play each task of the evaluation data `num_generations_eval` times and log how it went.

        No analyzer request, no guidance, no loss; the training state is not touched. The full result is written to
        `output_dir/_evaluations` and kept in `last_evaluation`.

        Returns:
            `dict[str, float]`: `eval_success`, its interval, macro mean, families, turns, stop reasons, seconds.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(data, Mapping):
            metrics: dict[str, float] = {}
            for name, one in data.items():
                metrics |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}")
            return metrics
        if isinstance(data, str):
            data = self.eval_dataset[data]
        if data is None:
            raise ConfigurationError("`evaluate` needs an `eval_dataset`, here or in the trainer.")
        started = time.perf_counter()
        result = self._play_evaluation(list(data))
        seconds = time.perf_counter() - started
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in result.metrics().items()}
        metrics[f"{metric_key_prefix}_runtime"] = seconds
        metrics[f"{metric_key_prefix}_samples_per_second"] = len(result.plays) / seconds
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir) / "_evaluations"
            result.save(folder / f"{metric_key_prefix}_{self.state.global_step:06d}.json")
        self.last_evaluation: EvaluationResult = result
        Trainer.log(self, dict(metrics))  # TRL's `log` would flush the training metrics into this entry
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _play_evaluation(self, rows: list[dict[str, Any]]) -> EvaluationResult:
        args = self.args
        mine = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        with self._progress(len(mine) * self.num_generations_eval, "evaluation") as bar:
            result = evaluate_tasks(
                mine,
                policy=self.policy,
                pool=self.environment_pool,
                renderer=self.renderer,
                rollout=self.rollout_settings,
                sampling=SamplingSettings(args.eval_temperature, args.eval_top_p),
                seed=args.eval_seed,
                num_plays=self.num_generations_eval,
                max_in_flight=args.per_device_eval_batch_size,
                on_play=lambda play: bar.update(),
                settings={"global_step": self.state.global_step},
            )
        plays = self._gather(list(result.plays))
        return EvaluationResult(tuple(plays), {**result.settings, "num_tasks": len(rows)})

    # ---- logs, records, checkpoints --------------------------------------------------------------------------------

    def _log_rollout(
        self,
        collected: Sequence[CollectedGroup],
        advantages: Sequence[float],
        flat_G: Sequence[bool],
        guided: GuidanceBatch,
        credits: Sequence[Credit],
    ) -> None:
        calls, self._analyzer_calls = self._gather(self._analyzer_calls), []
        for name, value in rollout_report(collected, advantages, flat_G, guided, credits, calls).items():
            self._metrics["train"][name].append(value)
        trajectories = [member for one in collected for member in one.group.trajectories]
        self.state.num_input_tokens_seen += sum(
            len(turn.prompt_ids) + len(turn.reply_ids) for t in trajectories for turn in t.turns
        )
        self._metrics["train"]["num_tokens"] = [self.state.num_input_tokens_seen]

        columns = sorted({column for one in collected for column in one.extra_logs})
        for one in collected:
            for column in columns:
                missing = [None] * len(one.group.trajectories)
                self._logs["extra"][column].extend(one.extra_logs.get(column, missing))
        for trajectory, advantage in zip(trajectories, advantages, strict=True):
            prompt, completion = conversation_of(trajectory)
            self._logs["prompt"].append(prompt)
            self._logs["completion"].append(completion)
            self._logs["advantages"].append(advantage)
            for name in {name for t in trajectories for name in t.rewards}:
                self._logs["rewards"][name].append(trajectory.rewards.get(name))

    def _log_update(self) -> None:
        """Averages over the loss tokens of one micro-step, over all processes."""
        names = sorted(self._loss_sums)
        sums = torch.stack([self._loss_sums[name].double().to(self.accelerator.device) for name in names])
        totals = dict(zip(names, self.accelerator.reduce(sums, reduction="sum").tolist(), strict=True))
        for name, value in update_metrics(totals).items():
            self._metrics["train"][name].append(value)

    def _write_records(
        self,
        collected: Sequence[CollectedGroup],
        guided: GuidanceBatch | None,
        credits: Mapping[str, Credit],
        draw: int,
    ) -> None:
        if self.args.save_trajectories == "no" or not self.is_world_process_zero():
            return
        records = (
            TrajectoryRecord(
                trajectory=t,
                group_id=one.group.group_id,
                rollout=draw,
                step=self.state.global_step,
                extraction=guided.extractions.get(one.group.group_id) if guided else None,
                guidance=guided.guidance.get(t.uid) if guided else None,
                credit=credits.get(t.uid),
            )
            for one in collected
            for t in one.group.trajectories
        )
        path = Path(self.args.output_dir) / "_trajectories" / f"rollout_{draw:06d}.jsonl"
        write_records(path, records, with_prompt_ids=self.args.save_trajectories == "full")

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        is_partly_used = self._step % self._steps_per_rollout != 0
        state = TrainingState(self._step, self._buffer if is_partly_used else None, self._layout)
        save_state(output_dir, self.accelerator.process_index, state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        state = load_state(checkpoint, self.accelerator.process_index) if checkpoint is not None else None
        if state is None:
            return
        if state.buffer is not None and dict(state.layout) != self._layout:
            raise ConfigurationError(
                f"{checkpoint} holds a partly used rollout batch made for {dict(state.layout)}, but the run has "
                f"{self._layout}. Resume with the same settings, or from a checkpoint between two rollout batches."
            )
        self._step, self._buffer = state.step, state.buffer

    @property
    def _layout(self) -> dict[str, int]:
        return {
            "num_processes": self.accelerator.num_processes,
            "steps_per_generation": self.args.steps_per_generation,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "num_iterations": self.num_iterations,
        }

    # ---- small things ----------------------------------------------------------------------------------------------

    def _gather(self, objects: list) -> list:
        return gather_object(objects) if self.accelerator.num_processes > 1 else objects

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._metrics["train"][f"time/{stage}"].append(time.perf_counter() - started)

    def _progress(self, total: int, name: str = "rollout") -> tqdm:
        """A bar over episodes; appears only when a batch takes long."""
        is_quiet = self.args.disable_tqdm or not self.accelerator.is_local_main_process
        return tqdm(total=total, desc=name, unit="episode", leave=False, delay=5.0, disable=is_quiet)

    def close(self) -> None:
        """Close environments and worker threads. May be called twice; training again afterwards is an error."""
        self.guidance_stage.close()
        self.environment_pool.close()
        self.analyzer.close()


class _EpochSampler(RepeatSampler):
    """TRL's sampler with a permutation that depends on (seed, epoch) alone: a resumed run draws the same tasks."""

    def __init__(self, sampler: RepeatSampler, epoch: Any):
        self.__dict__.update(sampler.__dict__)
        self._epoch = epoch

    def __iter__(self):
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed + self._epoch())
        return super().__iter__()


@contextlib.contextmanager
def _overridden(args: TASPOConfig, **values: Any) -> Iterator[None]:
    """`args` with other values inside."""
    kept = {name: getattr(args, name) for name in values}
    for name, value in values.items():
        setattr(args, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(args, name, value)


def _has_adapter(model: Any, peft_config: Any) -> bool:
    return peft_config is not None or is_peft_model(model)
