"""TRL's sampler of whole groups, made resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """TRL's `RepeatSampler` with a permutation that depends on (seed, epoch) alone.

    TRL draws one permutation after the other from a generator, so that a run resumed in its third epoch would start
    with the first permutation. The first epoch is the same as TRL's.

    Args:
        sampler ([`~trl.trainer.utils.RepeatSampler`]):
            What TRL made.
        epoch (`Callable`):
            The epoch that is about to be drawn, from 0.
    """

    def __init__(self, sampler: RepeatSampler, epoch: Callable[[], int]):
        self.__dict__.update(sampler.__dict__)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed + self._epoch())
        return super().__iter__()
