"""Environment classes of the shapes that TRL's examples have, written for TRL; nothing of this package is in them."""

from __future__ import annotations

import random


class Slides:
    """A board of four cells like 2048's: equal neighbours merge, a full board ends the game."""

    def reset(self, seed: int | None = None, goal: int = 8, **kwargs) -> str:
        self._random, self._goal, self._done = random.Random(seed), goal, False
        self._cells = [0, 0, 0, 0]
        self._cells[self._random.randrange(4)] = 2
        return self._shown()

    def move(self, direction: str) -> str:
        """
        Slide all numbers.

        Args:
            direction: "left" or "right".

        Returns:
            The board after the move.
        """
        if self._done:
            raise ValueError("The game is over.")
        if direction not in ("left", "right"):
            raise ValueError(f"There is no direction {direction!r}.")
        numbers = [one for one in self._cells if one][:: 1 if direction == "left" else -1]
        merged: list[int] = []
        for one in numbers:
            if merged and merged[-1] == one:
                merged[-1] *= 2
            else:
                merged.append(one)
        row = (merged + [0] * 4)[:4]
        self._cells = row if direction == "left" else row[::-1]
        empty = [k for k, one in enumerate(self._cells) if not one]
        self._cells[self._random.choice(empty)] = 2
        self._done = max(self._cells) >= self._goal or len(empty) == 1
        return self._shown()

    def _shown(self) -> str:
        return " ".join(str(one or ".") for one in self._cells)

    def get_reward(self) -> float:
        return min(1.0, max(self._cells) / self._goal)


class Grid:
    """Sudoku of two by two: a number stands once in each row and column, and given cells are fixed."""

    def reset(self, givens: list[int], **kwargs) -> str:
        self._cells, self._fixed, self.reward = list(givens), [bool(one) for one in givens], 0.0
        return f"The grid: {self._cells}"

    def place(self, row: int, column: int, value: int) -> str:
        """
        Write a number into a cell.

        Args:
            row: 1 or 2.
            column: 1 or 2.
            value: 1 or 2.

        Returns:
            The grid.
        """
        k = 2 * (row - 1) + column - 1
        if self._fixed[k]:
            raise ValueError(f"Row {row}, column {column} is given.")
        self._cells[k] = value
        self.reward = float(self._cells in ([1, 2, 2, 1], [2, 1, 1, 2]))
        return f"The grid: {self._cells}"


class Stepper:
    """Its one tool is named `step`, as in TRL's first examples."""

    def reset(self, **kwargs) -> None:
        self._heard = ""

    def step(self, message: str) -> str:
        """
        Say something.

        Args:
            message: What to say.

        Returns:
            The same, as an echo.
        """
        self._heard = message
        return message.upper()

    def get_reward(self) -> float:
        return float(self._heard == "hello")


class Both:
    """Two games behind one class; a column says which is played, and the tools of the other one refuse."""

    def __init__(self):
        self.game, self._slides, self._grid = "", Slides(), Grid()

    def reset(self, game: str, **kwargs) -> str:
        self.game = game
        return self._slides.reset(seed=0, goal=4) if game == "slides" else self._grid.reset([1, 0, 2, 1])

    def move(self, direction: str) -> str:
        """
        Slide all numbers.

        Args:
            direction: "left" or "right".

        Returns:
            The board after the move.
        """
        if self.game != "slides":
            raise ValueError("There is nothing to slide here.")
        return self._slides.move(direction)

    def place(self, row: int, column: int, value: int) -> str:
        """
        Write a number into a cell.

        Args:
            row: 1 or 2.
            column: 1 or 2.
            value: 1 or 2.

        Returns:
            The grid.
        """
        if self.game != "grid":
            raise ValueError("There is no grid here.")
        return self._grid.place(row, column, value)


def slides_reward(environments, **kwargs) -> list[float | None]:
    return [one._slides.get_reward() if one.game == "slides" else None for one in environments]


def grid_reward(environments, **kwargs) -> list[float | None]:
    return [one._grid.reward if one.game == "grid" else None for one in environments]
