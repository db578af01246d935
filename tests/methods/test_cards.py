"""Each method has a card, and the page of the documentation holds them as they are."""

from __future__ import annotations

import pytest

from taspo_trl.cli import main
from taspo_trl.methods import GROUPS, METHODS, PAPERS
from taspo_trl.methods.cards import card, generated
from tests.documents import DOCS


PAPER = [
    "taspo", "grpo", "rloo", "reinforce_pp", "gigpo", "pace_q", "hgpo", "graphgpo",
    "hcapo", "triage", "rlsd", "serl", "stepopsd", "opid", "agentopsd", "grsd",
    "turnsight", "factor", "taspo_factor", "sdar", "opsd", "opsd_sdar", "opd", "grpo_opsd",
    "grpo_opsd_sdar", "sdpo", "grpo_sdpo", "skillsd",
]  # fmt: skip
CONTROLS = ["oracle", "placebo"]


def test_every_method_of_the_papers_is_there_once():
    assert sorted(METHODS) == sorted(PAPER + CONTROLS)
    assert [one.name for group in GROUPS.values() for one in group] == list(METHODS)


def test_the_page_holds_the_table_and_the_cards_as_they_are():
    text = (DOCS / "methods.md").read_text()
    _, mark, written = text.partition("<!-- What follows is written by `python -m taspo_trl.methods.cards`; a test")
    assert mark and written.partition("\n\n")[2] == generated(), "write docs/methods.md anew"


@pytest.mark.parametrize("name", METHODS)
def test_a_card_says_what_a_reader_asks(name):
    method, text = METHODS[name], card(METHODS[name])
    assert text.startswith(f"### {name}\n")
    assert "A_it" in text or "A~" in text
    for option in (*method.options, *method.fields.values()):
        assert f"| `{option}`" in text
    for paper in method.papers:
        assert paper.address in text
    assert bool(method.papers) != (name in CONTROLS)
    assert name not in CONTROLS or f"a{'n' if name == 'oracle' else ''} {name}, no method" in text
    for heading in ("Needs", "Costs beyond GRPO", "Checked at every step", "Cite"):
        assert f"\n- {heading}: " in text
    assert max(map(len, method.line.split("\n"))) <= 100


def test_words_follow_from_needs_and_guarantees():
    assert METHODS["rloo"].cost_words == METHODS["rloo"].needs_words == "nothing"
    assert METHODS["gigpo"].needs_words == "a state key"
    assert "copy taken every 10 updates" in METHODS["serl"].needs_words
    assert "[0.9, 1.1]" in METHODS["serl"].guarantee_words
    assert "each of 3 blocks" in METHODS["turnsight"].cost_words
    assert "second model" in METHODS["opd"].cost_words and "another model" in METHODS["opd"].needs_words
    assert "may turn the sign" in METHODS["opid"].guarantee_words
    assert "another sign than A_i" in METHODS["gigpo"].guarantee_words
    assert "another sign" not in METHODS["rloo"].guarantee_words
    assert "a loss of its own" in METHODS["sdpo"].guarantee_words
    assert "an oracle" in METHODS["oracle"].needs_words and "an oracle" not in METHODS["triage"].needs_words


@pytest.mark.parametrize("name", PAPERS)
def test_papers_are_cited_with_what_is_known(name):
    paper = PAPERS[name]
    assert paper.bibtex.startswith("@article{") and paper.bibtex.count("{") == paper.bibtex.count("}")
    assert paper.arxiv in paper.bibtex and (paper.title or paper.name) in paper.bibtex
    assert any(paper in method.papers for method in METHODS.values())


def test_the_command_lists_all_and_shows_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in METHODS)
    assert main(["methods", "serl"]) == 0
    shown = capsys.readouterr().out
    assert "share" in shown and "exp(s Delta_k)" in shown and "Selective Hindsight" in shown
    assert main(["methods", "srl"]) == 1
    assert "There is no method 'srl'. Did you mean `serl`?" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 110, 120])
def test_the_list_breaks_no_word(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["methods"]) == 0
    table = capsys.readouterr().out.rpartition("\n`taspo")[0]
    assert max(map(len, table.splitlines())) <= width
    for one in METHODS.values():
        for words in (one.name, one.line, one.needs_words, one.cost_words):
            assert words == "nothing" or set(words.replace("`", "").split()) <= set(table.split())


BRANCHES = {"opid": 2, "turnsight": 3, "taspo_factor": 2}
"""Guided branches of a method; one for all others, and none for rules of outcomes and states."""


def num_branches(name):
    """Guided branches that a method may ask for."""
    plain = name in [one.name for one in GROUPS["Advantages"] if one.name != "hcapo"] or name in ("opd", *CONTROLS)
    return 0 if plain else BRANCHES.get(name, 1)


@pytest.mark.parametrize("name", METHODS)
def test_no_method_asks_for_more_branches_than_it_is_described_with(name):
    needs = METHODS[name].usual.needs
    assert len(needs.blocks) == num_branches(name)
    assert needs.plain_only == (name == "opd") and needs.values == 0
