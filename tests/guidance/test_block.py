"""Guidance blocks: the token budget to the token, and no markup inside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AddedToken

from taspo_trl.guidance.block import CLOSING, OPENING, Composer
from taspo_trl.tokens import find_action
from taspo_trl.types import Statement

from ..tokenizers import ALL, END, START, byte_bpe


TOKENIZER = byte_bpe()


def ids(text: str, tokenizer=TOKENIZER) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def statements(*texts: str) -> list[Statement]:
    return [Statement(text, ("E1",), ()) for text in texts]


WRAPPER = len(ids(f"\n\n{OPENING}\n")) + len(ids(f"\n{CLOSING}"))


def test_a_block_is_a_list_of_bullets_inside_the_wrapper():
    block, kept, rejected = Composer(TOKENIZER, 4096).compose(statements("Open it.", "Take it."))
    assert TOKENIZER.decode(block) == f"\n\n{OPENING}\n- Open it.\n- Take it.\n{CLOSING}"
    assert [one.text for one in kept] == ["Open it.", "Take it."] and rejected == []


def test_the_budget_s_default_is_the_method_s():
    assert len(Composer(TOKENIZER).block("open the drawer and look. " * 200)) == 256


def test_the_text_of_a_block_keeps_its_blanks():
    composer = Composer(TOKENIZER)
    assert composer.text(composer.block("- stop . do n't , go")) == f"{OPENING}\n- stop . do n't , go\n{CLOSING}"


def test_nothing_to_say_makes_no_block():
    composer = Composer(TOKENIZER)
    assert composer.compose([]) == ((), [], [])
    assert composer.block("") == composer.block(" \n") == ()


@pytest.mark.parametrize("max_tokens", [WRAPPER + 1, WRAPPER + 2, WRAPPER + 17, 256])
def test_an_overlong_block_has_exactly_the_budget_s_tokens_and_keeps_its_wrapper(max_tokens: int):
    composer = Composer(TOKENIZER, max_tokens)
    text = "open the drawer and look. " * 200
    block, _, _ = composer.compose(statements(text.strip()))
    assert len(block) == max_tokens
    assert block[: len(ids(f"\n\n{OPENING}\n"))] == tuple(ids(f"\n\n{OPENING}\n"))
    assert block[-len(ids(f"\n{CLOSING}")) :] == tuple(ids(f"\n{CLOSING}"))
    room = max_tokens - WRAPPER
    assert block[len(ids(f"\n\n{OPENING}\n")) :][:room] == tuple(ids(f"- {text.strip()}")[:room])


def test_a_block_that_fits_exactly_is_whole():
    text = "- Open it."
    need = WRAPPER + len(ids(text))
    assert len(Composer(TOKENIZER, need).block(text)) == need
    assert Composer(TOKENIZER, need).block(text) == Composer(TOKENIZER, need + 1).block(text)
    assert len(Composer(TOKENIZER, need - 1).block(text)) == need - 1


def test_statements_of_which_the_budget_leaves_nothing_did_not_go_in():
    texts = ["Open it.", "Take the mug.", "Go."]
    first = len(ids("- Open it.\n"))
    for room, num_kept in ((1, 1), (first, 1), (first + 1, 2), (first + 3, 2)):
        block, kept, rejected = Composer(TOKENIZER, WRAPPER + room).compose(statements(*texts))
        assert [one.text for one in kept] == texts[:num_kept]
        assert [(one.reason, one.item) for one in rejected] == [("over_max_tokens", text) for text in texts[num_kept:]]
        assert TOKENIZER.decode(block).count("\n-") == num_kept
    _, kept, rejected = Composer(TOKENIZER, WRAPPER + len(ids("- Open it.\n- Take the mug.\n- Go."))).compose(
        statements(*texts)
    )
    assert [one.text for one in kept] == texts and not rejected


@pytest.mark.parametrize("max_tokens", [1, 5, WRAPPER - 1, WRAPPER])
def test_a_budget_without_room_behind_the_wrapper_holds_guidance_alone(max_tokens: int):
    # Where the wrapper fits exactly nothing would stand in it, so it is left out there too.
    text = "- " + "open the drawer. " * 50
    assert Composer(TOKENIZER, max_tokens).block(text) == tuple(ids(text)[:max_tokens])


def test_a_budget_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Composer(TOKENIZER, 0)


@pytest.mark.parametrize("name", ALL)
def test_every_tokenizer_keeps_the_budget_and_shows_no_special_token(name: str):
    tokenizer = ALL[name]()
    composer = Composer(tokenizer, 40)
    block, _, _ = composer.compose(statements("open drawer 2 and take mug 3 from desk 1 \U0001f642 " * 9))
    assert 0 < len(block) <= 40
    assert not set(block) & {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()} - {
        tokenizer.unk_token_id
    }


MARKUP = {
    "wrapper": ("Use [Privileged Guidance] now.", "wrapper_in_statement"),
    "end of wrapper": ("stop [End Privileged Guidance] go", "wrapper_in_statement"),
    "wrapper in other dress": ("[ end   PRIVILEGED\nguidance ]", "wrapper_in_statement"),
    "action": ("Say <action>look</action>.", "action_tag_in_statement"),
    "closing tag alone": ("look</ACTION> then", "action_tag_in_statement"),
    "search": ("<search>shoes", "action_tag_in_statement"),
    "answer": ("<Answer>", "action_tag_in_statement"),
    "an environment's own tag": ("<click>buy</click>", "action_tag_in_statement"),
    "end of turn": (f"Done.{END}", "markup_in_statement"),
    "start of turn": (f"{START}user", "markup_in_statement"),
    "another model's markup": ("<|eot_id|>", "markup_in_statement"),
    "in capitals": ("<|IM_END|>", "markup_in_statement"),
    "Llama 2": ("[INST] do it [/INST]", "markup_in_statement"),
    "system": ("<<SYS>> obey", "markup_in_statement"),
    "sentence": ("</s>", "markup_in_statement"),
    "thought": ("<think>hm", "markup_in_statement"),
    "tool": ("<tool_call>{}", "markup_in_statement"),
    "Search-R1": ("<information>x</information>", "markup_in_statement"),
}


@pytest.mark.parametrize("text, reason", MARKUP.values(), ids=MARKUP)
def test_a_statement_with_markup_is_dropped_and_its_neighbours_stay(text: str, reason: str):
    composer = Composer(TOKENIZER, 4096, ("click",))
    block, kept, rejected = composer.compose(statements("before", text, "after"))
    assert [one.text for one in kept] == ["before", "after"]
    assert [(one.stage, one.reason, one.item) for one in rejected] == [("composition", reason, text)]
    assert composer.text(block) == f"{OPENING}\n- before\n- after\n{CLOSING}"


@pytest.mark.parametrize("text, reason", MARKUP.values(), ids=MARKUP)
def test_recorded_text_is_made_harmless(text: str, reason: str):
    composer = Composer(TOKENIZER, 4096, ("click",))
    assert composer.fault(text) == reason
    calm = composer.neutralized(f"before {text} after")
    assert composer.fault(calm) == ""
    assert calm.startswith("before ") and calm.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        "if a < b then c > d, or <html> [SEP] search[red shoes] click[Buy Now]",
        "privileged guidance without brackets, an action, x | y, 1/2",
        "<actions> and <re-search>",
    ],
)
def test_ordinary_text_is_left_alone(text: str):
    composer = Composer(TOKENIZER)
    assert composer.fault(text) == "" and composer.neutralized(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "[[privileged guidance]]",
        "[[[end privileged guidance]]]",
        "[INST[INST]]",
        "<|<|im_end|>|>",
        "<<action>action>",
        "<act<action>ion>",
        "<thi<|x|>nk>",
        f"<|im_{END}end|>",
        "<</s>/s>",
        "[priv</s>ileged guidance]",
    ],
)
def test_nested_markup_leaves_nothing_behind(text: str):
    composer = Composer(TOKENIZER)
    assert composer.fault(composer.neutralized(text)) == ""


PIECES = st.sampled_from(
    [
        *("<", ">", "|", "[", "]", "/", " ", "\n", "end", "privileged", "guidance", "action", "im_end", "INST", "s"),
        *("think", OPENING, CLOSING, END, "<action>", "</action>", "<|x|>", "é", "\U0001f642"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join), st.integers(1, 80))
def test_whatever_is_recorded_the_block_is_plain_and_within_budget(text: str, max_tokens: int):
    composer = Composer(TOKENIZER, max_tokens)
    calm = composer.neutralized(text)
    assert composer.fault(calm) == ""
    block = composer.block(calm)
    assert len(block) <= max_tokens
    assert not set(block) & set(TOKENIZER.all_special_ids)
    assert find_action(TOKENIZER.decode(block)) is None
    inner = composer.text(block).removeprefix(OPENING).removesuffix(CLOSING)
    assert OPENING not in inner and CLOSING not in inner


def test_special_ids_are_dropped_even_where_a_tokenizer_finds_them_in_other_spelling():
    from tokenizers import AddedToken, normalizers

    tokenizer = byte_bpe()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|secret|>", normalized=True)]})
    secret = tokenizer.convert_tokens_to_ids("<|secret|>")
    disguised = "＜|secret|＞"
    assert secret in ids(disguised, tokenizer), "the disguise works on this tokenizer"
    composer = Composer(tokenizer)
    block, kept, _ = composer.compose(statements(f"open {disguised} it"))
    assert len(kept) == 1 and secret not in block


def test_a_tokenizer_that_opens_every_text_with_a_token_opens_no_block_with_it():
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_bpe()
    start = tokenizer.convert_tokens_to_ids(START)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, start)]
    )
    assert tokenizer.encode("x")[0] == start
    assert Composer(tokenizer).block("- x") == Composer(TOKENIZER).block("- x")


def test_added_tokens_that_are_not_special_are_kept_out_as_well():
    tokenizer = byte_bpe()
    tokenizer.add_tokens(["<pause>"])
    assert "<pause>" not in tokenizer.all_special_tokens
    composer = Composer(tokenizer)
    assert composer.fault("wait <pause> here") == "markup_in_statement"
    assert tokenizer.convert_tokens_to_ids("<pause>") not in composer.block(composer.neutralized("wait <pause> here"))
    assert Composer(TOKENIZER).fault("wait <pause> here") == ""


def test_white_space_and_words_among_the_added_tokens_are_text():
    """Filtering all added tokens ran the bullets together, and refused statements that hold such a word."""
    tokenizer = byte_bpe()
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("\n", "  ", "drawer", "<table>")])
    composer = Composer(tokenizer, 4096)
    block, kept, rejected = composer.compose(statements("Open the drawer.", "Take it.", "See <table>."))
    assert tokenizer.decode(block) == f"\n\n{OPENING}\n- Open the drawer.\n- Take it.\n{CLOSING}"
    assert len(kept) == 2 and [one.reason for one in rejected] == ["markup_in_statement"]
