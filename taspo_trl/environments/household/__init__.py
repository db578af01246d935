"""The embedded default world: a household in text, made of plain Python, without downloads or an engine."""

from .catalogue import FAMILIES, PRESETS
from .environment import HouseholdEnvironment
from .oracle import plan, solve
from .searching import SearchingOracle
from .tasks import SPLITS
from .wording import phrase_pattern, phrases


__all__ = [
    "FAMILIES",
    "PRESETS",
    "SPLITS",
    "HouseholdEnvironment",
    "SearchingOracle",
    "phrase_pattern",
    "phrases",
    "plan",
    "solve",
]
