"""Pages: their two kinds of text and what can be clicked on them."""

from __future__ import annotations

import pytest

from taspo_trl.environments.webshop import pages
from taspo_trl.environments.webshop.pages import Kind, Node, Page
from taspo_trl.environments.webshop.products import Product


MUG = Product(
    "B000000001",
    "Blue Mug",
    "Holds tea.",
    ("Glazed", "Heavy"),
    (5.0, 7.5),
    {"color": ("red", "blue"), "size": ("small",)},
    ("x",),
    "garden",
    "mugs",
    "Home › Kitchen",
)


def test_search_page():
    page = pages.search_page("Find me a mug")
    assert page.text() == "WebShop [SEP] Instruction: [SEP] Find me a mug [SEP] Search"
    assert page.text_rich() == "WebShop\nInstruction: \nFind me a mug\n[button] Search [button_]\n"
    assert page.has_search_bar
    assert list(page.clickables()) == ["search"]


def test_results_page():
    page = pages.results_page("Find me a mug", [MUG], 1, 1)
    assert page.text() == (
        "Instruction: [SEP] Find me a mug [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] "
        "B000000001 [SEP] Blue Mug [SEP] $5.0 to $7.5"
    )
    assert list(page.clickables()) == ["back to search", "next >", "b000000001"]
    assert "\n\n[button] B000000001 [button_]\nBlue Mug\n" in page.text_rich()
    assert "\n\n[clicked button] B000000001 [clicked button_]\n" in page.text_rich({"B000000001"})


def test_only_later_result_pages_lead_back_and_all_lead_on():
    page = pages.results_page("", [], 6, 50)
    assert list(page.clickables()) == ["back to search", "< prev", "next >"]
    assert page.text().endswith("Back to Search [SEP] Page 6 (Total results: 50) [SEP] < Prev [SEP] Next >")


def test_item_page():
    page = pages.item_page("Find me a mug", MUG)
    assert page.text() == (
        "Instruction: [SEP] Find me a mug [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] "
        "size [SEP] small [SEP] Blue Mug [SEP] Price: $5.0 to $7.5 [SEP] Rating: N.A. [SEP] Description [SEP] "
        "Features [SEP] Reviews [SEP] Buy Now"
    )
    assert list(page.clickables()) == [
        *("back to search", "< prev", "description", "features", "reviews", "buy now"),
        *("red", "blue", "small"),
    ]


def test_chosen_options_are_marked_and_announced_last_first():
    rich = pages.item_page("i", MUG).text_rich((), 'mug/1/{"color": "red", "size": "small"}')
    assert rich.startswith("You have clicked small.\nYou have clicked red.\nInstruction:\n")
    assert "  [clicked button] red [clicked button_]\n  [button] blue [button_]\n" in rich


@pytest.mark.parametrize(
    ("name", "contents"),
    [("Description", ["Holds tea."]), ("Features", ["Glazed", "Heavy"]), ("Reviews", [])],
)
def test_sub_pages(name, contents):
    page = pages.sub_page("i", MUG, name)
    assert page.text() == " [SEP] ".join(["Instruction:", "i", "Back to Search", "< Prev", *contents])
    assert list(page.clickables()) == ["back to search", "< prev"]


def test_done_page_shows_purchase_and_score():
    page = pages.done_page("B000000001", {"size": "small", "color": "<red> & 'é'"}, 0.75)
    assert page.text() == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        "Purchased [SEP] asin [SEP] B000000001 [SEP] options [SEP] "
        '{"color": "\\u003cred\\u003e \\u0026 \\u0027\\u00e9\\u0027", "size": "small"} [SEP] '
        "attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] "
        "Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] "
        "product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] "
        "0.75 [SEP] Reward Details [SEP] None"
    )
    assert page.clickables() == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", []), ("\n", []), (" \n\t", []), (" ", [""]), ("  a\n", ["a"]), ("\N{NO-BREAK SPACE}", [""])],
)
def test_blank_texts_with_a_line_break_are_dropped_and_others_leave_a_gap(text, shown):
    assert Page((Node("x"), Node(text), Node("y"))).text() == " [SEP] ".join(["x", *shown, "y"])


def test_a_value_that_two_options_share_belongs_to_the_last():
    nodes = [Node("Features", Kind.BUTTON)]
    nodes += [Node("red", Kind.OPTION, "color"), Node("one", Kind.OPTION, "size"), Node("red", Kind.OPTION, "trim")]
    nodes += [Node("features", Kind.OPTION, "trim")]
    clickables = Page(tuple(nodes)).clickables()
    assert {value: node.option for value, node in clickables.items()} == {
        "features": "trim",
        "red": "trim",
        "one": "size",
    }
    assert list(clickables) == ["features", "red", "one"]
