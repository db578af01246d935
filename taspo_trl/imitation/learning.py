"""Next-token learning on demonstrated turns: TRL's SFT with a weight on prompts and batches of similar length.

Launchers, adapters, quantization, checkpoints, trackers and precision are TRL's. Everything that is random follows
from the seed, so that a recipe gives the same policy on machines of one kind, however many processes share a batch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset, Features, List, Value
from torch.utils.data import Sampler
from trl import SFTConfig, SFTTrainer

from ..config import Discreet, has_bf16_cpu, has_bf16_gpu
from ..errors import CheckpointError, ConfigurationError
from ..files import write_text
from ..redaction import Secret, redacted
from .card import TAGS, model_card
from .demonstration import Demonstration


@dataclass(repr=False)
class ImitationConfig(Discreet, SFTConfig):
    """
    Configuration of the [`ImitationTrainer`].

    Only what [`~trl.SFTConfig`] has not is listed.

    Args:
        prompt_loss (`float`, *optional*, defaults to `0.0`):
            Weight of the language-model loss on prompts, beside 1.0 on replies. A model made from nothing learns to
            read by it. The loss of an optimizer step is

            $$ L = - \\frac{\\sum_t w_t \\log \\pi_\\theta(x_t \\mid x_{<t})}{\\sum_t w_t}, \\quad
            w_t = 1 \\text{ on replies, prompt\\_loss on prompts} $$

            over all tokens of the step, whatever the number of micro-batches and processes.

    > [!NOTE]
    > These parameters have default values different from [`~trl.SFTConfig`]:
    > - `learning_rate`: Defaults to `1e-5` instead of `2e-5`.
    > - `weight_decay`: Defaults to `0.01` instead of `0.0`.
    > - `num_train_epochs`: Defaults to `2` instead of `3`.
    > - `gradient_accumulation_steps`: Defaults to `4` instead of `1`; with `per_device_train_batch_size=8`, 32 turns
    >   are a step of one process.
    > - `max_length`: Defaults to `None` instead of `1024`: a cut turn has no reply left.
    > - `train_sampling_strategy`: Defaults to `"group_by_length"` instead of `"random"`. It draws 8 batches at a time,
    >   sorts them by the length of prompts and takes them in random order; that of transformers sorts 50 and begins
    >   with the longest.
    > - `bf16`: Defaults to whether the hardware multiplies bfloat16, CPUs included, instead of `True`.
    > - `ddp_timeout`: Defaults to a day instead of half an hour: one process records episodes while others wait.

    Raises:
        ConfigurationError: `prompt_loss` is negative, or between 0 and 1 together with an option that knows no
            weights (`packing`, `eval_packing`, `padding_free`, `loss_type="dft"`, `label_smoothing_factor`).
    """

    prompt_loss: float = field(
        default=0.0, metadata={"help": "Weight of the language-model loss on prompts, beside 1.0 on replies."}
    )
    learning_rate: float = field(default=1e-5, metadata={"help": "The initial learning rate of AdamW."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW."})
    num_train_epochs: float = field(default=2.0, metadata={"help": "Passes over the turns."})
    gradient_accumulation_steps: int = field(
        default=4, metadata={"help": "Forwards of each process in an optimizer step."}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Tokens after which a turn is cut. By default none is."}
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={
            "help": "Order of the turns. `group_by_length`: random batches of turns of similar length.",
            "choices": ["random", "sequential", "group_by_length", "batch_rebalance"],
        },
    )
    ddp_timeout: int = field(default=86_400, metadata={"help": "Seconds that a process waits for others."})

    def __post_init__(self) -> None:
        on_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.bf16 is None:
            self.bf16 = not self.fp16 and (has_bf16_cpu() if on_cpu else has_bf16_gpu())
        if on_cpu:
            self.use_cpu = self.use_cpu or self.bf16  # transformers wants to be told so
            self.dataloader_pin_memory = False
        if getattr(self, "activation_checkpointing", False) is None:  # newer transformers warn of the name of TRL
            self.activation_checkpointing = self.gradient_checkpointing
        super().__post_init__()
        self._hide_credentials({one.name: getattr(self, one.name) for one in fields(self)})
        if not self.prompt_loss >= 0:
            raise ConfigurationError(f"`prompt_loss` must not be negative, got {self.prompt_loss!r}.")
        unweighted = {
            "packing": self.packing,
            "eval_packing": self.eval_packing,
            "padding_free": self.padding_free,
            "loss_type": self.loss_type if self.loss_type != "nll" else None,
            "label_smoothing_factor": self.label_smoothing_factor,
        }
        set_ones = [name for name, value in unweighted.items() if value]
        if self.is_weighted and set_ones:
            raise ConfigurationError(
                f"`{set_ones[0]}` knows no weight of prompts beside replies: leave it out, or set `prompt_loss` to 0 "
                f"or 1, got {self.prompt_loss!r}."
            )

    @property
    def is_weighted(self) -> bool:
        """Whether labels alone cannot say what counts."""
        return self.prompt_loss not in (0.0, 1.0)


class ImitationTrainer(SFTTrainer):
    """
    TRL's SFT on demonstrated turns.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            As in [`~trl.SFTTrainer`].
        args ([`ImitationConfig`]):
            How.
        demonstrations (`Sequence[Demonstration]`):
            Turns to imitate. Those without a reply, or without a prompt, are refused.
        eval_dataset (`Sequence[Demonstration]` or [`~datasets.Dataset`] or `dict` of them, *optional*):
            Held-out turns, weighed as those of the training. Any data set of [`~trl.SFTTrainer`] does where
            `prompt_loss` is 0 or 1.
        kwargs:
            Further arguments of [`~trl.SFTTrainer`]: `processing_class`, `peft_config`, `quantization_config`,
            `callbacks`, ...

    Raises:
        ConfigurationError: there is nothing to imitate, or nothing to train; or `prompt_loss` between 0 and 1 meets
            context or sequence parallelism, a `compute_loss_func`, or an `eval_dataset` that does not say where
            replies begin.
    """

    args: ImitationConfig
    model: Any
    train_dataset: Any
    processing_class: Any
    _signature_columns: Any

    def __init__(
        self,
        model: Any,
        args: ImitationConfig,
        demonstrations: Sequence[Demonstration],
        *,
        eval_dataset: Any = None,
        **kwargs: Any,
    ):
        if not demonstrations:
            raise ConfigurationError("There is no turn to imitate: no recorded episode is a verified success.")
        if args.is_weighted and kwargs.get("compute_loss_func") is not None:
            raise ConfigurationError(
                "A `compute_loss_func` is not told the weight of prompts beside replies: leave it out, or set "
                f"`prompt_loss` to 0 or 1, got {args.prompt_loss!r}."
            )
        super().__init__(
            model,
            args,
            train_dataset=_dataset(demonstrations, args.prompt_loss),
            eval_dataset=_evaluated(eval_dataset, args),
            **kwargs,
        )
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConfigurationError(
                "No parameter of the model requires a gradient: there is nothing to train. An adapter is loaded for "
                "training with `is_trainable=True`; other frozen weights need a `peft_config`."
            )
        self.model_accepts_loss_kwargs = True  # the loss is SFTTrainer's own: it counts a step's tokens for any model
        if args.is_weighted:
            parallelism = self.accelerator.parallelism_config
            if parallelism is not None and (parallelism.cp_enabled or getattr(parallelism, "sp_enabled", False)):
                raise ConfigurationError(
                    "Context and sequence parallelism share out tokens without their weights: set `prompt_loss` to 0 "
                    f"or 1, got {args.prompt_loss!r}."
                )
            self.data_collator = _Weighted(self.data_collator, args.prompt_loss)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if _PROMPT_LENGTH not in self._signature_columns:
            self._signature_columns.append(_PROMPT_LENGTH)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args, whole = self.args, self.train_dataset  # what is given lacks the columns that no forward needs
        if args.train_sampling_strategy != "group_by_length" or _PROMPT_LENGTH not in whole.column_names:
            return super()._get_train_sampler(train_dataset)
        batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seed = args.seed if args.data_seed is None else args.data_seed
        return SimilarLengths(whole[_PROMPT_LENGTH][:], batch_size, seed, lambda: int(self.state.epoch or 0))

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """As in [`~trl.SFTTrainer`], of demonstrations too."""
        return super().evaluate(_evaluated(eval_dataset, self.args), ignore_keys, metric_key_prefix)

    def _get_num_items_in_batch(self, batch_samples: list, device: Any) -> Any:
        """What the losses of an optimizer step are divided by: the sum of its weights, of all processes."""
        if not (batch_samples and _WEIGHTS in batch_samples[0]):
            return super()._get_num_items_in_batch(batch_samples, device)
        total = torch.stack([batch[_WEIGHTS].sum() for batch in batch_samples]).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum() / self.get_tp_size()
        return total

    def compute_loss(
        self, model: Any, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        weights = inputs.pop(_WEIGHTS, None)
        if weights is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        def weighted(**arguments: Any) -> Any:
            outputs = model(**arguments)
            if "log_probs" in outputs:
                # Where nothing counted the step (an evaluation), TRL divides by the number of labels.
                scale = 1 if num_items_in_batch is not None else outputs.label_mask.sum() / weights.sum()
                outputs.log_probs = outputs.log_probs * weights * scale
            return outputs

        return super().compute_loss(weighted, inputs, return_outputs, num_items_in_batch)

    def create_model_card(  # type: ignore[override]  # as TRL's
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | Sequence[str] | None = None
    ) -> None:
        """Write `README.md` into the output folder: what was imitated and how. Called at every save and push.

        Args:
            model_name (`str`, *optional*), dataset_name (`str`, *optional*), tags (`str` or `list[str]`, *optional*):
                As in [`~trl.SFTTrainer`]; without a name, that of the repository or folder.
        """
        name = model_name or (self.args.hub_model_id or "").split("/")[-1]
        self._write_card(
            Path(self.args.output_dir or "."), is_merged=False, name=name, dataset=dataset_name, tags=tags or ()
        )

    def _write_card(
        self,
        folder: Path,
        *,
        is_merged: bool,
        name: str = "",
        dataset: str | None = None,
        tags: str | Sequence[str] = (),
    ) -> None:
        if not self.is_world_process_zero():
            return
        base = getattr(self.model.config, "_name_or_path", "") or ""
        is_id = bool(base) and not Path(base).exists()
        own = [tags] if isinstance(tags, str) else tags
        facts = {
            "Base model": f"`{base}`" if is_id else "a local one",
            "Turns imitated": f"{len(self.train_dataset):,}",
            "Weight of prompts beside replies": f"{self.args.prompt_loss:g}",
            "Optimizer steps": f"{self.state.global_step:,}",
            "Learning rate": f"{self.args.learning_rate:g}",
            "Tuning": _tuning(self.model, is_merged),
        }
        folder.mkdir(parents=True, exist_ok=True)
        text = model_card(
            name or folder.resolve().name, facts, made_by="taspo_trl.imitation.ImitationTrainer",
            is_model=is_merged or not is_peft_model(self.model), base_model=base if is_id else None, dataset=dataset,
            tags=sorted({*TAGS, *own}),
        )  # fmt: skip
        write_text(folder / "README.md", redacted(text, Secret(self.args.hub_token or "")))

    def save_merged(self, folder: str | os.PathLike) -> bool:
        """Save model, tokenizer and model card as a model folder, a LoRA merged into the weights; to be called by
        every process.

        Returns:
            `bool`: False where an adapter was saved as one: on quantized weights, or on sharded ones.

        Raises:
            CheckpointError: DeepSpeed saved the weights in shards, see [`saves_shards`].
        """
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        is_adapter = is_peft_model(self.model)
        if is_sharded or (is_adapter and getattr(self.model, "is_quantized", False)):
            if self.is_fsdp_enabled:  # of shards it would save nothing
                self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
            self.save_model(str(folder), _internal_call=True)
            if saves_shards(self.args) and not is_adapter:
                raise CheckpointError(
                    f"{folder} holds the trained weights in DeepSpeed's shards, which nothing loads as a model: "
                    f"`python {folder}/zero_to_fp32.py {folder} MODEL --safe_serialization` joins them. {_GATHER}"
                )
            self._write_card(Path(folder), is_merged=False)
            return not is_adapter
        self._write_card(Path(folder), is_merged=True)
        if self.args.should_save:
            model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
            (model.merge_and_unload() if is_adapter else model).save_pretrained(folder)
            self.processing_class.save_pretrained(folder)
        return True


def _tuning(model: Any, is_merged: bool) -> str:
    if is_peft_model(model):
        config = model.peft_config[model.active_adapter]
        rank = getattr(config, "r", None)
        kind = f"LoRA of rank {rank}" if rank else str(getattr(config.peft_type, "value", config.peft_type))
        return f"{kind}, merged" if is_merged else kind
    return "full fine-tuning" if all(one.requires_grad for one in model.parameters()) else "some of the weights"


_GATHER = (
    "For a model at once, set `stage3_gather_16bit_weights_on_model_save` to true in the configuration of DeepSpeed "
    "(`zero3_save_16bit_model` in that of accelerate)."
)


def saves_shards(args: Any) -> bool:
    """Whether DeepSpeed (ZeRO-3) saves a whole model as the shards that it trains, which is its default.

    Args:
        args ([`~transformers.TrainingArguments`]):
            Of the training.
    """
    config = getattr(getattr(args, "deepspeed_plugin", None), "hf_ds_config", None)
    if config is None or not config.is_zero3():
        return False
    return not config.get_value("zero_optimization.stage3_gather_16bit_weights_on_model_save", False)


def refuse_shards(args: Any) -> None:
    """Raise [`~taspo_trl.errors.ConfigurationError`] where the end would be shards in place of a model."""
    if saves_shards(args):
        raise ConfigurationError(
            f"ZeRO-3 would save the trained weights in shards, which nothing loads as a model. {_GATHER}"
        )


_PROMPT_LENGTH, _WEIGHTS = "prompt_length", "loss_weights"
_IGNORED = -100


def _dataset(demonstrations: Sequence[Demonstration], prompt_loss: float) -> Dataset:
    columns: dict[str, list] = {name: [] for name in ("input_ids", "labels", _PROMPT_LENGTH)}
    for one in demonstrations:
        if not (one.prompt_ids and one.reply_ids):
            raise ConfigurationError(f"A demonstration needs tokens of a prompt and of a reply, got {one}.")
        ids = one.prompt_ids + one.reply_ids
        ignored = (_IGNORED,) * len(one.prompt_ids)
        columns["input_ids"].append(ids)
        columns["labels"].append(ids if prompt_loss else ignored + one.reply_ids)
        columns[_PROMPT_LENGTH].append(len(one.prompt_ids))
    ids_of = List(Value("int32"))
    kinds = Features({"input_ids": ids_of, "labels": ids_of, _PROMPT_LENGTH: Value("int32")})
    return Dataset.from_dict(columns, features=kinds)


def _evaluated(data: Any, args: ImitationConfig) -> Any:
    """What SFTTrainer takes as an `eval_dataset`, of what is given as one."""
    if isinstance(data, Mapping):
        return {name: _evaluated(one, args) for name, one in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):  # a string names one that was given before
        if not data:
            raise ConfigurationError("The `eval_dataset` holds no turn: leave it out, or give held-out ones.")
        return _dataset(data, args.prompt_loss)
    columns = getattr(data, "column_names", None)  # None: not known before it is read
    if args.is_weighted and columns is not None and _PROMPT_LENGTH not in columns:
        raise _no_prompt_length(args.prompt_loss)
    return data


def _no_prompt_length(prompt_loss: float) -> ConfigurationError:
    return ConfigurationError(
        f"Prompts weigh {prompt_loss!r} beside replies (`prompt_loss`), but the `eval_dataset` has no columns "
        f"`labels` and `{_PROMPT_LENGTH}`, which say where a reply begins. Give `Demonstration`s as the "
        "`eval_dataset`, or set `prompt_loss` to 0 or 1."
    )


@dataclass(frozen=True)
class _Weighted:
    """A collator whose batches say, too, how much each predicted token counts: `loss_weights` [B, L - 1]."""

    collator: Callable[[list], dict]
    prompt_loss: float

    def __call__(self, examples: list[Mapping[str, Any]]) -> dict[str, Any]:
        if any("labels" not in one or _PROMPT_LENGTH not in one for one in examples):
            raise _no_prompt_length(self.prompt_loss)
        batch = self.collator([{key: one[key] for key in ("input_ids", "labels")} for one in examples])
        labels = batch["labels"]
        starts = torch.tensor([one[_PROMPT_LENGTH] for one in examples]).unsqueeze(1)
        is_prompt = torch.arange(labels.shape[1]) < starts
        weights = torch.where(is_prompt, self.prompt_loss, 1.0).masked_fill(labels == _IGNORED, 0.0)
        return {**batch, _WEIGHTS: weights[:, 1:]}


class SimilarLengths(Sampler):
    """Random batches of rows of similar length; what does not fill a batch comes last.

    The order depends on the seed, the epoch and the size of an optimizer step alone: a resumed run goes on with it,
    and it is the same for any number of processes and micro-batches that share a step.

    Args:
        lengths (`Sequence[int]`):
            Of each row.
        batch_size (`int`):
            Rows of an optimizer step, over all processes.
        seed (`int`):
            Decides the order.
        epoch (`Callable`):
            The epoch that is about to be drawn, from 0.
    """

    pool = 8
    """Batches that are drawn together and sorted: blocks make some prompts three times as long as others."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, epoch: Callable[[], int]):
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed)
        for _ in range(self.epoch()):
            self._drawn(rng)
        return iter(self._drawn(rng))

    def _drawn(self, rng: random.Random) -> list[int]:
        size, rest = self.batch_size, []
        order = rng.sample(range(len(self.lengths)), len(self.lengths))
        batches = []
        for start in range(0, len(order), self.pool * size):
            drawn = sorted(order[start : start + self.pool * size], key=self.lengths.__getitem__)
            whole = len(drawn) - len(drawn) % size
            batches += [drawn[k : k + size] for k in range(0, whole, size)]
            rest = drawn[whole:]
        rng.shuffle(batches)
        # From the end, in which order the quickstart's recipe has always been learned.
        return [row for batch in [*reversed(batches), rest] for row in batch]
