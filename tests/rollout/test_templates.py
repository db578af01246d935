"""Every chat template that TRL ships, and further families: what it can hold, and what is refused by name."""

import copy
import warnings
from dataclasses import replace

import pytest
from trl.chat_template_utils import add_response_schema, parse_response

from taspo_trl.environments.tool_calls import parse_tool_calls, typed_arguments
from taspo_trl.environments.workers import EnvironmentPool
from taspo_trl.errors import ConfigurationError
from taspo_trl.markup import markup_of
from taspo_trl.rollout.contexts import ConversationContext, EpisodeView, PastTurn, WindowContext
from taspo_trl.rollout.loop import RolloutSettings, play_episodes
from taspo_trl.rollout.replies import ReplyReader
from taspo_trl.rollout.tasks import plan_groups
from taspo_trl.rollout.templates import DATE, ChatRenderer
from taspo_trl.types import StopReason
from tests import tokenizers
from tests.environments.test_tool_calls import WRITTEN
from tests.playing import ScriptedPolicy
from tests.rollout import templates
from tests.rollout.templates import PLAIN, TEXT, TOOLS, WITH_SYSTEM, Adder


NAMES = templates.names()
TAKEN = [name for name in NAMES if not templates.refusal(name, TEXT, "window")]
WITH_TOOLS = [name for name in NAMES if not templates.refusal(name, TOOLS)]


def renderer_of(name, **template_kwargs):
    return ChatRenderer(templates.tokenizer(name), template_kwargs)


def test_the_table_of_the_docs_is_up_to_date():
    assert templates.table() in templates.DOC.read_text(encoding="utf-8"), "run: python -m tests.rollout.templates"


def test_families_that_must_be_taken():
    """The list of the issue: each with the contexts and, where its templates have them, the tools."""
    assert {"qwen2_5", "qwen3", "llama3_1", "llama3_2", "gemma3", "glm4moe", "deepseekv3", "mistral_v7"} <= set(TAKEN)
    assert {
        "qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "llama3_2", "glm4moe", "mistral_v7", "mistral_v13",
        "gemma4_v2", "lfm2_2_5", "nemotron_3_nano", "deepseek_tools",
    } <= set(WITH_TOOLS)  # fmt: skip


@pytest.mark.parametrize("traits", [TEXT, WITH_SYSTEM, TOOLS], ids=["text", "system", "tools"])
@pytest.mark.parametrize("name", NAMES)
def test_refusals_say_what_and_what_to_do(name, traits):
    for context in ("window", "conversation"):
        fault = templates.refusal(name, traits, context)
        if fault:
            assert "chat template" in fault and any(word in fault for word in ("Use ", "Set ", "Remedy: "))
            assert "Traceback" not in fault


@pytest.mark.parametrize("name", TAKEN)
class TestTextEnvironments:
    def test_window(self, name):
        renderer = renderer_of(name)
        for template in (PLAIN, replace(PLAIN, system="Rules.")):
            if template.system and templates.refusal(name, WITH_SYSTEM, "window"):
                continue
            context = WindowContext(renderer, template, 2).next(EpisodeView("put a mug", "You see a desk."))
            text = renderer.tokenizer.decode(context.prompt_ids)
            assert "put a mug\nYou see a desk." in text and (not template.system or "Rules." in text)
            assert list(context.prompt_ids) == renderer.encode(renderer.text(context.messages))
            assert renderer.tokenizer.decode(context.prompt_ids[: context.splice_index]).endswith("You see a desk.")

    def test_conversation(self, name):
        if templates.refusal(name, TEXT, "conversation"):
            return
        renderer = renderer_of(name)
        tokenizer = renderer.tokenizer
        contexts, reader = ConversationContext(renderer, PLAIN), ReplyReader(tokenizer, ("action",))
        past = []
        prompts = [contexts.next(EpisodeView("put a mug", "desk 1"))]
        for k in range(3):
            reply = f"<action>go {k}</action>"
            ids = (*tokenizer.encode(reply, add_special_tokens=False), renderer.end_tokens()[0][0])
            assert reader.text(ids) == reply
            assert reader.masks(ids, reply).action == [True] * (len(ids) - 1) + [False]
            past.append(PastTurn(f"desk {k}", f"go {k}", f"desk {k + 1}", reply, ids))
            prompts.append(contexts.next(EpisodeView("put a mug", f"desk {k + 1}", None, tuple(past))))
        markup = markup_of(tokenizer).tokens
        for before, one, after in zip(prompts, past, prompts[1:], strict=False):
            text = tokenizer.decode(after.prompt_ids)
            assert one.action in text and one.next_observation in text
            rendered = renderer.encode(renderer.text(after.messages))
            known = before.prompt_ids + one.reply_ids
            if after.prompt_ids[: len(known)] == known:  # the chat has grown
                assert after.splice_index == before.splice_index
                # Each reply is closed once, by the sampled end token or by the template.
                assert [i for i in after.prompt_ids if i in markup] == [i for i in rendered if i in markup]
            else:  # the template shows earlier replies otherwise
                assert list(after.prompt_ids) == rendered

    def test_no_observation_opens_a_message(self, name):
        """F29: the template's own tokens in an observation."""
        renderer = renderer_of(name)
        markup = markup_of(renderer.tokenizer)
        hostile = "You see " + " and ".join(markup.texts) + "".join(markup.texts)
        calm = EpisodeView("put a mug", "You see a desk.")
        angry = EpisodeView(hostile, hostile, (hostile,), messages=())
        counts = [
            [i for i in WindowContext(renderer, PLAIN, 2).next(view).prompt_ids if i in markup.tokens]
            for view in (calm, angry)
        ]
        assert counts[0] == counts[1] and markup.tokens

    def test_the_end_of_a_reply_is_an_end_token(self, name):
        renderer = renderer_of(name)
        base = renderer.tokenizer.convert_tokens_to_ids(tokenizers.PAD)
        ends, plain = renderer.end_tokens()
        assert ends and not plain
        assert renderer.with_end_tokens([base]) == [base, *ends]
        assert renderer.with_end_tokens([ends[-1]]) == [ends[-1]]

    def test_the_date_stands_still(self, name):
        renderer = renderer_of(name)
        text = renderer.text([{"role": "user", "content": "x"}])
        if renderer.date is None:
            assert (
                renderer.tokenizer.apply_chat_template(
                    [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
                )
                == text
            )
            return
        assert renderer.date == DATE and ("26 Jul 2024" in text or "2024-07-26" in text)
        other = renderer_of(name, date_string="03 Feb 2001")
        assert other.date == "03 Feb 2001"
        text = other.text([{"role": "user", "content": "x"}])
        assert "03 Feb 2001" in text or "2001-02-03" in text


def test_gpt_oss_does_not_stop_behind_its_analysis():
    """Its last message ends with another token than earlier ones, and messages of one reply end with theirs."""
    renderer = renderer_of("gptoss")
    returns, ends = (renderer.tokenizer.convert_tokens_to_ids(text) for text in ("<|return|>", "<|end|>"))
    assert renderer.end_tokens()[0] == [returns, ends]
    assert renderer.with_end_tokens([returns]) == [returns]


def test_a_template_that_ends_replies_with_words_gets_a_warning():
    template = tokenizers.CHATML.replace("<|im_end|>", "").replace("<|im_start|>", "### ")
    renderer = ChatRenderer(tokenizers.byte_bpe(template))
    with pytest.warns(UserWarning, match=r"ends a reply with '\\n'"):
        assert renderer.with_end_tokens([1]) == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ChatRenderer(tokenizers.byte_bpe()).with_end_tokens([1])


def test_refused_roles_are_named_with_a_remedy():
    with pytest.raises(
        ConfigurationError, match=r"refuses the messages system, user .*System role not.*PromptTemplate"
    ):
        renderer_of("gemma").check_chat(WITH_SYSTEM, "window")
    with pytest.raises(ConfigurationError, match="made for images"):
        renderer_of("smolvlm").check_chat(TEXT, "window")


def play(name, replies):
    tokenizer = templates.tokenizer(name)
    policy = ScriptedPolicy(tokenizer, {0: replies})
    pool = EnvironmentPool({None: Adder})
    try:
        (trajectory,) = play_episodes(
            plan_groups([{"prompt": "Add."}], 1, 0, 0, "r"),
            engine=policy,
            pool=pool,
            renderer=ChatRenderer(tokenizer),
            settings=RolloutSettings(max_completion_length=2000),
        )
    finally:
        pool.close()
    return trajectory, policy


@pytest.mark.parametrize("name", WITH_TOOLS)
class TestTools:
    def test_a_call_in_the_template_s_notation_is_executed_once_and_answered(self, name):
        renderer = renderer_of(name).for_environment(TOOLS)
        call = WRITTEN[renderer.notation.name]
        thought = f"perhaps {call}</think>\n" if renderer.opens_thinking else f"<think>perhaps {call}</think>\n"
        final = "</think>Done." if renderer.opens_thinking else "Done."
        trajectory, policy = play(name, [thought + call, final])
        assert not trajectory.error, trajectory.error
        first, last = trajectory.turns
        assert (first.next_observation, first.valid, last.valid) == ("RESULT 1", True, True)
        assert trajectory.environment_reward == 1.0 and trajectory.stop_reason is StopReason.FAILED
        then = policy.tokenizer.decode(list(policy.requests[1].prompt_ids))
        assert "RESULT 1" in then and then.count(call) >= 1
        masked = policy.tokenizer.decode(
            [i for i, flag in zip(first.reply_ids, first.action_mask, strict=True) if flag]
        )
        assert masked.strip() == call

    def test_a_reply_that_never_stops_thinking_is_invalid(self, name):
        renderer = renderer_of(name).for_environment(TOOLS)
        call = WRITTEN[renderer.notation.name]
        trajectory, _ = play(name, [call if renderer.opens_thinking else f"<think>{call}"])
        (turn,) = trajectory.turns
        assert not turn.valid and turn.action == "" and trajectory.environment_reward == 0.0

    def test_results_open_no_message(self, name):
        renderer = renderer_of(name).for_environment(TOOLS)
        texts = "".join(markup_of(renderer.tokenizer).texts)
        assert not {*renderer.encode(renderer.outside(texts))} & markup_of(renderer.tokenizer).tokens


def test_unreadable_calls_are_refused_by_name():
    foreign = templates.source("qwen2_5").replace("<tool_call>", "<<call>>").replace("</tool_call>", "<</call>>")
    tokenizer = tokenizers.byte_bpe(foreign)
    tokenizer.name_or_path = "some/model"
    with pytest.raises(ConfigurationError, match=r"template of 'some/model' writes a call as .*<<call>>.*notations"):
        ChatRenderer(tokenizer).for_environment(TOOLS)


FUNCTION_TAGS = (
    "<tool_call>\n<function=add>\n<parameter=amount>\n7\n</parameter>\n"
    "<parameter=text>\ntwo words\n</parameter>\n</function>\n</tool_call>"
)


def test_calls_are_read_as_trl_reads_them():
    """Where TRL has a parser for a template, it finds the same call behind the same thinking."""
    compared = []
    for name in WITH_TOOLS:
        tokenizer = copy.deepcopy(templates.tokenizer(name))
        try:
            add_response_schema(tokenizer)
        except ValueError:
            continue  # TRL has none for it
        renderer = ChatRenderer(tokenizer).for_environment(TOOLS)
        prompt = renderer.encode(renderer.text([{"role": "user", "content": "Add."}]))
        call = FUNCTION_TAGS if "<function=" in templates.source(name) else WRITTEN[renderer.notation.name]
        end = tokenizer.convert_ids_to_tokens(renderer.end_tokens()[0][0])
        thought = "so</think>\n\n" if renderer.opens_thinking else ""
        ids = renderer.encode(thought + call + end)
        theirs = parse_response(tokenizer, ids, prefix=prompt, tools=list(TOOLS.tools)).get("tool_calls")
        reader = ReplyReader(tokenizer, TOOLS.action_tags, True, renderer.notation, renderer.opens_thinking)
        ours = [call for block in reader.blocks(reader.text(ids)) for call in parse_tool_calls(block)]
        schema = TOOLS.tools[0]
        assert [one["function"] for one in theirs] == [
            {"name": call.name, "arguments": typed_arguments(call, schema)} for call in ours
        ], name
        compared.append(name)
    assert len(compared) > 10
