"""The study's figures, from the files alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .comparisons import Comparisons


if TYPE_CHECKING:
    from matplotlib.figure import Figure


_INK, _BLUE, _GREY = "#334155", "#2563eb", "#94a3b8"
_WINDOW = 5  # updates: single batches of 8 tasks swing by 0.1


def draw(made: Comparisons, credit_quality: Path, folder: Path) -> list[str]:
    """Write the figures that the files allow as SVG; gives their names."""
    found = {"study_gains": gains(made), "study_curves": curves(made)}
    quality = made.credit_quality(credit_quality)
    if quality:
        found["study_credit"] = credit(quality)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in found.items():
        # Neither a date nor random names: the same files give the same picture.
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    return list(found)


def gains(made: Comparisons) -> Figure:
    """Each method's difference to GRPO with its interval; hollow where seeds are missing."""
    compared = [made.difference(method, "grpo") for method in made.methods if method not in ("grpo", "vanilla")]
    figure, axes = _axes(6.4, 1.2 + 0.28 * len(compared))
    for row, one in enumerate(compared):
        _point(axes, one.estimate.value, row, one.estimate, None, filled=one.is_complete)
    axes.axvline(0, color=_GREY, lw=0.8)
    names = [one.first if one.is_complete else f"{one.first} ({len(one.differences)} seeds)" for one in compared]
    axes.set_yticks(range(len(compared)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"{made.choice.primary}: minus GRPO, paired by seed, 95 % interval")
    return figure


def curves(made: Comparisons) -> Figure:
    """Training success over updates: mean over seeds of a moving average."""
    import numpy as np

    figure, axes = _axes(6.4, 4.0)
    shown = [name for name in ("grpo", "taspo", *made.plan.tiers["ceiling"]) if name in made.methods]
    for method, color in zip(shown, (_GREY, _BLUE, "#16a34a", "#ca8a04"), strict=False):
        runs = [run.curve("success") for (name, _), run in made.runs.items() if name == method]
        mean = np.nanmean(np.asarray(runs), axis=0)
        window = min(_WINDOW, len(mean))
        smooth = np.convolve(mean, np.ones(window) / window, mode="valid")
        axes.plot(range(window, len(mean) + 1), smooth, color=color, label=f"{method} ({len(runs)} seeds)")
    axes.set_xlabel(f"update (moving average of {_WINDOW})")
    axes.set_ylabel("success in training")
    axes.legend(frameon=False)
    return figure


def credit(points: list[dict[str, Any]]) -> Figure:
    """Quality of the credit against what was learned with it."""
    figure, axes = _axes(6.4, 4.0)
    for one in points:
        if math.isnan(one["auc"].value):
            continue
        _point(axes, one["auc"].value, one["gain"].value, one["auc"], one["gain"], not one["seeds"].startswith("INC"))
        place = (one["auc"].value, one["gain"].value)
        axes.annotate(one["method"], place, xytext=(5, 5), textcoords="offset points", fontsize=8, color=_INK)
    axes.axhline(0, color=_GREY, lw=0.8)
    axes.margins(x=0.15)  # room for the last name
    axes.set_xlabel("AUC of the credit against the oracle's progress, before training")
    axes.set_ylabel("gain over GRPO")
    return figure


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "study"
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _point(axes: Any, x: float, y: float, across: Any, up: Any, filled: bool) -> None:
    if across is not None and not math.isnan(across.low):
        axes.plot([across.low, across.high], [y, y], color=_BLUE, lw=1)
    if up is not None and not math.isnan(up.low):
        axes.plot([x, x], [up.low, up.high], color=_BLUE, lw=1)
    axes.plot([x], [y], "o", color=_BLUE, markerfacecolor=_BLUE if filled else "white", ms=5)
