"""Guidance for saved trajectories: prompts are tuned and analyzers are compared with it before anyone trains.

Runs the very stages that training runs: extraction, alignment and composition, and with a model scoring and weights.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .analyzer.base import Analyzer, AnalyzerReply, AnalyzerRequest
from .analyzer.extractive import ExtractiveAnalyzer
from .analyzer.prompts import PROMPTS, Prompts
from .credit.base import Batch, WeightRule
from .credit.states import state_key
from .credit.taspo import TurnWeights
from .errors import ConfigurationError, RecordError
from .files import write_text
from .guidance.base import GuidanceContext
from .guidance.block import Composer
from .guidance.constructions import Materials, construction_of_blocks
from .guidance.stage import Call, GuidanceStage
from .methods import Recipe
from .methods.facts import recipe_of
from .records import METHOD_FILE, TrajectoryRecord, no_records, read_records, write_records
from .redaction import without_secrets
from .reporting.metrics import analyzer_metrics, credit_metrics, guidance_metrics
from .rollout.advantages import group_advantages
from .types import Alternatives, Credit, Extraction, Guidance, Trajectory, TrajectoryGroup


if TYPE_CHECKING:
    from rich.table import Table

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Analysis:
    """What [`analyze`] found."""

    metrics: dict[str, float]
    """Names as in training: coverage, evidence kept and rejected by reason, analyzer calls, tokens, cost, weights."""
    analyzer: str
    model: str
    """Name of the scoring model; empty without one."""
    files: tuple[Path, ...] = ()
    """The record files that were written, with guidance, evidence, rejects and weights in each line."""

    def table(self) -> Table:
        """The summary for people."""
        from rich.table import Table

        table = Table(title=f"Guidance by {self.analyzer}" + (f", scored with {self.model}" if self.model else ""))
        table.add_column("")
        table.add_column("value", justify="right")
        last = ""
        for name, value in self.metrics.items():
            section = name.split("/")[0]
            if last and section != last and "/" in name:
                table.add_section()
            table.add_row(name, _shown(value))
            last = section
        return table


def _shown(value: float) -> str:
    """Counts whole, all else to three decimals, or two digits of what is smaller."""
    if not math.isfinite(value):
        return "-"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def analyze(
    path: str | os.PathLike,
    *,
    analyzer: Analyzer | str | None = None,
    output: str | os.PathLike | None = None,
    model: Any = None,
    tokenizer: Any = None,
    prompts: Prompts = PROMPTS,
    max_evidence_items: int = 12,
    max_guidance_items: int = 8,
    max_guidance_tokens: int = 256,
    context_chars: int = 12000,
    workers: int = 4,
    action_tags: tuple[str, ...] = (),
    credit: WeightRule | None = None,
    scale_rewards: str = "group",
    temperature: float = 1.0,
    micro_batch_tokens: int = 16384,
    on_reply: Callable[[AnalyzerRequest, AnalyzerReply], None] | None = None,
) -> Analysis:
    """
    Write guidance for saved trajectories, and with a model their weights.

    Example:

    ```python
    >>> from taspo_trl.analyze import analyze

    >>> analysis = analyze("out/_trajectories/rollout_000000.jsonl", analyzer="deepseek/deepseek-chat")
    >>> analysis.metrics["guidance/coverage"]
    ```

    Args:
        path (`str` or `PathLike`):
            A file that training wrote, a folder of them, or the run's `output_dir`, whose `_trajectories` are meant.
            Rewards and successes are taken from it.
        analyzer (`Analyzer` or `str`, *optional*):
            Who answers; a string is LiteLLM's name of a model. If `None`, the embedded analyzer.
        output (`str` or `PathLike`, *optional*):
            Folder for the records with guidance, one file for each file read, and `summary.json`. If `None`,
            `<path without .jsonl>-analysis`.
        model (`str` or [`~transformers.PreTrainedModel`], *optional*):
            The policy that played, to compute shifts and weights. Needs records with prompt ids
            (`save_trajectories="full"`).
        tokenizer (`str` or [`~transformers.PreTrainedTokenizerBase`], *optional*):
            Composes the blocks. If `None`, the model's; without a model, four characters count as a token.
        prompts (`Prompts`, *optional*):
            The analyzer's instructions; see [`~taspo_trl.analyzer.prompts.load_prompts`].
        max_evidence_items, max_guidance_items, max_guidance_tokens, context_chars, workers (`int`, *optional*):
            As `max_evidence_items` ... `analyzer_workers` of [`~taspo_trl.TASPOConfig`].
        action_tags (`tuple[str, ...]`, *optional*):
            Tags of the environment, besides the paper's three, that no statement may hold.
        credit (`WeightRule`, *optional*):
            How shifts become weights. If `None`, the method of the run that wrote the records, with its contexts and
            constants; where there is none, where its credit needs no context, or where an `analyzer` is named and its
            contexts ask none, [`~taspo_trl.credit.TurnWeights`] with the paper's constants.
        scale_rewards (`str`, *optional*, defaults to `"group"`):
            As in training.
        temperature (`float`, *optional*, defaults to `1.0`):
            The sampling temperature of the trajectories.
        micro_batch_tokens (`int`, *optional*, defaults to `16384`):
            Bound on rows x longest row of one scoring forward.
        on_reply (`Callable`, *optional*):
            Called with each (request, reply), from worker threads.

    Returns:
        [`Analysis`]

    Raises:
        RecordError: a file is no record of trajectories, or holds several runs.
        ConfigurationError: there is a model but no prompt ids, the output would overwrite the input, or the run's
            method asks the simulator, which records do not hold.
    """
    path = _trajectories_of(Path(path))
    files = _files(path)
    recipe, num_steps = _recipe(files[0].parent, credit, analyzer)
    scorer, tokenizer = _loaded(model, tokenizer)
    asked = _made(analyzer)
    materials = Materials(
        Composer(tokenizer, max_guidance_tokens, action_tags),
        max_evidence_items=max_evidence_items,
        max_guidance_items=max_guidance_items,
        max_chars=context_chars,
        prompts=prompts,
        place=recipe.place,
    )
    construction = construction_of_blocks(recipe.rule_needs.blocks, materials)
    folder = Path(output) if output is not None else _default_output(path)
    if folder.resolve() == files[0].parent.resolve():
        raise ConfigurationError(f"`output` is the folder that is read, {folder}; its files would be overwritten.")
    context = GuidanceContext(asked, on_reply=on_reply, state_key=state_key(recipe.state_key))
    stage = GuidanceStage(construction, workers, recipe.wanted, context=context)
    found = _Found()
    try:
        _check(files, folder, scorer[0] if scorer is not None else None, temperature)
        for file in files:
            records, calls = _guided(list(read_records(file, is_quiet=True)), stage)
            if scorer is not None:
                records = _weighed(
                    records,
                    (*scorer, tokenizer),
                    recipe,
                    num_steps,
                    scale_rewards,
                    temperature,
                    micro_batch_tokens,
                )
            write_records(folder / file.name, records)
            found.add(records, folder / file.name, scale_rewards, calls)
    finally:
        stage.close()
        if asked is not analyzer:
            asked.close()
    metrics = found.metrics(has_scores=scorer is not None)
    analysis = Analysis(metrics, asked.name, _name_of(model), tuple(found.files))
    _write_summary(folder / "summary.json", analysis, str(path))
    return analysis


def _check(files: Sequence[Path], folder: Path, model: Any, temperature: float) -> None:
    """What would fail once the analyzer has been paid fails before: records, model, place of the output."""
    from .scoring.saved import projecting, require_scorable

    seen: dict[str, Path] = {}
    size = None if model is None else getattr(model.config.get_text_config(), "vocab_size", None)
    for file in files:
        for record in read_records(file):
            uid = record.trajectory.uid
            if uid in seen:
                where = "twice" if seen[uid] == file else f"that {seen[uid].name} has too"
                raise RecordError(f"{file} holds trajectory {uid!r} {where}. Analyze each run on its own.")
            seen[uid] = file
            if model is not None:
                require_scorable(record.trajectory, size)
    if model is not None:
        with projecting(model, temperature):
            pass
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigurationError(
            f"Nothing can be written to {folder}, where the analysis goes. Choose another `output`."
        )


@dataclass
class _Found:
    """What the summary needs of all files, without the prompts, which are most of their size."""

    trajectories: list[Trajectory] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    guidance: dict[str, Guidance] = field(default_factory=dict)
    extractions: dict[str, Extraction] = field(default_factory=dict)
    credits: list[Credit] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    groups: int = 0
    files: list[Path] = field(default_factory=list)

    def add(self, records: Sequence[TrajectoryRecord], file: Path, scale_rewards: str, calls: Sequence[Call]) -> None:
        self.files.append(file)
        self.calls.extend(calls)
        advantages = _advantages(records, scale_rewards)
        self.groups += len({(record.rollout, record.group_id) for record in records})
        for record in records:
            uid = record.trajectory.uid
            turns = tuple(replace(turn, prompt_ids=()) for turn in record.trajectory.turns)
            self.trajectories.append(replace(record.trajectory, turns=turns))
            self.advantages.append(advantages[uid])
            if record.guidance is not None:
                self.guidance[uid] = record.guidance
            if record.extraction is not None:
                self.extractions[record.group_id] = record.extraction
            if record.credit is not None:
                self.credits.append(record.credit)

    def metrics(self, has_scores: bool) -> dict[str, float]:
        values = {
            "trajectories": float(len(self.trajectories)),
            "groups": float(self.groups),
            "success": sum(t.success for t in self.trajectories) / max(1, len(self.trajectories)),
            **guidance_metrics(self.guidance, self.extractions, self.trajectories, self.advantages),
            **analyzer_metrics(self.calls),
        }
        return values | (credit_metrics(self.credits, self.trajectories) if has_scores else {})


def _guided(records: list[TrajectoryRecord], stage: GuidanceStage) -> tuple[list[TrajectoryRecord], tuple[Call, ...]]:
    """The records with new guidance in place of what they had, and the analyzer calls that it took."""
    for group in _groups(records).values():
        stage.submit(group)
    batch = stage.collect()
    guided = [
        replace(
            record,
            guidance=batch.guidance[record.trajectory.uid],
            extraction=batch.extractions.get(record.group_id),
            credit=None,
        )
        for record in records
    ]
    return guided, batch.calls


def _weighed(
    records: list[TrajectoryRecord],
    scorer: tuple[Any, int, Any],
    recipe: Recipe,
    num_steps: int,
    scale_rewards: str,
    temperature: float,
    max_tokens: int,
) -> list[TrajectoryRecord]:
    """The records with shifts and weights."""
    from .scoring.alternatives import score_alternatives
    from .scoring.pairs import ScoreScope
    from .scoring.saved import score_saved

    (model, pad_token_id, tokenizer), needs = scorer, recipe.rule_needs
    trajectories = [record.trajectory for record in records]
    guidance = {record.trajectory.uid: record.guidance for record in records if record.guidance is not None}
    given: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "pad_token_id": pad_token_id}
    scope = ScoreScope(needs.blocks, "reply" if needs.scope == "reply" else "action")
    scored = score_saved(model, trajectories, guidance, scope=scope, **given)
    alternatives: Mapping[tuple[str, int], Alternatives] = {}
    if needs.alternatives:
        given |= {"blocks": needs.blocks, "most": needs.alternatives}
        alternatives = score_alternatives(model, trajectories, guidance, tokenizer, **given).alternatives
    advantages = _advantages(records, scale_rewards)
    groups = tuple(_groups(records).values())
    batch = Batch(
        groups,
        tuple(advantages[t.uid] for group in groups for t in group.trajectories),
        scores={(uid, turn_idx): score for uid, of_turns in scored.items() for turn_idx, score in enumerate(of_turns)},
        step=records[0].step if records else 0,
        num_steps=num_steps,
        state_key=state_key(recipe.state_key),
        unguided={uid: one.abstain_reason for uid, one in guidance.items() if not one},
        alternatives=alternatives,
    )
    credits = recipe.assign(batch).credits
    return [replace(record, credit=credits[record.trajectory.uid]) for record in records]


def _recipe(folder: Path, credit: WeightRule | None, analyzer: Analyzer | str | None) -> tuple[Recipe, int]:
    """(the method that weighs, updates of its run or 0)."""
    path = folder / METHOD_FILE
    if credit is None and path.is_file():
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecordError(f"{path} is no JSON: {error}. Delete it, or pass `credit`.") from error
        if not isinstance(facts, dict):
            raise RecordError(f"{path} holds a {type(facts).__name__} and no object. Delete it, or pass `credit`.")
        recipe = recipe_of(facts)
        needs = recipe.rule_needs
        if needs.progress or needs.values or (needs.state_key and recipe.knows_world):
            raise ConfigurationError(
                f"The run's method, {recipe.name!r}, asks the simulator, and there are only records here. Pass "
                "`credit` (`--allocation` on the command line) to weigh by TASPO's rule, or use `taspo credit`."
            )
        if needs.blocks and (analyzer is None or recipe.asks_analyzer):
            return recipe, int(facts.get("num_steps") or 0)
    return Recipe("taspo", weight=credit if credit is not None else TurnWeights()), 0


def _groups(records: Sequence[TrajectoryRecord]) -> dict[tuple[int, str], TrajectoryGroup]:
    members: dict[tuple[int, str], list[Trajectory]] = {}
    for record in records:
        members.setdefault((record.rollout, record.group_id), []).append(record.trajectory)
    return {
        key: TrajectoryGroup(key[1], tuple(sorted(group, key=lambda t: t.generation_idx)))
        for key, group in members.items()
    }


def _advantages(records: Sequence[TrajectoryRecord], scale_rewards: str) -> dict[str, float]:
    groups = list(_groups(records).values())
    rewards_G = [[t.reward if t.is_usable else None for t in group.trajectories] for group in groups]
    advantages_G, _ = group_advantages(rewards_G, scale_rewards)
    return {
        t.uid: advantage
        for group, advantages in zip(groups, advantages_G, strict=True)
        for t, advantage in zip(group.trajectories, advantages, strict=True)
    }


def _loaded(model: Any, tokenizer: Any) -> tuple[tuple[Any, int] | None, Any]:
    """((model, padding id) or None, tokenizer), loaded where only a name is given."""
    if model is None and not isinstance(tokenizer, str):
        return None, tokenizer if tokenizer is not None else ApproximateTokenizer()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if tokenizer is None or isinstance(tokenizer, str):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer or _name_of(model))
    if model is None:
        return None, tokenizer
    if isinstance(model, str):
        model = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    pad_token_id = getattr(tokenizer, "pad_token_id", None)
    return (model, pad_token_id if pad_token_id is not None else 0), tokenizer


def _made(analyzer: Analyzer | str | None) -> Analyzer:
    if analyzer is None:
        return ExtractiveAnalyzer()
    if not isinstance(analyzer, str):
        return analyzer
    from .analyzer.llm.analyzer import LiteLLMAnalyzer

    return LiteLLMAnalyzer(analyzer)


def _name_of(model: Any) -> str:
    if model is None or isinstance(model, str):
        return model or ""
    return model.config._name_or_path or type(model).__name__


def _trajectories_of(path: Path) -> Path:
    """A run's folder stands for the records inside it."""
    inside = path / "_trajectories"
    return inside if inside.is_dir() else path


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise no_records(path)
    if not files[0].exists():
        raise RecordError(f"There is no file {path}. Name a run's output folder, or a file of its `_trajectories`.")
    return files


def _default_output(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".jsonl") + "-analysis")


def _write_summary(path: Path, analysis: Analysis, source: str) -> None:
    data: Mapping[str, Any] = {
        "source": source,
        "analyzer": analysis.analyzer,
        "model": analysis.model,
        "files": [file.name for file in analysis.files],
        "metrics": {name: value if value == value else None for name, value in analysis.metrics.items()},
    }
    write_text(path, json.dumps(without_secrets(data), indent=2) + "\n")


class ApproximateTokenizer:
    """A stand-in for a tokenizer where no model is at hand: four characters count as one token.

    It has what [`~taspo_trl.guidance.block.Composer`] needs. Only lengths mean anything; its ids belong to no model.
    """

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        with self._lock:
            return [self._id_of(text[k : k + _CHARS_PER_TOKEN]) for k in range(0, len(text), _CHARS_PER_TOKEN)]

    def decode(self, ids: Sequence[int], clean_up_tokenization_spaces: bool = False) -> str:
        return "".join(self._pieces[i] for i in ids)

    def _id_of(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]
