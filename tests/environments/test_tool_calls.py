"""Calls in the notations of the model families: where they stand, what they say, and what thinking hides."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.environments.tool_calls import JSON_BLOCKS, NOTATIONS, ToolCall, find_calls, parse_tool_calls
from tests.growth import growth


ADD = {"amount": 7, "text": "two words"}
WRITTEN = {
    "tool_call": '<tool_call>\n{"name": "add", "arguments": {"amount": 7, "text": "two words"}}\n</tool_call>',
    "tool_call_keys": (
        "<tool_call>add\n<arg_key>amount</arg_key>\n<arg_value>7</arg_value>\n"
        "<arg_key>text</arg_key>\n<arg_value>two words</arg_value>\n</tool_call>"
    ),
    "bare_json": '{"name": "add", "parameters": {"amount": 7, "text": "two words"}}',
    "named_json": '[TOOL_CALLS][{"name": "add", "arguments": {"amount": 7, "text": "two words"}}]',
    "python_calls": "<|tool_call_start|>[add(amount=7, text='two words')]<|tool_call_end|>",
    "quoted_map": '<|tool_call>call:add{amount:7,text:<|"|>two words<|"|>}<tool_call|>',
    "separated_json": (
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"amount\": 7, \"text\": \"two words\"}<｜tool▁call▁end｜>"
    ),
}  # fmt: skip


def calls(text, notation=JSON_BLOCKS, **kwargs):
    """The calls of each block."""
    return [parse_tool_calls(block) for block in find_calls(text, notation, **kwargs).blocks]


def test_every_notation_has_an_example():
    assert set(WRITTEN) == set(NOTATIONS)


@pytest.mark.parametrize("name", list(NOTATIONS))
class TestEveryNotation:
    def test_a_call_is_found_and_read(self, name):
        text = f"{WRITTEN[name]}"
        (block,) = find_calls(text, NOTATIONS[name]).blocks
        assert text[block.start : block.end] == text
        assert text[block.content_start : block.content_end] == block.content
        (call,) = parse_tool_calls(block)
        assert call.name == "add" and {key: str(value) for key, value in call.arguments.items()} == {
            "amount": "7",
            "text": "two words",
        }

    def test_two_calls(self, name):
        text = f"{WRITTEN[name]}\n{WRITTEN[name]}"
        assert len(calls(text, NOTATIONS[name])) == 2

    @pytest.mark.parametrize(("opening", "closing"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
    def test_drafts_are_not_executed(self, name, opening, closing):
        """PrimeIntellect-ai/verifiers#148: a call that was drafted while thinking ran as well."""
        call, notation = WRITTEN[name], NOTATIONS[name]
        thought = f"{opening}perhaps {call} or {notation.opening}{closing}\n"
        (block,) = find_calls(thought + call, notation).blocks
        assert block.start == len(thought)
        assert find_calls(thought + "Done.", notation) == find_calls("Done.", notation)
        # The opening tag stands in the prompt.
        rest = thought.removeprefix(opening)
        for opens in (True, False):
            (block,) = find_calls(rest + call, notation, opens_thinking=opens).blocks
            assert block.start == len(rest)

    def test_thinking_without_an_end_leaves_no_calls(self, name):
        for text, opens in ((f"<think>hm {WRITTEN[name]}", False), (f"hm {WRITTEN[name]}", True)):
            found = find_calls(text, NOTATIONS[name], opens)
            assert (found.blocks, found.fault) == ((), "unclosed_thinking")

    def test_a_final_answer_is_no_fault(self, name):
        assert find_calls("It is 3.", NOTATIONS[name]).fault == ""

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_no_text_is_an_error(self, name, data):
        notation = NOTATIONS[name]
        own = [*notation.texts, WRITTEN[name], WRITTEN[name][:-9], '{"name": "add"', "call:add", "<arg_key>"]
        pieces = ["<think>", "</think>", "add", *"[]{}'\"(),=\\\n"]
        text = "".join(data.draw(st.lists(st.sampled_from(own + pieces), max_size=12)))
        found = find_calls(text, notation)
        assert all(first.end <= second.start for first, second in zip(found.blocks, found.blocks[1:], strict=False))
        for block in found.blocks:
            assert text[block.start : block.end].count(block.content) or not block.content
            parse_tool_calls(block)

    def test_time_is_linear_in_hostile_replies(self, name):
        notation, call = NOTATIONS[name], WRITTEN[name]
        begun = notation.opening or '{"name":'
        pieces = [begun, f"{begun}[", f"{begun}</think>", call[:-3], call, "<think>", "</think>x", "<function=", "'"]
        pieces += [f"{begun}<function=a><parameter=b>", f"{begun}[f(a='"]
        for piece in pieces:
            assert growth(lambda text: calls(text, notation), piece) < 60, piece


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # An unclosed call, one that is no call, one with tags inside.
        ("tool_call", '<tool_call>{"name": "add"', []),
        ("tool_call", "<tool_call>add 2</tool_call>", [None]),
        ("tool_call", "<TOOL_CALL>{\"name\": \"look\"}</Tool_Call>", [(ToolCall("look", {}),)]),
        ("tool_call", "<tool_call><function=say>\n<parameter=text>\na\nb\n</parameter></function></tool_call>",
         [(ToolCall("say", {"text": "a\nb"}),)]),
        ("tool_call", "<tool_call><function=a b></function></tool_call>", [None]),
        ("tool_call_keys", "<tool_call>look</tool_call>", [(ToolCall("look", {}),)]),
        ("tool_call_keys", "<tool_call>look up\n</tool_call>", [None]),
        ("tool_call_keys", "<tool_call>say<arg_key>text</arg_key><arg_value>a < b</arg_value></tool_call>",
         [(ToolCall("say", {"text": "a < b"}),)]),
        ("bare_json", ' <|python_tag|>{"name": "look", "parameters": {}}; {"name": "go", "parameters": {}} ok',
         [(ToolCall("look", {}),), (ToolCall("go", {}),)]),
        ("bare_json", 'I would {"name": "look", "parameters": {}}', []),
        ("bare_json", '{"answer": 3}', []),
        ("named_json", '[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]go[CALL_ID]123456789[ARGS]{"to": "x"} ok',
         [(ToolCall("look", {}),), (ToolCall("go", {"to": "x"}),)]),
        ("named_json", '[TOOL_CALLS] [{"name": "look", "arguments": {}}, {"name": "go", "arguments": {"to": "x"}}]',
         [(ToolCall("look", {}), ToolCall("go", {"to": "x"}))]),
        ("named_json", '[TOOL_CALLS]say[ARGS]{"text": "[TOOL_CALLS]["}[TOOL_CALLS]look[ARGS]{}',
         [(ToolCall("say", {"text": "[TOOL_CALLS]["}),), (ToolCall("look", {}),)]),
        ("named_json", '[TOOL_CALLS]look', [None]),
        ("named_json", '[TOOL_CALLS]look[ARGS][1]', [None]),
        ("python_calls", "<|tool_call_start|>[go(to='x', n=-2.5, ok=True, no=None, l=[1, 'a'], m={\"k\": 1}), look()]"
         "<|tool_call_end|>", [(ToolCall("go", {"to": "x", "n": -2.5, "ok": True, "no": None, "l": [1, "a"],
                                                "m": {"k": 1}}), ToolCall("look", {}))]),
        ("python_calls", r"<|tool_call_start|>[say(text='it\'s (a) \"b\", c')]<|tool_call_end|>",
         [(ToolCall("say", {"text": "it's (a) \"b\", c"}),)]),
        ("python_calls", "<|tool_call_start|>[say(text='it's')]<|tool_call_end|>", [None]),
        ("python_calls", "<|tool_call_start|>look()<|tool_call_end|>", [None]),
        ("quoted_map", '<|tool_call>call:go{to:{k:<|"|>a, b: "c"<|"|>},l:[1,true]}<tool_call|>',
         [(ToolCall("go", {"to": {"k": 'a, b: "c"'}, "l": [1, True]}),)]),
        ("quoted_map", "<|tool_call>call:look{}<tool_call|>", [(ToolCall("look", {}),)]),
        ("quoted_map", "<|tool_call>look{}<tool_call|>", [None]),
        ("separated_json",
         '<｜tool▁call▁begin｜>function<｜tool▁sep｜>go\n```json\n{"to": "x"}\n```<｜tool▁call▁end｜>',
         [(ToolCall("go", {"to": "x"}),)]),
        ("separated_json", "<｜tool▁call▁begin｜>function<｜tool▁sep｜><｜tool▁call▁end｜>", [None]),
    ],
)  # fmt: skip
def test_what_is_written_and_what_is_read(name, text, expected):
    assert calls(text, NOTATIONS[name]) == expected


def test_faults_of_replies_without_a_call():
    assert find_calls('<tool_call>\n{"name"', JSON_BLOCKS).fault == "unclosed_tool_call"
    assert find_calls('{"name": "add", "param', NOTATIONS["bare_json"]).fault == "unclosed_tool_call"
    assert find_calls("{1, 2} is a set", NOTATIONS["bare_json"]).fault == ""
    assert find_calls("<think><tool_call></think>Done.", JSON_BLOCKS).fault == ""


def test_thinking_between_calls_hides_what_stands_before_it():
    first, second = WRITTEN["tool_call"], WRITTEN["tool_call"].replace("7", "8")
    (block,) = find_calls(f"{first}<think>no</think>{second}", JSON_BLOCKS).blocks
    assert parse_tool_calls(block)[0].arguments["amount"] == 8


def test_a_thinking_tag_that_a_call_says_is_text():
    text = "<tool_call>" + json.dumps({"name": "say", "arguments": {"text": "a </think> b"}}) + "</tool_call>"
    assert calls(text) == [(ToolCall("say", {"text": "a </think> b"}),)]


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 50_000, "(" * 100_000])
def test_deep_nesting_is_no_call(deep):
    for name, notation in NOTATIONS.items():
        for text in (
            f"{notation.opening}{deep}{notation.closing}",
            f"{notation.opening}[f(a={deep})]{notation.closing}",
        ):
            assert calls(text, notation) in ([], [None]), name
