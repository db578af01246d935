"""How the shop is put to a policy: the prompt for each reply format, and general advice for the comparison runs."""

from __future__ import annotations

from typing import Literal

from ...errors import ConfigurationError
from ..base import PromptTemplate


ReplyFormat = Literal["think", "action"]

_ROLE = (
    "You are shopping in WebShop, an online store that you use through text. You buy one product that meets the "
    "instruction as closely as possible.\n\nInstruction: {task}\n"
)

_FIRST = "\nThe page you see:\n{observation}\n"
_LATER = (
    "\nYou have taken {num_turns} turn(s) so far. The latest pages with your actions, oldest first:\n{history}\n"
    "\nThis is turn {turn}. The page you see now:\n{observation}\n"
)

_ACTIONS = (
    "\nPossible actions:\n[\n{admissible_actions}\n]\n\n"
    "`search[keywords]` looks for products. `click[value]` presses a button, opens a product by its id or chooses an "
    "option. Choose every option that the instruction asks for before you click `buy now`; that ends the visit.\n"
)

_ENDINGS: dict[ReplyFormat, str] = {
    "think": (
        "\nFirst think step by step about the page and the instruction, between <think> and </think>. Then give "
        "exactly one of the possible actions between <action> and </action>."
    ),
    "action": "\nAnswer with exactly one of the possible actions between <action> and </action>, and nothing else.",
}

_ADVICE = (
    "Search with the kind of product and its two or three most telling properties, leave out options, price and "
    "politeness. Compare titles and prices on the results before opening anything; a product above the price limit is "
    "never right. On a product's page check `features` and `description` for the wanted properties and go back when "
    "they are missing. Click one value for each option that the instruction names, exactly as it is written on the "
    "page, then click `buy now` while turns are left: a near match scores, an unfinished visit scores nothing."
)

_FAMILY_ADVICE = {
    "beauty": "Look for ingredients and skin or hair type in the features; size and scent are options.",
    "electronics": "Mind which device or port the product fits; length, capacity and colour are options.",
    "fashion": "Mind whom it is made for; colour, size and fit are separate options and all of them count.",
    "garden": "Mind room, material and measurements; the size on offer must be the one that was asked for.",
    "grocery": "Mind dietary words such as gluten free or low sugar; flavour and pack size are options.",
}


def make_prompt(reply_format: ReplyFormat) -> PromptTemplate:
    """The prompt for replies with reasoning (`"think"`) or with the action alone (`"action"`)."""
    if reply_format not in _ENDINGS:
        raise ConfigurationError(f"`reply_format` must be 'think' or 'action', got {reply_format!r}.")
    ending = _ACTIONS + _ENDINGS[reply_format]
    return PromptTemplate(
        first=_ROLE + _FIRST + ending,
        later=_ROLE + _LATER + ending,
        reply="The page you see now:\n{observation}\n\nPossible actions:\n[\n{admissible_actions}\n]",
        history_item="Page: {observation}\nYour action: {action}",
        admissible_item="'{action}'",
        admissible_separator=",\n",
    )


def generic_skill(family: str) -> str:
    """Advice that helps in any visit, with a line for the product category where there is one."""
    return " ".join(filter(None, (_ADVICE, _FAMILY_ADVICE.get(family, ""))))
