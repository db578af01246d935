"""The files of finished runs: one JSON for each, whole or absent, and what is measured in them."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taspo_trl.errors import ConfigurationError
from taspo_trl.files import write_text

from .plan import Choice, Run


ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "study"
CHOICE = "choice.json"
FAILED = "failed"
VERSION = 1
_LAST = 20  # updates


def code_hash(root: Path = ROOT) -> str:
    """16 hex digits over the package's sources without comments and docstrings, and over what plays a run."""
    digest = hashlib.blake2b(digest_size=8)
    files = [*sorted((root / "taspo_trl").rglob("*.py")), root / "benchmarks" / "study" / "play.py"]
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):  # texts that stand alone do nothing
                node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
        digest.update(f"{path.relative_to(root)}\n{ast.dump(tree)}".encode())
    return digest.hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def facts() -> dict[str, Any]:
    """What else a run depends on."""
    import torch
    import transformers
    import trl

    from ..common import machine_facts

    named = ("processor", "cores", "memory_gb")
    return {
        "machine": {name: value for name, value in machine_facts().items() if name in named},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "trl": trl.__version__,
        },
    }


@dataclass(frozen=True)
class Finished:
    """What a run's file holds."""

    path: Path
    data: Mapping[str, Any]

    @property
    def stage(self) -> str:
        return self.data["stage"]

    @property
    def setting(self) -> str:
        return self.data["configuration"]["setting"]["name"]

    @property
    def method(self) -> str:
        return self.data["configuration"]["method"]["name"]

    @property
    def seed(self) -> int:
        return self.data["configuration"]["seed"]

    @property
    def updates(self) -> int:
        return self.data["configuration"]["updates"]

    @property
    def total_seconds(self) -> float:
        return self.data["total_seconds"]

    def curve(self, name: str) -> list[float]:
        """A logged name for each update; NaN where nothing was logged."""
        return [math.nan if one is None else one for one in self.data["curves"].get(name, ())]

    def outcomes(self, evaluation: str) -> dict[str, list[tuple[str, float]]]:
        """Split -> (family, success) of each task in order; NaN where the play failed for reasons of its own."""
        return {
            split: [
                (one["families"][int(family, 16)], math.nan if success == "-" else float(success))
                for family, success in zip(one["family"], one["success"], strict=True)
            ]
            for split, one in self.data["evaluations"][evaluation].items()
        }

    def measure(self, name: str, updates: int | None = None) -> float:
        """A number of this run; NaN where it has none.

        Args:
            name (`str`):
                `"sampled"`, `"greedy"` (macro over families), `"area"` (mean training success over the updates),
                `"late"` (the same of the last 20), `"turns_success"`, `"entropy"` (of the last 20) or
                `"unseen_minus_seen"` (sampled, macro).
            updates (`int`, *optional*):
                After so many updates; all by default.
        """
        last = self.updates if updates is None or self.updates == 0 else updates
        if name == "area":
            return _mean(self.curve("success")[:last])
        if name == "late":
            return _mean(self.curve("success")[:last][-_LAST:])
        if name == "entropy":
            return _mean(self.curve("entropy")[:last][-_LAST:])
        kind = "greedy" if name == "greedy" else "sampled"
        evaluation = f"{kind}@{last}"
        if evaluation not in self.data["evaluations"]:
            return math.nan
        if name == "turns_success":
            parts = self.data["evaluations"][evaluation].values()
            return _mean(
                [
                    turns
                    for one in parts
                    for turns, success in zip(one["turns"], one["success"], strict=True)
                    if success == "1"
                ]
            )
        splits = self.outcomes(evaluation)
        if name == "unseen_minus_seen":
            return macro(splits["valid_unseen"]) - macro(splits["valid_seen"])
        if name not in ("sampled", "greedy"):
            raise ValueError(f"No measure is called {name!r}.")
        return macro([play for plays in splits.values() for play in plays])

    def families(self) -> dict[str, float]:
        """Sampled success of each family after the last update, both splits together."""
        found: dict[str, list[float]] = defaultdict(list)
        for plays in self.outcomes(f"sampled@{self.updates}").values():
            for family, success in plays:
                found[family].append(success)
        return {family: _mean(found[family]) for family in sorted(found)}


def macro(plays: Sequence[tuple[str, float]]) -> float:
    """The mean of the families' rates."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for family, success in plays:
        by_family[family].append(success)
    return _mean([_mean(by_family[family]) for family in sorted(by_family)])


def _mean(values: Sequence[float]) -> float:
    known = [one for one in values if not math.isnan(one)]
    return math.fsum(known) / len(known) if known else math.nan


class Store:
    """The folder of results.

    Args:
        folder (`Path`):
            Where files are read and written.
    """

    def __init__(self, folder: Path = RESULTS):
        self.folder = folder

    def has(self, run: Run) -> bool:
        return (self.folder / run.path).exists()

    def write(self, run: Run, data: Mapping[str, Any]) -> None:
        whole = {"version": VERSION, "stage": run.stage, "configuration": run.configuration, **data}
        write_text(self.folder / run.path, json.dumps(whole, separators=(",", ":")) + "\n")

    def write_failure(self, run: Run, data: Mapping[str, Any]) -> None:
        """Failures are listed, never overwritten."""
        flat = "--".join([run.stage, run.setting, run.method, f"seed-{run.seed:03d}"])
        number = 1 + len(list((self.folder / FAILED).glob(f"{flat}--*.json")))
        whole = {"configuration": run.configuration, **data}
        write_text(self.folder / FAILED / f"{flat}--{number}.json", json.dumps(whole) + "\n")

    def failures(self) -> list[Mapping[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / FAILED).glob("*.json"))]

    def finished(self, stage: str) -> list[Finished]:
        """The files of a stage in the order of their names.

        Raises:
            ConfigurationError: a file is no run of this version.
        """
        return list(self._read(stage))

    def choice(self) -> Choice | None:
        """What the ceiling chose; None before that."""
        path = self.folder / CHOICE
        if not path.exists():
            return None
        data = json.loads(path.read_text())
        return Choice(data["setting"], data["updates"], data["primary"])

    def write_choice(self, choice: Choice, evidence: Mapping[str, Any]) -> None:
        values = {"setting": choice.setting, "updates": choice.updates, "primary": choice.primary, **evidence}
        write_text(self.folder / CHOICE, json.dumps(values, indent=1) + "\n")

    def check(self, stage: str, plan_hash: str, code: str, any_code: bool = False) -> None:
        """Refuse to mix what was made under another plan or by other code.

        Raises:
            ConfigurationError: a file of the stage carries another hash of the plan, or of the code unless `any_code`.
        """
        for one in self.finished(stage):
            if one.data["plan"] != plan_hash:
                raise ConfigurationError(
                    f"{one.path} was made under the plan {one.data['plan']}; the plan of this stage is {plan_hash} "
                    "now. Take the change of the plan back, or move the folder's files away and start anew: runs of "
                    "two plans are no comparison."
                )
            if one.data["code"] != code and not any_code:
                raise ConfigurationError(
                    f"{one.path} was made by the code {one.data['code']}, and it is {code} now. Go back to that "
                    "version, or give --any-code if the change cannot alter a run: the tables will say so."
                )

    def _read(self, stage: str) -> Iterator[Finished]:
        for path in sorted((self.folder / stage).glob("*/*/seed-*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.get("version") != VERSION:
                raise ConfigurationError(f"{path} is no run of version {VERSION}, got {data.get('version')!r}.")
            yield Finished(path, data)
