"""What is left of a game's walkthrough, as far as it is exact.

Pure. A game file holds one plan from its start. It still holds after its own first commands, in their order, and after
commands that change nothing; after any other nothing is known, since the engine is loaded without its planner.
"""

from __future__ import annotations

from collections.abc import Sequence


_IDLE = ("look", "inventory", "help")


def rest_of_walkthrough(walkthrough: Sequence[str], actions: Sequence[str]) -> list[str] | None:
    """The commands that remain after the accepted `actions`; None where it is not known to hold any longer."""
    if not walkthrough:
        return None
    done = 0
    for action in actions:
        command = " ".join(action.lower().split())
        if done < len(walkthrough) and command == walkthrough[done]:
            done += 1
        elif command not in _IDLE and not command.startswith("examine "):
            return None
    return list(walkthrough[done:])
