"""The score of a purchase: how well a product with chosen options fits a goal, between 0 and 1.

    score = type * (matched attributes + matched options + price within limit) / (attributes + options + 1)

with the goal's numbers of attributes and options below the line. Pure, but for the tagger that is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ._extra import require
from .goals import Goal
from .nouns import Tagger
from .products import Product


OptionMatching = Literal["original", "mended"]

_MIN_SIMILARITY = 85
_LEVELS = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"

# The colour words of the original, in its order: of several words in an option the first of this list stands for it.
_COLOR_LIST = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo "
    "caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream "
    "crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather "
    "indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha "
    "multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal "
    "rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise "
    "violet walnut wheat white wine yellow"
)
_COLORS = tuple(_COLOR_LIST.split())


@dataclass(frozen=True, slots=True)
class TypeMatch:
    """Whether the purchase is the kind of thing that was asked for."""

    reward: float
    query_match: bool
    category_match: bool
    title_score: float


@dataclass(frozen=True, slots=True)
class Score:
    """A purchase's score and what it is made of."""

    value: float
    type_match: TypeMatch
    num_attributes: int
    num_attribute_matches: int
    num_options: int
    num_option_matches: int
    price_match: bool

    @property
    def success(self) -> bool:
        return self.value == 1.0

    def parts(self) -> dict[str, float | bool]:
        """The sub-scores under the original's names. Those of options are absent for a goal without options."""
        total = self.num_attributes + self.num_options + 1
        parts: dict[str, float | bool] = {
            "r_type": self.type_match.reward,
            "r_att": self.num_attribute_matches / self.num_attributes,
            "w_att": self.num_attributes / total,
            "query_match": self.type_match.query_match,
            "category_match": self.type_match.category_match,
            "title_score": self.type_match.title_score,
        }
        if self.num_options:
            parts |= {"r_option": self.num_option_matches / self.num_options, "w_option": self.num_options / total}
        return parts | {"r_price": self.price_match, "w_price": 1 / total}


def score_purchase(
    product: Product,
    chosen: Mapping[str, str],
    price: float,
    goal: Goal,
    *,
    tagger: Tagger,
    option_matching: OptionMatching = "original",
) -> Score:
    """Score a purchase.

    Args:
        product (`Product`):
            What was bought.
        chosen (`Mapping[str, str]`):
            Option name -> chosen value. Options may be left unchosen.
        price (`float`):
            What the product costs.
        goal (`Goal`):
            What was asked for.
        tagger (`Tagger`):
            Finds the nouns of titles.
        option_matching (`str`, *optional*, defaults to `"original"`):
            `"original"` compares a chosen value with the pair (name, value) of a synthetic goal, as the original does.
            Where the chosen value is replaced by a colour word and the pair is not, even the right choice does not
            match: 6.6 % of the goals of the 1,000-product catalogue cannot reach 1.0. `"mended"` compares it with the
            value.
    """
    type_match = match_type(product, goal, tagger)
    attribute_matches = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    option_matches = count_option_matches(tuple(chosen.values()), _wanted_options(goal, option_matching))
    price_match = price <= goal.price_limit
    matched = attribute_matches + option_matches + price_match
    return Score(
        value=type_match.reward * (matched / (len(goal.attributes) + len(goal.options) + 1)),
        type_match=type_match,
        num_attributes=len(goal.attributes),
        num_attribute_matches=attribute_matches,
        num_options=len(goal.options),
        num_option_matches=option_matches,
        price_match=price_match,
    )


def match_type(product: Product, goal: Goal, tagger: Tagger) -> TypeMatch:
    """Compare query, department path and the nouns of the titles."""
    query_match = product.query == goal.query
    category_match = len(_departments(product.product_category) & _departments(goal.product_category)) >= 2
    wanted = tagger.nouns(goal.title)
    shared = set(tagger.nouns(product.title)) & set(wanted)
    title_score = len(shared) / len(wanted) if wanted else 0.2
    if title_score == 0.0:
        reward = 0.0
    elif title_score < 0.1:
        reward = 0.1
    elif query_match or category_match or title_score > 0.2:
        reward = 1.0
    else:
        reward = 0.5
    return TypeMatch(reward, query_match, category_match, title_score)


def _departments(path: str) -> set[str]:
    return {level.strip() for level in path.split(_LEVELS)}


def _is_similar(left: Any, right: Any) -> bool:
    return require("thefuzz.fuzz").token_set_ratio(left, right) > _MIN_SIMILARITY


def _has_attribute(product: Product, attribute: str) -> bool:
    """Whether an attribute is like one of the product's, or stands word for word in its texts."""
    return any(_is_similar(own, attribute) for own in product.attributes) or any(
        attribute in text.lower() for text in (product.title, " ".join(product.features), product.description)
    )


def _wanted_options(goal: Goal, option_matching: OptionMatching) -> tuple[Any, ...]:
    if option_matching == "original" and isinstance(goal.options, Mapping):
        return tuple(goal.options.items())
    return goal.option_values


def count_option_matches(chosen: tuple[str, ...], wanted: tuple[Any, ...]) -> int:
    """How many wanted options are like a chosen one; colours are reduced to their plain word first."""
    colors = [plain_color(value) for value in chosen]
    return sum(any(_is_similar(color, plain_color(want)) for color in colors) for want in wanted)


def plain_color(option: Any) -> Any:
    """The first colour word within an option, else the option itself.

    Within means inside the text for a value, and equal to an element for a (name, value) pair.
    """
    return next((color for color in _COLORS if color in option), option)
