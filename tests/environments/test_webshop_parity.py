"""The shop against recordings of the original engine on its 1,000 products; skipped where that data is not."""

from __future__ import annotations

import json
import lzma
from importlib.util import find_spec

import numpy as np
import pytest

from ..data import real_data


for package in ("regex", "nltk", "thefuzz"):
    pytest.importorskip(package)

from taspo_trl.environments import WebShopEnvironment  # noqa: E402
from taspo_trl.environments.webshop.analysis import analyze  # noqa: E402
from taspo_trl.environments.webshop.bm25 import build_postings  # noqa: E402
from taspo_trl.environments.webshop.nouns import _installed_model, load_tagger  # noqa: E402
from taspo_trl.environments.webshop.products import index_text  # noqa: E402
from taspo_trl.environments.webshop.reward import score_purchase  # noqa: E402
from taspo_trl.environments.webshop.shop import open_shop  # noqa: E402
from taspo_trl.environments.webshop.splits import build_manifest, stored_manifest  # noqa: E402


needs_spacy = pytest.mark.skipif(_installed_model() is None, reason="spaCy's small English model is not installed")


@pytest.fixture(scope="module")
def engine():
    with lzma.open(real_data("webshop", "golden_engine.json.xz"), "rt") as stream:
        return json.load(stream)


@pytest.fixture(scope="module")
def folder():
    return real_data("webshop", "items_shuffle_1000.json.xz").parent


@pytest.fixture(scope="module")
def shop(folder):
    return open_shop(folder)


@pytest.fixture(scope="module")
def goal_of(shop):
    """The goal with a recorded product, options and instruction."""
    goals = (shop.goals[number] for number in range(len(shop.goals)))
    known = {(goal.asin, tuple(goal.options.items()), goal.instruction): goal for goal in goals}
    return lambda recorded: known[
        recorded["asin"], tuple(recorded["goal_options"].items()), recorded["instruction_text"]
    ]


def test_all_goals_have_the_original_number(shop, engine):
    ours = [[goal.asin, dict(goal.options)] for goal in (shop.goals[number] for number in range(len(shop.goals)))]
    assert len(ours) == 6910
    assert ours == engine["order"]


def test_all_products_have_the_original_price(shop, engine):
    assert len(engine["prices"]) == len(shop.catalogue) == 1000
    assert {asin: shop.price(asin) for asin in engine["prices"]} == engine["prices"]


def test_all_recorded_episodes_are_reproduced_page_by_page(folder, engine):
    env = WebShopEnvironment(catalogue=folder)
    for recorded in engine["episodes"]:
        first, *steps = recorded["episode"]
        start = env.reset(seed=0, goal=recorded["idx"])
        assert (start.observation, start.info["available"]) == (first["obs"], first["available"])
        assert start.info["task"] == recorded["goal"]["instruction_text"]
        for step in steps:
            result = env.step(step["action"])
            assert result.info["valid"]
            assert result.observation == step["obs"], step["action"]
            assert result.info["available"] == step["available"]
            assert (result.reward, result.terminated) == (step["reward"], step["done"])
        assert result.info["success"] == (step["reward"] == 1.0)
        if _installed_model() is not None:
            assert result.info["score_parts"] == step["info"]
    assert len(engine["episodes"]) == 15


def test_the_recorded_rich_page_is_reproduced(folder, shop, engine):
    env = WebShopEnvironment(catalogue=folder, observation_mode="text_rich")
    [page] = engine["rich"]
    number = next(number for number in range(len(shop.goals)) if shop.goals[number].instruction in page)
    assert env.reset(seed=0, goal=number).observation == page


@needs_spacy
def test_all_recorded_rewards_and_sub_scores_are_reproduced(shop, goal_of, engine):
    tagger = load_tagger("spacy")
    for case in engine["rewards"]:
        bought, goal = shop.product(case["asin"]), goal_of(case["goal"])
        score = score_purchase(bought, case["options"], case["price"], goal, tagger=tagger)
        assert score.value == pytest.approx(case["reward"], abs=1e-6)
        assert score.parts() == pytest.approx(case["info"], abs=1e-6)
    assert len(engine["rewards"]) == 150


def test_most_recorded_rewards_are_reproduced_without_spacy(shop, goal_of, engine):
    tagger = load_tagger("words")
    equal = sum(
        abs(
            score_purchase(
                shop.product(case["asin"]), case["options"], case["price"], goal_of(case["goal"]), tagger=tagger
            ).value
            - case["reward"]
        )
        < 1e-6
        for case in engine["rewards"]
    )
    assert equal >= 0.97 * len(engine["rewards"])


def test_all_recorded_searches_return_the_same_fifty_products(shop):
    with lzma.open(real_data("webshop", "golden_search.json.xz"), "rt") as stream:
        searches = json.load(stream)
    for recorded in searches:
        found = [shop.catalogue.entry(number).product.asin for number in shop.catalogue.search(recorded["query"], 50)]
        assert found == [asin for asin, _ in recorded["hits"]], recorded["query"]
    assert len(searches) == 82


def test_all_recorded_scores_are_reproduced(shop):
    """To the fourth decimal, as they were recorded; ties were recorded 1e-6 apart."""
    products = [shop.catalogue.entry(number).product for number in range(len(shop.catalogue))]
    documents = [analyze(index_text(product)) for product in products]
    assert sum(map(len, documents)) == 107_608  # the number of terms in the original's index
    postings, vocabulary = build_postings(documents, [product.asin for product in products])
    numbers = {product.asin: number for number, product in enumerate(products)}
    with lzma.open(real_data("webshop", "golden_search.json.xz"), "rt") as stream:
        searches = json.load(stream)
    num_scores = 0
    for recorded in searches:
        scores = np.zeros(len(products))
        for term in analyze(recorded["query"]):
            if term in vocabulary:
                span = slice(*postings.starts[vocabulary[term] : vocabulary[term] + 2])
                scores[postings.documents[span]] += postings.impacts[span]
        for asin, score in recorded["hits"]:
            assert scores[numbers[asin]] == pytest.approx(score, abs=6e-5), (recorded["query"], asin)
            num_scores += 1
    assert num_scores == sum(len(recorded["hits"]) for recorded in searches) > 3_500


def test_as_many_goals_as_in_the_original_cannot_be_met(shop):
    tagger = load_tagger("words")
    unmet = {"original": 0, "mended": 0}
    for number in range(len(shop.goals)):
        goal = shop.goals[number]
        product, price = shop.product(goal.asin), shop.price(goal.asin)
        for matching in unmet:
            score = score_purchase(product, goal.options, price, goal, tagger=tagger, option_matching=matching)
            unmet[matching] += not score.success
    assert unmet == {"original": 458, "mended": 0}


def test_the_shipped_manifest_is_that_of_the_1000_products(shop):
    manifest = stored_manifest(shop.goals, shop.catalogue)
    assert manifest is not None and manifest == build_manifest(shop.goals, shop.catalogue)


def test_human_goals_are_those_of_the_file(folder):
    shop = open_shop(folder, goals="human")
    with real_data("webshop", "items_human_ins_1000.json").open() as stream:
        wishes = [wish for annotations in json.load(stream).values() for wish in annotations]
    texts = {wish["instruction"].strip(".") for wish in wishes if wish["instruction_attributes"]}
    assert len(shop.goals) == len(texts)
    assert {shop.goals[number].instruction.split(", and price lower than")[0] for number in range(len(texts))} == texts


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs datasets")
def test_rows_have_the_original_splits(folder):
    sizes = {split: len(WebShopEnvironment.dataset(split, catalogue=folder)) for split in ("test", "eval", "train")}
    assert sizes == {"test": 500, "eval": 1000, "train": 5410}


def test_the_index_on_disk_answers_like_the_one_in_memory(folder, shop, tmp_path):
    from taspo_trl.environments.webshop.disk import DiskCatalogue, build_catalogue

    build_catalogue(folder, tmp_path / "built")
    disk = DiskCatalogue(tmp_path / "built")
    assert disk.identity == shop.catalogue.identity
    assert all(disk.entry(number) == shop.catalogue.entry(number) for number in range(1000))
    for number in range(0, 6910, 100):
        query = shop.goals[number].instruction
        assert disk.search(query, 50) == shop.catalogue.search(query, 50)
