"""What the installed `alfworld` package says about every game: domain, grammar, goals, and the wording of commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Language:
    """The texts that the self-made games share with the official ones."""

    domain: str
    grammar: str
    goals: Mapping[str, Mapping[str, Any]]
    """Task type -> its goal (`pddl`) and the sentences that ask for it (`templates`)."""

    def command(self, action: str, **names: str) -> str:
        """The wording of `action` in this version of the grammar ("move X to Y", or "put X in/on Y")."""
        match = re.search(rf'^action {action} \{{\s*template :: "(.*?)";', self.grammar, re.MULTILINE)
        if match is None:
            raise ValueError(f"The grammar of the installed `alfworld` has no template for the action {action}.")
        return match.group(1).format(**names)
