"""Classes written for TRL's `environment_factory`: their tools, calls, results, rewards and verdicts."""

from __future__ import annotations

import json
import warnings
from importlib import resources

import pytest

from taspo_trl.environments.tool_calls import ToolCall, parse_tool_call, typed_arguments
from taspo_trl.environments.tools import ToolEnvironment, adapted, is_tool_environment
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError, EnvironmentContractError, ServiceError
from taspo_trl.rollout.contexts import ChatRenderer
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.rewards import conversation_of
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.rows import build_rows
from taspo_trl.tokens import ActionBlock, action_token_mask, find_actions
from taspo_trl.types import StopReason
from tests.environments.tool_worlds import AsyncCounter, Counter, Rewardless, Undocumented, VerifiedCounter
from tests.playing import ScriptedPolicy
from tests.scripted import ScriptedEnvironment
from tests.tokenizers import CHATML, byte_bpe


ROW = {"prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Please:"}], "target": 3}


def template(name: str) -> str:
    """A chat template of a real model family, out of the TRL that is installed."""
    return (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def play(replies, factory=Counter, row=ROW, chat_template="qwen2_5", threshold=None, **settings):
    """(trajectory, policy) of one episode."""
    tokenizer = byte_bpe(template(chat_template))
    policy = ScriptedPolicy(tokenizer, {0: replies})
    pool = EnvironmentPool({None: factory}, success_threshold=threshold)
    try:
        (trajectory,) = play_episodes(
            plan_groups([row], 1, seed=0, rollout=0, prefix="r"),
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(tokenizer),
            settings=RolloutSettings(**settings),
        )
    finally:
        pool.close()
    return trajectory, policy


# ---- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"name": "add", "arguments": {"amount": 2}}', ToolCall("add", {"amount": 2})),
        ('\n{"name": "add", "arguments": "{\\"amount\\": 2}"}\n', ToolCall("add", {"amount": 2})),
        ('{"name": "add", "parameters": {"amount": 2}}', ToolCall("add", {"amount": 2})),
        ('{"name": "look"}', ToolCall("look", {})),
        (
            "\n<function=say>\n<parameter=text>\ntwo\nlines\n</parameter>\n</function>\n",
            ToolCall("say", {"text": "two\nlines"}),
        ),
        ("<function=look>\n</function>", ToolCall("look", {})),
        ('{"name": "add", "arguments": [2]}', None),
        ('{"name": 5, "arguments": {}}', None),
        ('{"name": "add", "arguments": "nonsense"}', None),
        ('["add"]', None),
        ("add 2", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_parse_tool_call(content, expected):
    assert parse_tool_call(content) == expected


def test_calls_survive_the_one_line_form():
    made = ToolCall("say", {"text": 'two\nlines, a "quote", an ö and two  spaces'})
    assert "\n" not in made.to_json() and parse_tool_call(made.to_json()) == made


def test_text_of_tags_gets_the_schema_s_types():
    schema = {
        "function": {
            "parameters": {
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": ["string", "null"]}}
            }
        }
    }
    call = ToolCall("f", {"a": "2", "b": "2", "c": "2", "unknown": "2"})
    assert typed_arguments(call, schema) == {"a": 2, "b": "2", "c": "2", "unknown": "2"}
    assert typed_arguments(ToolCall("f", {"a": "two"}), schema) == {"a": "two"}


def test_all_blocks_are_actions_and_their_tokens_the_mask():
    tokenizer = byte_bpe()
    text = f"Both. {call('add', amount=1)} and {call('add', amount=2)} done"
    blocks = find_actions(text, ("tool_call",), every=True)
    assert [json.loads(block.content)["arguments"]["amount"] for block in blocks] == [1, 2]
    ids = tokenizer.encode(text, add_special_tokens=False)
    mask = action_token_mask(tokenizer, ids, text, ("tool_call",), every=True)
    inside = {k for block in blocks for k in range(block.start, block.end)}
    position = 0
    for i, flag in zip(ids, mask, strict=True):
        end = position + len(tokenizer.decode([i]))
        assert flag == any(k in inside for k in range(position, end))
        position = end
    assert action_token_mask(tokenizer, ids, text, ("tool_call",)).count(True) < mask.count(True)


# ---- the adapter ----------------------------------------------------------------------------------------------------


def test_what_is_a_tool_environment():
    assert is_tool_environment(Counter()) and is_tool_environment(Rewardless())
    assert not is_tool_environment(ScriptedEnvironment()) and not is_tool_environment(object())


def test_tools_are_what_trl_would_offer_without_our_hooks():
    names = [tool["function"]["name"] for tool in ToolEnvironment(VerifiedCounter()).tools]
    assert names == ["add", "say"]
    with pytest.raises(EnvironmentContractError, match=r"Undocumented\.look.*docstring"):
        _ = ToolEnvironment(Undocumented()).tools


@pytest.mark.parametrize(
    ("environment", "threshold", "has_verdict", "source"),
    [
        (Counter(), None, False, "environment"),
        (Counter(), 1.0, True, "environment"),
        (VerifiedCounter(), None, True, "environment"),
        (Rewardless(), None, False, "none"),
        (Rewardless(), 1.0, False, "none"),
    ],
)
def test_where_reward_and_verdict_come_from(environment, threshold, has_verdict, source):
    adapted = ToolEnvironment(environment, threshold)
    assert (adapted.has_verdict, adapted.training_reward) == (has_verdict, source)


def test_hooks_that_trl_would_take_for_tools_work_under_their_old_names_with_a_warning():
    class Old(Counter):
        def get_success(self):
            return self._value == self._target

        def generic_skill(self, family):
            return f"count, {family}"

    class New(Counter):
        def _get_success(self):
            return True

        def _generic_skill(self, family):
            return "new"

    with pytest.warns(FutureWarning, match=r"`Old.get_success` is a tool to TRL.*`_get_success`") as caught:
        _, adapted_old = adapted(Old)
    assert len(caught) == 2
    assert adapted_old.has_verdict and adapted_old.generic_skill("x") == "count, x"
    assert [tool["function"]["name"] for tool in adapted_old.tools] == ["add", "say"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, adapted_new = adapted(New)
    assert adapted_new.has_verdict and adapted_new.generic_skill("x") == "new"


def test_threshold_may_be_an_attribute_of_the_class():
    class Strict(Counter):
        success_threshold = 0.5

    assert ToolEnvironment(Strict()).success_threshold == 0.5
    assert ToolEnvironment(Strict(), 0.9).success_threshold == 0.9


def test_reset_gets_the_seed_only_when_it_names_it():
    class Seeded(Counter):
        def reset(self, target, seed):
            return str(seed)

    assert ToolEnvironment(Seeded()).reset(seed=7, target=1).observation == "7"
    assert ToolEnvironment(Counter()).reset(seed=7, target=1).observation == "\nAdd up to 1."


@pytest.mark.parametrize(
    ("prompt", "task"),
    [
        (None, "\nAdd up to 2."),
        ("Count!", "Count!\nAdd up to 2."),
        ([{"role": "user", "content": [{"type": "text", "text": "Count!"}]}], "Count!\nAdd up to 2."),
    ],
)
def test_prompt_column_opens_the_chat(prompt, task):
    row = {"target": 2} | ({"prompt": prompt} if prompt is not None else {})
    result = ToolEnvironment(Counter()).reset(seed=0, **row)
    assert result.info["task"] == task and result.info["messages"] == [{"role": "user", "content": task}]
    if isinstance(prompt, list):
        assert prompt == [{"role": "user", "content": [{"type": "text", "text": "Count!"}]}]  # the row is not touched


def test_images_are_refused():
    class Pictures(Counter):
        def reset(self, **row):
            return [{"type": "image", "image": "x"}]

    with pytest.raises(EnvironmentContractError, match="other than text"):
        ToolEnvironment(Pictures()).reset(seed=0, target=1)


def test_failing_services_are_no_tool_errors():
    class Down(Counter):
        def say(self, text: str):
            """
            Say something.

            Args:
                text: What to say.
            """
            raise ServiceError("http://127.0.0.1:9 is down")

    with pytest.raises(ServiceError):
        ToolEnvironment(Down()).step(ToolCall("say", {"text": "x"}).to_json())


# ---- episodes -------------------------------------------------------------------------------------------------------


def test_an_episode_with_several_calls_in_a_turn():
    both = f"First. {call('add', amount=1)}\n{call('add', amount=2)}"
    trajectory, policy = play([both, "It is 3."], threshold=1.0)
    first, last = trajectory.turns
    assert first.action.split("\n") == [ToolCall("add", {"amount": n}).to_json() for n in (1, 2)]
    assert first.next_observation == "The counter shows 1.\nThe counter shows 3." and first.valid
    assert last.action == "" and not any(last.action_mask) and last.valid
    assert (trajectory.stop_reason, trajectory.success) == (StopReason.SOLVED, True)
    assert trajectory.environment_reward == 1.0
    tokenizer = policy.tokenizer
    opening, then = (tokenizer.decode(list(request.prompt_ids)) for request in policy.requests)
    assert '"name": "add"' in opening and "Count." in opening and "Please:\nAdd up to 3." in opening
    for text in ("The counter shows 1.", "The counter shows 3."):
        assert f"<tool_response>\n{text}\n</tool_response>" in then
    # TOK-1: the next prompt is the last one, the sampled ids, and what the template adds.
    known = first.prompt_ids + first.reply_ids
    assert last.prompt_ids[: len(known)] == known and len(build_rows(trajectory)) == 1


def test_prompts_equal_those_of_the_chat_template():
    replies = [f"{call('add', amount=1)}\n{call('say', text='hm')}", call("add", amount=2), "Done."]
    for name in ("qwen2_5", "qwen3_instruct_2507"):
        trajectory, policy = play(replies, chat_template=name)
        prompt, completion = conversation_of(trajectory)
        tools = list(ToolEnvironment(Counter()).tools)
        assert [message["role"] for message in completion] == [
            "assistant", "tool", "tool", "assistant", "tool", "assistant",
        ]  # fmt: skip
        for k, request in ((0, 0), (3, 1), (5, 2)):
            text = policy.tokenizer.apply_chat_template(
                [*prompt, *completion[:k]], tools=tools, tokenize=False, add_generation_prompt=True
            )
            assert policy.tokenizer.decode(list(policy.requests[request].prompt_ids)) == text


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (call("fly"), "{'error': 'Tool fly not found.'}"),
        (call("reset"), "{'error': 'Tool reset not found.'}"),
        (call("get_reward"), "{'error': 'Tool get_reward not found.'}"),
        (call("add", amount=-1), "{'error': 'only positive numbers'}"),
        (call("add", height=1), "unexpected keyword argument"),
        ("<tool_call>add 2</tool_call>", "A tool call is a JSON object"),
    ],
)
def test_bad_calls_are_answered_and_invalid(reply, answer):
    trajectory, _ = play([reply, "I give up."])
    first = trajectory.turns[0]
    assert answer in first.next_observation and not first.valid and any(first.action_mask)
    assert trajectory.stop_reason is StopReason.FAILED


def test_one_bad_call_does_not_hide_the_good_one():
    trajectory, _ = play([f"{call('fly')}{call('add', amount=3)}", "Done."], threshold=1.0)
    assert trajectory.success and not trajectory.turns[0].valid
    assert trajectory.turns[0].next_observation.endswith("The counter shows 3.")


def test_unclosed_call_ends_the_episode_as_an_invalid_turn():
    trajectory, _ = play(['<tool_call>\n{"name": "add"', "never asked"])
    (turn,) = trajectory.turns
    assert not turn.valid and trajectory.stop_reason is StopReason.FAILED


def test_reward_and_verdict_also_when_the_turns_run_out():
    trajectory, _ = play([call("add", amount=3)], VerifiedCounter, max_turns=1)
    assert (trajectory.stop_reason, trajectory.success) == (StopReason.SOLVED, True)
    assert trajectory.environment_reward == 1.0 and len(trajectory.turns) == 1
    trajectory, _ = play([call("add", amount=1)], VerifiedCounter, max_turns=2)
    assert (trajectory.stop_reason, trajectory.success) == (StopReason.MAX_TURNS, False)
    assert trajectory.environment_reward == pytest.approx(1 / 2)


def test_outgrown_episode_is_rewarded_but_no_success():
    """EOS-2: whatever the state of the world, an episode that was cut by its tokens is not a verified success."""
    trajectory, policy = play([call("add", amount=3)], VerifiedCounter, max_prompt_length=1)
    assert (trajectory.stop_reason, trajectory.turns, policy.requests) == (StopReason.PROMPT_TOO_LONG, (), [])
    replies = [call("add", amount=3), "Done."]
    whole, _ = play(replies, VerifiedCounter)
    trajectory, _ = play(replies, VerifiedCounter, max_episode_tokens=len(whole.turns[0].reply_ids))
    assert (trajectory.stop_reason, trajectory.success) == (StopReason.MAX_EPISODE_TOKENS, False)
    assert trajectory.environment_reward == 1.0


def test_long_chats_lose_their_oldest_calls_first():
    replies = [*(call("say", text=f"{name} " + "x " * 60) for name in ("one", "two", "three")), "Done."]
    whole, _ = play(replies)
    lengths = [len(turn.prompt_ids) for turn in whole.turns]
    trajectory, policy = play(replies, max_prompt_length=lengths[-1] - 5)
    text = policy.tokenizer.decode(list(trajectory.turns[-1].prompt_ids))
    assert trajectory.turns[-1].prompt_cuts == 1 and len(build_rows(trajectory)) == 2
    assert "one x" not in text and "two x" in text and "three x" in text
    assert "Add up to 3." in text and '"name": "add"' in text


def test_a_result_too_long_for_the_prompt_is_cut_in_its_middle():
    replies = [call("say", text="head " + "x " * 300 + "tail"), "Done."]
    whole, _ = play(replies, max_completion_length=2000)
    limit = len(whole.turns[-1].prompt_ids) - 100
    trajectory, policy = play(replies, max_prompt_length=limit, max_completion_length=2000)
    text = policy.tokenizer.decode(list(trajectory.turns[-1].prompt_ids))
    assert trajectory.turns[-1].prompt_cuts >= 1 and "You said: head" in text and " ... " in text and "tail" in text


def test_tags_as_calls():
    reply = "<tool_call>\n<function=add>\n<parameter=amount>\n3\n</parameter>\n</function>\n</tool_call>"
    trajectory, _ = play([reply, "Done."], threshold=1.0)
    assert trajectory.success and parse_tool_call(trajectory.turns[0].action) == ToolCall("add", {"amount": "3"})


def test_coroutines_run_in_one_loop_of_the_instance():
    trajectory, _ = play([call("add", amount=1), call("add", amount=2), "Done."], AsyncCounter, threshold=1.0)
    assert trajectory.success, trajectory.error


def test_instances_are_closed_once():
    Counter.opened = Counter.closed = 0
    play([call("add", amount=1), "Done."])
    assert Counter.opened == Counter.closed == 1


def test_worker_processes_take_adapted_classes():
    pool = EnvironmentPool({None: Counter}, "process", success_threshold=1.0)
    try:
        worker = pool.acquire(None)
        assert worker.reset(0, {"target": 2}).result(60).observation == "\nAdd up to 2."
        assert worker.step(ToolCall("add", {"amount": 2}).to_json()).result(60).info["valid"] is True
        assert worker.conclude().result(60).info["success"] is True
    finally:
        pool.close()


def test_templates_without_tools_are_refused():
    renderer = ChatRenderer(byte_bpe(CHATML))
    with pytest.raises(ConfigurationError, match="does not show tools"):
        renderer.with_tools(ToolEnvironment(Counter()).tools)
    assert renderer.with_tools(()) is renderer


def test_nested_call_is_a_fault():
    block = ActionBlock("tool_call", "<tool_call>", 0, 10, True)
    assert ToolEnvironment(Counter()).reply_fault("...", block) == "nested_tag"
