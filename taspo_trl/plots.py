"""Figures of a run: learning curves, credit weights, success by family. Each function returns a matplotlib figure.

A figure is a plain object: nothing is shown and no global state of pyplot is touched. A notebook shows the one that a
cell ends with.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .evaluation.results import EvaluationResult
from .records import TrajectoryRecord


if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SERIES_COLOR = "#2563eb"
_SECOND_COLOR = "#94a3b8"

CURVES = {
    "success": "Success in rollouts",
    "reward": "Reward",
    "guidance/coverage": "Trajectories with guidance (of those with A ≠ 0)",
    "credit/weight_std": "Spread of the credit weights",
    "actions/invalid_share": "Invalid actions",
    "entropy": "Entropy per token",
    "moving/entropy": "Entropy per token (trajectories with A ≠ 0)",
    "kl": "KL to the reference",
    "step_time": "Seconds per step",
}
"""Logged name -> title, for the curves that are shown by default."""


def learning_curves(
    log_history: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None, window: int = 5
) -> Figure:
    """Logged numbers over steps, with their moving average.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            `trainer.state.log_history`.
        names (`Mapping[str, str]`, *optional*):
            Logged name -> title. Names that were never logged are left out.
        window (`int`, *optional*, defaults to `5`):
            Steps of the moving average.
    """
    names = names or CURVES
    series = {
        name: [(entry["step"], entry[name]) for entry in log_history if entry.get(name) is not None] for name in names
    }
    shown = [name for name in names if series[name]]
    figure, axes = _grid(len(shown))
    for axis, name in zip(axes, shown, strict=True):
        steps, values = zip(*series[name], strict=True)
        axis.plot(steps, values, color=_SECOND_COLOR, linewidth=1)
        axis.plot(steps, _moving_average(values, window), color=_SERIES_COLOR, linewidth=2)
        axis.set_title(names[name], fontsize=10)
        axis.set_xlabel("step", fontsize=8)
    figure.tight_layout()
    return figure


def credit_weights_figure(records: Iterable[TrajectoryRecord]) -> Figure:
    """Two histograms: the weights w_it where guidance moved them, and the support d_it of accepted and rejected
    actions."""
    weights: list[float] = []
    accepted: list[float] = []
    rejected: list[float] = []
    for record in records:
        credit = record.credit
        if credit is None or credit.fallback:
            continue
        weights.extend(credit.weights)
        for turn, support in zip(record.trajectory.turns, credit.supports, strict=True):
            if support is not None:
                (accepted if turn.valid else rejected).append(support)
    figure, axes = _grid(2)
    axes[0].hist(weights, bins=40, color=_SERIES_COLOR)
    axes[0].set_title(f"Credit weights ({len(weights)} turns)", fontsize=10)
    axes[1].hist(
        [accepted, rejected],
        bins=40,
        color=[_SERIES_COLOR, _SECOND_COLOR],
        label=[f"accepted ({len(accepted)})", f"rejected ({len(rejected)})"],
        stacked=True,
    )
    axes[1].set_title("Support of executed actions", fontsize=10)
    axes[1].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def success_by_family(results: Mapping[str, EvaluationResult]) -> Figure:
    """Success rates with 95 % Wilson intervals, by family and overall, one group of bars for each result."""
    families = sorted({family for result in results.values() for family in result.families()})
    names = [*families, "all"]
    figure, axes = _grid(1, width=max(6.0, 1.1 * len(names)))
    axis = axes[0]
    bar = 0.8 / len(results)
    shades = [_SECOND_COLOR, _SERIES_COLOR, "#0f766e", "#b45309"]
    for k, (label, result) in enumerate(results.items()):
        rates = [result.families().get(family) for family in families] + [result.overall()]
        for position, rate in enumerate(rates):
            if rate is None or math.isnan(rate.value):
                continue
            axis.bar(
                position + (k - (len(results) - 1) / 2) * bar,
                rate.value,
                bar,
                yerr=[[max(0.0, rate.value - rate.low)], [max(0.0, rate.high - rate.value)]],
                color=shades[k % len(shades)],
                label=label if position == 0 else None,
                error_kw={"linewidth": 1, "ecolor": "#334155"},
            )
    axis.set_xticks(range(len(names)), names, fontsize=9)
    axis.set_ylim(0, 1)
    axis.set_ylabel("success", fontsize=9)
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def _grid(number: int, width: float = 4.2, height: float = 2.8, most: int = 3) -> tuple[Figure, list[Any]]:
    # A figure without pyplot: no global state, no window, works in threads and on servers.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    columns = min(most, max(1, number))
    rows = max(1, math.ceil(number / columns))
    figure = _figure_class()(figsize=(width * columns, height * rows), dpi=110)
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(number)]
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


@functools.cache
def _figure_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that IPython can show without `%matplotlib inline`, which needs pyplot."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure


def _moving_average(values: Sequence[float], window: int) -> list[float]:
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def credit_quality_figure(report: Mapping[str, Any]) -> Figure:
    """How well each method's credit agrees with the labels, with 95 % intervals.

    Args:
        report (`Mapping[str, Any]`):
            What `taspo credit` writes: [`~taspo_trl.truth.report.credit_report`].
    """
    kinds = list(report["labels"])
    names = list(report["methods"])
    figure, axes = _grid(2 * len(kinds), width=5.0, height=0.9 + 0.21 * len(names), most=2)
    for k, kind in enumerate(kinds):
        facts = report["labels"][kind]
        for column, measure in enumerate(("auc", "rank_correlation")):
            axis = axes[2 * k + column]
            for place, name in enumerate(names):
                value, low, high = report["methods"][name][kind]["all"][measure]
                if value is None or value >= 1:
                    continue  # credit that was made of the labels would squeeze the others
                color = _SECOND_COLOR if "@" in name or name == "grpo" else _SERIES_COLOR
                if low is not None and high is not None:
                    axis.plot([low, high], [place, place], color=color, linewidth=2)
                axis.plot([value], [place], "o", color=color, markersize=4)
            axis.axvline(0.5 if measure == "auc" else 0.0, color=_SECOND_COLOR, linewidth=1, linestyle=":")
            if measure == "rank_correlation" and 0 < (facts.get("ceiling_rank_correlation") or 1.0) < 1:
                axis.axvline(facts["ceiling_rank_correlation"], color=_SECOND_COLOR, linewidth=1, linestyle="--")
            axis.set_yticks(range(len(names)), names if column == 0 else [""] * len(names))
            axis.set_ylim(len(names) - 0.5, -0.5)
            axis.set_title(f"{'AUC' if measure == 'auc' else 'Rank correlation'} with {kind}")
    figure.tight_layout()
    return figure
