"""The embedded world is consistent: every question can be answered from the passages alone."""

import hashlib
import os
import re
import subprocess
import sys
from functools import cache

import pytest

from taspo_trl.environments.search_qa.scoring import exact_match
from taspo_trl.environments.search_qa.world import build_passages, build_questions, build_world


NAME = r"[A-Z][\w' ]*?"
YEAR = r"\d{4}"

# What a reader learns from a passage, sentence by sentence. Written down here again, from the text: the generator's
# own facts are not used.
SENTENCES = {
    "island": rf"(?:It lies|The town stands) on the island of ({NAME})",
    "founded": rf"(?:It was founded|Settlers founded it) in ({YEAR})",
    "trade": r"(?:It is known for its|The town made its name with) (.+)",
    "river": rf"The River ({NAME}) flows through the town|The old quarter is divided by the River ({NAME})",
    "peak": rf"Its highest mountain is ({NAME})|The land climbs to ({NAME}), its highest mountain",
    "river_island": rf"(?:It runs across|Its whole course is on) the island of ({NAME})",
    "length": r"(?:It is|From spring to mouth it measures) (\d+) kilometres(?: long)?",
    "birthplace": rf"The place of birth is ({NAME})|The family lived in ({NAME}) at the time of the birth",
    "birth_year": rf"The year of birth is ({YEAR})|Parish books give ({YEAR}) as the year of birth",
    "teacher": rf"The craft was learned from ({NAME})|({NAME}) was the teacher of those early years",
    "author": rf"(?:It was written by|Its author is) ({NAME})",
    "published": rf"(?:It was published in|The first edition is dated) ({YEAR})",
    "setting": rf"(?:The story is set|All of it takes place) in ({NAME})",
    "designer": rf"(?:It was designed by|The plans are the work of) ({NAME})",
    "opened": rf"(?:It was opened in|Traffic has used it since) ({YEAR})",
    "shipwright": rf"(?:It was built by|The hull is the work of) ({NAME})",
    "home_port": rf"(?:Its home port was|It was registered in) ({NAME})",
    "crosses": rf"(?:It crosses|Its arches span) the River ({NAME})",
    "launched": rf"(?:It was launched|The launch was) in ({YEAR})",
}

# How a question asks for a fact: `X` is a mention or a phrase.
ASKED = {
    "peak": "What is the highest mountain on X?",
    "island": "On which island does X lie?",
    "founded": "In which year was X founded?",
    "trade": "Which product is X known for?",
    "river": "Which river flows through X?",
    "river_island": "On which island is X?",
    "length": "How many kilometres long is X?",
    "birthplace": "In which town was X born?",
    "birth_year": "In which year was X born?",
    "teacher": "Who taught X?",
    "author": "Who wrote X?",
    "published": "In which year was X published?",
    "setting": "In which town is X set?",
    "designer": "Who designed X?",
    "opened": "In which year was X opened?",
    "shipwright": "Who built X?",
    "home_port": "Which town was the home port of X?",
    "crosses": "Which river does X cross?",
    "launched": "In which year was X launched?",
}
PHRASES = {
    "island": "the island on which X lies",
    "river": "the river that flows through X",
    "river_island": "the island on which X runs",
    "birthplace": "the town where X was born",
    "teacher": "the teacher of X",
    "author": "the author of X",
    "setting": "the town in which X is set",
    "designer": "the designer of X",
    "shipwright": "the builder of X",
    "home_port": "the home port of X",
    "crosses": "the river that X crosses",
}


@cache
def world():
    return build_world()


@cache
def passages():
    return build_passages(world())


@cache
def questions():
    return build_questions(world())


def all_questions():
    return [question for split in questions().values() for question in split]


def read_passage(text):
    """The facts that the sentences of a passage state."""
    facts = {}
    for sentence in text.removesuffix(".").split(". "):
        for relation, pattern in SENTENCES.items():
            if match := re.fullmatch(pattern, sentence):
                assert relation not in facts, (relation, text)
                facts[relation] = next(group for group in match.groups() if group)
    return facts


@cache
def library():
    return {passage.title: read_passage(passage.text) for passage in passages()}


def title_of(mention):
    """The passage that a mention such as `the novel "The Amber Ferry"` or `the River Oldwick` points to."""
    quoted = re.fullmatch(r'the \w+ "(.+)"', mention)
    name = quoted.group(1) if quoted else re.sub(r"^the (island of |River )?", "", mention)
    return name if name in library() else None


def resolve(words):
    """The titles that `words` may stand for: a name, or a description that is looked up."""
    found = {title_of(words)} - {None}
    for relation, phrase in PHRASES.items():
        head, _, tail = phrase.partition("X")
        if words.startswith(head) and words.endswith(tail):
            inner = words.removeprefix(head).removesuffix(tail)
            found |= {library()[title].get(relation) for title in resolve(inner)} - {None}
    return found


def answer(question):
    """All answers that the passages give to a question."""
    answers = set()
    for relation, asked in ASKED.items():
        head, _, tail = asked.partition("X")
        if question.startswith(head) and question.endswith(tail):
            inner = question.removeprefix(head).removesuffix(tail)
            answers |= {library()[title].get(relation) for title in resolve(inner)} - {None}
    return answers


def test_the_corpus_and_the_sets_are_large_enough():
    assert len(passages()) >= 400
    assert len(all_questions()) >= 150
    assert {question.family for question in all_questions()} == {"one_hop", "two_hop"}


def test_the_passages_alone_answer_every_question_and_give_one_answer_only():
    for question in all_questions():
        answers = answer(question.question)
        assert len(answers) == 1, (question, answers)
        assert exact_match(answers.pop(), question.golden_answers), question


def test_every_sentence_of_a_fact_is_understood():
    # The reader above knows every fact of the generator: no sentence was passed over.
    for title, facts in library().items():
        assert facts == world().facts[title]


def test_every_kind_of_fact_is_asked_for():
    asked = {
        relation
        for question in all_questions()
        for relation, form in ASKED.items()
        if question.question.startswith(form.split("X")[0]) and question.question.endswith(form.split("X")[1])
    }
    assert asked == set(ASKED)


def test_a_two_hop_answer_is_not_in_the_first_passage():
    texts = {passage.title: passage.text for passage in passages()}
    two_hop = [question for question in all_questions() if question.family == "two_hop"]
    given_away = [q for q in two_hop if any(answer in texts[q.evidence[0]] for answer in q.golden_answers)]
    # A few towns happen to share what is asked for with the passage that leads to them.
    assert len(given_away) <= len(two_hop) // 10


def test_train_and_test_share_no_question():
    train, test = ({question.question for question in questions()[split]} for split in ("train", "test"))
    assert len(train) == 180
    assert len(test) == 90
    assert not train & test


def test_titles_are_unique_and_texts_are_clean():
    assert len({passage.title for passage in passages()}) == len(passages())
    for passage in passages():
        assert not re.search(r"[{}<>\n]|  ", passage.contents.replace("\n", "", 1))
        assert passage.text.endswith(".")


def test_time_and_place_are_consistent():
    facts = library()
    for title, known in facts.items():
        born = {person: int(facts[person]["birth_year"]) for person in facts if "birth_year" in facts[person]}
        for maker, year in (
            ("author", "published"),
            ("designer", "opened"),
            ("shipwright", "launched"),
        ):
            if maker in known:
                assert 20 <= int(known[year]) - born[known[maker]] <= 70, title
        if "teacher" in known:
            assert int(known["birth_year"]) - born[known["teacher"]] >= 20, title
        if "river" in known:
            assert facts[known["river"]]["river_island"] == known["island"], title


def test_the_world_is_the_same_in_every_process():
    script = (
        "import hashlib; from taspo_trl.environments.search_qa.world import *; w = build_world(); "
        "print(hashlib.sha256(repr((build_passages(w), build_questions(w))).encode()).hexdigest())"
    )
    here = hashlib.sha256(repr((passages(), questions())).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert here == there


@pytest.mark.parametrize("seed", [1, 2])
def test_another_seed_makes_another_world(seed):
    assert not set(build_world(seed=seed).kinds) >= set(world().kinds)


def test_a_larger_world_has_as_many_times_the_passages():
    assert len(build_passages(build_world(scale=3))) == 3 * len(passages())
