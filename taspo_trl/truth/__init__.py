"""What turns were really worth, where a world can be asked, and how near a method's credit comes to it.

No method sees any of this.
"""

from .measures import Agreement, Labelled, agreement, difference, reliability
from .progress import Labels, progress_labels
from .values import TurnValues, play_values


__all__ = [
    "Agreement",
    "Labelled",
    "Labels",
    "TurnValues",
    "agreement",
    "difference",
    "play_values",
    "progress_labels",
    "reliability",
]
