"""Words of the household world: a closed vocabulary, and texts that tell the state."""

from __future__ import annotations

import random
import re

import pytest

from taspo_trl.environments.base import PromptTemplate
from taspo_trl.environments.household import PRESETS, SPLITS, HouseholdEnvironment, phrase_pattern, phrases
from taspo_trl.environments.household.reading import read_observation, read_task
from taspo_trl.environments.household.tasks import Goal, make_task
from taspo_trl.environments.household.wording import task_text
from taspo_trl.environments.household.world import World
from taspo_trl.errors import ConfigurationError

from .household_play import row


def fill(text: str, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], text)


def episode_texts(environment: HouseholdEnvironment, task_row: dict, rng: random.Random) -> list[str]:
    """Every text of an episode of mostly admissible play: observations, actions, and all kinds of prompts."""
    start = environment.reset(**task_row)
    template: PromptTemplate = environment.prompt
    task, observation, admissible = start.info["task"], start.observation, start.info["admissible_actions"]
    texts, history, is_over = [task], [], False
    while not is_over:
        values = {
            "task": task,
            "observation": observation,
            "admissible_actions": template.admissible_separator.join(
                fill(template.admissible_item, action=action) for action in admissible
            ),
            "history": "\n".join(
                fill(template.history_item, observation=seen, action=done) for seen, done in history[-2:]
            ),
        }
        texts += [observation, *admissible]
        texts += [fill(form, **values) for form in (template.first, template.later, template.reply)]
        action = rng.choice(admissible) if rng.random() < 0.9 else ""
        result = environment.step(action)
        history.append((observation, action or template.no_action))
        observation, admissible = result.observation, result.info["admissible_actions"]
        is_over = result.terminated or result.truncated
    return [*texts, observation]


@pytest.mark.parametrize("reply_format", ["action", "think"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_text_is_a_run_of_phrases(preset, reply_format):
    known, pattern = set(phrases(preset, reply_format)), re.compile(phrase_pattern(preset, reply_format))
    environment, rng = HouseholdEnvironment(preset, reply_format=reply_format), random.Random(0)
    for split in SPLITS:
        for index in range(60):
            for text in episode_texts(environment, row(preset, split, index), rng):
                pieces = pattern.findall(text)
                assert set(pieces) <= known, (text, [piece for piece in pieces if piece not in known])
                assert "".join(pieces).replace(" ", "") == "".join(text.split())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_task_text_is_a_run_of_phrases(preset):
    known, pattern = set(phrases(preset)), re.compile(phrase_pattern(preset))
    texts = {task_text(make_task(preset, "train", index).goal) for index in range(5_000)}
    assert {piece for text in texts for piece in pattern.findall(text)} <= known


@pytest.mark.parametrize("preset", PRESETS)
def test_tokenizer_made_of_phrases_reads_and_writes_actions(preset):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {phrase: number for number, phrase in enumerate(["<unk>", *phrases(preset)])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    pattern = tokenizers.Regex(phrase_pattern(preset))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, "removed", invert=True)
    environment = HouseholdEnvironment(preset)
    rng = random.Random(1)
    for index in range(12):
        admissible = environment.reset(**row(preset, "train", index)).info["admissible_actions"]
        for _ in range(8):
            for action in admissible:
                ids = tokenizer.encode(f"<action>{action}</action>").ids
                assert 0 not in ids
                assert len(ids) <= 6  # two tags and at most verb, thing, word, place
                decoded = " ".join(tokenizer.id_to_token(token) for token in ids)
                assert decoded == f"<action> {action} </action>"
            admissible = environment.step(rng.choice(admissible)).info["admissible_actions"]
    assert tokenizer.encode("go to mars").tokens == ["go to", "<unk>"]


def test_phrases_are_few_and_different():
    small, standard = phrases("small"), phrases("standard")
    assert len(small) == len(set(small)) < 170
    assert len(standard) == len(set(standard)) < 400


def test_small_prompts_take_about_sixty_phrases():
    pattern, rng = re.compile(phrase_pattern("small")), random.Random(0)
    environment = HouseholdEnvironment("small")
    later = [
        len(pattern.findall(text))
        for index in range(60)
        for text in episode_texts(environment, row("small", "train", index), rng)
        if text.startswith("Task:")
    ]
    assert sum(later) / len(later) < 65
    assert max(later) < 100


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (Goal("pick", "mug", "cabinet"), "Put a mug in a cabinet."),
        (Goal("pick", "apple", "table"), "Put an apple on a table."),
        (Goal("clean", "apple", "counter", "clean"), "Put a clean apple on a counter."),
        (Goal("heat", "egg", "fridge", "hot"), "Put a hot egg in a fridge."),
        (Goal("cool", "pan", "stove", "cool"), "Put a cool pan on a stove."),
        (Goal("two", "pen", "drawer", count=2), "Put two pens in a drawer."),
        (Goal("look", "egg"), "Examine an egg under a lit lamp."),
    ],
)
def test_task_text_is_plain(goal, text):
    assert task_text(goal) == text
    assert read_task(text) == goal


@pytest.mark.parametrize("preset", PRESETS)
def test_reading_a_task_text_gives_its_goal_back(preset):
    for index in range(3_000):
        goal = make_task(preset, "train", index).goal
        assert read_task(task_text(goal)) == goal


@pytest.mark.parametrize("text", ["", "Put a mug.", "Put two mug in a cabinet.", "Sing a song."])
def test_other_texts_are_no_task(text):
    with pytest.raises(ValueError, match="no household task"):
        read_task(text)


def shown(world: World, thing: str) -> tuple[str, tuple[str, ...]]:
    if thing in world.lamps:
        return thing, ("lit",) if thing in world.lit else ()
    return thing, world.conditions_of(thing)


@pytest.mark.parametrize("preset", PRESETS)
def test_observations_tell_just_what_can_be_seen(preset):
    environment, rng = HouseholdEnvironment(preset), random.Random(2)
    for index in range(120):
        admissible = environment.reset(**row(preset, "train", index)).info["admissible_actions"]
        world, is_over = environment.world, False
        while not is_over:
            action = rng.choice(admissible)
            result = environment.step(action)
            admissible, sight = result.info["admissible_actions"], read_observation(result.observation)
            here = world.position
            assert sight.place in (here, None) if here else sight.place is None
            assert (sight.carried.name if sight.carried else "") == world.carried
            assert sight.hands_empty is (not world.carried)
            if sight.carried:
                assert (sight.carried.name, sight.carried.words) == shown(world, world.carried)
            if here and here in world.closed:
                assert sight.contents is None
                hidden = world.contents[here]
                assert not any(thing in result.observation or thing in str(admissible) for thing in hidden)
            if here and action.startswith(("go to", "look", "open")) and here not in world.closed:
                visible = [*world.lamps_at(here), *world.contents[here]]
                assert [(seen.name, seen.words) for seen in sight.contents] == [shown(world, t) for t in visible]
            is_over = result.terminated or result.truncated


def test_things_elsewhere_are_never_mentioned():
    """What lies where the player has not looked occurs in no text."""
    environment = HouseholdEnvironment("standard")
    for index in range(60):
        start = environment.reset(**row("standard", "train", index))
        world = environment.world
        texts = [start.observation, *start.info["admissible_actions"]]
        result = environment.step(f"go to {world.places[0]}")
        texts += [result.observation, *result.info["admissible_actions"]]
        elsewhere = [thing for place in world.places[1:] for thing in world.contents[place]]
        assert not any(thing in text for thing in elsewhere for text in texts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("tiny",), "`preset` .'tiny'. must be"), (("small", "json"), "`reply_format` .'json'. must be")],
)
def test_phrases_of_unknown_presets_and_formats_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        phrases(*arguments)
