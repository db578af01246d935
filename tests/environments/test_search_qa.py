"""Search-QA episodes: which block is executed, what a malformed reply costs, what the policy gets to see."""

import pickle
import re
import subprocess
import sys
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.environments import SearchQAEnvironment
from taspo_trl.environments.base import check_environment
from taspo_trl.environments.search_qa.passages import Passage
from taspo_trl.environments.search_qa.prompts import EMPTY_SEARCH_HINT, NO_ACTION_HINT, build_prompt
from taspo_trl.environments.search_qa.replies import TAGS, Request, find_fault, format_action, parse_action
from taspo_trl.environments.search_qa.retrievers import RetrieverError
from taspo_trl.environments.search_qa.sources import EMBEDDED_SETS, QUESTION_SETS
from taspo_trl.errors import ConfigurationError, EnvironmentContractError, ServiceError
from taspo_trl.tokens import find_action


MADISON = Passage("1", "James Madison", "James Madison was the fourth president.")


class ScriptedRetriever:
    """Answers every search with the same passages and remembers what was asked."""

    def __init__(self, passages=(MADISON,), error=None):
        self.passages = list(passages)
        self.error = error
        self.asked = []

    def search(self, queries, topk):
        self.asked.append((list(queries), topk))
        if self.error is not None:
            raise self.error
        return [self.passages[:topk] for _ in queries]

    def close(self):
        pass


def start(retriever=None, **settings):
    environment = SearchQAEnvironment(retriever or ScriptedRetriever(), **settings)
    environment.reset(
        seed=0,
        task_id="nq/test/1",
        question="Who was the fourth president?",
        golden_answers=["James Madison", "Madison"],
        family="nq",
        split="test",
    )
    return environment


def play(environment, reply):
    """What the rollout loop does with a reply: one function finds the block, the environment names and judges it."""
    block = find_action(reply, environment.action_tags)
    action = "" if block is None else environment.action_of(block)
    return environment.reply_fault(reply, block), action, environment.step(action)


# --- replies ---------------------------------------------------------------------------------------------------------

REPLIES = [
    # reply, fault, action that is executed
    ("<think>x</think><search> first king </search>", "", "<search>first king</search>"),
    ("<ANSWER>Madison</Answer>", "", "<answer>Madison</answer>"),
    ("<search>two\nlines</search> and more", "", "<search>two\nlines</search>"),
    ("", "no_action_block", ""),
    ("I think it is Madison.", "no_action_block", ""),
    ("<think>hm</think>", "no_action_block", ""),
    ("search>x</search>", "no_action_block", ""),
    ("<search>never closed", "unclosed_block", ""),
    ("<search>crossed</answer>", "unclosed_block", ""),
    ("<search>a</search><answer>b</answer>", "both_kinds", "<search>a</search>"),
    ("<answer>b</answer> or <search>a</search>", "both_kinds", "<answer>b</answer>"),
    ("<search>a</search> then <answer>", "both_kinds", "<search>a</search>"),
    ("<answer> unfinished, so <search>a</search>", "both_kinds", "<search>a</search>"),
    ("<search>a</search><search>b</search>", "repeated_block", "<search>a</search>"),
    ("<answer>a</answer><ANSWER>b</ANSWER>", "repeated_block", "<answer>a</answer>"),
    ("<search>a<search>b</search>", "nested_tag", "<search>a<search>b</search>"),
    ("<search>a <answer>b</answer></search>", "nested_tag", "<search>a <answer>b</answer></search>"),
    ("use <search> now <search>a</search>", "nested_tag", "<search>now <search>a</search>"),
    ("<search> \n </search>", "empty_block", "<search></search>"),
    ("<answer></answer>", "empty_block", "<answer></answer>"),
]


@pytest.mark.parametrize(("reply", "fault", "action"), REPLIES)
def test_faults_are_named_and_the_first_complete_block_is_executed(reply, fault, action):
    block = find_action(reply, TAGS)
    assert find_fault(reply, block) == fault
    assert ("" if block is None else format_action(block)) == action


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "<Search>", "a", " ", "\n"])))
def test_an_action_names_exactly_the_executed_block(parts):
    reply = "".join(parts)
    block = find_action(reply, TAGS)
    if block is None:
        assert find_fault(reply, None)
        return
    assert parse_action(format_action(block)) == Request(block.tag, block.content.strip())
    # A reply without fault has one opening tag in all, that of the executed block.
    if not find_fault(reply, block):
        assert len(re.findall(r"<(?:search|answer)>", reply, re.IGNORECASE)) == 1


# --- episodes --------------------------------------------------------------------------------------------------------


def test_a_search_then_the_right_answer():
    retriever = ScriptedRetriever()
    environment = start(retriever, topk=2)
    _, _, searched = play(environment, "<think>hm</think>\n<search> fourth president </search>")
    assert retriever.asked == [(["fourth president"], 2)]
    assert searched.observation == (
        "<information>\nDoc 1: James Madison\nJames Madison was the fourth president.\n</information>"
    )
    assert (searched.reward, searched.terminated, searched.truncated) == (0.0, False, False)
    assert searched.info["valid"] is True
    assert searched.info["success"] is False
    _, _, answered = play(environment, "<answer>the Madison</answer>")
    assert (answered.reward, answered.terminated, answered.truncated) == (1.0, True, False)
    assert answered.info["success"] is True
    assert answered.info["f1"] == 1.0
    assert answered.info["num_searches"] == 1


def test_a_wrong_answer_ends_the_episode_with_its_f1():
    _, _, result = play(start(), "<answer>James Monroe</answer>")
    assert (result.reward, result.terminated) == (0.0, True)
    assert result.info["success"] is False
    assert result.info["valid"] is True
    assert result.info["f1"] == pytest.approx(0.5)


@pytest.mark.parametrize("reply", ["", "no tags", "<search>open", "<search>x</answer>"])
def test_a_reply_without_a_block_gets_a_hint_and_costs_a_turn(reply):
    retriever = ScriptedRetriever()
    environment = start(retriever, max_turns=2)
    fault, action, result = play(environment, reply)
    assert fault
    assert action == ""
    assert result.observation == NO_ACTION_HINT
    assert result.info["valid"] is False
    assert not result.terminated
    assert not result.truncated
    last = play(environment, reply)[2]
    assert last.truncated
    assert last.observation == ""  # nobody reads it
    assert retriever.asked == []


def test_a_blank_search_gets_a_hint_and_asks_nothing():
    retriever = ScriptedRetriever()
    result = play(start(retriever), "<search>  </search>")[2]
    assert result.observation == EMPTY_SEARCH_HINT
    assert result.info["valid"] is False
    assert retriever.asked == []


def test_a_blank_answer_ends_the_episode_as_a_failure():
    environment = SearchQAEnvironment(ScriptedRetriever())
    environment.reset(seed=0, question="Which vitamin?", golden_answers=["A"])
    result = play(environment, "<answer> </answer>")[2]
    assert result.terminated
    assert result.info["success"] is False
    assert result.info["valid"] is False


@pytest.mark.parametrize(("reply", "fault", "action"), [row for row in REPLIES if row[2]])
def test_a_faulty_reply_with_a_block_is_executed_all_the_same(reply, fault, action):
    retriever = ScriptedRetriever()
    _, executed, result = play(start(retriever), reply)
    assert executed == action
    assert result.terminated is action.startswith("<answer>")
    query = action.removeprefix("<search>").removesuffix("</search>")
    is_search = action.startswith("<search>") and query
    assert retriever.asked == ([([query], 3)] if is_search else [])


def test_a_search_in_the_last_turn_retrieves_nothing_and_cuts_the_episode():
    retriever = ScriptedRetriever()
    environment = start(retriever)
    for _ in range(3):
        assert not play(environment, "<search>a</search>")[2].truncated
    result = play(environment, "<search>a</search>")[2]
    assert (result.terminated, result.truncated, result.reward) == (False, True, 0.0)
    assert result.observation == ""
    assert result.info["success"] is False
    assert len(retriever.asked) == 3


def test_an_answer_in_the_last_turn_counts():
    environment = start(max_turns=1)
    result = play(environment, "<answer>Madison</answer>")[2]
    assert (result.terminated, result.truncated, result.reward) == (True, False, 1.0)


def test_an_outage_is_raised_and_never_shown():
    environment = start(ScriptedRetriever(error=RetrieverError.of("timeout", "The retriever at http://x is down.")))
    with pytest.raises(ServiceError, match="http://x") as caught:
        environment.step("<search>a</search>")
    assert caught.value.cause == "timeout"


def test_the_cause_of_an_outage_survives_pickling():
    error = pickle.loads(pickle.dumps(RetrieverError.of("http_503", "The retriever at http://x failed.")))
    assert (error.cause, str(error)) == ("http_503", "The retriever at http://x failed.")


def test_an_episode_that_has_ended_takes_no_step():
    environment = start()
    environment.step("<answer>x</answer>")
    with pytest.raises(EnvironmentContractError, match="reset"):
        environment.step("<answer>x</answer>")


def test_an_environment_is_used_again_after_reset_and_closed_twice():
    environment = start(max_turns=2)
    play(environment, "<search>a</search>")
    environment.reset(seed=1, question="Q?", golden_answers="x")
    result = play(environment, "<search>a</search>")[2]
    assert not result.truncated
    assert result.info["num_searches"] == 1
    assert play(environment, "<answer>X</answer>")[2].info["success"] is True
    environment.close()
    environment.close()


def test_siblings_of_a_group_see_the_same_start():
    row = {"question": "Q?", "golden_answers": ["x"], "family": "nq"}
    first, second = (SearchQAEnvironment(ScriptedRetriever()).reset(seed=7, **row) for _ in range(2))
    assert first == second
    assert first.info == {"task": "Q?", "family": "nq"}


def test_the_class_follows_the_contract():
    environment = SearchQAEnvironment(ScriptedRetriever())
    check_environment(environment)
    assert environment.action_tags == ("search", "answer")
    assert environment.max_turns == environment.history_length == 4


def test_importing_the_environment_loads_no_optional_package():
    script = (
        "import sys; from taspo_trl.environments import SearchQAEnvironment; import taspo_trl.environments.search_qa; "
        "print(*{'bm25s', 'Stemmer', 'aiohttp', 'faiss', 'datasets', 'torch', 'trl', 'litellm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply_format", ["think", "action"])
def test_the_prompt_asks_for_reasoning_only_where_it_should(reply_format):
    prompt = SearchQAEnvironment(ScriptedRetriever(), reply_format=reply_format, max_turns=6).prompt
    for text in (prompt.first, prompt.later):
        assert ("<think>" in text) is (reply_format == "think")
        assert "{task}" in text
        assert "6" in text
    assert "{history}" in prompt.later
    assert "{observation}" in prompt.later
    # Engines reuse a common prefix: everything before the history is the same in every turn.
    common = prompt.later.split("So far:")[0]
    assert prompt.first.startswith(common)


def test_prompts_hold_only_the_documented_placeholders():
    prompt = build_prompt("think", 4)
    allowed = {"task", "observation", "admissible_actions", "history", "num_turns", "turn"}
    for text in (prompt.first, prompt.later, prompt.reply):
        assert set(re.findall(r"{(\w*)}", text)) <= allowed
    assert set(re.findall(r"{(\w*)}", prompt.history_item)) <= {"turn", "observation", "action", "next_observation"}


def test_every_set_has_general_advice():
    environment = SearchQAEnvironment(ScriptedRetriever())
    for family in (*QUESTION_SETS, *EMBEDDED_SETS):
        assert environment.generic_skill(family)
    assert environment.generic_skill("unknown") == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reply_format": "json"}, "reply_format"),
        ({"topk": 0}, "topk"),
        ({"topk": True}, "topk"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_passage_chars": 0}, "max_passage_chars"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        SearchQAEnvironment(ScriptedRetriever(), **settings)


@pytest.mark.parametrize("spec", ["no/such/folder", "corpus.txt", "ftp://host", 7, object()])
def test_what_is_no_retriever_is_refused_when_the_environment_is_made(spec):
    with pytest.raises(ConfigurationError, match="retriever"):
        SearchQAEnvironment(spec)


def test_a_question_without_answers_is_refused():
    environment = SearchQAEnvironment(ScriptedRetriever())
    with pytest.raises(ConfigurationError, match="golden answer"):
        environment.reset(seed=0, question="Q?", golden_answers=[])


# --- embedded, end to end --------------------------------------------------------------------------------------------


def test_a_reader_solves_the_embedded_questions_with_the_embedded_retriever():
    pytest.importorskip("bm25s")
    from taspo_trl.environments.search_qa.world import build_questions, build_world

    solved = 0
    questions = build_questions(build_world())["test"]
    for question in questions:
        environment = SearchQAEnvironment()
        environment.reset(seed=0, question=question.question, golden_answers=question.golden_answers)
        # A reader who knows what to look up: the passage of each link of the chain, then the answer.
        found = []
        for name in question.evidence:
            observation = environment.step(f"<search>{name}</search>").observation
            found.append(f"Doc 1: {name}\n" in observation)
        answer = question.golden_answers[0]
        assert answer in observation
        solved += all(found) and environment.step(f"<answer>{answer}</answer>").info["success"]
    assert solved == len(questions)


def test_a_factory_travels_to_another_process():
    pytest.importorskip("bm25s")
    factory = pickle.loads(pickle.dumps(partial(SearchQAEnvironment, topk=5)))
    assert "Doc 5" in start_with(factory).step("<search>bridge of dressed stone</search>").observation


def start_with(factory):
    environment = factory()
    environment.reset(seed=0, question="Q?", golden_answers=["x"])
    return environment
