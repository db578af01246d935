"""The written plan: what each stage runs, in which order, and the hash that its files carry."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taspo_trl.errors import ConfigurationError


PLAN = Path(__file__).parent / "plan.toml"
TIERS = ("tier1", "tier2", "tier3")
PARTS = ("ceiling", *TIERS)
CHOSEN = "chosen"
MEASURES = {
    "sampled": "sampled success on the held-out tasks, macro over families",
    "area": "mean training success over all updates (area under the learning curve)",
}
"""Primary measures that a ceiling may choose between."""


@dataclass(frozen=True)
class Choice:
    """The setting and the primary measure that the ceiling's rule took."""

    setting: str
    updates: int
    primary: str


@dataclass(frozen=True)
class Run:
    """One training run: plain data in, one file out."""

    stage: str
    """`"ceiling"` or `"tiers"`."""
    setting: str
    method: str
    seed: int
    configuration: Mapping[str, Any]
    """All that decides it but the code: setting, method, seed, updates, training, evaluation."""
    seconds: float
    """What it may take, before one like it has been timed."""

    @property
    def path(self) -> Path:
        """Its file, below the folder of results."""
        return Path(self.stage, self.setting, self.method, f"seed-{self.seed:03d}.json")

    def __str__(self) -> str:
        return f"{self.setting} {self.method} seed {self.seed}"


class Plan:
    """The plan as its file says it.

    Args:
        values (`Mapping`):
            The file's content.

    Raises:
        ConfigurationError: it names a setting, method or measure that it does not define, or a method under test in
            the ceiling.
    """

    def __init__(self, values: Mapping[str, Any]):
        self.values = values
        self._check()

    @classmethod
    def read(cls, path: str | Path = PLAN) -> Plan:
        return cls(tomllib.loads(Path(path).read_text(encoding="utf-8")))

    @property
    def ceiling(self) -> Mapping[str, Any]:
        return self.values["ceiling"]

    @property
    def tiers(self) -> Mapping[str, Any]:
        return self.values["tiers"]

    def hash(self, stage: str, choice: Choice | None = None) -> str:
        """16 hex digits over everything that the runs of a stage and their analysis depend on."""
        used = ["training", "evaluation", stage]
        names = self._methods_of(stage)
        settings = self.ceiling["settings"] if stage == "ceiling" else [choice.setting] if choice else []
        content = {
            **{name: self.values[name] for name in used},
            "methods": {name: self.values["methods"][name] for name in names},
            # A guess of seconds decides nothing.
            "settings": {
                name: {k: v for k, v in self.values["settings"][name].items() if k != "seconds"} for name in settings
            },
        }
        if stage == "tiers":
            content["choice"] = None if choice is None else [choice.setting, choice.updates, choice.primary]
        written = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(written.encode(), digest_size=8).hexdigest()

    def runs(self, part: str, choice: Choice | None = None, first_methods: int | None = None) -> list[Run]:
        """The runs of a part by seed, then setting, then method: wherever it stops, all methods have equal seeds.

        Args:
            part (`str`):
                One of [`PARTS`].
            choice (`Choice`, *optional*):
                Where a tier's setting is "chosen".
            first_methods (`int`, *optional*):
                Only so many methods of the part, where hours are short: never fewer seeds.

        Raises:
            ConfigurationError: a tier without its choice.
        """
        is_ceiling = part == "ceiling"
        table = self.ceiling if is_ceiling else self.tiers[part]
        if not is_ceiling and choice is None:
            raise ConfigurationError(
                f"The setting of {part} is the one that the ceiling chooses, and no choice stands yet. Run the "
                "ceiling to its end: make study"
            )
        settings = self.ceiling["settings"] if choice is None or is_ceiling else [choice.setting]
        return [
            self._run("ceiling" if is_ceiling else "tiers", setting, method, seed, choice)
            for seed in table["seeds"]
            for setting in settings
            for method in table["methods"][:first_methods]
        ]

    def trial(self, setting: str, method: str) -> Mapping[str, Any]:
        """The configuration of one small update with a method: it tells whether a run would begin."""
        whole = self._run("ceiling", setting, method, 0, None).configuration
        return {
            **whole,
            "updates": min(1, whole["updates"]),
            "checkpoints": [],
            "training": {**whole["training"], "tasks_per_update": 2},
            "evaluation": {**whole["evaluation"], "tasks": 6, "greedy_tasks": 6},
        }

    def planned_seeds(self, method: str) -> tuple[int, ...]:
        """The seeds that the tiers plan for a method, those of the first tier that names it."""
        for tier in TIERS:
            if method in self.tiers[tier]["methods"]:
                return tuple(self.tiers[tier]["seeds"])
        return ()

    def standin(self, *methods: str) -> str:
        """What stands in the place of a paper's part in these methods."""
        found = (self.values["methods"].get(name, {}).get("standin", "") for name in methods)
        return "; ".join(dict.fromkeys(one for one in found if one))

    def _run(self, stage: str, setting: str, method: str, seed: int, choice: Choice | None) -> Run:
        world = dict(self.values["settings"][setting])
        seconds, updates = world.pop("seconds"), world.pop("updates")
        checkpoints = [one for one in self.ceiling["checkpoints"] if one < updates]
        if stage == "tiers" and choice is not None:
            seconds, updates, checkpoints = seconds * choice.updates / updates, choice.updates, []
        fields = {k: v for k, v in self.values["methods"][method].items() if k != "standin"}
        updates = fields.pop("updates", updates)
        configuration = {
            "setting": {"name": setting, **world},
            "method": {"name": method, **fields},
            "seed": seed,
            "updates": updates,
            "checkpoints": checkpoints,
            "training": self.values["training"],
            "evaluation": self.values["evaluation"],
        }
        return Run(stage, setting, method, seed, configuration, float(seconds))

    def _methods_of(self, stage: str) -> list[str]:
        tables = [self.ceiling] if stage == "ceiling" else [self.tiers[tier] for tier in TIERS]
        return sorted({name for table in tables for name in table["methods"]})

    def _check(self) -> None:
        rule = self.ceiling["rule"]
        named = [
            ("setting", [*self.ceiling["settings"], rule["otherwise"]["setting"]], self.values["settings"]),
            ("method", [*self._methods_of("ceiling"), *self._methods_of("tiers")], self.values["methods"]),
            ("method", [one for pair in self.tiers["confirmatory"] for one in pair], self.values["methods"]),
            ("method", [*rule["oracles"], *self.tiers["ceiling"]], self.values["methods"]),
            ("method", [one for row in self.values["orderings"] for one in row["order"]], self.values["methods"]),
            ("measure", [*self.ceiling["measures"], rule["otherwise"]["primary"]], MEASURES),
        ]
        for kind, names, known in named:
            unknown = _unknown(names, known)
            if unknown:
                raise ConfigurationError(f"The plan names a {kind} that it does not define: {', '.join(unknown)}.")
        tested = [
            name
            for name in self._methods_of("ceiling")
            if self.values["methods"][name]["method"] not in ("grpo", "oracle", "placebo")
        ]
        if tested:
            raise ConfigurationError(
                f"The ceiling trains {', '.join(tested)}: a setting that is chosen by a method under test favours it. "
                "Leave GRPO, the oracle and the placebo."
            )
        if self.tiers["setting"] != CHOSEN:
            raise ConfigurationError(f"The tiers' setting must be {CHOSEN!r}: the ceiling's rule decides it.")


def _unknown(names: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    return sorted(set(names) - set(known))
