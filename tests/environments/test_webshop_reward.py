"""The score of a purchase, worked by hand from its formula."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


pytest.importorskip("thefuzz")

from taspo_trl.environments.webshop import nouns
from taspo_trl.environments.webshop.goals import NO_LIMIT, Goal
from taspo_trl.environments.webshop.nouns import Tagger, load_tagger
from taspo_trl.environments.webshop.products import Product
from taspo_trl.environments.webshop.reward import count_option_matches, match_type, plain_color, score_purchase
from taspo_trl.errors import ConfigurationError, MissingDependencyError


EVERY_WORD = Tagger("every word", lambda title: tuple(title.lower().split()))


def product(title="blue mug", attributes=("hand made", "dishwasher safe"), **changes):
    fields = {
        "asin": "A",
        "title": title,
        "description": "Holds half a litre.",
        "features": ("Glazed twice", "BPA free"),
        "prices": (5.0,),
        "options": {},
        "attributes": attributes,
        "category": "garden",
        "query": "mugs",
        "product_category": "Home › Kitchen › Mugs",
    }
    return Product(**{**fields, **changes})


def goal(attributes=("hand made",), options=None, title="blue mug", **changes):
    fields = {
        "asin": "A",
        "instruction": "Find me a mug",
        "attributes": attributes,
        "options": options if options is not None else {},
        "price_limit": 10.0,
        "title": title,
        "category": "garden",
        "query": "mugs",
        "product_category": "Home › Kitchen › Mugs",
    }
    return Goal(**{**fields, **changes})


def score(bought, wanted, chosen=None, price=5.0, **settings):
    return score_purchase(bought, chosen or {}, price, wanted, tagger=EVERY_WORD, **settings)


@pytest.mark.parametrize(
    ("chosen", "price", "value"),
    [
        # Wanted: two attributes, two options, a price: five points.
        ({"size": "large", "color": "blue"}, 5.0, 1.0),
        ({"size": "large"}, 5.0, 4 / 5),
        ({}, 5.0, 3 / 5),
        ({"size": "small", "color": "blue"}, 5.0, 4 / 5),
        ({"size": "large", "color": "blue"}, 10.0, 1.0),
        ({"size": "large", "color": "blue"}, 10.01, 4 / 5),
        ({"lid": "large", "mood": "blue"}, 5.0, 1.0),  # an option counts by its value
    ],
)
def test_each_met_wish_is_one_point(chosen, price, value):
    wanted = goal(("hand made", "bpa free"), {"color": "blue", "size": "large"})
    assert score(product(), wanted, chosen, price).value == value


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("hand made", True),  # its own
        ("made hand", True),  # the order of words does not matter
        ("hand mades", True),  # similarity 95
        ("hand", True),  # a subset of the words
        ("blue", True),  # in the title
        ("glazed twice bpa free", True),  # in the joined features
        ("half a litre", True),  # in the description
        ("machine washed", False),
    ],
)
def test_an_attribute_is_found_by_similarity_or_in_the_texts(attribute, found):
    assert score(product(), goal((attribute,))).num_attribute_matches == found


@pytest.mark.parametrize(
    ("bought", "wanted", "reward", "title_score"),
    [
        (product("blue mug"), goal(), 1.0, 1.0),
        # No word in common: nothing, whatever the query.
        (product("red cup"), goal(), 0.0, 0.0),
        # One word of eleven: 0.09, one tenth.
        (product("mug x y"), goal(title="a b c d e f g h i j mug"), 0.1, 1 / 11),
        # One word of ten is enough for the query to count.
        (product("mug x y"), goal(title="a b c d e f g h i mug"), 1.0, 0.1),
        # Another query, one department in common, a fifth of the words: half.
        (product("mug", query="x", product_category="Home › Garden"), goal(title="a b c d mug"), 0.5, 0.2),
        # The same with two departments.
        (product("mug", query="x", product_category="Kitchen › Home"), goal(title="a b c d mug"), 1.0, 0.2),
        # More than a fifth of the words counts like the same query.
        (product("mug", query="x", product_category="y"), goal(title="a b c mug"), 1.0, 0.25),
        # A word that the goal's title repeats is counted once above the line, twice below it.
        (product("mug"), goal(title="mug mug"), 1.0, 0.5),
        # A title without nouns counts as a fifth.
        (product("mug", query="x", product_category="y"), goal(title=""), 0.5, 0.2),
    ],
)
def test_the_kind_of_product_scales_the_score(bought, wanted, reward, title_score):
    match = match_type(bought, wanted, EVERY_WORD)
    assert (match.reward, match.title_score) == (reward, title_score)
    assert score(bought, wanted).value <= reward


@pytest.mark.parametrize(
    ("option", "plain"),
    [
        ("navy blue", "blue"),  # the first in the order of the colour words, not of the text
        ("r.brown2070", "brown"),
        ("xx-large", "xx-large"),
        ("tangerine", "tan"),
        (("color", "blue"), "blue"),
        (("color", "navy blue"), ("color", "navy blue")),
    ],
)
def test_colors_are_reduced_to_a_plain_word(option, plain):
    assert plain_color(option) == plain


def test_a_glued_color_name_never_matches_unless_options_are_mended():
    wanted = goal(options={"color": "r.brown2070"})
    chosen = {"color": "r.brown2070"}
    original = score(product(), wanted, chosen)
    assert (original.num_option_matches, original.value, original.success) == (0, 2 / 3, False)
    mended = score(product(), wanted, chosen, option_matching="mended")
    assert (mended.num_option_matches, mended.value, mended.success) == (1, 1.0, True)


def test_human_options_are_compared_by_value():
    assert score(product(), goal(options=("navy blue", "large")), {"color": "dark red"}).num_option_matches == 0
    assert score(product(), goal(options=("sky blue", "large")), {"color": "deep blue"}).num_option_matches == 1


def test_one_choice_may_meet_several_wishes_but_each_wish_counts_once():
    assert count_option_matches(("large",), ("large", "x-large")) == 2
    assert count_option_matches(("large", "large"), ("large",)) == 1
    assert count_option_matches((), ("large",)) == 0


def test_no_price_limit_is_always_met():
    assert score(product(), goal(price_limit=NO_LIMIT), price=5000.0).price_match


def test_parts_carry_the_original_names_and_add_up():
    wanted = goal(("hand made", "waterproof"), {"size": "large"})
    result = score(product(), wanted, {"size": "large"}, price=11.0)
    assert result.parts() == {
        "r_type": 1.0,
        "r_att": 0.5,
        "w_att": 0.5,
        "query_match": True,
        "category_match": True,
        "title_score": 1.0,
        "r_option": 1.0,
        "w_option": 0.25,
        "r_price": False,
        "w_price": 0.25,
    }
    parts = result.parts()
    assert result.value == parts["r_type"] * sum(parts[f"r_{k}"] * parts[f"w_{k}"] for k in ("att", "option", "price"))
    assert "r_option" not in score(product(), goal()).parts()


def test_success_is_exactly_one():
    assert score(product(), goal()).success
    assert not score(product(), goal(), price=11.0).success


def test_words_are_nouns_unless_they_are_function_words():
    assert load_tagger("words").nouns("Women's Mug for the Sea, 2 x 3 with Lid") == ("women", "mug", "sea", "lid")


def test_without_spacy_the_approximation_is_used_and_named(monkeypatch):
    monkeypatch.setattr(nouns, "_installed_model", lambda: None)
    assert load_tagger("auto").name == "words"
    with pytest.raises(MissingDependencyError, match="small English model"):
        load_tagger("spacy")


def test_an_unknown_tagger_is_refused():
    with pytest.raises(ConfigurationError, match="'auto', 'spacy' or 'words', got 'nltk'"):
        load_tagger("nltk")


@pytest.mark.skipif(nouns._installed_model() is None, reason="spaCy's small English model is not installed")
def test_spacy_is_used_where_it_is_installed():
    tagger = load_tagger("auto")
    assert tagger is load_tagger("spacy")
    assert tagger.name.startswith("spacy:en_core_web_sm")
    assert "mug" in tagger.nouns("She bought the blue mug quickly")
    assert "quickly" not in tagger.nouns("She bought the blue mug quickly")


@pytest.mark.skipif(find_spec("regex") is None or find_spec("nltk") is None, reason="needs the `webshop` extra")
def test_every_embedded_goal_can_be_met_exactly():
    from taspo_trl.environments.webshop.shop import open_shop

    for kind in ("synthetic", "human"):
        shop = open_shop("embedded", goals=kind)
        for number in range(len(shop.goals)):
            wanted = shop.goals[number]
            bought = shop.product(wanted.asin)
            chosen = {
                name: value
                for name, values in bought.options.items()
                for value in values
                if value in wanted.option_values
            }
            result = score_purchase(bought, chosen, shop.price(wanted.asin), wanted, tagger=load_tagger("words"))
            assert result.success, (wanted, result)


@pytest.mark.skipif(find_spec("regex") is None or find_spec("nltk") is None, reason="needs the `webshop` extra")
def test_purchases_in_the_embedded_catalogue_score_as_worked_by_hand():
    from taspo_trl.environments.webshop.shop import open_shop

    shop = open_shop("embedded")
    backpack = shop.goals[1]  # laptop sleeve, hidden pocket, color green, under 130: four points
    assert backpack.attributes == ("laptop sleeve", "hidden pocket") and backpack.options == {"color": "green"}

    def buy(number, chosen, wanted):
        bought = shop.catalogue.entry(number).product
        return score_purchase(bought, chosen, shop.price(bought.asin), wanted, tagger=load_tagger("words")).value

    assert buy(62, {"color": "green"}, backpack) == 1.0  # Calderie Metro Pack, the target
    assert buy(62, {"color": "gray"}, backpack) == 3 / 4
    # Norrvik Roll Top: a hidden pocket but no laptop sleeve, green, 64.99; "backpack" is one of eight title words.
    assert buy(22, {"color": "green"}, backpack) == 3 / 4
    # A shampoo for 24.99 meets the price and nothing else, and shares no title word.
    assert buy(0, {"scent": "coconut"}, backpack) == 0.0
    # Leggings: quick drying, side pockets, black, xx-large, under 50: five points. A men's t-shirt of the same brand
    # in xx-large for 22.99 meets size and price; the brand is one of nine title words and "Clothing" the one
    # department in common, so the type counts half.
    leggings = shop.goals[2]
    assert leggings.options == {"color": "black", "size": "xx-large"}
    assert buy(17, {"color": "gray", "size": "xx-large"}, leggings) == 0.5 * 2 / 5
