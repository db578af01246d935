"""`find_action`: which block of a reply is executed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.tokens import ACTION_TAGS, count_blocks, find_action, find_actions
from taspo_trl.viewer.reply import reply_parts
from tests.growth import growth


@pytest.mark.parametrize(
    ("text", "tag", "content"),
    [
        ("<action>go</action>", "action", "go"),
        ("<search>red shoes</search>", "search", "red shoes"),
        ("<answer>42</answer>", "answer", "42"),
        ("a <action> go </action> b", "action", " go "),
        ("<action>line\nfeed</action>", "action", "line\nfeed"),
        ("<Action>go</ACTION>", "action", "go"),
        ("<ACTION>GO</action>", "action", "GO"),
        ("<action></action>", "action", ""),
        ("<action>a < b > c</action>", "action", "a < b > c"),
        ("<action>打开 😀</action>", "action", "打开 😀"),
        # The first complete block, whatever its tag.
        ("<search>a</search><action>b</action>", "search", "a"),
        ("<action>a</action><action>b</action>", "action", "a"),
        # A quoted block inside the reasoning is a block: the executor sees no difference.
        ("<think>say <action>x</action>?</think><action>y</action>", "action", "x"),
        # Without a closing tag the search goes on behind the opening one.
        ("<search>half <action>go</action>", "action", "go"),
        ("I could use <answer> here. <action>go</action>", "action", "go"),
        # A closing tag of another kind is content.
        ("<action>a</search>b</action>", "action", "a</search>b"),
    ],
)
def test_first_complete_block_is_found(text, tag, content):
    block = find_action(text)
    assert (block.tag, block.content, block.is_nested) == (tag, content, False)
    assert text[block.start : block.end].lower() == f"<{tag}>{content}</{tag}>".lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go",
        "<action>go",
        "go</action>",
        "<action>go</search>",
        "</action>go<action>",
        "<action go>x</action>",
        "< action>x</action>",
        "<action>go</action",
        "<actions>go</actions>",
        # Case folding beyond ASCII (long s, dotless i) makes no tag.
        "<ſearch>x</ſearch>",
        "<actıon>x</actıon>",
    ],
)
def test_incomplete_or_foreign_tags_are_no_block(text):
    assert find_action(text) is None
    assert count_blocks(text) == 0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<action>a<action>b</action>", "a<action>b"),
        ("<action>a <SEARCH>b</search></action>", "a <SEARCH>b</search>"),
        ("<action><answer></action>", "<answer>"),
    ],
)
def test_block_with_another_opening_tag_is_executed_as_it_is_and_flagged(text, content):
    block = find_action(text)
    assert block.content == content
    assert block.is_nested


def test_declared_tags_replace_the_default_ones():
    text = "<action>a</action><tool.call>b</tool.call><toolXcall>c</toolXcall>"
    block = find_action(text, ("tool.call",))
    assert (block.tag, block.content) == ("tool.call", "b")  # the dot is a dot, not a pattern
    assert find_action("<action>a</action>", ("tool.call",)) is None


def test_opening_tag_of_an_undeclared_kind_is_not_nesting():
    assert not find_action("<action>a <search>b</action>", ("action",)).is_nested


def test_every_complete_block_counts():
    assert count_blocks("<action>a</action> <search>b</search><action>c<action>d</action>") == 3


@given(
    before=st.text(st.characters(exclude_characters="<"), max_size=20),
    content=st.text(st.characters(exclude_characters="<"), max_size=20),
    after=st.text(max_size=20),
    tag=st.sampled_from(ACTION_TAGS),
)
def test_positions_cut_the_block_out_of_any_text(before, content, after, tag):
    text = f"{before}<{tag}>{content}</{tag}>{after}"
    block = find_action(text)
    assert (block.start, block.end) == (len(before), len(text) - len(after))
    assert block.content == content


@pytest.mark.parametrize(
    "piece",
    [
        "<action>",
        "</action>",
        "<action></search>",
        "<action>x</action>",
        "<action><search></action>",
        "<<",
        "<action",
        " ",
    ],
)
def test_time_is_linear_in_hostile_replies(piece):
    """4,000 opening tags without a closing one took 2.2 seconds, and the whole process stood still."""
    assert growth(lambda text: find_actions(text, every=True), piece) < 60
    assert growth(lambda text: reply_parts(text, "y"), piece) < 60
