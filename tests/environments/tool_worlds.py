"""Classes written for TRL's `environment_factory`, as a TRL user would; nothing of this package is in them."""

from __future__ import annotations

import asyncio


class Counter:
    """Reach a number."""

    opened = closed = 0

    def __init__(self):
        type(self).opened += 1
        self._value = self._target = 0

    def reset(self, target: int, **kwargs) -> str:
        self._value, self._target = 0, target
        return f"\nAdd up to {target}."

    def add(self, amount: int) -> str:
        """
        Add to the counter.

        Args:
            amount: How much to add.

        Returns:
            The new value.
        """
        if amount <= 0:
            raise ValueError("only positive numbers")
        self._value += amount
        return f"The counter shows {self._value}."

    def say(self, text: str) -> str:
        """
        Say something.

        Args:
            text: What to say.

        Returns:
            What was said.
        """
        return f"You said: {text}"

    def get_reward(self) -> float:
        return float(self._value == self._target)

    def close(self) -> None:
        type(self).closed += 1


class VerifiedCounter(Counter):
    """Says itself whether it was solved; its reward is graded."""

    def get_reward(self) -> float:
        return 1.0 / (1 + abs(self._value - self._target))

    def _get_success(self) -> bool:
        return self._value == self._target


class AsyncCounter:
    """Tools and reward that must be awaited, all in one loop."""

    def reset(self, target: int, **kwargs) -> None:
        self._value, self._target, self._loops = 0, target, set()

    async def add(self, amount: int) -> int:
        """
        Add to the counter.

        Args:
            amount: How much to add.

        Returns:
            The new value.
        """
        self._loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        self._value += amount
        return self._value

    async def get_reward(self) -> float:
        self._loops.add(id(asyncio.get_running_loop()))
        return float(self._value == self._target and len(self._loops) == 1)


class Rewardless:
    """Has one tool and no reward."""

    def reset(self, **kwargs) -> str:
        return "hello"

    def look(self) -> str:
        """
        Look around.

        Returns:
            What there is to see.
        """
        return "nothing"


class Undocumented:
    """Its tool has no docstring, so it makes no schema."""

    def reset(self, **kwargs) -> str:
        return "hello"

    def look(self, where):
        return where
