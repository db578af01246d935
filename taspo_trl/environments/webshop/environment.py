"""WebShop as an environment: one visit to the shop is one episode.

The shop itself is shared by all instances of a process, so instances cost nothing and may step in parallel.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from ...tokens import ActionBlock
from ..base import ResetResult, StepResult, TextEnvironment
from ..examples import WorkedExample, builtin_examples, of_family
from . import prompts
from .goals import GOAL_SEED, PRICE_SEED, GoalKind
from .nouns import TaggerChoice, load_tagger
from .pages import SEARCH, ObservationMode
from .prompts import ReplyFormat
from .reward import OptionMatching
from .session import Session
from .shop import Shop, open_shop
from .splits import split_goals


class WebShopEnvironment(TextEnvironment):
    """Buys what an instruction asks for, with the actions `search[...]` and `click[...]`.

    Needs `pip install -e ".[webshop]"` in the clone. The reward at the end is the score of the purchase, between 0
    and 1; `info["success"]` is whether it is exactly 1. Rows come from [`WebShopEnvironment.dataset`], called with the
    same catalogue, kind of goals and seeds.

    Args:
        catalogue (`str` or `Path`, *optional*):
            An official products file, the folder that holds it, a folder built by
            `python -m taspo_trl.environments.webshop`, or `"embedded"` for the self-made catalogue. Defaults to the
            environment variable `TASPO_WEBSHOP_DATA`, else `"embedded"`.
        goals (`str`, *optional*, defaults to `"synthetic"`):
            `"synthetic"` or `"human"` instructions.
        observation_mode (`str`, *optional*, defaults to `"text"`):
            `"text"`: the page's texts joined by ` [SEP] `. `"text_rich"`: one line each, buttons marked.
        reply_format (`str`, *optional*, defaults to `"think"`):
            Whether the prompt asks for reasoning in `<think>` tags before the action, or for the `"action"` alone.
        option_matching (`str`, *optional*, defaults to `"original"`):
            `"mended"` repairs the original's comparison of options, see `docs/webshop.md`. Scores then differ from
            published ones.
        tagger (`str`, *optional*, defaults to `"auto"`):
            What finds the nouns of titles for the score: `"spacy"` as in the original, `"words"` (an approximation),
            or `"auto"`: spaCy where it is installed. `info["tagger"]` names it.
        price_seed (`int`, *optional*, defaults to `0`):
            Seed of the prices and price limits.
        goal_seed (`int`, *optional*, defaults to `233`):
            Seed of the order of goals.
    """

    history_length = 2
    max_turns = 15

    def __init__(
        self,
        catalogue: str | Path | None = None,
        goals: GoalKind = "synthetic",
        observation_mode: ObservationMode = "text",
        reply_format: ReplyFormat = "think",
        option_matching: OptionMatching = "original",
        tagger: TaggerChoice = "auto",
        price_seed: int = PRICE_SEED,
        goal_seed: int = GOAL_SEED,
    ):
        _check("observation_mode", observation_mode, ("text", "text_rich"))
        _check("option_matching", option_matching, ("original", "mended"))
        self.prompt = prompts.make_prompt(reply_format)
        self._shop_settings = (catalogue, goals, price_seed, goal_seed)
        self._observation_mode: ObservationMode = observation_mode
        self._option_matching: OptionMatching = option_matching
        self._tagger_choice: TaggerChoice = tagger
        self._session: Session | None = None

    @classmethod
    def dataset(  # type: ignore[override]  # the parameters are this environment's own
        cls,
        split: str = "train",
        *,
        catalogue: str | Path | None = None,
        goals: GoalKind = "synthetic",
        price_seed: int = PRICE_SEED,
        goal_seed: int = GOAL_SEED,
        limit: int | None = None,
    ):
        """One row for each goal of a split.

        Args:
            split (`str`, *optional*, defaults to `"train"`):
                `"train"`, `"eval"`, `"test"`, several joined by `+`, or `"test_128"`: the fixed manifest.
            catalogue (`str` or `Path`, *optional*):
                As in the constructor, like the three that follow.
            goals (`str`, *optional*, defaults to `"synthetic"`):
                Kind of goals.
            price_seed (`int`, *optional*, defaults to `0`):
                Seed of the prices and price limits.
            goal_seed (`int`, *optional*, defaults to `233`):
                Seed of the order of goals.
            limit (`int`, *optional*):
                Keep only the first rows.

        Returns:
            `datasets.Dataset`: columns `task_id`, `goal` (its number), `digest` (of the task's facts), `split`,
            `family` (the product's category) and `catalogue_id`.
        """
        from datasets import Dataset

        shop = open_shop(catalogue, goals, price_seed, goal_seed)
        numbers = islice(split_goals(split, shop.goals, shop.catalogue), limit)
        return Dataset.from_list([_row(shop, number, split) for number in numbers])

    def reset(  # type: ignore[override]  # the columns are this environment's own
        self, *, seed: int, goal: int, digest: str | None = None, catalogue_id: str | None = None, **row: Any
    ) -> ResetResult:
        """Open the search page for goal number `goal`; `digest` and `catalogue_id` guard against another task."""
        shop = open_shop(*self._shop_settings)
        if catalogue_id is not None and catalogue_id != shop.catalogue.identity:
            raise ConfigurationError(
                f"The row is for the catalogue {catalogue_id}, the environment has {shop.catalogue.identity}. Make "
                "both with the same `catalogue`."
            )
        session = Session(shop, goal, load_tagger(self._tagger_choice), self._option_matching, seed)
        if digest is not None and digest != session.goal.digest:
            raise ConfigurationError(
                f"Goal {goal} is another task here than in the row ({session.goal.digest} instead of {digest}). Make "
                "dataset and environment with the same `goals`, `price_seed` and `goal_seed`."
            )
        self._session = session
        return ResetResult(
            session.observation(self._observation_mode),
            {"task": session.goal.instruction, "family": session.goal.category, **self._choices(session)},
        )

    def step(self, action: str) -> StepResult:
        session = self._session
        if session is None:
            raise ConfigurationError("`step` was called before `reset`.")
        was_over = session.score is not None
        outcome = session.act(action)
        info: dict[str, Any] = {"valid": outcome.valid, **self._choices(session)}
        if session.score is not None:
            info |= {
                "success": session.score.success,
                "score": session.score.value,
                "score_parts": session.score.parts(),
                "tagger": session.tagger.name,
            }
        return StepResult(
            observation=session.observation(self._observation_mode),
            reward=session.score.value if session.score is not None and not was_over else 0.0,
            terminated=session.score is not None,
            truncated=False,
            info=info,
        )

    def close(self) -> None:
        self._session = None

    def action_of(self, block: ActionBlock) -> str:
        """The block's text in lower case: the shop knows its two actions by their lower-case names only."""
        return block.content.strip().lower()

    def generic_skill(self, family: str) -> str:
        return prompts.generic_skill(family)

    def worked_examples(self, family: str) -> tuple[WorkedExample, ...]:
        """Purchases from the self-made catalogue, those of the product's category first."""
        return of_family(builtin_examples("webshop"), family)

    @staticmethod
    def _choices(session: Session) -> dict[str, Any]:
        """What may be done now, as prompts show it and in the original's form."""
        clickables = list(session.clickables)
        clicks = [f"click[{value}]" for value in clickables if value != SEARCH.lower()]
        has_search_bar = session.page.has_search_bar
        return {
            "admissible_actions": (["search[<your keywords>]"] if has_search_bar else []) + clicks,
            "available": {"has_search_bar": has_search_bar, "clickables": clickables},
        }


def _row(shop: Shop, number: int, split: str) -> dict[str, Any]:
    goal = shop.goals[number]
    return {
        "task_id": f"{shop.catalogue.identity}-{shop.goals.kind}-{shop.goals.goal_seed}-{number}",
        "goal": number,
        "digest": goal.digest,
        "split": split,
        "family": goal.category,
        "catalogue_id": shop.catalogue.identity,
    }


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"`{name}` must be {' or '.join(map(repr, allowed))}, got {value!r}.")
