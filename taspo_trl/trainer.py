"""TASPOTrainer: TRL's GRPOTrainer for multi-turn environments, with turn credit from privileged guidance.

Only orchestration: play, guide, score, weigh, deal, update. Each stage lives in its own file and passes frozen records
on; this is the one file that knows TRL's trainer.
"""

from __future__ import annotations

import contextlib
import copy
import math
import textwrap
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object, is_peft_model
from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from trl import GRPOTrainer
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import RepeatSampler

from .analyzer.base import Analyzer
from .config import TASPOConfig
from .environments.workers import EnvironmentPool, Factory
from .errors import ConfigurationError
from .evaluation.held_out import play_held_out
from .evaluation.results import EvaluationResult
from .files import spared
from .generation import SamplingSettings
from .generation.build import make_engine
from .generation.checks import check_unquantized
from .loss.batches import LossRow
from .loss.distillation.compose import distillation_loss, update_distribution
from .loss.objective import clip_shares, taspo_loss, token_sums
from .methods import recipe_for
from .records import TrajectoryRecord
from .reporting.alerts import Alerts
from .reporting.card_facts import RunParts, environment_name, write_model_card
from .reporting.first_batch import FirstBatch
from .reporting.hub import Pushes, what_may_leave
from .reporting.idle import grouped
from .reporting.metrics import update_metrics
from .reporting.progress import can_draw, instead_of_dictionaries
from .reporting.trackers import Trackers
from .reporting.trackio import log_traces
from .reporting.turn_tables import log_turns, tables_wanted
from .rollout.contexts import ChatRenderer
from .rollout.rewards import RewardFunction
from .scoring.projection import add_selected_projection, selected_forward
from .scoring.reproduces import require_reproduction
from .training.adapters import add_reference_adapter
from .training.assembly import (
    configured_analyzer,
    keep_trained_weights_in_float32,
    make_experience_maker,
    reward_settings,
    tasks_without_rows,
)
from .training.checkpoint import (
    Buffer,
    TrainingState,
    load_state,
    load_teacher,
    resumed_position,
    save_state,
    save_teacher,
)
from .training.checks import (
    check_arguments,
    check_environments,
    check_model,
    check_openings,
    check_parallelism,
    check_trainable,
    named_datasets,
    wanted_without_padding,
)
from .training.folder import run_in_folder
from .training.micro_step import run_micro_batches, total_sums
from .training.model_folder import check_model_folder, loading
from .training.nonfinite import FiniteSteps, finite_or_nan
from .training.rollout_batch import Experience, ExperienceMaker, UpdateLayout
from .training.sampler import EpochSampler
from .training.saving import CheckpointWriter, write_state
from .training.simulator import check_simulator
from .training.trl_logs import log_experience, pending_log, restore_pending_log


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
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            One row for each task; its columns reach the environment's `reset`. No `prompt` column is needed. If
            `None`, the environment draws its tasks from the `seed` of `reset`, and `max_steps` is the length.
        eval_dataset ([`~datasets.Dataset`] or `dict[str, Dataset]`, *optional*):
            Tasks that `evaluate` plays, each exactly once.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer with a chat template. If `None`, it is loaded from the model's name.
        environment_factory (`Callable` or `dict[str, Callable]`):
            Makes an environment instance (usually the class itself). With a dictionary, the row's `environment` column
            selects one.
        analyzer (`Analyzer`, *optional*):
            Who writes guidance for `guidance="aligned"`. If `None`, a [`~taspo_trl.analyzer.LiteLLMAnalyzer`] for
            `args.analyzer_model`, or the embedded [`~taspo_trl.analyzer.ExtractiveAnalyzer`] without one.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*), optimizers (`tuple`, *optional*):
            As in [`~trl.GRPOTrainer`].
        quantization_config, peft_config (*optional*):
            As in [`~trl.GRPOTrainer`].

    > [!NOTE]
    > What is overridden of [`~trl.GRPOTrainer`] and [`~transformers.Trainer`], and why:
    >
    > - `train`: one live run in a folder, what another one left there is set aside; environments end with it.
    > - `_run_epoch`: a finished run that is resumed takes no step.
    > - `training_step`: one call is one slice of a rollout batch, in micro-batches bounded by tokens, not by rows.
    > - `compute_loss`: E8, with the credit of each token; TRL's `_compute_loss` averages over rows.
    > - `_prepare_inputs`: the micro-batch is made already.
    > - `_get_train_sampler`: TRL's order of tasks, made resumable.
    > - `evaluate`, `prediction_step`: held-out tasks are played; there is no prediction step.
    > - `_get_grad_norm`: a step whose loss or gradient is no finite number moves no weight.
    > - `_save_checkpoint`, `_get_output_dir`: a checkpoint is written aside and appears whole.
    > - `_save_rng_state`, `_load_rng_state`: carry the rows of a partly used rollout batch along.
    > - `save_state`, `log`: their files appear whole; a full disk costs a file, not the run.
    > - `_save`, `create_model_card`, `push_to_hub`, `_push_from_checkpoint`: the card of this method; what stays.
    > - `init_hf_repo`, `_finish_current_push`: a Hub that is silent keeps nobody waiting without end.
    > - `end`: closes what was opened, then what TRL does.
    """

    _tag_names: ClassVar = ["trl", "taspo"]  # type: ignore[misc]  # TRL does not say `ClassVar`
    _name = "TASPO"
    _paper: ClassVar = {  # type: ignore[misc]
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

    args: Any
    """A [`TASPOConfig`]. TRL types as optional what its `__post_init__` fills."""
    model: Any
    model_wrapped: Any
    train_dataset: Any
    eval_dataset: Any
    num_generations: int
    num_generations_eval: int
    current_gradient_accumulation_steps: int
    last_evaluation: EvaluationResult
    """What the last `evaluate` found, task by task."""
    split_names: Mapping[str, str] = MappingProxyType({})
    """For the model card, where the data has no column `split`: `"train"` or an evaluation's prefix -> split."""

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
        check_arguments(args, functions, train_dataset, environment_factory, eval_dataset)
        if isinstance(model, str):
            check_model_folder(model)
        if train_dataset is None:
            train_dataset = tasks_without_rows(args)
        check_unquantized(args, model, quantization_config)
        self._recipe = recipe_for(args)
        self.analyzer = analyzer if analyzer is not None else configured_analyzer(args, self._recipe)
        self._pushes = Pushes(args.hub_timeout)
        # TRL would load a second copy of the model by name for the reference; an instance may have no name, or may
        # not be what its name says. The reference is a copy of the very model that was passed.
        has_adapter = peft_config is not None or (not isinstance(model, str) and is_peft_model(model))
        reference_is_ours = args.beta != 0.0 and not isinstance(model, str) and not has_adapter
        frozen_copy: Any = copy.deepcopy(model) if reference_is_ours else None
        is_loaded_adapter = has_adapter and peft_config is None
        check_trainable(args, model, peft_config)
        self._ref_adapter = add_reference_adapter(model) if is_loaded_adapter and args.beta != 0.0 else None
        # TRL would start vLLM, which demands CUDA and generates in step; engine and weights have a seam of their own.
        # It would copy an adapter by its name for the reference.
        overridden = {"use_vllm": False} | ({"beta": 0.0, "sync_ref_model": False} if reference_is_ours else {})
        overridden |= {"beta": 0.0} if self._ref_adapter is not None else {}
        # TRL uses names that transformers has deprecated. What the user calls before this is told to them.
        old_names = "`(is_gradient_checkpointing|gradient_checkpointing_(en|dis)able)` is deprecated"
        warnings.filterwarnings("ignore", old_names, FutureWarning)
        with _overridden(args, **overridden), loading(model):
            super().__init__(
                model=model,
                reward_funcs=functions or _no_reward,  # type: ignore[arg-type]
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                callbacks=callbacks,
                optimizers=optimizers,
                quantization_config=quantization_config,
                peft_config=peft_config,
            )
        instead_of_dictionaries(self)
        self.beta = args.beta
        check_parallelism(self.accelerator.parallelism_config)
        if args.fp16 and has_adapter:
            keep_trained_weights_in_float32(self.model)
        if frozen_copy is not None:
            self._adopt_reference(frozen_copy)
        check_model(self.model, self._is_vlm, self.aux_loss_enabled)
        policy = self.model.get_base_model() if is_peft_model(self.model) else self.model
        for one in [policy] if self.ref_model is None else [policy, self.accelerator.unwrap_model(self.ref_model)]:
            add_selected_projection(one, self.temperature, args.cast_lm_head_to_fp32)
        is_sharded = self._dist.is_zero3 or self._dist.is_fsdp
        require_reproduction(
            policy,
            self.temperature,
            is_sharded=is_sharded,
            gather=self._gather,
            padding_free=wanted_without_padding(args, self.model),
        )
        is_routed = isinstance(environment_factory, Mapping)
        factories: Any = environment_factory if is_routed else {None: environment_factory}
        self.chat_renderer = ChatRenderer(self._tokenizer, self.args.chat_template_kwargs)
        self.eos_token_ids = self.chat_renderer.with_end_tokens(self.eos_token_ids)
        with contextlib.ExitStack() as undo:  # what was opened is closed again if anything here is refused
            self.engine = make_engine(
                args,
                get_model=lambda: self.model,
                get_wrapped_model=lambda: self.model_wrapped,
                accelerator=self.accelerator,
                distribution=self._dist,
                gather=self._gather,
                pad_token_id=self._tokenizer.pad_token_id,
                eos_token_ids=self.eos_token_ids,
            )
            undo.callback(self.engine.close)
            self.environment_pool = EnvironmentPool(factories, args.environment_backend, args.success_threshold)
            undo.callback(self.environment_pool.close)
            columns = getattr(train_dataset, "column_names", None) or ()
            check_environments(self.environment_pool, self.chat_renderer, args, self._recipe, bool(functions), columns)
            check_openings(self.environment_pool, self.chat_renderer, named_datasets(train_dataset, eval_dataset))
            check_simulator(self._recipe, self.environment_pool, self.train_dataset, bool(functions))
            self.experience_maker = self._make_experience_maker(functions)
            undo.pop_all()
        self._environment_names = {
            name: environment_name(factory, self.environment_pool.probes[name]) for name, factory in factories.items()
        }
        self._made_at = time.time()
        self._finite_steps = FiniteSteps(args.max_nonfinite_steps, self.accelerator)
        self._checkpoints = CheckpointWriter(args, self.accelerator)
        self._alerts = Alerts()
        self._first_batch = FirstBatch(self._recipe, args.output_dir or ".")
        self._trackers = Trackers(args.tracker_timeout)
        self._trackers.guard(self.callback_handler.callbacks)
        self._buffer: Buffer | None = None
        self._late: Experience | None = None
        self._unlogged: dict[str, list[TrajectoryRecord]] = {}
        self._loss_sums: dict[str, torch.Tensor] = {}
        self._clip_shares: list[torch.Tensor] = []
        self._update_seconds = 0.0

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def _adopt_reference(self, model: PreTrainedModel) -> None:
        """Use `model` as the frozen reference pi_ref."""
        model.requires_grad_(False)
        self.ref_model = self.accelerator.prepare_model(model.eval(), evaluation_mode=True)
        if self.args.sync_ref_model:
            self.add_callback(SyncRefModelCallback(ref_model=self.ref_model, accelerator=self.accelerator))

    def _make_experience_maker(self, functions: list[RewardFunction]) -> ExperienceMaker:
        """The stages of a rollout batch, put together from the configuration."""
        return make_experience_maker(
            self.args,
            self._recipe,
            get_model=lambda: self.model,
            ref_model=self.ref_model,
            ref_adapter=self._ref_adapter,
            tokenizer=self._tokenizer,
            engine=self.engine,
            pool=self.environment_pool,
            renderer=self.chat_renderer,
            analyzer=self.analyzer,
            rewards=reward_settings(
                self.args,
                self.environment_pool,
                functions,
                weights=self.reward_weights.tolist() if functions else (),
                names=self.reward_func_names if functions else (),
                columns=getattr(self.train_dataset, "column_names", None) or (),
            ),
            accelerator=self.accelerator,
            is_sharded=self.accelerator.num_processes > 1 and (self._dist.is_zero3 or self._dist.is_fsdp),
            gather=self._gather,
            generating=self._generating,
        )

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        sampler: Any = super()._get_train_sampler(dataset)
        return EpochSampler(sampler, lambda: int(self.state.epoch or 0))

    # ---- training --------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        # What an earlier call left of its rollout batch, perhaps in the middle of an optimizer step, is not used.
        self._buffer = self._late = None
        self._trackers.guard(self.callback_handler.callbacks)  # one may have been added
        self._step += -self._step % self._micro_steps_per_rollout
        try:
            with run_in_folder(self.args, self.accelerator, self._made_at, resume_from_checkpoint) as checkpoint:
                return super().train(checkpoint, *args, **kwargs)
        finally:
            self.environment_pool.close_instances()
            self.engine.weights.forget()  # the best model may have been loaded; the count of steps starts again

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step >= self.state.max_steps:  # resumed at its end, in the middle of an epoch
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def training_step(self, model, inputs, num_items_in_batch=None):
        """One micro-step: its token-budget micro-batches, a forward and a backward each."""
        started = time.perf_counter()
        if self.experience_maker.teacher is not None:
            self.experience_maker.teacher.follow(self.state.global_step)
        model.train()
        if self._buffer is None or self._step % self._micro_steps_per_rollout == 0:
            self._buffer = self._new_rollout(inputs)
        loss = self._update(model, self._step % self.args.steps_per_generation, num_items_in_batch)
        self._step += 1
        if self._late is not None and self._step % self._micro_steps_per_rollout == 0:
            self._log_rollout(self.experience_maker.completed(self._late))
            self._late = None
        self._current_train_step_time += time.perf_counter() - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._metrics["train"]["time/update"].append(self._update_seconds)
            self._current_train_step_time = self._update_seconds = 0.0
        return loss

    def _new_rollout(self, local_rows: list[dict[str, Any]]) -> Buffer:
        """Play a rollout batch and log it, or have the update finish it; returns this process's micro-batches."""
        rows = self._gather(local_rows)[:: self.num_generations]
        with self._progress(len(rows) * self.num_generations, "rollout") as bar:
            experience = self.experience_maker.make(
                rows,
                sampling=SamplingSettings(
                    self.temperature, self.top_p, self.top_k, self.min_p, self.args.generation_kwargs or {}
                ),
                seed=self.args.seed,
                rollout=self._step // self._micro_steps_per_rollout,
                step=self.state.global_step,
                num_steps=self.state.max_steps,
                layout=self._update_layout(),
                reward_keywords={"trainer_state": self.state},
                on_episode_end=lambda trajectory: bar.update(),
            )
        if self.is_world_process_zero():
            self._alerts.note([one.trajectory for one in experience.records], experience.advantages)
        self._late = experience if experience.late is not None else None
        if self._late is None:
            self._log_rollout(experience)
        return experience.micro_batches

    def _log_rollout(self, experience: Experience) -> None:
        """Log a rollout batch whose credit is known."""
        log_experience(experience, self.state, self._metrics["train"], self._logs)
        if self.is_world_process_zero():
            self._first_batch.look(experience.records, experience.advantages)
        if self.accelerator.is_main_process:
            self._trackers.call("trackio", log_traces, self.args, experience.records, self.state.global_step)
            self._unlogged = dict.fromkeys(tables_wanted(self.args), experience.records)

    def _update(self, model: Any, micro_step: int, num_items_in_batch: Any) -> torch.Tensor:
        """The gradients of a micro-step; the sum of its micro-batches' losses."""
        assert self._buffer is not None
        late = self._late.late if self._late is not None else None
        started, found_before = time.perf_counter(), late.seconds if late else 0.0
        self._loss_sums, self._clip_shares = {}, []
        maker = self.experience_maker
        teacher = maker.teacher if maker.distilling is not None else None

        def step(place: int, rows: Sequence[LossRow]) -> torch.Tensor:
            inputs = maker.passes.collate(rows, teacher=teacher)
            if late is not None:
                inputs["late"] = late.of(micro_step, place, rows)
            return Trainer.training_step(self, model, inputs, num_items_in_batch)  # below TRL's, which would play

        loss = run_micro_batches(self._buffer[micro_step], step, self.accelerator, model)
        totals = total_sums(self._loss_sums, self.accelerator)
        # TRL averages over micro-steps, while an optimizer step's loss is their sum.
        for name in {"policy_loss", "distill_loss"} & set(totals):
            totals[name] *= self._planned_micro_steps
        shares = self._gather([pair for one in self._clip_shares for pair in one.tolist()])
        for name, value in update_metrics(totals, shares, maker.settings.moves_all).items():
            self._metrics["train"][name].append(finite_or_nan(value))
        self._update_seconds += time.perf_counter() - started - (late.seconds - found_before if late else 0.0)
        return torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0)  # no other step's average is to carry it

    def _get_grad_norm(self, model, grad_norm=None):
        grad_norm = super()._get_grad_norm(model, grad_norm)
        is_allowed = self._finite_steps.allows(model, grad_norm, self.state.global_step + 1)
        self._metrics["train"]["nonfinite_steps"] = [float(self._finite_steps.num_skipped)]
        return grad_norm if is_allowed else None

    def _prepare_inputs(self, inputs):
        return inputs  # collated on the device already

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """E8 of one micro-batch: every sampled token with its credit A~ (`advantages`) and its coefficient c.

        Processes average their gradients, so the local sum is multiplied by their number. The coefficients sum to 1
        over a rollout batch's own micro-steps; the optimizer step in which this one lands may have others too, and at
        the end of an epoch fewer than it has elsewhere.
        """
        if return_outputs:
            raise ValueError("The TASPOTrainer does not support returning outputs")
        term, advantages = self.experience_maker.settings.recipe.distill, inputs["advantages"]
        distribution, distilled = None, inputs.get("distill_coefficients", torch.zeros_like(advantages))
        if term is not None:
            advantages = advantages * term.policy_share(self.state.global_step)
            distribution = update_distribution(
                term, inputs.get("teacher"), distilled, inputs.get("old_logps"), inputs["advantages"]
            )
        late = inputs.get("late")
        keep_keys = late is not None and late.keeps_keys
        output = selected_forward(model, inputs, want_entropies=True, distribution=distribution, keep_keys=keep_keys)
        if late is not None:
            advantages = late.advantages(output, advantages)
        terms = taspo_loss(
            output.logps,
            inputs.get("old_logps", output.logps.detach()),
            advantages,
            inputs["coefficients"],
            epsilon_low=self.epsilon_low,
            epsilon_high=self.epsilon_high,
            delta=self.args.delta,
            # A zero row has no reference: it counts nowhere, but every process must have the same sums to reduce.
            ref_logps=inputs.get("ref_logps", output.logps.detach()),
            beta=self.beta,
            use_bias_correction_kl=self.args.use_bias_correction_kl,
            entropies=output.entropies,
            entropy_coef=self.entropy_coef,
            importance_ratio=inputs.get("importance_ratios"),
        )
        for name, value in token_sums(terms, output.entropies, inputs["coefficients"]).items():
            self._loss_sums[name] = self._loss_sums.get(name, 0.0) + value
        self._clip_shares.append(clip_shares(terms, inputs["coefficients"], inputs["rows"]))
        loss = terms.loss
        if term is not None:
            added = distillation_loss(
                term,
                output,
                inputs.get("teacher"),
                distilled,
                self.state.global_step,
                inputs.get("old_logps"),
                inputs["advantages"],
            )
            loss = loss + added
            self._loss_sums["distill_loss"] = self._loss_sums.get("distill_loss", 0.0) + added.detach()
        self._finite_steps.note(loss)
        share = self._planned_micro_steps / self.current_gradient_accumulation_steps
        return loss * share * self.accelerator.num_processes

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
        data = self.eval_dataset[data] if isinstance(data, str) else data
        if data is None:
            raise ConfigurationError("`evaluate` needs an `eval_dataset`, here or in the trainer.")
        started = time.perf_counter()
        try:
            result = self._play_held_out(list(data))
        finally:
            if not self.is_in_train:
                self.environment_pool.close_instances()
        metrics = result.timed_metrics(metric_key_prefix, time.perf_counter() - started)
        path = Path(self.args.output_dir, "_evaluations", f"{metric_key_prefix}_{self.state.global_step:06d}.json")
        if self.is_world_process_zero():
            with spared("evaluations", path):
                result.save(path)
        self.last_evaluation = result
        # None for a mean of nothing: JSON has no NaN. TRL's `log` would flush the training metrics into this entry.
        logs: Any = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        Trainer.log(self, logs)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _play_held_out(self, rows: list[dict[str, Any]]) -> EvaluationResult:
        num_mine = len(rows[self.accelerator.process_index :: self.accelerator.num_processes])
        with self._progress(num_mine * self.num_generations_eval, "evaluation") as bar, self._generating():
            return play_held_out(
                rows,
                self.args,
                self.experience_maker.collector,
                num_plays=self.num_generations_eval,
                settings={
                    "global_step": self.state.global_step,
                    "weights_step": self._weights_step,
                    "date_string": self.chat_renderer.date,
                },
                on_play=lambda play: bar.update(),
            )

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        raise NotImplementedError("TASPOTrainer evaluates by playing episodes: use `evaluate`.")

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial):
        return self._checkpoints.folder(super()._get_output_dir(trial))

    def _save_checkpoint(self, model, trial):
        with self._checkpoints.writing(super()._get_output_dir(trial), self.state, model) as place:
            super()._save_checkpoint(model, trial)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(place))
        self._checkpoints.rotate(place.parent, self.state)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        is_partly_used = self._step % self._micro_steps_per_rollout != 0
        # What the update was to find out is lost with it: such a batch is played again.
        buffer = self._buffer if is_partly_used and self._late is None else None
        state = TrainingState(self._step, buffer, self._layout, pending_log(self))
        save_state(output_dir, self.accelerator.process_index, state)
        if self.experience_maker.teacher is not None and self.is_world_process_zero():
            save_teacher(output_dir, self.experience_maker.teacher.state_dict())

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        state = load_state(checkpoint, self.accelerator.process_index) if checkpoint is not None else None
        if state is not None and checkpoint is not None:
            self._step, self._buffer = resumed_position(checkpoint, state, self._layout, self._micro_steps_per_rollout)
            if self.experience_maker.teacher is not None:
                self.experience_maker.teacher.load_state_dict(load_teacher(checkpoint))
            restore_pending_log(self, state.logged)

    def save_state(self) -> None:
        """Write `output_dir/trainer_state.json`: every number that was logged."""
        path = Path(self.args.output_dir, "trainer_state.json")
        if self.is_world_process_zero():
            with spared("logs", path):
                write_state(self.state, path)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name in grouped(metrics):
            metrics[name] = metrics.pop(name)
        place = Path(self.args.output_dir, "completions", "")
        with spared("tables of completions", place), self._trackers.tables(self.args.report_to or ()):
            super().log(logs, start_time)
        metrics.clear()
        for name in list(self._unlogged):
            records = self._unlogged.pop(name)
            self._trackers.call(name, log_turns, name, self.args, records, self.state.global_step)

    # ---- publishing ------------------------------------------------------------------------------------------------

    def create_model_card(  # type: ignore[override]  # as TRL's
        self,
        model_name: str | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
        license: str | None = None,
    ) -> None:
        """Write `output_dir/README.md`: what was trained, on what, how well it does, at what price, how to load it.

        Args:
            model_name (`str`, *optional*):
                Name of the model. If `None`, the last part of `hub_model_id` or of `output_dir`.
            dataset_name (`str`, *optional*):
                Data set on the Hub that the tasks come from.
            tags (`str` or `list[str]`, *optional*):
                Further tags.
            license (`str`, *optional*):
                The Hub's name of the license, for example `"apache-2.0"`. If `None`, the card has none.
        """
        if self.is_world_process_zero():
            named = {"model_name": model_name, "dataset_name": dataset_name, "license": license}
            own = [tags] if isinstance(tags, str) else tags or []
            write_model_card(self.args.output_dir, self._run_parts, tags=[*self._tag_names, *own], **named)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with self._checkpoints.model_folder(output_dir or self.args.output_dir) as folder:
            super()._save(folder, state_dict)
            # PEFT leaves a card of its own, or changes the one that is there: its base model may be a local path.
            if self.is_world_process_zero():
                write_model_card(folder, self._run_parts, tags=self._tag_names)

    def init_hf_repo(self, *args, **kwargs):
        with what_may_leave(self.args, self.analyzer, self._pushes):
            super().init_hf_repo(*args, **kwargs)

    def push_to_hub(self, *args, **kwargs):
        with what_may_leave(self.args, self.analyzer, self._pushes):
            return super().push_to_hub(*args, **kwargs)

    def _finish_current_push(self) -> None:
        self._pushes.finish(getattr(self, "push_in_progress", None))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._checkpoints.is_open:  # it goes up when it is in its place
            with what_may_leave(self.args, self.analyzer, self._pushes), spared("pushes", self.args.output_dir):
                super()._push_from_checkpoint(checkpoint_folder)

    @property
    def _run_parts(self) -> RunParts:
        return RunParts(
            args=self.args,
            recipe=self._recipe,
            state=self.state,
            model=self.accelerator.unwrap_model(self.model),
            analyzer=self.analyzer,
            environments=self._environment_names,
            traits=self.environment_pool.traits,
            train_dataset=self.train_dataset,
            split_names=self.split_names,
            weights_step=self._weights_step,
            repo_id=self.hub_model_id,
            paper=self._paper,
        )

    # ---- small things ----------------------------------------------------------------------------------------------

    @property
    def _micro_steps_per_rollout(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    @property
    def _layout(self) -> dict[str, int]:
        """What a partly used rollout batch was made for."""
        return {
            "num_processes": self.accelerator.num_processes,
            "steps_per_generation": self.args.steps_per_generation,
            "gradient_accumulation_steps": self.args.gradient_accumulation_steps,
            "num_iterations": self.num_iterations,
        }

    @property
    def _planned_micro_steps(self) -> int:
        """Micro-steps over which a rollout batch's coefficients sum to 1."""
        return min(self.args.steps_per_generation, self.args.gradient_accumulation_steps)

    def _update_layout(self) -> UpdateLayout:
        return UpdateLayout(
            num_steps=max(1, self.args.steps_per_generation // self.args.gradient_accumulation_steps),
            num_micro_steps=self._planned_micro_steps,
            num_iterations=self.num_iterations,
            # On-policy only where the rollout batch ends inside the optimizer step that it begins in.
            is_off_policy=self.args.gradient_accumulation_steps % self._micro_steps_per_rollout != 0,
        )

    @property
    def _weights_step(self) -> int:
        """The optimizer step whose weights the model has: after training, those of the best checkpoint may be back."""
        best = self.state.best_global_step if self.args.load_best_model_at_end and not self.is_in_train else None
        return best or self.state.global_step

    @contextlib.contextmanager
    def _generating(self) -> Iterator[None]:
        """Entered by every process around episodes: the engine has the weights of this step inside."""
        with self.engine.generating(self.state.global_step) as seconds:
            if self.is_in_train and self.engine.has_own_weights:
                self._metrics["train"]["time/weight_sync"].append(seconds)
            yield

    def _gather(self, objects: list) -> list:
        return gather_object(objects) if self.accelerator.num_processes > 1 else objects

    def _progress(self, total: int, name: str) -> tqdm:
        """A bar over episodes; appears only when a batch takes long."""
        is_quiet = self.args.disable_tqdm or not self.accelerator.is_local_main_process
        pace = 0.1 if can_draw() else 60.0  # in a file each redrawing is a line
        return tqdm(total=total, desc=name, unit="episode", leave=False, delay=5.0, mininterval=pace, disable=is_quiet)

    def close(self) -> None:
        """Close environments, worker threads and the analyzer. May be called twice; do not train afterwards."""
        self.experience_maker.guidance.close()
        self.environment_pool.close()
        if self.experience_maker.teacher is not None:
            self.experience_maker.teacher.close()
        self.engine.close()
        self.analyzer.close()

    def end(self) -> None:
        """[`close`], then what TRL does: finish the trackers and destroy the process group. Call it last."""
        self.close()
        # The threads of torch's gloo group release tensors, for which they need the interpreter; one that is at it
        # while the process exits aborts it (pytorch#190489). They end with the last reference to the group, which the
        # data-parallel wrapper would hold. DeepSpeed's engine needs the group for its own end.
        self.model_wrapped = self.model
        self.accelerator.free_memory()
        super().end()


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
