"""TASPOConfig: what TASPO adds to TRL's GRPOConfig, and the few TRL defaults it changes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers.utils import is_torch_bf16_gpu_available
from trl import GRPOConfig

from .errors import ConfigurationError
from .generation.checks import check_vllm_options
from .generation.transformers import check_generation_kwargs
from .methods.choice import ALLOCATIONS, choose
from .options.inherited import check_options
from .options.ranges import check_choices, check_ranges
from .redaction import Secret, credentials_of, holds_secret, without_credentials, without_secrets


class Discreet:
    """A configuration of which no pickle, no text and no tracker gets a credential; copies in memory have them."""

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: `training_args.bin` lies in every checkpoint and goes to the Hub, so it holds no token."""
        state = {name: None if name.endswith("_token") else value for name, value in vars(self).items()}
        return {
            name: without_credentials(value) if isinstance(value, Mapping) else value for name, value in state.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """As transformers', for trackers and files: no credential of nested options, nothing like a key in a text."""
        shown: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return without_secrets(without_credentials(shown))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    __str__ = __repr__

    def __copy__(self) -> Any:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __deepcopy__(self, memo: dict) -> Any:
        made = object.__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def _hide_credentials(self, values: Mapping[str, Any]) -> None:
        """As long as this lives, no text of the package shows credentials of options, whoever quotes them."""
        self._credentials = [Secret(value) for value in credentials_of(values)]


@dataclass(repr=False)
class TASPOConfig(Discreet, GRPOConfig):
    r"""
    Configuration class for the [`TASPOTrainer`].

    This class includes only the parameters that are specific to TASPO. For the others, see [`~trl.GRPOConfig`] and
    [`~transformers.TrainingArguments`]; `taspo_trl.options.inherited` says which of them are honoured, have
    no effect, or are refused. `max_completion_length` is the number of tokens of one reply, `generation_batch_size`
    the number of episodes in a rollout batch (tasks x `num_generations`).

    Parameters:
        > Parameters that control the episodes

        context (`str`, *optional*):
            `"window"` prompts every turn afresh with the task, the last few turns and the current observation.
            `"conversation"` lets one chat grow. If `None`, what the environment asks for: `"window"`, with tools
            `"conversation"`.
        history_length (`int`, *optional*):
            Past turns that a window prompt shows. If `None`, the environment's own number.
        max_turns (`int`, *optional*):
            Turns of an episode. If `None`, TRL's `max_tool_calling_iterations` plus one (the reply after the last
            result), and without that the environment's own number.
        max_prompt_length (`int`, *optional*):
            Tokens of one prompt. Over-long prompts lose their oldest history first, then the middle of the
            observation; never the task or the instruction. If `None`, the model's window.
        max_episode_tokens (`int`, *optional*):
            Sampled tokens of an episode. If `None`, unlimited.
        environment_timeout (`float`, *optional*, defaults to `60.0`):
            Seconds that one `reset` or `step` may take before the episode is given up.
        environment_backend (`str`, *optional*, defaults to `"auto"`):
            `"thread"` or `"process"` for environment instances; `"auto"` takes what the environment asks for.
        training_reward (`str`, *optional*):
            The environment's share of the reward: `"success"` is 1 for a verified success and 0 otherwise,
            `"environment"` the sum of the environment's own rewards; `"none"` leaves the reward to `reward_funcs`. If
            `None`, what the environment asks for: `"success"`; of TRL's classes `"environment"` with `get_reward`,
            `"none"` with neither `get_reward` nor `_get_success`.
        success_threshold (`float`, *optional*):
            Classes written for TRL's `environment_factory`: the value of `get_reward` from which an episode counts as
            a verified success. Without effect on a class with `_get_success`, and on other environments.
        invalid_action_penalty (`float`, *optional*, defaults to `0.0`):
            Subtracted from a trajectory's reward times its share of invalid turns.
        generation_tokens (`int`, *optional*, defaults to `262144`):
            Bound on rows x (prompt + new tokens) of what is decoded together with transformers, with the keys that
            episodes keep between their turns; without effect with vLLM.

        > Parameters that control the guidance

        guidance (`str`, *optional*):
            The context that the teacher's branch is shown, by its name in docs/contexts.md: with TASPO `"aligned"`
            (the paper's), one that it is compared with (`"random_success"`, `"nearest_success"`, `"generic_skill"`), a
            placebo (`"shuffled"`, `"empty"`), or `"none"`, which is `method="grpo"`. If `None`, the method's own:
            `"aligned"`. Other methods take it as the `block` of `method_options`, where they have one.
        max_evidence_items (`int`, *optional*, defaults to `12`):
            Evidence items kept for a group.
        max_guidance_items (`int`, *optional*, defaults to `8`):
            G: statements looked at for a trajectory.
        max_guidance_tokens (`int`, *optional*, defaults to `256`):
            B_PI: tokens of a guidance block, its wrapper included.
        analyzer_context_chars (`int`, *optional*, defaults to `12000`):
            C: characters of recorded text in one analyzer request.
        analyzer_workers (`int`, *optional*, defaults to `4`):
            Analyzer requests in flight.
        analyzer_model (`str`, *optional*):
            LiteLLM's name of the analyzer's model, provider first. If `None` or `"embedded"`, the embedded analyzer,
            which is no LLM; on a command line `embedded` wins over the model that a configuration file names.
            The key comes from the provider's environment variable, never from here. Without effect when the trainer
            gets an `analyzer`, as are the settings below up to `analyzer_cache`.
        analyzer_api_base (`str`, *optional*):
            Root of the analyzer's API. If `None`, the provider's own.
        analyzer_timeout (`float`, *optional*, defaults to `120.0`):
            Wall time of one analyzer request in seconds.
        analyzer_attempts (`int`, *optional*, defaults to `3`):
            Requests for one question at most.
        analyzer_max_tokens (`int`, *optional*, defaults to `4096`):
            Output limit of one answer.
        analyzer_requests_per_minute (`int`, *optional*), analyzer_tokens_per_minute (`int`, *optional*):
            Limits of each process. If `None`, unlimited.
        analyzer_budget_usd (`float`, *optional*), analyzer_budget_tokens (`int`, *optional*):
            Spending of all processes and resumptions with this `output_dir` after which no new call is made. If
            `None`, unlimited.
        analyzer_required (`bool`, *optional*, defaults to `True`):
            Whether an analyzer that cannot be used at all at its first call stops the run.
        analyzer_cache (`str`, *optional*, defaults to `"auto"`):
            SQLite file of paid answers; `"auto"` lies in the user's cache folder, `"no"` keeps none.
        analyzer_time_budget (`float`, *optional*, defaults to `1800.0`):
            Seconds that a training step waits for guidance at most, after everything that overlaps with it. If `None`,
            unlimited.
        analyzer_prompts (`str`, *optional*):
            Folder with `extraction.txt`, `alignment.txt` or `judgement.txt`, the analyzer's instructions. For a file
            that is not there, the package's.

        > Parameters that control the credit

        method (`str`, *optional*, defaults to `"taspo"`):
            How the outcome of an episode becomes the credit of its tokens: `"taspo"`, `"grpo"`, or one of the others
            in docs/methods.md (`taspo methods` lists them).
        method_options (`dict[str, Any] | str`, *optional*):
            Options of the method, which `taspo methods NAME` lists; the paper's constants of TASPO are the options
            below. On the command line as JSON or as a YAML mapping in braces. An option that the method does not
            have is refused.
        teacher_model (`str`, *optional*):
            Who plays the teacher of a method whose teacher is another model (`"opd"`): a model id, a folder, or the
            address of a server that gives log-probabilities. It must have the policy's tokenizer.
        allocation (`str`, *optional*):
            TASPO's weights: `"action"`: one for each turn (if `None`, too). `"token"`: one for each action token (the
            ablation; the trajectory's mean weight is then not preserved). Refused with other methods, as are the
            constants below.
        shift_clip (`float`, *optional*, defaults to `2.0`):
            c: bound on a single token's likelihood shift.
        shift_threshold (`float`, *optional*, defaults to `0.0`):
            kappa: smaller shifts count as 0.
        score_temperature (`float`, *optional*, defaults to `0.5`):
            tau: temperature of the relative support.
        weight_range (`float`, *optional*, defaults to `0.4`):
            eps_w: weights lie in [1 - eps_w, 1 + eps_w].
        weight_step_size (`float`, *optional*):
            eta: step of the redistribution. If `None`, eps_w / 2.

        > Parameters that control the update

        micro_batch_tokens (`int`, *optional*, defaults to `16384`):
            Bound on rows x longest row of one forward in scoring and update; this, not
            `per_device_train_batch_size`, bounds their memory.
        padding_free (`bool`, *optional*):
            Whether the rows of a forward in scoring and update stand one behind the other instead of being padded to
            one length; `micro_batch_tokens` then bounds their tokens. If `None`, where the model runs with flash
            attention, which computes each row by itself. `True` is right with other attention implementations too,
            whose block-diagonal mask costs more than the padding it saves.
        score_during_rollout (`bool`, *optional*):
            Whether groups that are finished and guided are scored, and their old and reference log-probabilities
            computed, while other groups still play: where generation leaves the trainer's device idle. The numbers do
            not depend on when that happens. They are computed group by group, so that old log-probabilities differ
            from the update's own first ones by rounding. If `None`, with vLLM's server, unless the model is sharded
            over processes. `True` helps with transformers where environments are slow; it is refused with a sharded
            model (FSDP, ZeRO-3) and with `vllm_mode="colocate"`.
        max_nonfinite_steps (`int`, *optional*, defaults to `3`):
            So many optimizer steps in a row whose loss or gradient is no finite number end the run. Each of them is
            skipped, counted (`nonfinite_steps`) and said aloud: no such number reaches the weights.

        > Parameters that control the evaluation

        eval_temperature (`float`, *optional*, defaults to `0.0`):
            Sampling temperature in evaluation; 0 is greedy.
        eval_top_p (`float`, *optional*, defaults to `1.0`):
            Nucleus in evaluation. `top_k`, `min_p` and `generation_kwargs` apply to training only: an evaluation
            during training equals `taspo eval` of the checkpoint.
        eval_seed (`int`, *optional*, defaults to `0`):
            Seed of tasks and sampling in evaluation, the same at every evaluation.

        > Parameters that control the records

        save_trajectories (`str`, *optional*, defaults to `"text"`):
            What is written to `output_dir/_trajectories` for each rollout batch: `"text"` (everything but prompt ids),
            `"full"` (prompt ids too, needed to score them again offline), or `"no"`.
        hub_push_trajectories (`bool`, *optional*, defaults to `False`):
            Whether pushes to the Hub take along what holds episodes: trajectories, evaluations, viewer pages, the
            table of `log_completions`, and in checkpoints the rows of a partly used rollout batch, without which a run
            resumed from there plays that batch again. Never the analyzer's cache.
        hub_timeout (`float`, *optional*, defaults to `3600.0`):
            Seconds that a run waits for the Hub: at its end for the pushes under way, and for a push of yours. They go
            on beside the training otherwise.
        tracker_timeout (`float`, *optional*, defaults to `300.0`):
            Seconds that one call of a tracker (`report_to`) may take; one that takes longer gets nothing more of the
            run.

    > [!NOTE]
    > These parameters have default values different from [`~trl.GRPOConfig`]:
    > - `loss_type`: Defaults to `"grpo"` (the only value) instead of `"dapo"`.
    > - `delta`: Defaults to `3.0` instead of `None`.
    > - `use_bias_correction_kl`: Defaults to `False` instead of `True`.
    > - `num_generations_eval`: Defaults to `1` instead of `None`.
    > - `bf16`: Defaults to whether a GPU with bfloat16 trains (no `use_cpu`, no `fp16`) instead of `True`.
    > - `hub_private_repo`: Defaults to `True` instead of `None`. Repositories that a run makes on the Hub are private
    >   unless it is `False`; `None` counts as `True`.
    """

    # TRL defaults that the method changes
    loss_type: str = field(
        default="grpo",
        metadata={
            "help": "The loss. Only `grpo`: the clipped surrogate, averaged over turns, then trajectories (E8)."
        },
    )
    delta: float | None = field(
        default=3.0,
        metadata={"help": "Upper bound of the ratio for negative advantages (the paper's dual clip, 3.0)."},
    )
    use_bias_correction_kl: bool = field(
        default=False,
        metadata={"help": "Whether to multiply the KL estimate by the ratio. The paper does not."},
    )
    num_generations_eval: int | None = field(
        default=1,
        metadata={"help": "Plays of each task in evaluation."},
    )
    hub_private_repo: bool | None = field(
        default=True,
        metadata={
            "help": "Whether repositories (and trackio Spaces) that the run makes on the Hub are private. Only "
            "`False` makes them public."
        },
    )

    # Parameters that control the episodes
    context: str | None = field(
        default=None,
        metadata={
            "help": "`window`: every turn is prompted afresh with the task, the last few turns and the current "
            "observation (the paper's protocol). `conversation`: one chat grows. If `None`, what the environment asks "
            "for: `window`, with tools `conversation`.",
            "choices": ["window", "conversation"],
        },
    )
    history_length: int | None = field(
        default=None,
        metadata={
            "help": "Past turns that a window prompt shows (paper: 2, Search-QA 4). If `None`, the environment's."
        },
    )
    max_turns: int | None = field(
        default=None,
        metadata={
            "help": "Turns of an episode (paper: ALFWorld 50, WebShop 15, Search-QA 4). If `None`, "
            "`max_tool_calling_iterations` plus one, else the environment's."
        },
    )
    max_prompt_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of one prompt (paper: 2048 for ALFWorld, else 4096). Over-long prompts lose their oldest "
            "history first, then the middle of the observation. If `None`, the model's window."
        },
    )
    max_episode_tokens: int | None = field(
        default=None,
        metadata={"help": "Sampled tokens of an episode. If `None`, unlimited."},
    )
    environment_timeout: float = field(
        default=60.0,
        metadata={"help": "Seconds that one `reset` or `step` of an environment may take before its episode ends."},
    )
    environment_backend: str = field(
        default="auto",
        metadata={
            "help": "Where environment instances run. `auto` takes what the environment asks for.",
            "choices": ["auto", "thread", "process"],
        },
    )
    training_reward: str | None = field(
        default=None,
        metadata={
            "help": "The environment's share of the reward: `success` is 1 for a verified success, else 0 (paper); "
            "`environment` is the sum of the environment's own rewards; `none` leaves the reward to `reward_funcs`. "
            "If `None`, what the environment asks for: `success`; of TRL's classes `environment` with `get_reward`, "
            "`none` with neither `get_reward` nor `_get_success`.",
            "choices": ["success", "environment", "none"],
        },
    )
    success_threshold: float | None = field(
        default=None,
        metadata={
            "help": "Classes written for TRL's `environment_factory`: the value of `get_reward` from which an episode "
            "counts as a verified success. Without effect on a class with `_get_success`."
        },
    )
    invalid_action_penalty: float = field(
        default=0.0,
        metadata={"help": "Subtracted from a trajectory's reward times its share of invalid turns."},
    )
    generation_tokens: int = field(
        default=262144,
        metadata={"help": "Bound on rows x (prompt + new tokens) of one generation batch with transformers."},
    )

    # Parameters that control the guidance
    guidance: str | None = field(
        default=None,
        metadata={
            "help": "The context that the teacher's branch is shown: `aligned` (TASPO's), a context that it is "
            "compared with, a placebo (`shuffled`, `empty`), or `none` (plain GRPO); see docs/contexts.md. If "
            "`None`, the method's own.",
        },
    )
    max_evidence_items: int = field(
        default=12,
        metadata={"help": "Evidence items kept for a group (paper: 12)."},
    )
    max_guidance_items: int = field(
        default=8,
        metadata={"help": "G: statements looked at for a trajectory (paper: 8)."},
    )
    max_guidance_tokens: int = field(
        default=256,
        metadata={"help": "B_PI: tokens of a guidance block, its wrapper included (paper: 256)."},
    )
    analyzer_context_chars: int = field(
        default=12000,
        metadata={"help": "C: characters of recorded text in one analyzer request (paper: 12000)."},
    )
    analyzer_workers: int = field(
        default=4,
        metadata={"help": "Analyzer requests in flight (paper: 4)."},
    )
    analyzer_model: str | None = field(
        default=None,
        metadata={
            "help": "LiteLLM's name of the analyzer's model, provider first, e.g. `deepseek/deepseek-chat`. The key "
            "comes from the provider's environment variable. If `None` or `embedded`, the embedded analyzer, which is "
            "no LLM."
        },
    )
    analyzer_api_base: str | None = field(
        default=None,
        metadata={"help": "Root of the analyzer's API, e.g. `http://localhost:8000/v1`. If `None`, the provider's."},
    )
    analyzer_timeout: float = field(
        default=120.0,
        metadata={"help": "Wall time of one analyzer request in seconds."},
    )
    analyzer_attempts: int = field(
        default=3,
        metadata={"help": "Analyzer requests for one question at most, when they fail in a way a retry may mend."},
    )
    analyzer_max_tokens: int = field(
        default=4096,
        metadata={"help": "Output limit of one analyzer answer (paper: 4096)."},
    )
    analyzer_requests_per_minute: int | None = field(
        default=None,
        metadata={"help": "Analyzer requests of each process in any 60 seconds. If `None`, unlimited."},
    )
    analyzer_tokens_per_minute: int | None = field(
        default=None,
        metadata={"help": "Analyzer tokens of each process in any 60 seconds. If `None`, unlimited."},
    )
    analyzer_budget_usd: float | None = field(
        default=None,
        metadata={
            "help": "US dollars, over all processes and resumptions with this `output_dir`, after which no new "
            "analyzer call is made. If `None`, unlimited."
        },
    )
    analyzer_budget_tokens: int | None = field(
        default=None,
        metadata={"help": "The same in tokens. If `None`, unlimited."},
    )
    analyzer_required: bool = field(
        default=True,
        metadata={
            "help": "Whether an analyzer that cannot be used at all at its first call (wrong key, unknown model, "
            "unreachable host) stops the run. If `False`, its trajectories train with plain GRPO weights."
        },
    )
    analyzer_cache: str = field(
        default="auto",
        metadata={
            "help": "SQLite file of paid analyzer answers. `auto`: in the user's cache folder; `no`: none is kept."
        },
    )
    analyzer_time_budget: float | None = field(
        default=1800.0,
        metadata={
            "help": "Seconds that a training step waits for guidance at most, after everything that overlaps with it; "
            "the remaining trajectories train with plain GRPO weights. If `None`, unlimited."
        },
    )
    analyzer_prompts: str | None = field(
        default=None,
        metadata={
            "help": "Folder with `extraction.txt`, `alignment.txt` or `judgement.txt`, the analyzer's instructions. "
            "Where there is none, the package's own."
        },
    )

    # Parameters that control the credit
    method: str = field(
        default="taspo",
        metadata={
            "help": "How an outcome becomes credit: `taspo`, `grpo`, or another method that `taspo methods` lists."
        },
    )
    method_options: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Options of the method, as JSON or YAML in braces; `taspo methods NAME` lists them.",
        },
    )
    teacher_model: str | None = field(
        default=None,
        metadata={
            "help": "The teacher of methods whose teacher is another model (`opd`): a model id, a folder, or the "
            "address of a server that gives log-probabilities."
        },
    )
    allocation: str | None = field(
        default=None,
        metadata={
            "help": "TASPO's weights: `action`: one for each turn (the method). `token`: one for each action token "
            "(ablation).",
            "choices": list(ALLOCATIONS),
        },
    )
    shift_clip: float = field(
        default=2.0,
        metadata={"help": "c: bound on a single token's likelihood shift (paper: 2.0)."},
    )
    shift_threshold: float = field(
        default=0.0,
        metadata={"help": "kappa: smaller shifts count as 0 (paper: 0.05 in Table C.3, absent from its formulas)."},
    )
    score_temperature: float = field(
        default=0.5,
        metadata={"help": "tau: temperature of the relative support (paper: 0.5)."},
    )
    weight_range: float = field(
        default=0.4,
        metadata={"help": "eps_w: weights lie in [1 - eps_w, 1 + eps_w] (paper: 0.4)."},
    )
    weight_step_size: float | None = field(
        default=None,
        metadata={"help": "eta: step of the redistribution. If `None`, eps_w / 2, for which no bound is ever active."},
    )

    # Parameters that control the update
    micro_batch_tokens: int = field(
        default=16384,
        metadata={
            "help": "Bound on rows x longest row of one forward in scoring and update; this bounds their memory, "
            "whatever the number of turns."
        },
    )
    padding_free: bool | None = field(
        default=None,
        metadata={
            "help": "Whether the rows of a forward in scoring and update stand one behind the other instead of being "
            "padded to one length. Default: where the model runs with flash attention."
        },
    )
    score_during_rollout: bool | None = field(
        default=None,
        metadata={
            "help": "Whether groups that are finished and guided are scored while others still play. If `None`, with "
            "vLLM's server, unless the model is sharded over processes. Refused with `vllm_mode=colocate`."
        },
    )
    max_nonfinite_steps: int = field(
        default=3,
        metadata={
            "help": "So many optimizer steps in a row whose loss or gradient is no finite number end the run. Each of "
            "them is skipped: no such number reaches the weights."
        },
    )

    # Parameters that control the evaluation
    eval_temperature: float = field(
        default=0.0,
        metadata={"help": "Sampling temperature in evaluation; 0 is greedy."},
    )
    eval_top_p: float = field(
        default=1.0,
        metadata={"help": "Nucleus in evaluation."},
    )
    eval_seed: int = field(
        default=0,
        metadata={"help": "Seed of tasks and sampling in evaluation, the same at every evaluation."},
    )

    # Parameters that control the records
    save_trajectories: str = field(
        default="text",
        metadata={
            "help": "What is written to `output_dir/_trajectories` for each rollout batch: `text` (all but prompt "
            "ids), `full` (prompt ids too, for scoring offline) or `no`.",
            "choices": ["text", "full", "no"],
        },
    )
    hub_push_trajectories: bool = field(
        default=False,
        metadata={
            "help": "Whether pushes to the Hub take along trajectories, evaluations, viewer pages, the table of "
            "`log_completions` and, in checkpoints, the rows of a partly used rollout batch."
        },
    )
    hub_timeout: float = field(
        default=3600.0,
        metadata={
            "help": "Seconds that a run waits for the Hub: for pushes under way at its end, and for the last one."
        },
    )
    tracker_timeout: float = field(
        default=300.0,
        metadata={
            "help": "Seconds that one call of a tracker (`report_to`) may take; one that takes longer gets nothing "
            "more of the run."
        },
    )

    def __post_init__(self):
        if self.hub_private_repo is None:  # to transformers that means public, but for some organizations
            self.hub_private_repo = True
        if self.analyzer_model == "embedded":
            self.analyzer_model = None
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        check_choices(values, self._own_choices())
        check_ranges(values)
        check_options(values)
        self._count_turns()
        for name, value in values.items():
            if isinstance(value, str) and "://" in value and holds_secret(value):  # not shown, for that reason
                raise ConfigurationError(
                    f"`{name}` holds a user name, a query, path parameters or something like a key, and a "
                    "configuration is saved with every checkpoint. Write the plain address, for example "
                    "http://localhost:8000/v1, and keep what proves who you are in the environment."
                )
        self._hide_credentials(values)
        self._choose_method(values)
        if self.use_vllm:
            check_vllm_options(self)
        else:
            extra: Any = self.generation_kwargs or {}
            check_generation_kwargs(extra)
        if self.bf16 is None and (self.use_cpu or not has_bf16_gpu()):
            self.bf16 = False  # TRL's True is refused or slow on machines without such a GPU, and on a CPU
        if self.bf16 and not self.use_cpu and not is_torch_bf16_gpu_available():
            raise ConfigurationError(
                "`bf16` is set, but there is no GPU that knows bfloat16. Leave `bf16` out to train in float32 "
                "(`fp16=True` for an older GPU), or set `use_cpu=True` to train on the CPU in bfloat16."
            )
        # TRL's default goes by a name that newer transformers warn of; what the user wrote under it is left to them.
        default = type(self).__dataclass_fields__["gradient_checkpointing"].default
        if getattr(self, "activation_checkpointing", False) is None and self.gradient_checkpointing == default:
            self.activation_checkpointing = default
        super().__post_init__()
        per_rollout: Any = self.steps_per_generation  # `__post_init__` filled it
        per_step: Any = self.gradient_accumulation_steps
        if per_rollout % per_step and per_step % per_rollout:
            raise ConfigurationError(
                f"`steps_per_generation` ({per_rollout}) and `gradient_accumulation_steps` ({per_step}) must divide "
                "one another: an optimizer step takes whole parts of a rollout batch, or whole batches."
            )
        if self.top_p < 1.0 or self.top_k > 0 or self.min_p:
            warnings.warn(
                "Sampling is cut off (`top_p`, `top_k` or `min_p`), but log-probabilities are scored over the full "
                "vocabulary, as in TRL: the policy that acts is not exactly the policy that learns.",
                UserWarning,
                stacklevel=2,
            )

    def _count_turns(self) -> None:
        """`max_turns` from TRL's name for it: so many rounds of tools, and the reply after the last."""
        if self.max_tool_calling_iterations is None:
            return
        turns = self.max_tool_calling_iterations + 1
        if self.max_turns is not None and self.max_turns != turns:
            raise ConfigurationError(
                f"`max_turns={self.max_turns}` and `max_tool_calling_iterations={self.max_tool_calling_iterations}` "
                f"say different things: the latter is TRL's name for `max_turns={turns}`, since a reply follows the "
                "last result. Leave one of them out."
            )
        self.max_turns = turns

    def _choose_method(self, values: dict[str, Any]) -> None:
        """What is unset comes from the method, so that every reader of the configuration sees what is used."""
        chosen = choose(values, {one.name: one.default for one in fields(self)})
        self.method, self.method_options = chosen.method, chosen.method_options
        self.guidance, self.allocation = chosen.guidance, chosen.allocation

    def set_push_to_hub(self, *args, **kwargs):
        super().set_push_to_hub(*args, **kwargs)
        if self.hub_private_repo is None:
            self.hub_private_repo = True
        return self

    def _own_choices(self) -> dict[str, tuple[Any, ...]]:
        """Option of TASPO's -> its values; None where it is the default."""
        return {
            one.name: (*one.metadata["choices"], *([None] if one.default is None else []))
            for one in fields(self)
            if one.name in TASPOConfig.__annotations__ and "choices" in one.metadata
        }


def has_bf16_gpu() -> bool:
    """Whether an accelerator multiplies bfloat16 in hardware: older GPUs (a T4) emulate it, slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return is_torch_bf16_gpu_available()


def has_bf16_cpu() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
