"""WebShopEnvironment on the embedded catalogue: visits, validity, rows, concurrency."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from taspo_trl.environments import WebShopEnvironment
from taspo_trl.environments.webshop.session import parse_action
from taspo_trl.errors import ConfigurationError
from taspo_trl.tokens import find_action


for package in ("regex", "nltk", "thefuzz", "datasets"):
    pytest.importorskip(package)

from taspo_trl.environments.webshop import shop as shops  # noqa: E402
from taspo_trl.environments.webshop.shop import open_shop  # noqa: E402


BACKPACK = (
    1  # "Find me backpacks with laptop sleeve, hidden pocket with color: green, and price lower than 130.00 ..."
)
TARGET = "t138641419"


@pytest.fixture
def env():
    environment = WebShopEnvironment(tagger="words")
    environment.reset(seed=0, goal=BACKPACK)
    return environment


def play(environment, *actions):
    """The results of the actions."""
    return [environment.step(action) for action in actions]


def test_a_visit_from_search_to_purchase():
    env = WebShopEnvironment(tagger="words")
    start = env.reset(seed=0, goal=BACKPACK)
    instruction = (
        "Find me backpacks with laptop sleeve, hidden pocket with color: green, and price lower than 130.00 dollars"
    )
    assert start.observation == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    assert start.info["task"] == instruction
    assert start.info["family"] == "fashion"
    assert start.info["admissible_actions"] == ["search[<your keywords>]"]
    results, item, chosen, done = play(
        env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[green]", "click[buy now]"
    )
    assert "Page 1 (Total results: 18) [SEP] Next >" in results.observation
    assert f"click[{TARGET}]" in results.info["admissible_actions"]
    assert "search[<your keywords>]" not in results.info["admissible_actions"]
    assert "Price: $93.99" in item.observation
    assert chosen.observation == item.observation
    for result in (results, item, chosen):
        assert (result.reward, result.terminated, result.truncated, result.info["valid"]) == (0.0, False, False, True)
        assert not {"success", "score", "score_parts"} & result.info.keys()
    assert (done.reward, done.terminated, done.truncated) == (1.0, True, False)
    assert done.info["success"] is True
    assert (done.info["score"], done.info["tagger"], done.info["valid"]) == (1.0, "words", True)
    assert done.info["score_parts"]["r_option"] == 1.0
    assert done.info["admissible_actions"] == []


def test_a_near_match_scores_but_does_not_succeed(env):
    *_, done = play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[buy now]")
    assert (done.reward, done.info["score"], done.info["success"]) == (0.75, 0.75, False)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "buy now",
        "search",
        "search[]",
        "click[]",
        "click[search]",
        "click[buy now]",
        "Search[backpack]",
        "press[search]",
        "I will search[backpack]",
        "search[back\npack]",
        "click[back to search]",
        f"click[{TARGET}]",
    ],
)
def test_an_invalid_action_changes_nothing_and_is_flagged(env, action):
    page = env.step("click[nothing]")
    result = env.step(action)
    assert result.info.pop("valid") is False
    assert page.info.pop("valid") is False
    assert result == page
    assert (result.reward, result.terminated) == (0.0, False)


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[Red Mug]", ("search", "red mug")),
        ("click[< Prev] please", ("click", "< prev")),
        ("click[a] click[b]", ("click[a] click", "b")),
        ("search[a [b] c]", ("search[a ", "b] c")),
        ("search[]", None),
        ("[x]", None),
        ("search [x]", ("search ", "x")),
    ],
)
def test_actions_are_parsed_as_the_original_does(action, parsed):
    assert parse_action(action) == parsed


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<think>so</think><action>Click[Buy Now]</action>", "click[buy now]"),
        ("<ACTION>\n search[Red Mug] \n</ACTION>", "search[red mug]"),
    ],
)
def test_the_executed_action_is_the_block_in_lower_case(reply, action):
    env = WebShopEnvironment()
    assert env.action_of(find_action(reply, env.action_tags)) == action


def test_paging_leads_on_and_back(env):
    first, second, back = play(env, "search[two years warranty]", "click[next >]", "click[< prev]")
    assert "Page 2 (Total results: 50) [SEP] < Prev [SEP] Next >" in second.observation
    assert back.observation == first.observation
    products = [c for page in (first, second) for c in page.info["available"]["clickables"] if c[0] == "t"]
    assert len(set(products)) == 20
    last = play(env, *["click[next >]"] * 5)[-1]
    assert last.info["available"]["clickables"] == ["back to search", "< prev", "next >"]


def test_back_from_an_item_returns_to_its_results_page_and_forgets_choices(env):
    search = "search[backpack laptop sleeve]"
    results, _, _, returned = play(env, search, f"click[{TARGET}]", "click[green]", "click[< prev]")
    assert returned.observation == results.observation
    *_, done = play(env, f"click[{TARGET}]", "click[buy now]")
    assert '"options' not in done.observation and "options [SEP] {} [SEP]" in done.observation
    assert done.reward == 0.75


@pytest.mark.parametrize("sub_page", ["description", "features", "reviews"])
def test_sub_pages_lead_back_to_the_item_and_keep_choices(env, sub_page):
    *_, item = play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[green]")
    opened, back = play(env, f"click[{sub_page}]", "click[< prev]")
    assert opened.info["available"]["clickables"] == ["back to search", "< prev"]
    assert back.observation == item.observation
    assert env.step("click[buy now]").reward == 1.0


def test_a_search_is_accepted_on_every_page(env):
    play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[green]", "click[features]")
    result = env.step("search[shampoo]")
    assert result.info["valid"] and "Page 1 (Total results:" in result.observation
    assert not env.step("click[green]").info["valid"]


def test_back_to_search_starts_over(env):
    start = env.step("click[x]").observation
    results = play(env, "search[backpack]", f"click[{TARGET}]", "click[green]", "click[back to search]")
    assert results[-1].observation == start
    assert results[-1].info["available"] == {"has_search_bar": True, "clickables": ["search"]}


def test_choosing_again_replaces_the_choice(env):
    chosen = play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[gray]", "click[green]")
    assert all(result.info["valid"] for result in chosen)
    assert '{"color": "green"}' in env.step("click[buy now]").observation


def test_nothing_is_accepted_after_the_purchase(env):
    *_, done = play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[buy now]")
    for action in ("search[mug]", "click[buy now]", "click[back to search]"):
        after = env.step(action)
        assert (after.observation, after.reward, after.terminated) == (done.observation, 0.0, True)
        assert after.info["valid"] is False and after.info["success"] is False


@pytest.mark.parametrize(
    ("search", "total"),
    [("<c> fashion", 48), ("<q> women's dresses", 6), ("<a> hidden pocket", 3), ("<c>", 0), ("<r>", 50), ("xyzzy", 0)],
)
def test_short_cuts_list_products(env, search, total):
    result = env.step(f"search[{search}]")
    assert result.info["valid"] and f"Page 1 (Total results: {total})" in result.observation


def test_random_products_depend_on_the_episode_seed():
    def first_page(seed):
        env = WebShopEnvironment(tagger="words")
        env.reset(seed=seed, goal=0)
        return env.step("search[<r>]").observation

    assert first_page(1) == first_page(1) != first_page(2)


def test_rich_observations_mark_what_was_clicked():
    env = WebShopEnvironment(observation_mode="text_rich", tagger="words")
    start = env.reset(seed=0, goal=BACKPACK)
    assert start.observation.startswith("WebShop\nInstruction: \nFind me") and "[button] Search" in start.observation
    *_, chosen = play(env, "search[backpack laptop sleeve]", f"click[{TARGET}]", "click[green]")
    assert chosen.observation.startswith("You have clicked green.\n")
    assert "  [clicked button] green [clicked button_]\n  [button] burgundy [button_]\n" in chosen.observation
    assert f"[clicked button] {TARGET.upper()} [clicked button_]" in env.step("click[< prev]").observation
    env.step("click[back to search]")
    assert "[clicked button]" not in env.step("search[backpack laptop sleeve]").observation


def test_siblings_start_from_the_same_task_and_replays_agree():
    rows = WebShopEnvironment.dataset("train", limit=3)
    actions = ("search[red]", "click[next >]", "click[< prev]", "click[buy now]")

    def transcript(row, seed):
        env = WebShopEnvironment(tagger="words")
        start = env.reset(seed=seed, **row)
        return [start.observation, *(result.observation for result in play(env, *actions))]

    transcripts = [[transcript(row, 7) for _ in range(4)] for row in rows]
    for group in transcripts:
        assert all(member == group[0] for member in group)
    assert len({group[0][0] for group in transcripts}) == 3


def test_rows_of_the_splits_are_disjoint_and_complete():
    splits = {split: WebShopEnvironment.dataset(split) for split in ("train", "eval", "test")}
    goals = {split: set(rows["goal"]) for split, rows in splits.items()}
    assert {split: len(rows) for split, rows in goals.items()} == {"train": 612, "eval": 204, "test": 204}
    assert len(set().union(*goals.values())) == 1020
    row = splits["test"][3]
    assert row == {
        "task_id": f"{row['catalogue_id']}-synthetic-233-3",
        "goal": 3,
        "digest": row["digest"],
        "split": "test",
        "family": "garden",
        "catalogue_id": open_shop().catalogue.identity,
    }
    assert "seed" not in splits["test"].column_names
    assert set(splits["test"]["family"]) == {"beauty", "electronics", "fashion", "garden", "grocery"}


def test_the_fixed_test_tasks_are_always_the_same_128():
    rows = WebShopEnvironment.dataset("test_128")
    assert rows["goal"] == list(range(128))
    assert set(rows["goal"]) <= set(WebShopEnvironment.dataset("test")["goal"])


def test_a_row_of_another_shop_is_refused():
    [row] = WebShopEnvironment.dataset("test", limit=1)
    with pytest.raises(ConfigurationError, match="Make both with the same `catalogue`"):
        WebShopEnvironment().reset(seed=0, **{**row, "catalogue_id": "webshop-1-x"})
    with pytest.raises(ConfigurationError, match="with the same `goals`, `price_seed` and `goal_seed`"):
        WebShopEnvironment(goal_seed=42).reset(seed=0, **row)
    with pytest.raises(ConfigurationError, match="`step` was called before `reset`"):
        WebShopEnvironment().step("search[x]")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("observation_mode", "html"), ("option_matching", "fixed"), ("reply_format", "json")],
)
def test_an_unknown_setting_is_refused(setting, value):
    with pytest.raises(ConfigurationError, match=f"`{setting}` must be .* got '{value}'"):
        WebShopEnvironment(**{setting: value})


def test_the_variable_names_the_catalogue_and_the_argument_wins(monkeypatch, tmp_path):
    monkeypatch.setenv(shops.DATA_VARIABLE, str(tmp_path))
    assert shops.catalogue_source(None) == str(tmp_path)
    assert shops.catalogue_source("embedded") == "embedded"
    with pytest.raises(ConfigurationError, match="exactly one products file"):
        WebShopEnvironment().reset(seed=0, goal=0)
    monkeypatch.delenv(shops.DATA_VARIABLE)
    assert shops.catalogue_source(None) == "embedded"


def test_a_shop_is_opened_once_for_all_threads(monkeypatch):
    opened = []
    monkeypatch.setattr(shops, "_opened", {})
    load = shops._load
    monkeypatch.setattr(shops, "_load", lambda source: (opened.append(source), load(source))[1])
    with ThreadPoolExecutor(32) as pool:
        got = list(pool.map(lambda _: open_shop("embedded"), range(32)))
    assert opened == ["embedded"] and all(shop is got[0] for shop in got)


def test_128_episodes_share_the_shop_and_do_not_mix():
    rows = list(WebShopEnvironment.dataset("test_128"))
    shop = open_shop()
    barrier = threading.Barrier(128)

    def episode(row):
        env = WebShopEnvironment(tagger="words")
        env.reset(seed=0, **row)
        goal = shop.goals[row["goal"]]
        barrier.wait(timeout=60)
        env.step(f"search[{goal.title}]")
        env.step(f"click[{goal.asin.lower()}]")
        for value in goal.option_values:
            env.step(f"click[{value}]")
        return env.step("click[buy now]")

    with ThreadPoolExecutor(128) as pool:
        results = list(pool.map(episode, rows))
    assert all(result.info["success"] for result in results)


def test_instances_are_free_until_reset_and_may_be_closed_twice(monkeypatch):
    monkeypatch.setattr(shops, "_load", lambda source: pytest.fail("opened a catalogue"))
    env = WebShopEnvironment(catalogue="/nowhere")
    assert (env.max_turns, env.history_length, env.action_tags, env.worker) == (15, 2, ("action",), "thread")
    env.close()
    env.close()


def test_prompts_ask_for_the_declared_reply_format():
    think, action = WebShopEnvironment().prompt, WebShopEnvironment(reply_format="action").prompt
    for text in (think.first, think.later):
        assert "<think> and </think>" in text and "<action> and </action>" in text
        assert all(f"{{{name}}}" in text for name in ("task", "observation", "admissible_actions"))
    assert "{history}" in think.later and "{history}" not in think.first
    for text in (action.first, action.later):
        assert "<think>" not in text and "<action> and </action>" in text


def test_advice_is_general_and_names_the_category():
    env = WebShopEnvironment()
    advice = {family: env.generic_skill(family) for family in ("beauty", "fashion", "unknown")}
    assert len(set(advice.values())) == 3
    assert all(text.startswith(advice["unknown"]) for text in advice.values())


def test_importing_the_environment_loads_no_engine_package():
    code = (
        "import sys; import taspo_trl.environments.webshop as w; w.WebShopEnvironment();"
        "heavy = {'regex', 'nltk', 'thefuzz', 'spacy', 'torch', 'trl', 'datasets', 'scipy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
