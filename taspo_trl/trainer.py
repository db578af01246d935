"""TASPOTrainer: TRL's GRPOTrainer for multi-turn environments, with turn credit from privileged guidance.

Only orchestration: play, guide, score, weigh, deal, update. Each stage lives in its own file and passes frozen records
on. Only this file and its mixins know TRL's trainer: which engine plays (generating.py), the update
(micro_step.py), evaluation (held_out.py), resuming (resuming.py) and what is published (publishing.py).
"""

from __future__ import annotations

import contextlib
import copy
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from accelerate.utils import gather_object, is_peft_model
from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOTrainer
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import RepeatSampler

from .analyzer.base import Analyzer
from .config import TASPOConfig
from .environments.workers import EnvironmentPool, Factory
from .generation import SamplingSettings
from .generation.checks import check_unquantized
from .reporting.alerts import Alerts
from .reporting.card_facts import environment_name
from .reporting.trackio import log_traces
from .rollout.contexts import ChatRenderer
from .rollout.groups import Collector
from .rollout.rewards import RewardFunction
from .scoring.projection import add_selected_projection
from .training.assembly import (
    configured_analyzer,
    experience_settings,
    keep_trained_weights_in_float32,
    make_guidance,
    reward_settings,
    rollout_settings,
)
from .training.checkpoint import Buffer
from .training.checks import check_arguments, check_environments, check_model, check_parallelism
from .training.earlier_run import set_aside
from .training.generating import GenerationMixin
from .training.held_out import EvaluationMixin
from .training.micro_step import UpdateMixin
from .training.passes import PolicyPasses
from .training.publishing import PublishingMixin
from .training.resuming import ResumingMixin
from .training.rollout_batch import ExperienceMaker, UpdateLayout
from .training.sampler import EpochSampler
from .training.trl_logs import log_experience


def _no_reward(**kwargs: Any) -> list[None]:
    """Stands in for TRL's mandatory reward source: the environment gives the reward."""
    return [None] * len(kwargs["prompts"])


class TASPOTrainer(GenerationMixin, UpdateMixin, EvaluationMixin, ResumingMixin, PublishingMixin, GRPOTrainer):
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
            Who writes guidance for `guidance="aligned"`. If `None`, a [`~taspo_trl.analyzer.LiteLLMAnalyzer`] for
            `args.analyzer_model`, or the embedded [`~taspo_trl.analyzer.ExtractiveAnalyzer`] without one.
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
        check_arguments(args, functions, train_dataset, environment_factory, eval_dataset)
        check_unquantized(args, model, quantization_config)
        self.analyzer = analyzer if analyzer is not None else configured_analyzer(args)
        # TRL would load a second copy of the model by name for the reference; an instance may have no name, or may
        # not be what its name says. The reference is a copy of the very model that was passed.
        has_adapter = peft_config is not None or (not isinstance(model, str) and is_peft_model(model))
        reference_is_ours = args.beta != 0.0 and not isinstance(model, str) and not has_adapter
        frozen_copy = copy.deepcopy(model) if reference_is_ours else None
        # TRL would start vLLM, which demands CUDA and generates in step; engine and weights have a seam of their own.
        overridden = {"use_vllm": False} | ({"beta": 0.0, "sync_ref_model": False} if reference_is_ours else {})
        with _overridden(args, **overridden):
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
        check_parallelism(self.accelerator.parallelism_config)
        if args.fp16 and has_adapter:
            keep_trained_weights_in_float32(self.model)
        if frozen_copy is not None:
            self._adopt_reference(frozen_copy)
        check_model(self.model, self._is_vlm, self.aux_loss_enabled)
        policy = self.model.get_base_model() if is_peft_model(self.model) else self.model
        for one in [policy] if self.ref_model is None else [policy, self.accelerator.unwrap_model(self.ref_model)]:
            add_selected_projection(one, self.temperature, args.cast_lm_head_to_fp32)
        is_routed = isinstance(environment_factory, Mapping)
        factories: Any = environment_factory if is_routed else {None: environment_factory}
        self.chat_renderer = ChatRenderer(self._tokenizer, args.chat_template_kwargs)
        with contextlib.ExitStack() as undo:  # what was opened is closed again if anything here is refused
            self.engine = self._make_engine()
            if self.engine is not None:
                undo.callback(self.engine.close)
            self.environment_pool = EnvironmentPool(factories, args.environment_backend, args.success_threshold)
            undo.callback(self.environment_pool.close)
            columns = getattr(train_dataset, "column_names", None) or ()
            check_environments(self.environment_pool, self.chat_renderer, args, bool(functions), columns)
            self.experience_maker = self._make_experience_maker(functions)
            undo.pop_all()
        self._environment_names = {
            name: environment_name(factory, self.environment_pool.probes[name]) for name, factory in factories.items()
        }
        self._made_at = time.time()
        self._alerts = Alerts()
        self._buffer: Buffer | None = None
        self._update_seconds = 0.0

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def _adopt_reference(self, model: PreTrainedModel) -> None:
        """Use `model` as the frozen reference pi_ref."""
        self.beta = self.args.beta
        model.requires_grad_(False)
        self.ref_model = self.accelerator.prepare_model(model.eval(), evaluation_mode=True)
        if self.args.sync_ref_model:
            self.add_callback(SyncRefModelCallback(ref_model=self.ref_model, accelerator=self.accelerator))

    def _make_experience_maker(self, functions: list[RewardFunction]) -> ExperienceMaker:
        """The stages of a rollout batch, put together from the configuration."""
        args = self.args
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        limits = [limit for limit in (window, self.engine and self.engine.max_model_length) if limit is not None]
        self._reward_keywords: dict[str, Any] = {}
        calls: list = []
        guidance = make_guidance(args, self._tokenizer, self.environment_pool, self.analyzer, calls)
        collector = Collector(
            policy=self._make_policy(),
            pool=self.environment_pool,
            renderer=self.chat_renderer,
            rollout=rollout_settings(args, min(limits) if limits else None),
            rewards=reward_settings(
                args,
                self.environment_pool,
                functions,
                weights=self.reward_weights.tolist() if functions else (),
                names=self.reward_func_names if functions else (),
                extra=self._reward_keywords,
                columns=getattr(self.train_dataset, "column_names", None) or (),
            ),
            guidance=guidance,
            num_generations=self.num_generations,
            gather=self._gather,
            process_index=self.accelerator.process_index,
            num_processes=self.accelerator.num_processes,
            generating=self._generating,
        )
        passes = PolicyPasses(
            get_model=lambda: self.model,
            ref_model=self.ref_model,
            accelerator=self.accelerator,
            gather=self._gather,
            max_tokens=args.micro_batch_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            pad_to_multiple_of=self.pad_to_multiple_of if isinstance(self.pad_to_multiple_of, int) else None,
        )
        settings = experience_settings(
            args, window, has_reference=self.beta != 0.0, has_entropy_bonus=self.entropy_coef != 0.0
        )
        return ExperienceMaker(collector, guidance, passes, settings, calls)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        return EpochSampler(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

    # ---- training --------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        if not resume_from_checkpoint and self.is_world_process_zero():
            set_aside(self.args.output_dir, before=self._made_at)
        # What an earlier call left of its rollout batch, perhaps in the middle of an optimizer step, is not used.
        self._buffer = None
        self._step += -self._step % self._micro_steps_per_rollout
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.environment_pool.close_instances()
            if self.engine is not None:
                self.engine.weights.forget()  # the best model may have been loaded; the count of steps starts again

    def training_step(self, model, inputs, num_items_in_batch=None):
        """One micro-step: its token-budget micro-batches, a forward and a backward each."""
        started = time.perf_counter()
        model.train()
        if self._buffer is None or self._step % self._micro_steps_per_rollout == 0:
            self._buffer = self._new_rollout(inputs)
        loss = self._update(model, self._buffer[self._step % self.args.steps_per_generation], num_items_in_batch)
        self._step += 1
        self._current_train_step_time += time.perf_counter() - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._metrics["train"]["time/update"].append(self._update_seconds)
            self._current_train_step_time = self._update_seconds = 0.0
        return loss

    def _new_rollout(self, local_rows: list[dict[str, Any]]) -> Buffer:
        """Play a rollout batch and log it; returns this process's micro-batches."""
        rows = self._gather(local_rows)[:: self.num_generations]
        self._reward_keywords["trainer_state"] = self.state
        with self._progress(len(rows) * self.num_generations, "rollout") as bar:
            experience = self.experience_maker.make(
                rows,
                sampling=SamplingSettings(
                    self.temperature, self.top_p, self.top_k, self.min_p, self.args.generation_kwargs or {}
                ),
                seed=self.args.seed,
                draw=self._step // self._micro_steps_per_rollout,
                step=self.state.global_step,
                layout=self._update_layout(),
                on_episode_end=lambda trajectory: bar.update(),
            )
        log_experience(experience, self.state, self._metrics["train"], self._logs)
        if self.is_world_process_zero():
            self._alerts.note([one.trajectory for one in experience.records], experience.advantages)
        if self.accelerator.is_main_process:
            log_traces(self.args, experience.records, self.state.global_step)
        return experience.micro_batches

    @property
    def _micro_steps_per_rollout(self) -> int:
        return self.args.steps_per_generation * self.num_iterations

    def _update_layout(self) -> UpdateLayout:
        per_rollout, per_step = self.args.steps_per_generation, self.current_gradient_accumulation_steps
        return UpdateLayout(
            num_steps=max(1, per_rollout // self.args.gradient_accumulation_steps),
            num_micro_steps=min(per_rollout, self.args.gradient_accumulation_steps),
            share=min(1.0, per_rollout / per_step),
            # On-policy only where the rollout batch ends inside the optimizer step that it begins in.
            is_off_policy=self.args.gradient_accumulation_steps % self._micro_steps_per_rollout != 0,
        )

    # ---- small things ----------------------------------------------------------------------------------------------

    def _gather(self, objects: list) -> list:
        return gather_object(objects) if self.accelerator.num_processes > 1 else objects

    def _progress(self, total: int, name: str) -> tqdm:
        """A bar over episodes; appears only when a batch takes long."""
        is_quiet = self.args.disable_tqdm or not self.accelerator.is_local_main_process
        return tqdm(total=total, desc=name, unit="episode", leave=False, delay=5.0, disable=is_quiet)

    def close(self) -> None:
        """Close environments, worker threads and the analyzer. May be called twice; do not train afterwards."""
        self.experience_maker.guidance.close()
        self.environment_pool.close()
        if self.engine is not None:
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
