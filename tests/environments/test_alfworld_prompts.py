"""The prompt and the general advice. No engine needed."""

import re

import pytest

from taspo_trl.environments.alfworld import FAMILIES, ALFWorldEnvironment
from taspo_trl.environments.alfworld.prompts import REPLY_FORMATS, prompt_template
from taspo_trl.errors import ConfigurationError


PLACEHOLDER = re.compile(r"\{(\w+)\}")


def test_the_prompt_follows_the_windowed_protocol():
    environment = ALFWorldEnvironment()
    assert environment.history_length == 2
    assert environment.max_turns == 50
    assert environment.action_tags == ("action",)
    assert environment.worker == "process"
    assert set(PLACEHOLDER.findall(environment.prompt.first)) == {"observation", "admissible_actions"}
    assert set(PLACEHOLDER.findall(environment.prompt.later)) == {
        "task",
        "num_turns",
        "history",
        "turn",
        "observation",
        "admissible_actions",
    }
    assert set(PLACEHOLDER.findall(environment.prompt.history_item)) == {"turn", "observation", "action"}


@pytest.mark.parametrize("name", ["first", "later"])
def test_every_turn_asks_for_reasoning_and_one_action(name):
    text = getattr(prompt_template("think"), name)
    assert text.endswith(REPLY_FORMATS["think"])
    assert all(tag in text for tag in ("<think>", "</think>", "<action>", "</action>"))


def test_the_action_format_asks_for_no_reasoning():
    prompt = prompt_template("action")
    assert "think" not in prompt.first + prompt.later
    assert prompt.later.endswith(REPLY_FORMATS["action"])


def test_an_unknown_reply_format_is_refused():
    with pytest.raises(ConfigurationError, match=r"'think', 'action', got 'json'"):
        ALFWorldEnvironment(reply_format="json")


def test_every_family_has_its_own_advice():
    environment = ALFWorldEnvironment()
    texts = [environment.generic_skill(family) for family in FAMILIES.values()]
    assert len(set(texts)) == 6
    assert all(40 < len(text.split()) < 120 for text in texts)
    assert environment.generic_skill("Slice") == ""


@pytest.mark.parametrize(("family", "word"), [("Clean", "sinkbasin"), ("Heat", "microwave"), ("Cool", "fridge")])
def test_the_advice_names_the_tool(family, word):
    assert word in ALFWorldEnvironment().generic_skill(family)
