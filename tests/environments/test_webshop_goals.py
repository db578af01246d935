"""Goals: their numbering, prices, splits and manifest; the embedded catalogue they are shown on."""

from __future__ import annotations

import itertools
import random

import pytest

from taspo_trl.environments.webshop.embedded import embedded_entries
from taspo_trl.environments.webshop.products import Entry, Instruction, Product
from taspo_trl.environments.webshop.splits import SPLITS, split_ranges
from taspo_trl.errors import ConfigurationError


pytest.importorskip("regex")
pytest.importorskip("nltk")

from taspo_trl.environments.webshop.catalogue import MemoryCatalogue
from taspo_trl.environments.webshop.goals import NO_LIMIT, GoalBook
from taspo_trl.environments.webshop.shop import open_shop
from taspo_trl.environments.webshop.splits import build_manifest, check_manifest, split_goals, stored_manifest


def product(asin, prices=(5.0,), options=None):
    return Product(asin, f"title {asin}", "", ("f",), prices, options or {}, ("x",), "cat", "query", "A › B")


def wish(text="Find me a thing"):
    return Instruction(text, ("x",))


@pytest.fixture
def catalogue():
    options = {"size": ("s", "m"), "color": ("red", "blue", "green")}
    human = (Instruction("a red one", ("x",), ("red",)), Instruction("any", ("x",), ()))
    return MemoryCatalogue(
        [
            Entry(product("P1", options=options), wish("Find me P1"), human),
            Entry(product("P2", prices=(10.0, 20.0))),
            Entry(product("P3", prices=(985.0,)), wish("Find me P3")),
            Entry(product("P4", prices=(1.0, 2.0), options={"size": ()}), wish("Find me P4")),
        ]
    )


def test_every_combination_of_options_is_one_goal_in_sorted_order(catalogue):
    book = GoalBook(catalogue)
    assert len(book) == 2 * 3 + 1  # P3 has no options, P4 an option without values
    unshuffled = list(range(7))
    random.Random(233).shuffle(unshuffled)
    expected = [{"color": c, "size": s} for c, s in itertools.product(("red", "blue", "green"), ("s", "m"))] + [{}]
    assert [book[goal].options for goal in range(7)] == [expected[position] for position in unshuffled]


def test_prices_are_drawn_before_limits_from_one_generator(catalogue):
    draws = random.Random(0)
    second, fourth = draws.uniform(10.0, 20.0), draws.uniform(1.0, 2.0)
    limit = max(draws.sample([10.0, 20.0, 30.0, 40.0], 2))
    book = GoalBook(catalogue)
    assert book.prices.tolist() == [5.0, second, 985.0, fourth]
    goals = {book[goal].asin: book[goal] for goal in range(len(book))}
    assert goals["P1"].price_limit == limit
    assert goals["P1"].instruction.endswith(f", and price lower than {limit:.2f} dollars")


def test_a_product_near_the_highest_limit_has_none(catalogue):
    # Above 985 only 990 is left, and two candidates are needed.
    book = GoalBook(catalogue)
    goal = next(book[number] for number in range(len(book)) if book[number].asin == "P3")
    assert (goal.instruction, goal.price_limit) == ("Find me P3", NO_LIMIT)


def test_instructions_name_the_options():
    book = GoalBook(MemoryCatalogue([Entry(product("P", (995.0,), {"size": ("s",), "color": ("red",)}), wish())]))
    assert book[0].instruction == "Find me a thing with color: red, and size: s"


def test_human_goals_name_values_only(catalogue):
    book = GoalBook(catalogue, "human")
    assert sorted((book[goal].option_values, book[goal].instruction[:9]) for goal in range(2)) == [
        ((), "any, and "),
        (("red",), "a red one"),
    ]


def test_goals_depend_on_their_seeds_alone(catalogue):
    random.seed(1)
    first = [GoalBook(catalogue)[goal] for goal in range(7)]
    random.seed(2)
    assert [GoalBook(catalogue)[goal] for goal in range(7)] == first
    other_order = [GoalBook(catalogue, goal_seed=42)[goal] for goal in range(7)]
    assert other_order != first
    assert sorted(goal.digest for goal in other_order) == sorted(goal.digest for goal in first)
    assert GoalBook(catalogue, price_seed=5).prices.tolist() != GoalBook(catalogue).prices.tolist()


def test_impossible_goals_are_explained(catalogue):
    with pytest.raises(ConfigurationError, match="numbered 0 to 6"):
        GoalBook(catalogue)[7]
    with pytest.raises(ConfigurationError, match="numbered 0 to 6"):
        GoalBook(catalogue)[-1]
    with pytest.raises(ConfigurationError, match="'synthetic' or 'human', got 'robot'"):
        GoalBook(catalogue, "robot")
    with pytest.raises(ConfigurationError, match="holds no human goals"):
        GoalBook(MemoryCatalogue([Entry(product("P"), wish())]), "human")


@pytest.mark.parametrize("num_goals", [0, 1, 5, 13, 240, 1999, 2000, 6910, 12087])
def test_splits_cover_all_goals_and_never_overlap(num_goals):
    ranges = split_ranges(num_goals)
    assert tuple(sorted(ranges)) == tuple(sorted(SPLITS))
    assert sorted(itertools.chain(*ranges.values())) == list(range(num_goals))


def test_a_large_catalogue_has_the_original_splits():
    assert split_ranges(6910) == {"test": range(500), "eval": range(500, 1500), "train": range(1500, 6910)}


def test_a_small_catalogue_is_split_in_proportion():
    assert split_ranges(1000) == {"test": range(200), "eval": range(200, 400), "train": range(400, 1000)}


@pytest.fixture(scope="module")
def shop():
    return open_shop("embedded")


def test_splits_can_be_joined(shop):
    joined = split_goals("eval+train", shop.goals, shop.catalogue)
    assert list(joined) == list(range(204, 1020))


@pytest.mark.parametrize("split", ["valid", "test+valid", "", "train+train", "test_128+train"])
def test_an_unknown_split_is_refused(shop, split):
    with pytest.raises(ConfigurationError, match="`split` must be one of train, eval, test"):
        split_goals(split, shop.goals, shop.catalogue)


def test_the_shipped_manifest_is_that_of_the_embedded_catalogue(shop):
    manifest = stored_manifest(shop.goals, shop.catalogue)
    assert manifest == build_manifest(shop.goals, shop.catalogue)
    assert [task["goal"] for task in manifest["tasks"]] == list(split_goals("test_128", shop.goals, shop.catalogue))
    assert len({task["digest"] for task in manifest["tasks"]}) == 128


def test_a_manifest_is_refused_where_its_tasks_are_others(shop):
    manifest = build_manifest(shop.goals, shop.catalogue)
    check_manifest(manifest, shop.goals, shop.catalogue)
    other = open_shop("embedded", goal_seed=42)
    assert stored_manifest(other.goals, other.catalogue) is None
    with pytest.raises(ConfigurationError, match=r"of 128 tasks of the manifest .* goal seed 42"):
        check_manifest(manifest, other.goals, other.catalogue)


def test_too_few_goals_make_no_manifest():
    shop = open_shop("embedded", goals="human")
    with pytest.raises(ConfigurationError, match="has 48 human goals, too few"):
        split_goals("test_128", shop.goals, shop.catalogue)


def test_the_embedded_catalogue_is_worth_shopping_in(shop):
    entries = list(embedded_entries())
    assert len(entries) == 240
    assert len({entry.product.asin for entry in entries}) == 240
    categories = [entry.product.category for entry in entries]
    assert {category: categories.count(category) for category in set(categories)} == dict.fromkeys(
        ("beauty", "electronics", "fashion", "garden", "grocery"), 48
    )
    for entry in entries:
        product = entry.product
        assert product.asin.isalnum() and product.asin == product.asin.upper() and len(product.asin) == 10
        assert len(product.options) >= 1 and all(len(set(v)) == len(v) > 1 for v in product.options.values())
        assert len(set(product.attributes)) == 6
        texts = " ".join((product.title, product.description, *product.features)).lower()
        assert all(attribute in texts for attribute in product.attributes)  # an agent can read what it must find


def test_the_embedded_catalogue_is_the_same_everywhere(shop):
    # The identity hashes every text, price and instruction.
    assert shop.catalogue.identity == "webshop-240-a12ae83b6b6911fb"
    assert len(shop.goals) == 1020


def test_a_digest_changes_with_every_fact_of_the_task(shop):
    from dataclasses import replace

    goal = shop.goals[0]
    changed = [
        replace(goal, asin="T0"),
        replace(goal, instruction=goal.instruction + "."),
        replace(goal, attributes=goal.attributes[:1]),
        replace(goal, options={"flavor": "mango"}),
        replace(goal, price_limit=1.0),
    ]
    assert len({goal.digest, *(other.digest for other in changed)}) == 6
