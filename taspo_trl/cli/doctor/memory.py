"""How much memory a process needs on its device. Pure arithmetic on a model's sizes.

What is counted, in bytes, with w the bytes of a weight and a those of a computed activation (autocast's precision):

*Weights*: parameters x w. A 4-bit base has 1/2 byte for each weight of its linear layers, and the scales of blocks of
64: 4 bytes each, or with nested quantization 1 byte each and 4 for 256 of them. An 8-bit base has 1 byte for each
weight and 4 for each row. The vocabulary, norms and biases stay in w. Adapters come on top, in their own precision.
*Reference*: a second copy of the weights where a KL term acts on a fully trained model; adapters need none.

*Teacher*: a copy of the trained weights, with adapters of these alone, where a method's teacher is stale, averaged or
frozen. A model of its own as the teacher is not counted: its sizes are not those of the policy.
*Gradients*: one value for each trained parameter, in its precision. DDP keeps a second copy in its buckets.
*Optimizer*: AdamW keeps two values for each trained parameter, in its precision, and 4 bytes for each tensor.

*Activations* that the backward needs, for each token and layer of a pre-norm decoder with gated MLP (Llama, Qwen,
Mistral, SmolLM), with H hidden size, Q = heads x head size, K = key heads x head size, I intermediate size:

    each of two norms   4H (its input in float32) + 4 (the root) + aH (normalised) + aH (input of the next layers)
    attention           a(2Q + 2K) (queries, keys, values, output) + 4 x heads (log-sum-exp)
    sdpa                a(2Q - 2K) (keys and values repeated for each head) + a x length (the mask, once a row)
    eager attention     a x 4Q + heads x length x (4 for the softmax in float32 + a for its cast) instead
    gated MLP           4aI (gate, its activation, up, their product)

The length is that of a row; where rows stand one behind the other (`padding_free`) it is that of the whole forward,
whose rows are computed against each other and masked. Flash attention has neither mask nor repeated keys.

Float32 weights under autocast to 16 bit: the norms' values stay in float32, each of the five inputs of linear layers
is cast on its own, and 16-bit copies of the weights live until the forward ends.
With checkpointing a layer keeps its input only, wH for each token, and one layer at a time is computed again in full.

*Vocabulary*: the logits never exist as a whole. The forward keeps aH + 24 for each projected token; its tiles have
4,096 x 32,768 entries at most. The backward makes the gradient of the vocabulary's matrix in float32 before it is cast
and added, when that matrix is trained.

*Key-value cache*: 2 x layers x K x a for each token. In generation for the rows of one batch; in scoring for the
rows of a pass, and once more for what each branch takes over of them and appends to.

*Forwards without gradient* hold one layer's intermediate values; roughly 3aI + 4aH + 8H for each token.

The peak is the largest of three stages that follow each other: rollout, scoring, update. It counts tensors. A process
takes more: what its allocator keeps of tensors that came and went, and libraries with their buffers. `BESIDE` states
both, so that an estimate is a range. Not counted: other processes, an engine in the same GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


TOKEN_TILE = 4096
VOCABULARY_TILE = 32768
"""Entries of a tile of the projection, as in TRL's kernel and `projection.py`."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a causal language model, counted and not guessed where they come from `model_shape.py`."""

    parameters: int
    """All of them, a shared one once, adapters left out."""
    linear_parameters: int = 0
    """Weights of the layers' linear maps, which quantization packs."""
    linear_rows: int = 0
    """Their output features, in sum."""
    layer_parameters: int = 0
    """Parameters of the layers, norms included: everything but the embedding and the vocabulary's head."""
    vocab_size: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_key_heads: int = 0
    head_size: int = 0
    tensors: int = 0
    """Number of parameter tensors."""
    is_known_decoder: bool = True
    """Whether the activations follow the formula above; else they are an approximation."""

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.head_size

    @property
    def has_layers(self) -> bool:
        """Whether more than the number of parameters is known."""
        return self.num_layers > 0


@dataclass(frozen=True)
class Precision:
    """How weights and activations are held."""

    weight: int = 4
    """Bytes: 4 for float32, 2 for bfloat16 and float16."""
    compute: int = 4
    """Bytes of what linear layers compute: 2 under autocast and for 16-bit weights."""
    bits: int | None = None
    """4 or 8 for a quantised base."""
    is_nested: bool = False
    """Nested 4-bit quantization."""

    @property
    def is_autocast_from_float32(self) -> bool:
        return self.weight == 4 and self.compute == 2 and self.bits is None


@dataclass(frozen=True)
class Adapters:
    """Trained beside a frozen base, counted by PEFT itself."""

    parameters: int
    tensors: int
    weight: int = 4
    """Bytes of one of their values."""


@dataclass(frozen=True)
class Setup:
    """What the recipe decides.

    Args:
        precision (`Precision`), adapters (`Adapters`, *optional*):
            How the model is held; without adapters all of it is trained.
        has_reference (`bool`), has_teacher_copy (`bool`):
            Whether a second copy of the weights is kept, and one of the trained weights for the method's teacher.
        optimizer_values (`float`, *optional*, defaults to `2.0`):
            Values that the optimizer keeps for each trained one; see `OPTIMIZERS`.
        optimizer_bytes (`int`, *optional*):
            Bytes of such a value; None = those of the trained parameter.
        is_checkpointed (`bool`):
            Gradient checkpointing.
        attention (`str`, *optional*, defaults to `"sdpa"`):
            `eager`, `sdpa`, or anything else, which is taken for flash attention.
        micro_batch_tokens (`int`), row_tokens (`float`), projected_tokens (`float`):
            Positions of a forward, of a row in it, and how many of them meet the vocabulary.
        padding_free (`bool`, *optional*, defaults to `False`):
            Whether the rows of a forward stand one behind the other.
        generation_rows (`float`), generation_tokens (`float`), prompt_tokens (`float`):
            Rows of a generation batch in this process, and prompt + reply and prompt tokens of one. 0 rows = an engine
            elsewhere generates.
        processes (`int`), sharding (`str`):
            `none`, `ddp`, `zero2`, `zero3` or `fsdp2`.
    """

    precision: Precision
    adapters: Adapters | None = None
    has_reference: bool = False
    has_teacher_copy: bool = False
    optimizer_values: float = 2.0
    optimizer_bytes: int | None = None
    is_checkpointed: bool = True
    attention: str = "sdpa"
    micro_batch_tokens: float = 16384
    row_tokens: float = 1024
    projected_tokens: float = 0
    padding_free: bool = False
    generation_rows: float = 0
    generation_tokens: float = 0
    prompt_tokens: float = 0
    processes: int = 1
    sharding: str = "none"


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose."""

    resident: Mapping[str, float]
    """What is there all the time: weights, reference, optimizer."""
    stages: Mapping[str, Mapping[str, float]]
    """What rollout, scoring and update need on top, each while it runs."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def totals(self) -> dict[str, float]:
        """Stage -> everything that is held while it runs."""
        base = sum(self.resident.values())
        return {stage: base + sum(parts.values()) for stage, parts in self.stages.items()}

    @property
    def peak(self) -> float:
        """The tensors of the largest stage."""
        return max(self.totals.values())

    def most(self, device: str) -> float:
        """The peak with what a process takes beside its tensors on a device of [`BESIDE`]."""
        share, libraries = BESIDE[device]
        return self.peak + share * (self.peak - sum(self.resident.values())) + libraries


BESIDE: Mapping[str, tuple[float, float]] = {"cpu": (0.5, 2.0**28), "cuda": (0.15, 2.0**30)}
"""Device -> (share of the tensors that come and go which its allocator may keep in addition, bytes of libraries). That
of CPUs covers the trainings of `benchmarks/doctor.py`; that of CUDA is what is commonly seen, not measured by us."""


OPTIMIZERS: Mapping[str, tuple[float, int | None]] = {
    "adamw_torch": (2.0, None),
    "adamw_torch_fused": (2.0, None),
    "adamw_bnb_8bit": (2.0, 1),
    "adamw_8bit": (2.0, 1),
    "paged_adamw_8bit": (2.0, 1),
    "paged_adamw_32bit": (2.0, 4),
    "adafactor": (0.01, 4),
    "sgd": (0.0, None),
    "adagrad": (1.0, None),
    "rmsprop": (1.0, None),
    "lion_32bit": (1.0, 4),
    "lion_8bit": (1.0, 1),
}
"""`optim` -> (values for each trained parameter, bytes of one or None for the parameter's own)."""


def estimate_memory(shape: ModelShape, setup: Setup) -> MemoryEstimate:
    """The memory of one process."""
    shards = setup.processes if setup.sharding in ("zero2", "zero3", "fsdp2") else 1
    trained, trained_bytes, tensors = _trained(shape, setup)
    weights = weight_bytes(shape, setup.precision)
    notes = [] if shape.has_layers else ["only the number of parameters is known: no activations, no caches"]
    if shape.has_layers and not shape.is_known_decoder:
        notes.append("this architecture is not one of those that the activation formula was derived for")

    holds_shards = setup.sharding in ("zero3", "fsdp2")
    resident = {"weights": weights / (shards if holds_shards else 1)}
    if setup.adapters is not None:
        resident["adapters"] = float(trained * trained_bytes) / (shards if holds_shards else 1)
    if setup.has_reference and setup.adapters is None:
        resident["reference"] = weights / (shards if holds_shards else 1)
    if setup.has_teacher_copy:
        resident["teacher"] = float(trained * trained_bytes)  # every process holds all of it
    if setup.sharding in ("zero2", "zero3") and trained_bytes < 4:
        resident["master weights"] = 4.0 * trained / shards
        trained_bytes_in_optimizer = 4
    elif setup.sharding == "fsdp2":
        # accelerate keeps the sharded parameters in float32 under mixed precision.
        resident["weights"] = max(resident["weights"], 4.0 * trained / shards)
        trained_bytes_in_optimizer = 4
    else:
        trained_bytes_in_optimizer = trained_bytes
    value_bytes = setup.optimizer_bytes or trained_bytes_in_optimizer
    resident["optimizer"] = (trained * setup.optimizer_values * value_bytes + 4 * tensors) / shards

    gradient_bytes = 4 if setup.sharding == "fsdp2" else trained_bytes
    update: dict[str, float] = {"gradients": trained * gradient_bytes / shards}
    if setup.sharding == "ddp":
        update["DDP buckets"] = float(trained * trained_bytes)
    if holds_shards and shape.has_layers:
        update["gathered layers"] = _gathered(shape, setup.precision)
    rollout: dict[str, float] = {}
    scoring: dict[str, float] = {}
    if shape.has_layers:
        update |= _update_parts(shape, setup)
        scoring = _scoring_parts(shape, setup)
        if setup.generation_rows:
            rollout = _generation_parts(shape, setup)
            if holds_shards:
                rollout["gathered weights"] = weights  # generation needs the whole model
    return MemoryEstimate(resident, {"rollout": rollout, "scoring": scoring, "update": update}, tuple(notes))


def weight_bytes(shape: ModelShape, precision: Precision) -> float:
    """The base model's weights as they lie in memory."""
    if precision.bits is None:
        return float(shape.parameters * precision.weight)
    other = (shape.parameters - shape.linear_parameters) * precision.weight
    if precision.bits == 8:
        return other + shape.linear_parameters + 4.0 * shape.linear_rows
    blocks = shape.linear_parameters / 64
    scales = blocks * 1 + blocks / 256 * 4 if precision.is_nested else blocks * 4
    return other + shape.linear_parameters / 2 + scales


def activation_bytes(shape: ModelShape, setup: Setup, is_masked: bool = True) -> float:
    """What one layer keeps for the backward, for each token, without checkpointing.

    Args:
        shape (`ModelShape`), setup (`Setup`):
            The model, and how it is run.
        is_masked (`bool`, *optional*, defaults to `True`):
            False for padded rows that happen to be of one length: transformers leaves their mask out under `sdpa`.
    """
    a = setup.precision.compute
    queries, keys, hidden = shape.query_width, shape.key_width, shape.hidden_size
    if setup.precision.is_autocast_from_float32:
        norms = 2 * (4 * hidden + 4 + 4 * hidden) + 5 * a * hidden  # three casts before attention, two before the MLP
    else:
        norms = 2 * (4 * hidden + 4 + 2 * a * hidden)
    length = setup.micro_batch_tokens if setup.padding_free else setup.row_tokens
    if setup.attention == "eager":
        attention = a * 4 * queries + shape.num_heads * length * (4 + a * (a < 4))
    else:
        attention = a * (2 * queries + 2 * keys) + 4 * shape.num_heads
        if is_masked and setup.attention == "sdpa":
            attention += 2 * a * (queries - keys) + a * length
    return norms + attention + 4 * a * shape.intermediate_size


def checkpoint_bytes(shape: ModelShape, setup: Setup) -> float:
    """What one checkpointed layer keeps for each token: its input."""
    return float(setup.precision.weight * shape.hidden_size)


def cache_bytes(shape: ModelShape, precision: Precision) -> float:
    """Keys and values of one token in all layers."""
    return 2.0 * shape.num_layers * shape.key_width * precision.compute


def transient_bytes(shape: ModelShape, precision: Precision) -> float:
    """What a forward without gradient holds at a time, for each token; roughly."""
    a = precision.compute
    return 3.0 * a * shape.intermediate_size + 4 * a * shape.hidden_size + 8 * shape.hidden_size


def _trained(shape: ModelShape, setup: Setup) -> tuple[int, int, int]:
    """(trained parameters, bytes of one, tensors of them)."""
    if setup.adapters is None:
        return shape.parameters, setup.precision.weight, shape.tensors
    return setup.adapters.parameters, setup.adapters.weight, setup.adapters.tensors


def _update_parts(shape: ModelShape, setup: Setup) -> dict[str, float]:
    tokens, precision = setup.micro_batch_tokens, setup.precision
    layer = activation_bytes(shape, setup) * tokens
    if setup.is_checkpointed:
        activations = shape.num_layers * checkpoint_bytes(shape, setup) * tokens + layer
    else:
        activations = shape.num_layers * layer
    parts = {"activations": activations, "vocabulary": _vocabulary(shape, setup)}
    if precision.is_autocast_from_float32:
        parts["16-bit copies of weights"] = 2.0 * shape.linear_parameters
    if precision.bits is not None:
        largest = max(shape.intermediate_size, shape.hidden_size) * shape.hidden_size
        parts["a layer's unpacked weights"] = float(largest * precision.compute)
    return parts


def _vocabulary(shape: ModelShape, setup: Setup) -> float:
    a, count = setup.precision.compute, setup.projected_tokens
    tile = min(count, TOKEN_TILE) * min(shape.vocab_size, VOCABULARY_TILE) * a
    kept = count * (a * shape.hidden_size + 24)
    gradients = 4.0 * count * shape.hidden_size
    if setup.adapters is None:
        gradients += shape.vocab_size * shape.hidden_size * (4 + setup.precision.weight)
    return kept + tile + gradients


def _scoring_parts(shape: ModelShape, setup: Setup) -> dict[str, float]:
    tokens = setup.micro_batch_tokens
    return {
        "key-value cache": 2 * cache_bytes(shape, setup.precision) * tokens,
        "one layer": transient_bytes(shape, setup.precision) * tokens,
    }


def _generation_parts(shape: ModelShape, setup: Setup) -> dict[str, float]:
    rows, precision = setup.generation_rows, setup.precision
    return {
        "key-value cache": rows * setup.generation_tokens * cache_bytes(shape, precision),
        # The first forward reads all prompts of the batch at once.
        "one layer": rows * setup.prompt_tokens * transient_bytes(shape, precision),
        # Logits of one position a row, in the model's precision, in float32, and their probabilities.
        "logits": rows * shape.vocab_size * (precision.compute + 8.0),
    }


def _gathered(shape: ModelShape, precision: Precision) -> float:
    """Two layers, the one at work and the next, and the vocabulary's matrix."""
    layers = 2 * shape.layer_parameters / shape.num_layers
    return (layers + shape.vocab_size * shape.hidden_size) * precision.compute
