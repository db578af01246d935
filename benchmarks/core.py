"""Speed and memory of the core, as ratios within one run.

    OMP_NUM_THREADS=1 python benchmarks/core.py [--only step|memory|batches|rollout|slopes|beside]

- step: a TASPO step (rollout + scoring + update) over a GRPO step, guidance on 60 % of the trajectories, in CPU
  seconds: with one optimizer step for each rollout batch, and with several (as the paper trains), where scoring rides
  on the pass of the old log-probabilities. Some five CPU minutes.
- memory: bytes of tensors at the peak of each pass of such a step, of scoring that rides on log pi_old beside log
  pi_old alone, and beside the update; with and without gradient checkpointing.
- batches: length-sorted token-budget batches against padding to the longest row, on skewed lengths; rows without
  padding against these, there and on the quickstart's rows.
- rollout: turns per second with environments that take 20 ms, against a serial loop.
- slopes: log-log slope of the step's time against group size and turns.
- beside: how much of the scoring that could go on beside the rollout stays visible, with an engine that is elsewhere
  and answers after some two seconds. Three minutes, most of them asleep.

Prints tables and writes `benchmarks/results/core.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import math
import random
import statistics
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import torch
from common import RESULTS, save
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl import trainer as trainer_module
from taspo_trl.analyzer.extractive import ExtractiveAnalyzer
from taspo_trl.environments import HouseholdEnvironment, ResetResult, StepResult, TextEnvironment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.generation import Generation, SamplingSettings
from taspo_trl.guidance.base import Construction
from taspo_trl.guidance.stage import GuidanceStage
from taspo_trl.loss.batches import LossRow, collate, loss_row
from taspo_trl.quickstart.policy import WarmStart, new_model
from taspo_trl.quickstart.tokenizer import make_tokenizer
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.rows import build_rows, pack_rows
from taspo_trl.scoring.paired import keys_in_bytes
from taspo_trl.scoring.projection import add_selected_projection, selected_forward
from taspo_trl.training import passes
from taspo_trl.types import Block, FinishReason, Guidance


console = Console()
WORDS = [f"w{k}" for k in range(4000)]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word, plus the words of tags and guidance."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<pad>", "<unk>", "<end>", "<user>", "<assistant>"]
    words = [*special, "<action>", "</action>", "[", "]", "Privileged", "Guidance", "End", "-", *WORDS]
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated") for pattern in ("<action>", "</action>", "[", "]")]
        + [pre_tokenizers.WhitespaceSplit()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template="{% for m in messages %}<{{ m.role }}> {{ m.content }} <end>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        clean_up_tokenization_spaces=False,
    )


def model(tok: PreTrainedTokenizerFast, layers: int = 4, width: int = 256) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tok),
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=4096,
            eos_token_id=tok.eos_token_id,
            pad_token_id=tok.pad_token_id,
            bos_token_id=None,
        )
    )


class Corridor(TextEnvironment):
    """Observations of `size` words; every action is accepted; odd members of a group succeed at the last turn."""

    turns, size, delay = 8, 120, 0.0
    resets: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def reset(self, *, seed, task, **row):
        with self.lock:  # members of a group begin in threads; half of each group must succeed
            self.resets[task] += 1
            self.member = self.resets[task] % 2
        self.random = random.Random(seed)
        self.turn = 0
        self.max_turns = self.turns + 1
        return ResetResult(self._words(), {"task": f"{task} {self._words()}", "admissible_actions": WORDS[:40]})

    def step(self, action):
        if self.delay:
            time.sleep(self.delay)
        self.turn += 1
        done = self.turn >= self.turns
        return StepResult(self._words(), 0.0, done, False, {"success": done and bool(self.member), "valid": True})

    def _words(self):
        return " ".join(self.random.choice(WORDS) for _ in range(self.size))


class Guided(Construction):
    """The extractive analyzer's work, and a block of a usual length for a fixed share of the targets."""

    name, needs_success = "aligned", True  # the block that TASPO scores

    def __init__(self, share: float, tok: PreTrainedTokenizerFast, num_tokens: int = 128):
        self.share = share
        self.block = tuple(tok.convert_tokens_to_ids(WORDS[100 : 100 + num_tokens]))
        self.analyzer = ExtractiveAnalyzer()

    def prepare(self, context, group):
        from taspo_trl.analyzer.base import AnalyzerRequest
        from taspo_trl.analyzer.payloads import extraction_payload
        from taspo_trl.guidance.base import verified_successes
        from taspo_trl.types import Extraction

        payload = extraction_payload(group.task_text, verified_successes(group))
        self.analyzer.complete(AnalyzerRequest("extraction", "", payload))
        return Extraction()

    def build(self, context, group, target):
        index = target.generation_idx
        is_guided = math.ceil((index + 1) * self.share) > math.ceil(index * self.share)  # 5 of 8 for 0.6
        blocks = {self.name: Block.whole(self.block, len(target.turns))} if is_guided else {}
        return Guidance(target.uid, self.name, blocks)


class SampledLike:
    """Samples with the real policy, then puts an action around the reply, so that every turn can be scored."""

    def __init__(self, inner: Any, tok: PreTrainedTokenizerFast, length: int):
        self.inner, self.length = inner, length
        self.open, self.close = tok.convert_tokens_to_ids(["<action>", "</action>"])
        self.end = tok.eos_token_id

    def begin(self, sampling, seed):
        self.inner.begin(sampling, seed)

    def submit(self, request):
        future: Future = Future()

        def tag(done):
            ids = [i for i in done.result().reply_ids if i != self.end][: self.length - 5]
            reply = (*ids, self.open, *ids[:2], self.close, self.end)
            future.set_result(Generation(reply, FinishReason.STOP))

        self.inner.submit(request).add_done_callback(tag)
        return future

    def flush(self):
        self.inner.flush()


class Served:
    """Answers each request some seconds later, as a server does whose latency dominates; a group may be slower.

    Args:
        tok (`PreTrainedTokenizerFast`), length (`int`):
            Of replies: words and an action.
        latency (`float`):
            Mean seconds of a reply, of all groups.
        num_groups (`int`):
            The last takes 1.4 of it, the first 0.6.
    """

    def __init__(self, tok: PreTrainedTokenizerFast, length: int, latency: float, num_groups: int):
        self.words = tok.convert_tokens_to_ids(WORDS[: length - 5])
        self.tags = tok.convert_tokens_to_ids(["<action>", "</action>"])
        self.end, self.latency, self.num_groups = tok.eos_token_id, latency, num_groups
        self.turns: Counter[str] = Counter()
        self.due: list[tuple[float, int, Future, Generation]] = []
        self.numbers = itertools.count()
        self.changed = threading.Condition()
        threading.Thread(target=self._serve, daemon=True).start()

    def begin(self, sampling, seed):
        self.turns.clear()

    def submit(self, request):
        uid = request.episode_uid  # r<batch>-g<group>-k<member>
        group = int(uid.split("-g")[1].split("-")[0])
        draw = random.Random(f"{uid.split('-', 1)[1]} {self.turns[uid]}")
        self.turns[uid] += 1
        slowness = 0.6 + 0.8 * group / (self.num_groups - 1)
        first = draw.randrange(len(self.words))
        words = self.words[first:] + self.words[:first]
        reply = (*words, self.tags[0], *words[:2], self.tags[1], self.end)
        future: Future = Future()
        with self.changed:
            due = time.monotonic() + self.latency * slowness * draw.uniform(0.5, 1.5)
            heapq.heappush(self.due, (due, next(self.numbers), future, Generation(reply, FinishReason.STOP)))
            self.changed.notify()
        return future

    def flush(self):
        pass

    def _serve(self):
        while True:
            with self.changed:
                while not self.due or self.due[0][0] > time.monotonic():
                    self.changed.wait(self.due[0][0] - time.monotonic() if self.due else None)
                _, _, future, generation = heapq.heappop(self.due)
            future.set_result(generation)


def trainer(
    guidance: bool,
    generations: int = 8,
    turns: int = 8,
    folder: str | None = None,
    num_steps: int = 1,
    groups: int = 2,
    size: tuple[int, int] = (4, 256),
    latency: float = 0.0,
    **values: Any,
) -> Any:
    import dataclasses

    tok = tokenizer()
    cls = type("Corridor_", (Corridor,), {"turns": turns, "max_turns": turns + 1})
    args = TASPOConfig(
        output_dir=folder or tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        num_generations=generations,
        per_device_train_batch_size=groups * generations // num_steps,
        steps_per_generation=num_steps,
        max_completion_length=24,
        max_steps=1,
        save_strategy="no",
        save_trajectories="no",
        learning_rate=1e-5,
        micro_batch_tokens=8192,
        gradient_checkpointing=False,
        **values,
    )
    made = TASPOTrainer(
        model(tok, *size),
        args=args,
        processing_class=tok,
        train_dataset=Dataset.from_dict({"task": [f"w{k}" for k in range(64)]}),
        environment_factory=cls,
    )
    maker = made.experience_maker
    policy: Any = SampledLike(maker.collector.engine, tok, args.max_completion_length)
    if latency:
        policy = Served(tok, args.max_completion_length, latency, groups)
    stage = GuidanceStage(Guided(0.6, tok) if guidance else None)
    maker.guidance = stage
    maker.collector = dataclasses.replace(maker.collector, engine=policy, guidance=stage)
    made.current_gradient_accumulation_steps = 1
    made.create_optimizer_and_scheduler(100)
    return made


def run_step(made: Any, draw: int) -> dict[str, float]:
    """Seconds of the stages of one rollout batch and its optimizer steps."""
    groups = made.args.generation_batch_size // made.num_generations
    rows = [
        row for k in range(groups) for row in [made.train_dataset[(draw * groups + k) % 64]] * made.num_generations
    ]
    num_steps = made.args.steps_per_generation
    started, cpu = time.perf_counter(), time.process_time()
    made._step = draw * num_steps
    made._buffer = None
    for _ in range(num_steps):
        made.training_step(made.model, rows[: len(rows) // num_steps] if made._buffer else rows)
        made.optimizer.step()
        made.model.zero_grad()
    total, cpu = time.perf_counter() - started, time.process_time() - cpu
    metrics = {name: values[-1] for name, values in made._metrics["train"].items() if values}
    metrics["time/update"] = sum(made._metrics["train"]["time/update"])
    made._metrics["train"].clear()
    return {
        "total": total,
        "cpu": cpu,
        "rollout": metrics["time/rollout"],
        "logps": metrics["time/logps"],
        "scoring": metrics["time/scoring"],
        "update": metrics["time/update"],
        "coverage": metrics["guidance/coverage_all"],
        "scorable": metrics["credit/scorable_share"],
    }


@contextlib.contextmanager
def counted_branches() -> Iterator[dict[str, int]]:
    """Tokens of guided branches inside: those of block and tail, and those computed, with and without padding."""
    found = {"needed": 0, "computed": 0, "with_padding": 0}
    original = passes.branch_logps

    def counting(policy: Any, branches: Any, keys: Any, *, forward: Any = None, **options: Any) -> Any:
        def call(**inputs: Any) -> Any:
            width = inputs["input_ids"].shape[1]
            found["computed"] += int(inputs["attention_mask"][:, -width:].sum())
            found["with_padding"] += inputs["input_ids"].numel()
            return (forward or policy)(**inputs)

        found["needed"] += sum(len(one.ids) - one.start for one in branches)
        return original(policy, branches, keys, forward=call, **options)

    passes.branch_logps = counting  # type: ignore[assignment]
    try:
        yield found
    finally:
        passes.branch_logps = original  # type: ignore[assignment]


class PassTokens:
    """Tokens of the forwards that score and of those that learn, padding included."""

    def __init__(self, policy: Any):
        self.scored = self.learned = 0
        policy.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, inputs: Any) -> None:
        if "selected_positions" not in inputs:  # a reply is decoded
            return
        if torch.is_grad_enabled():
            self.learned += inputs["input_ids"].numel()
        else:
            self.scored += inputs["input_ids"].numel()

    @property
    def floor(self) -> float:
        """Scoring over update if a token cost the same everywhere, and a backward two forwards."""
        return self.scored / (3 * self.learned)


def bench_step(repeats: int, num_steps: int, generations: int) -> dict[str, Any]:
    """TASPO over GRPO, in turn, so that a drifting machine treats both alike."""
    rows: dict[str, list[dict[str, float]]] = {"taspo": [], "grpo": []}
    makers = {name: trainer(name == "taspo", generations, num_steps=num_steps) for name in rows}
    counted = {name: PassTokens(made.model) for name, made in makers.items()}
    with counted_branches() as tokens:
        for draw in range(repeats):
            # Who comes first changes too: the first of all meets a cold process.
            for name in ("grpo", "taspo") if draw % 2 == 0 else ("taspo", "grpo"):
                rows[name].append(run_step(makers[name], draw))
    if not min(row["scorable"] for row in rows["taspo"]):
        raise SystemExit("Nothing was scored: the construction's block is not the one that the method asks for.")
    middle = {
        name: {key: statistics.median(row[key] for row in entries) for key in entries[0]}
        for name, entries in rows.items()
    }
    pairs = list(zip(rows["taspo"], rows["grpo"], strict=True))
    ratios = [t["cpu"] / g["cpu"] for t, g in pairs]
    learning = [
        (t["logps"] + t["scoring"] + t["update"]) / (g["logps"] + g["scoring"] + g["update"]) for t, g in pairs
    ]
    table = Table(
        title=f"{2 * generations} episodes of 8 turns, ~330 prompt tokens, guidance on 60 %, {num_steps} optimizer "
        "step(s): median seconds"
    )
    columns = ("rollout", "logps", "scoring", "update", "total", "cpu")
    for column in ("", *columns):
        table.add_column(column, justify="right")
    for name, one in middle.items():
        table.add_row(name, *(f"{one[key]:.2f}" for key in columns))
    console.print(table)
    result = {
        "step_ratio_median": statistics.median(ratios),
        "step_ratio_range": [min(ratios), max(ratios)],
        # Of TASPO's steps alone, so that two runs on a busy machine are not compared.
        "step_over_step_without_scoring": middle["taspo"]["total"]
        / (middle["taspo"]["total"] - middle["taspo"]["scoring"]),
        "learning_ratio_median": statistics.median(learning),
        "scoring_over_update": middle["taspo"]["scoring"] / middle["taspo"]["update"],
        # Of log pi_old too, where it is computed.
        "passes_over_update_by_tokens": {name: one.floor for name, one in counted.items()},
        "coverage": middle["taspo"]["coverage"],
        "scorable_share": middle["taspo"]["scorable"],
        "guided_tokens": tokens,
        "seconds": middle,
        "episodes": 2 * generations,
        "repeats": repeats,
    }
    console.print(
        f"TASPO / GRPO: step {result['step_ratio_median']:.3f} in CPU seconds (target <= "
        f"{1.12 if num_steps == 1 else 1.06}), with over without "
        f"its scoring {result['step_over_step_without_scoring']:.3f}, log-probabilities + scoring + update "
        f"{result['learning_ratio_median']:.3f}; guided tokens {tokens}; passes over update by tokens alone "
        f"{counted['taspo'].floor:.3f} and {counted['grpo'].floor:.3f}"
    )
    return result


class Living(TorchDispatchMode):
    """Bytes of the tensors made inside that live, and the most of them since `peak` was last set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._note, made)
        return made

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.known:
            size = storage.nbytes()
            self.known[storage] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


def peaks_of_a_step(made: Any) -> dict[str, int]:
    """Bytes above what was there before it, at the peak of each pass; and the kept keys of its largest micro-batch."""
    living, found = Living(), Counter[str]()

    def measured(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)

        def run(*args: Any, **keywords: Any) -> Any:
            before, outer, living.peak = living.now, living.peak, living.now
            result = original(*args, **keywords)
            found[label] = max(found[label], living.peak - before)
            living.peak = max(outer, living.peak)
            return result

        stack.callback(setattr, owner, name, original)
        setattr(owner, name, run)

    original_keys = passes.pass_keys

    def keeping(cache: Any, *args: Any) -> Any:
        kept = original_keys(cache, *args)
        found["kept_keys"] = max(found["kept_keys"], keys_in_bytes(cache) if kept is not None else 0)
        return kept

    with contextlib.ExitStack() as stack:
        measured(passes.PolicyPasses, "_old_logps", "logps")
        measured(passes.PolicyPasses, "score", "scoring")
        measured(trainer_module, "run_micro_batches", "update")
        stack.callback(setattr, passes, "pass_keys", original_keys)
        passes.pass_keys = keeping  # type: ignore[assignment]
        stack.enter_context(living)
        run_step(made, 0)
    return dict(found)


def bench_memory() -> dict[str, Any]:
    """Rows of ~350 tokens in micro-batches of 8,192, every one of them kept whole: full attention heads, no groups."""
    plain = peaks_of_a_step(trainer(False, 4, num_steps=2))
    result: dict[str, Any] = {}
    for checkpointing in (False, True):
        made = trainer(True, 4, num_steps=2)
        if checkpointing:  # `train` would turn it on
            made.model.gradient_checkpointing_enable()
        riding = peaks_of_a_step(made)
        name = "with_checkpointing" if checkpointing else "without_checkpointing"
        result[name] = {
            "riding_over_logps_alone": riding["logps"] / plain["logps"],
            "riding_over_update": riding["logps"] / riding["update"],
            "kept_keys_over_update": riding["kept_keys"] / riding["update"],
            "step_over_step_without_guidance": max(riding["logps"], riding["update"])
            / max(plain["logps"], riding["update"]),
            "bytes": riding,
        }
        console.print(name, {key: round(v, 3) for key, v in result[name].items() if key != "bytes"})
    with_guidance, without = (peaks_of_a_step(trainer(guided, 4)) for guided in (True, False))
    result["in_the_update"] = {
        "update_over_update_without_guidance": with_guidance["update"] / without["update"],
        "kept_keys_over_update": with_guidance["kept_keys"] / with_guidance["update"],
        "bytes": with_guidance,
    }
    console.print("in the update", {k: round(v, 3) for k, v in result["in_the_update"].items() if k != "bytes"})
    return {"bytes_without_guidance": plain, **result}


def skewed_rows(number: int = 120) -> list[LossRow]:
    """Mostly short rows and a few long ones, as agents make them."""
    rng = random.Random(0)
    rows = []
    for _ in range(number):
        length = min(1500, int(60 * math.exp(rng.gauss(0.6, 0.9))) + 30)
        ids = tuple(rng.randrange(20, 4000) for _ in range(length))
        positions = tuple(range(length - 20, length))
        rows.append(LossRow(ids, positions, (1e-3,) * 20, (1.0,) * 20))
    return rows


def bench_batches(repeats: int) -> dict[str, Any]:
    """Forward alone (scoring) and forward + backward (update), both ways."""
    tok = tokenizer()
    policy = model(tok)
    add_selected_projection(policy)
    rows = skewed_rows()
    lengths = [len(row.ids) for row in rows]
    budget = 8192
    sorted_batches = pack_rows(lengths, budget)
    per_batch = max(1, budget // max(lengths))
    padded_batches = [list(range(k, min(k + per_batch, len(rows)))) for k in range(0, len(rows), per_batch)]
    widest = max(lengths)

    def run(batches: list[list[int]], width: int | None, train: bool) -> float:
        started = time.perf_counter()
        for batch in batches:
            tensors = collate([rows[k] for k in batch], pad_to_multiple_of=width)
            with torch.set_grad_enabled(train):
                output = selected_forward(policy, tensors)
            if train:
                output.logps.sum().backward()
                policy.zero_grad()
        return time.perf_counter() - started

    result: dict[str, Any] = {"tokens": sum(lengths), "padded_tokens": widest * len(rows)}
    for name, train in (("scoring", False), ("update", True)):
        pairs = []
        run(sorted_batches, None, train)
        for _ in range(repeats):
            pairs.append((run(padded_batches, widest, train), run(sorted_batches, None, train)))
        result[name] = statistics.median(padded / short for padded, short in pairs)
        console.print(f"{name}: sorted token-budget batches {result[name]:.2f} x faster (target >= 2)")
    own_tok, own_rows = quickstart_rows()
    own_policy = new_model(own_tok, WarmStart())
    add_selected_projection(own_policy)
    result["without_padding"] = {
        "these rows": without_padding(policy, rows, budget, repeats),
        "the quickstart's": without_padding(own_policy, own_rows, budget, repeats),
    }
    return result


def quickstart_rows() -> tuple[Any, list[LossRow]]:
    """A rollout batch of the quickstart, with actions at random; every reply is learned from."""
    tok = make_tokenizer("small")
    tasks = HouseholdEnvironment.dataset("train", preset="small")
    pool = EnvironmentPool({None: HouseholdEnvironment})
    done = play_episodes(
        plan_groups([tasks[k] for k in range(8)], 8, 0, 0, "b"),
        engine=AtRandom(tok),
        pool=pool,
        renderer=ChatRenderer(tok),
        settings=RolloutSettings(),
        max_in_flight=8,
    )
    pool.close()
    rows = [
        loss_row(row, trajectory, num_trajectories=len(done), factor=1.0)
        for trajectory in done
        for row in build_rows(trajectory)
    ]
    return tok, rows


class AtRandom:
    """One of the admissible actions, at once."""

    def __init__(self, tok: Any):
        self.tok, self.random = tok, random.Random(0)

    def begin(self, sampling, seed):
        pass

    def submit(self, request):
        text = f"<action>{self.random.choice(request.view.admissible_actions)}</action>"
        ids = self.tok.encode(text, add_special_tokens=False)
        future: Future = Future()
        future.set_result(Generation((*ids, self.tok.eos_token_id), FinishReason.STOP))
        return future

    def flush(self):
        pass


def without_padding(policy: Any, rows: list[LossRow], budget: int, repeats: int) -> dict[str, Any]:
    """What of the micro-batches is padding; and the seconds of forward and backward without it over those with it.

    Timed are micro-batches of a quarter of the size: the mask of a long row is a square.
    """
    lengths = [len(row.ids) for row in rows]
    timed = rows[:: max(1, sum(lengths) // budget)]
    sizes = [len(row.ids) for row in timed]

    def seconds(padding_free: bool) -> float:
        started = time.process_time()
        for batch in pack_rows(sizes, budget // 4, padding_free):
            output = selected_forward(policy, collate([timed[k] for k in batch], padding_free=padding_free))
            output.logps.sum().backward()
            policy.zero_grad()
        return time.process_time() - started

    def padding(sizes: list[int], budget: int) -> float:
        return 1 - sum(sizes) / sum(len(one) * max(sizes[k] for k in one) for one in pack_rows(sizes, budget))

    seconds(False)
    ratios = [seconds(True) / seconds(False) for _ in range(repeats)]
    found = {
        "rows": len(rows),
        "tokens": sum(lengths),
        "padding_share": padding(lengths, budget),
        "attention": policy.config._attn_implementation,
        "timed_padding_share": padding(sizes, budget // 4),
        "packed_over_padded": statistics.median(ratios),
    }
    console.print({name: round(v, 3) if isinstance(v, float) else v for name, v in found.items()})
    return found


class Script:
    """Answers at once."""

    def begin(self, sampling, seed):
        pass

    def submit(self, request):
        future: Future = Future()
        future.set_result(Generation((5, 20, 6, 2), FinishReason.STOP))
        return future

    def flush(self):
        pass


def bench_rollout() -> dict[str, Any]:
    """32 episodes of 8 turns with 20 ms a step."""
    tok = tokenizer()
    cls = type("Slow", (Corridor,), {"turns": 8, "max_turns": 9, "delay": 0.02, "size": 10})
    rows = [{"task": f"w{k}"} for k in range(4)]
    specs = plan_groups(rows, 8, 0, 0, "b")

    def play(max_in_flight: int) -> float:
        pool = EnvironmentPool({None: cls})
        policy = Script()
        policy.begin(SamplingSettings(), 0)
        started = time.perf_counter()
        done = play_episodes(
            specs,
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(tok),
            settings=RolloutSettings(),
            max_in_flight=max_in_flight,
        )
        seconds = time.perf_counter() - started
        pool.close()
        return sum(len(t.turns) for t in done) / seconds

    parallel, serial = play(32), play(1)
    console.print(f"rollout: {parallel:.0f} turns/s, serial {serial:.0f}: {parallel / serial:.1f} x (target >= 3)")
    return {"turns_per_second": parallel, "serial_turns_per_second": serial, "ratio": parallel / serial}


def bench_slopes(repeats: int) -> dict[str, Any]:
    """log-log slope of the step's seconds against group size and turns."""

    def seconds(generations: int, turns: int) -> float:
        made = trainer(True, generations, turns)
        run_step(made, 0)
        return min(run_step(made, draw)["total"] for draw in range(1, repeats + 1))

    result = {}
    for name, sizes, measure in (
        ("group_size", (4, 8, 16), lambda size: seconds(size, 6)),
        ("turns", (5, 10, 20), lambda size: seconds(4, size)),
    ):
        times = [measure(size) for size in sizes]
        logs = [(math.log(size), math.log(value)) for size, value in zip(sizes, times, strict=True)]
        mean_x, mean_y = (statistics.mean(one[k] for one in logs) for k in (0, 1))
        slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
        result[name] = {"sizes": sizes, "seconds": times, "slope": slope}
        console.print(
            f"{name}: {dict(zip(sizes, [round(t, 2) for t in times], strict=True))}, slope {slope:.2f} (<= 1.1)"
        )
    return result


def bench_beside(repeats: int, num_groups: int = 8, generations: int = 4, latency: float = 2.0) -> dict[str, Any]:
    """Rollout batches of several updates (old log-probabilities are needed) with and without scoring beside them.

    Visible is what the step takes longer than its episodes alone; hideable what a device that works on nothing else
    could have computed of groups that had ended before the last one did.
    """
    from taspo_trl.training.rollout_batch import UpdateLayout

    makers = {
        name: trainer(
            True,
            generations,
            groups=num_groups,
            size=(2, 128),
            latency=latency,
            num_steps=2,
            score_during_rollout=name == "beside",
        )
        for name in ("after", "beside")
    }

    def run(made: Any, draw: int) -> tuple[dict[str, float], list[float]]:
        started, ends = time.perf_counter(), Counter[str]()
        last: dict[str, float] = {}

        def on_end(trajectory: Any) -> None:
            group = trajectory.uid.split("-k")[0]
            ends[group] += 1
            last[group] = time.perf_counter() - started

        rows = [made.train_dataset[(draw * num_groups + k) % 64] for k in range(num_groups)]
        found = made.experience_maker.make(
            rows,
            sampling=SamplingSettings(),
            seed=0,
            rollout=draw,
            step=0,
            layout=UpdateLayout(num_steps=2, num_micro_steps=1, is_off_policy=True),
            on_episode_end=on_end,
        )
        return {"total": time.perf_counter() - started, **found.metrics}, sorted(last.values())

    for made in makers.values():  # the first of all meets a cold process
        made.experience_maker.collector.engine.latency = 0.01
        run(made, 0)
        made.experience_maker.collector.engine.latency = latency
    entries = []
    for draw in range(1, repeats + 1):
        after, ends = run(makers["after"], draw)
        beside, _ = run(makers["beside"], draw)
        left = beside["time/logps"] + beside["time/scoring"]
        work = (beside["time/beside_rollout"] + left) / num_groups
        clock, hideable = 0.0, 0.0
        for end in ends:
            begin = max(clock, end)
            clock = begin + work
            hideable += max(0.0, min(clock, ends[-1]) - begin)
        delay = beside["time/rollout"] - after["time/rollout"]
        visible = max(0.0, delay + left - (work * num_groups - hideable))
        entries.append(
            {
                "visible_share": visible / hideable,
                "hideable": hideable,
                "scoring": work * num_groups,
                "left_after_rollout": left,
                "delay_of_rollout": delay,
                "rollout_after": after["time/rollout"],
                "total_after": after["total"],
                "total_beside": beside["total"],
            }
        )
    result: dict[str, Any] = {key: statistics.median(one[key] for one in entries) for key in entries[0]}
    result |= {"latency": latency, "episodes": generations * num_groups, "repeats": repeats}
    result["visible_shares"] = [one["visible_share"] for one in entries]
    table = Table(title=f"{generations * num_groups} episodes of 8 turns, {latency:g} s a reply: median seconds")
    columns = (
        "rollout_after",
        "scoring",
        "hideable",
        "left_after_rollout",
        "delay_of_rollout",
        "total_after",
        "total_beside",
    )
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    table.add_row(*(f"{result[key]:.2f}" for key in columns))
    console.print(table)
    console.print(f"of the hideable scoring {result['visible_share']:.1%} stays visible (target <= 10 %)")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["step", "memory", "batches", "rollout", "slopes", "beside"], default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--generations", type=int, default=8, help="group size of `step`, of two groups")
    options = parser.parse_args()
    benches = {
        "step": lambda: {
            name: bench_step(options.repeats, num_steps, options.generations)
            for name, num_steps in (("several_optimizer_steps", 2), ("one_optimizer_step", 1))
        },
        "memory": bench_memory,
        "batches": lambda: bench_batches(options.repeats),
        "rollout": bench_rollout,
        "slopes": lambda: bench_slopes(2),
        "beside": lambda: bench_beside(options.repeats),
    }
    path = RESULTS / "core.json"
    results = json.loads(path.read_text()) if path.exists() else {}  # a part that is not run keeps its last numbers
    results["threads"] = torch.get_num_threads()
    results.pop("machine", None)
    for name, bench in benches.items():
        if options.only in (None, name):
            results[name] = bench()
            console.print(f"written to {save('core', results)}")


if __name__ == "__main__":
    main()
