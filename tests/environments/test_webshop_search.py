"""The search engine: its analysis of text, and BM25 worked by hand."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taspo_trl.environments.webshop.bm25 import Searcher, build_postings, round_lengths


def searcher(documents, ids=None):
    ids = ids or [f"{number:03d}" for number in range(len(documents))]
    postings, vocabulary = build_postings(documents, ids)
    return Searcher(postings, vocabulary.get), postings, vocabulary


def impact(index, term, document):
    _, postings, vocabulary = index
    span = slice(*postings.starts[vocabulary[term] : vocabulary[term] + 2])
    return dict(zip(postings.documents[span].tolist(), postings.impacts[span].tolist(), strict=True)).get(document)


def test_scores_are_bm25_worked_by_hand():
    # Three documents of 2, 3 and 4 terms: the mean length is 3. "mug" stands in two of three documents:
    # idf = ln(1 + (3 - 2 + 0.5) / (2 + 0.5)) = ln 1.6 = 0.470004.
    # In the first: tf 2, norm = 0.9 * (0.6 + 0.4 * 2 / 3) = 0.78, tf / (tf + norm) = 0.719424.
    # In the third: tf 1, norm = 0.9 * (0.6 + 0.4 * 4 / 3) = 1.02, 1 / 2.02 = 0.495050.
    index = searcher([["mug", "mug"], ["red", "tea", "pot"], ["mug", "blue", "tea", "pot"]])
    assert impact(index, "mug", 0) == pytest.approx(0.470004 * 0.719424, abs=1e-6)
    assert impact(index, "mug", 1) is None
    assert impact(index, "mug", 2) == pytest.approx(0.470004 * 0.495050, abs=1e-6)
    # "red" stands in one: idf = ln(1 + 2.5 / 1.5) = 0.980829, norm = 0.9, 1 / 1.9.
    assert impact(index, "red", 1) == pytest.approx(0.980829 / 1.9, abs=1e-6)
    assert index[0].search(["mug"], 9) == [0, 2]
    assert index[0].search(["mug", "blue"], 9) == [2, 0]


@pytest.mark.parametrize(
    ("length", "rounded"),
    [(0, 0), (1, 1), (23, 23), (24, 24), (39, 39), (40, 40), (41, 40), (42, 42), (55, 54), (56, 56), (59, 56),
     (60, 60), (88, 88), (103, 96), (104, 104), (1000, 984)],
)  # fmt: skip
def test_lengths_are_rounded_as_lucene_stores_them(length, rounded):
    # Above 24 the excess keeps four significant bits: 1000 - 24 = 976 = 0b1111010000 -> 0b1111000000 = 960.
    assert round_lengths(np.array([length])).tolist() == [rounded]


def test_equal_scores_are_ordered_by_document_id():
    search, *_ = searcher([["a"], ["a"], ["a"], ["b"]], ["z", "m", "b", "a"])
    assert search.search(["a"], 9) == [2, 1, 0]
    assert search.search(["a"], 2) == [2, 1]


def test_a_repeated_query_term_counts_as_often():
    search, *_ = searcher([["a", "c", "c"], ["b", "b", "c"], ["c", "c", "c"]])
    assert search.search(["a", "b"], 1) == [1]  # b is twice in its document
    assert search.search(["a", "a", "b"], 1) == [0]


def test_nothing_is_found_for_unknown_terms_and_empty_queries():
    search, *_ = searcher([["a"], []])
    assert search.search(["x"], 5) == []
    assert search.search([], 5) == []
    assert search.search(["a"], 5) == [0]


def test_an_empty_catalogue_finds_nothing():
    search, *_ = searcher([])
    assert search.search(["a"], 5) == []


words = st.sampled_from("abcdefgh")


@given(st.lists(st.lists(words, max_size=60), min_size=1, max_size=12), st.lists(words, max_size=6), st.integers(1, 6))
def test_results_equal_a_plain_ranking_of_all_documents(documents, query, limit):
    filled = [document for document in documents if document]
    mean = sum(map(len, filled)) / max(len(filled), 1)

    def score(document):
        total = 0.0
        for term in query:
            holding = sum(term in other for other in filled)
            tf = document.count(term)
            length = int(round_lengths(np.array([len(document)]))[0])
            if tf:
                idf = math.log(1 + (len(filled) - holding + 0.5) / (holding + 0.5))
                total += idf * tf / (tf + 0.9 * (0.6 + 0.4 * length / mean))
        return total

    found = searcher(documents)[0].search(query, limit)
    scores = [score(document) for document in documents]
    expected = sorted((s for s in scores if s > 0), reverse=True)[:limit]
    assert [scores[number] for number in found] == pytest.approx(expected, rel=1e-5)


def test_the_index_is_the_same_when_it_is_built_in_small_chunks(monkeypatch):
    from taspo_trl.environments.webshop import bm25

    documents = [[f"w{i * j % 13}" for j in range(i % 7 + 1)] for i in range(50)]
    whole, _ = build_postings(documents, list(map(str, range(50))))
    monkeypatch.setattr(bm25, "_CHUNK", 5)
    pieces, _ = build_postings(documents, list(map(str, range(50))))
    assert np.array_equal(whole.impacts, pieces.impacts)


def test_the_index_survives_saving(tmp_path):
    from taspo_trl.environments.webshop.bm25 import Postings

    _, postings, vocabulary = searcher([["a", "b"], ["b"]])
    postings.save(tmp_path)
    opened = Postings.open(tmp_path)
    assert isinstance(opened.impacts, np.memmap)
    assert Searcher(opened, vocabulary.get).search(["b"], 5) == [1, 0]


def test_parallel_searches_do_not_mix():
    documents = [[f"w{i % 10}", "all"] for i in range(400)]
    search, *_ = searcher(documents)
    wrong = []

    def look(number):
        expected = [i for i in range(400) if i % 10 == number][:20]
        wrong.extend(1 for _ in range(40) if search.search([f"w{number}"], 20) != expected)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Women's running-shoes", ["women", "run", "shoe"]),
        ("the O\N{RIGHT SINGLE QUOTATION MARK}Neil\N{RIGHT SINGLE QUOTATION MARK}s mug", ["o’neil", "mug"]),
        ("it will not be such an and", []),
        ("3.5,000 foo_bar a.b x:y wi-fi", ["3.5,000", "foo_bar", "a.b", "x:y", "wi", "fi"]),
        ("relational happily hopping ties caresses", ["relat", "happili", "hop", "ti", "caress"]),
        ("abli possibly", ["abli", "possibl"]),  # the later rule "bli" -> "ble" applies to stems with a measure only
        ("\N{BLACK STAR}\N{BLACK STAR} \N{HEAVY CHECK MARK} \N{FIRE}", ["★", "★", "✔", "\N{FIRE}"]),
        ("½ ❶ → ° ●", []),
        ("❥ ❧ ⎈ Ⅳ Ⓐ ⼀", ["❥", "❧", "⎈", "ⅳ", "ⓐ", "⼀"]),  # emoji of Unicode 12, numerals, a radical
        ("ヽ(ﾟ∀ﾟ)ﾒ(ﾟ∀ﾟ)ﾉ ｶﾞ", ["ヽ", "ﾒ", "ﾉ", "ｶﾞ"]),  # a sound mark extends a word, and begins none
        ("\U0001f1e9\U0001f1ea \U0001f1e9", ["\U0001f1e9\U0001f1ea"]),  # a flag is a pair
        ("你好 カタカナ", ["你", "好", "カタカナ"]),
        ("BIG/small (10\")", ["big", "small", "10"]),
        ("'s s's", ["s", "s"]),
        ("", []),
    ],
)  # fmt: skip
def test_text_is_analysed_as_lucene_does(text, terms):
    pytest.importorskip("regex")
    pytest.importorskip("nltk")
    from taspo_trl.environments.webshop.analysis import analyze

    assert analyze(text) == terms


def test_overlong_words_are_cut_into_pieces():
    pytest.importorskip("regex")
    pytest.importorskip("nltk")
    from taspo_trl.environments.webshop.analysis import split_words

    assert [len(word) for word in split_words("x" * 600)] == [255, 255, 90]


def test_a_missing_package_names_the_extra(monkeypatch):
    import sys

    from taspo_trl.environments.webshop._extra import require
    from taspo_trl.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(MissingDependencyError, match=r'pip install -e "\.\[webshop\]"'):
        require("regex")
