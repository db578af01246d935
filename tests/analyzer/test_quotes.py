"""When a quote counts as support: white space is forgiven, nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.analyzer.quotes import MAX_QUOTES, Quotes, collapse


def observation_fault(quote: str, record: str) -> str:
    return Quotes().observation_fault(quote, record)


def action_fault(quote: str, action: str) -> str:
    return Quotes().action_fault(quote, action)


# QUO-1
RECORD = "On the desk 1, you see a mug 1's   lid\nand a pen 2."


@pytest.mark.parametrize(
    "quote, fault",
    [
        ("On the desk 1, you see a mug 1's lid and a pen 2.", ""),
        ("you see a mug\u00a01's lid and a pen 2", ""),  # a non-breaking space
        ("mug 1's \t\r\n\u2003lid", ""),
        ("  a pen 2.  ", ""),
        (RECORD, ""),
        ("mug 1’s lid", "quote_typography"),
        ("a mug 1's lid and a pen 2…", "quote_not_found"),  # the record ends in one dot, not three
        ("On the Desk 1", "quote_not_found"),
        ("a mug 2's lid", "quote_not_found"),
        ("you see a mug 1's and a pen 2", "quote_not_found"),  # one word removed
        ("desk 1, ... pen 2", "quote_not_found"),  # stitched over a gap
        ("On the desk 1 ... a pen 2.", "quote_not_found"),
        ("desk1", "quote_not_found"),
        ("mug\u200b 1", "quote_not_found"),  # a zero-width space is no white space
        ("pen", "quote_too_short"),
        ("pen 2.", ""),
        ("pen ", "quote_too_short"),  # counted after collapsing
        ("", "quote_empty"),
        (" \n\u00a0", "quote_empty"),
    ],
)
def test_an_observation_quote_is_a_part_of_the_record_after_collapsing(quote: str, fault: str):
    assert observation_fault(quote, RECORD) == fault


@pytest.mark.parametrize(
    "quote, record",
    [
        ("the mug’s lid", "the mug's lid"),
        ("the mug's lid", "the mug’s lid"),  # a provider that straightens what was curled
        ("“open” it", '"open" it'),
        ("10–12 mugs", "10-12 mugs"),
        ("well…", "well..."),
        ("well...", "well…"),
        ("„open“ it", '"open" it'),
        ("−5 degrees", "-5 degrees"),
    ],
)
def test_typography_is_rejected_and_counted_apart(quote: str, record: str):
    assert observation_fault(quote, record) == "quote_typography"
    assert action_fault(quote, record) == "quote_typography"


@pytest.mark.parametrize("length, fault", [(1, "quote_too_short"), (3, "quote_too_short"), (4, ""), (5, "")])
def test_four_characters_are_the_least_unless_they_are_the_whole_record(length: int, fault: str):
    text = "abcde"[:length]
    assert observation_fault(text, f"{text} and more") == fault
    assert observation_fault(text, f"  {text} \n") == ""


def test_an_empty_record_supports_nothing():
    assert observation_fault("", "") == observation_fault(" ", "\n") == "quote_empty"
    assert observation_fault("anything", "") == "quote_not_found"
    assert action_fault("", "") == "quote_empty"


def test_a_literal_gap_in_the_record_may_be_quoted():
    # Quotes are checked against the record, and this record itself holds ` ... `.
    assert observation_fault("Loading ... done", "Loading ...  done. Go on.") == ""


@pytest.mark.parametrize(
    "quote, fault",
    [
        ("take mug 1 from desk 1", ""),
        (" take  mug 1\nfrom desk 1 ", ""),
        ("take mug 1", "action_quote_incomplete"),
        ("mug 1 from desk 1", "action_quote_incomplete"),
        ("Take mug 1 from desk 1", "quote_not_found"),
        ("take mug 1 from desk 1.", "quote_not_found"),
    ],
)
def test_an_action_quote_is_the_whole_action(quote: str, fault: str):
    assert action_fault(quote, "take mug 1  from desk 1") == fault


@pytest.mark.parametrize(
    "action_length, quote_length, fault",
    [
        (320, 320, ""),
        (320, 319, "action_quote_incomplete"),
        (321, 321, ""),
        (321, 40, ""),
        (321, 39, "quote_too_short"),
        (321, 320, ""),
    ],
)
def test_of_an_action_of_more_than_320_characters_a_part_of_40_is_enough(action_length, quote_length, fault):
    action = ("abcdefghi " * 40)[: action_length - 1] + "."
    assert len(collapse(action)) == action_length
    assert action_fault(action[action_length - quote_length :], action) == fault


def test_the_length_of_an_action_counts_after_collapsing():
    padded = "a " + " " * 400 + "b"
    assert action_fault("a", padded) == "action_quote_incomplete"


@given(st.text(), st.text())
def test_what_is_accepted_is_in_the_record_whatever_is_asked(quote: str, record: str):
    if observation_fault(quote, record) == "":
        assert collapse(quote) and collapse(quote) in collapse(record)
    if action_fault(quote, record) == "":
        assert collapse(quote) and collapse(quote) in collapse(record)


@given(st.text(alphabet="ab \n\u00a0", min_size=12), st.data())
def test_every_collapsed_piece_of_four_characters_is_accepted(record: str, data: st.DataObject):
    whole = collapse(record)
    start = data.draw(st.integers(0, max(0, len(whole) - 4)))
    piece = whole[start : start + data.draw(st.integers(4, 20))]
    if len(collapse(piece)) >= 4:
        assert observation_fault(piece, record) == ""


@given(st.text())
def test_collapsing_twice_changes_nothing(text: str):
    assert collapse(collapse(text)) == collapse(text)


def test_an_answer_has_only_so_many_quotes_looked_up():
    quotes = Quotes()
    faults = [quotes.observation_fault("a mug 1", RECORD) for _ in range(MAX_QUOTES + 2)]
    assert faults == [""] * MAX_QUOTES + ["over_max_quotes"] * 2
