"""A model card from facts: what was trained, on what, how well it does, at what price, and how to load it.

Pure, apart from reading the template. Nothing is guessed: a fact that is None or empty leaves no line behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..evaluation.statistics import Rate
from ..tokens import as_unicode


_TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"
_MAX_FAMILIES = 24

TRL_CITATION = """\
@software{vonwerra2020trl,
    title   = {{TRL: Transformers Reinforcement Learning}},
    author  = {von Werra, Leandro and Belkada, Younes and Tunstall, Lewis and Beeching, Edward and Thrush, Tristan and
               Lambert, Nathan and Huang, Shengyi and Rasul, Kashif and Gallou{\\'e}dec, Quentin},
    license = {Apache-2.0},
    url     = {https://github.com/huggingface/trl},
    year    = {2020}
}"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option and its value, as they are shown."""

    name: str
    value: str
    symbol: str = ""
    """The paper's, if it has one."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """What a run was trained on, one for each environment."""

    environment: str
    splits: tuple[str, ...] = ()
    num_tasks: int | None = None


@dataclass(frozen=True, slots=True)
class AnalyzerUse:
    """Who wrote the guidance, and what that took."""

    name: str
    is_embedded: bool = False
    """The package's own extractive analyzer, which is no language model."""
    calls: int | None = None
    """Those that were paid for; answers from the cache are not among them."""
    failed_calls: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    """None when no price is known: unknown is not free."""


@dataclass(frozen=True, slots=True)
class CardEvaluation:
    """One evaluation, of the model of one optimizer step."""

    name: str
    """The prefix of its metrics, for example `eval_valid_seen`."""
    step: int
    overall: Rate
    families: Mapping[str, Rate] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    num_tasks: int | None = None
    num_failed: int = 0
    """Plays that ended through infrastructure; they are in no rate."""
    sampling: str = ""
    """Temperature, nucleus, seed: what decides the replies."""

    @property
    def title(self) -> str:
        return ", ".join(self.splits) or self.name


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything that a card says."""

    model_name: str
    tuning: str
    """`full fine-tuning`, `LoRA`, `QLoRA`, ..."""
    task_sets: tuple[TaskSet, ...]
    num_steps: int
    guidance: str
    """The contexts, joined by `+`; `none` without any."""
    method: str = "taspo"
    method_line: str = ""
    """What the method does, in one line."""
    papers: Mapping[str, str] = field(default_factory=dict)
    """Name of each paper of the method -> its address."""
    repo_id: str | None = None
    base_model: str | None = None
    """A name on the Hub, never a folder."""
    is_adapter: bool = False
    model_step: int | None = None
    """The optimizer step whose weights these are; None = the last."""
    group_size: int | None = None
    tasks_per_batch: int | None = None
    coverage: float | None = None
    """Share of trajectories with guidance among those with a non-zero advantage."""
    coverage_entries: int = 0
    """Log entries that `coverage` is the mean of."""
    analyzer: AnalyzerUse | None = None
    adapter: tuple[Setting, ...] = ()
    settings: tuple[Setting, ...] = ()
    evaluations: tuple[CardEvaluation, ...] = ()
    action_tags: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    dataset_name: str | None = None
    license: str | None = None
    runs: Mapping[str, str] = field(default_factory=dict)
    """Tracker -> address of the run."""
    paper_title: str = ""
    paper_id: str = ""
    citations: Mapping[str, str] = field(default_factory=dict)
    """What is cited -> BibTeX."""

    @property
    def kind(self) -> str:
        """`grpo` (all weights are 1), `taspo`, or `other`."""
        if self.method in ("grpo", "taspo"):
            return "grpo" if self.guidance == "none" else "taspo"
        return "other"

    @property
    def weights_step(self) -> int:
        return self.num_steps if self.model_step is None else self.model_step

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.environment for one in self.task_sets))


def model_card(facts: CardFacts) -> ModelCard:
    """The card, with metadata that the Hub accepts: fields without a value are absent."""
    own = [one for one in facts.evaluations if one.step == facts.weights_step]
    return ModelCard.from_template(
        card_metadata(facts),
        template_path=str(_TEMPLATE),
        facts=facts,
        name=prose(facts.model_name),
        environments=" and ".join(code(name) for name in facts.environments),
        run=run_rows(facts),
        evaluations=[evaluation_row(one) for one in facts.evaluations],
        families=[(code(one.title), one, family_rows(one)) for one in own if 1 < len(one.families) <= _MAX_FAMILIES],
        samplings=sorted({one.sampling for one in facts.evaluations if one.sampling}),
        num_failed=sum(one.num_failed for one in facts.evaluations),
        settings=[(prose(one.name), one.symbol, prose(one.value)) for one in facts.settings],
        versions={prose(name): prose(version) for name, version in facts.versions.items()},
        place=facts.repo_id or "path/to/this/folder",
        base_place=facts.base_model or "path/to/the/base/model",
        tags=" and ".join(code(f"<{tag}>") for tag in facts.action_tags),
    )


def card_metadata(facts: CardFacts) -> ModelCardData:
    """The front matter: no field is None, a path, or made up."""
    results = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="Multi-turn language agent",
            dataset_type=_slug("-".join(facts.environments)),
            dataset_name=_one_line(f"{', '.join(facts.environments)} ({one.title})"),
            dataset_split=_slug(one.splits[0]) if len(one.splits) == 1 else None,
            metric_type="success_rate",
            metric_name="Success rate",
            metric_value=round(one.overall.value, 4),
            metric_args={
                "num_successes": one.overall.num_successes,
                "num_plays": one.overall.num_plays,
                "wilson_interval_95": [round(one.overall.low, 4), round(one.overall.high, 4)],
            },
        )
        for one in facts.evaluations
        if one.step == facts.weights_step and one.overall.num_plays and facts.environments
    ]
    relation = "adapter" if facts.is_adapter else "finetune"
    return ModelCardData(
        base_model=facts.base_model,
        datasets=facts.dataset_name,
        library_name="peft" if facts.is_adapter else "transformers",
        license=facts.license,
        model_name=_one_line(facts.model_name) if results else None,
        eval_results=results or None,
        pipeline_tag="text-generation",
        tags=list(facts.tags),
        base_model_relation=relation if facts.base_model else None,
    )


def run_rows(facts: CardFacts) -> list[tuple[str, str]]:
    """(what, value) of the run: data, size, guidance, price."""
    rows = [("Trained on", _task_set(one)) for one in facts.task_sets]
    if facts.dataset_name:
        rows.append(("Dataset", f"[{facts.dataset_name}](https://huggingface.co/datasets/{facts.dataset_name})"))
    rows.append(("Tuning", prose(facts.tuning)))
    rows += [(prose(one.name), prose(one.value)) for one in facts.adapter]
    rows.append(("Optimizer steps", f"{facts.num_steps:,}"))
    if facts.weights_step != facts.num_steps:
        rows.append(("These weights", f"step {facts.weights_step:,}, the best checkpoint"))
    if facts.tasks_per_batch is not None:
        rows.append(("Tasks in a rollout batch", f"{facts.tasks_per_batch:,}"))
    if facts.group_size is not None:
        rows.append(("Group size (episodes of a task)", f"{facts.group_size:,}"))
    if facts.kind == "other":
        rows.append(("Method", code(facts.method) + (f": {prose(facts.method_line)}" if facts.method_line else "")))
        if facts.guidance != "none":
            rows.append(("Context of the teacher", " and ".join(map(code, facts.guidance.split("+")))))
    else:
        remark = "" if facts.guidance == "none" else ": a comparison construction, not the method of the paper"
        rows.append(("Guidance", code(facts.guidance) + _CONSTRUCTIONS.get(facts.guidance, remark)))
    if facts.coverage is not None:
        share, entries = f"{facts.coverage:.1%}", f"{facts.coverage_entries:,}"
        text = f"{share} of the trajectories with a non-zero advantage (mean of {entries} log entries)"
        rows.append(("Guidance coverage", text))
    return rows + _analyzer_rows(facts.analyzer)


_CONSTRUCTIONS = {
    "aligned": ": evidence from other successful attempts, aligned to each trajectory (the method of the paper)",
    "none": ": plain GRPO, all turn weights are 1",
}


def _task_set(one: TaskSet) -> str:
    parts = [code(one.environment)]
    if one.splits:
        parts.append(f"split {' and '.join(map(code, one.splits))}")
    if one.num_tasks is not None:
        parts.append(f"{one.num_tasks:,} tasks")
    return ", ".join(parts)


def _analyzer_rows(analyzer: AnalyzerUse | None) -> list[tuple[str, str]]:
    if analyzer is None:
        return []
    remark = " (embedded in `taspo_trl`, not a language model)" if analyzer.is_embedded else ""
    rows = [("Analyzer", code(analyzer.name) + remark)]
    if analyzer.calls is not None:
        failed = f", {analyzer.failed_calls:,} of them failed" if analyzer.failed_calls else ""
        rows.append(("Analyzer calls, cached answers left out", f"{analyzer.calls:,}{failed}"))
    if analyzer.prompt_tokens is not None and analyzer.completion_tokens is not None:
        rows.append(("Analyzer tokens", f"{analyzer.prompt_tokens:,} in, {analyzer.completion_tokens:,} out"))
    if analyzer.cost_usd is not None:
        cost = f"{analyzer.cost_usd:,.2f}" if analyzer.cost_usd >= 0.1 else f"{analyzer.cost_usd:.2g}"
        rows.append(("Analyzer cost", f"{cost} USD"))
    return rows


def evaluation_row(one: CardEvaluation) -> tuple[str, ...]:
    """Evaluation, step, tasks, plays, successes, success, interval."""
    tasks = "" if one.num_tasks is None else f"{one.num_tasks:,}"
    return (code(one.title), f"{one.step:,}", tasks, *_rate_cells(one.overall))


def family_rows(one: CardEvaluation) -> list[tuple[str, ...]]:
    """Family, plays, successes, success, interval."""
    return [(prose(family), *_rate_cells(rate)) for family, rate in one.families.items()]


def _rate_cells(rate: Rate) -> tuple[str, str, str, str]:
    if not rate.num_plays:
        return "0", "0", "", ""
    counts = f"{rate.num_plays:,}", f"{rate.num_successes:,}"
    return *counts, f"{rate.value:.1%}", f"{rate.low:.1%} to {rate.high:.1%}"


def prose(text: str) -> str:
    """`text` on one line, with nothing that ends a table cell or starts markup."""
    return re.sub(r"[\\|`\[\]<>]", r"\\\g<0>", _one_line(text))


def code(text: str) -> str:
    """`text` as a code span that may stand in a table."""
    plain = _one_line(text).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`"


def _one_line(text: str) -> str:
    return " ".join(as_unicode(str(text)).split())


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII).strip("-.") or "unnamed"
