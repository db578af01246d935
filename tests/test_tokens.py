"""`action_token_mask`: which sampled tokens are the executed action.

The tokenizers are built here (tests/tokenizers.py). For byte-level BPE every token's bytes are known, so a reference
mask can be worked out from bytes alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taspo_trl.tokens import action_masks, action_token_mask, find_action, find_actions, token_spans
from tests import tokenizers
from tests.growth import growth


BPE = tokenizers.byte_bpe()
WORDS = tokenizers.word_level()
PIECES = tokenizers.unigram()


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def masked_tokens(tokenizer, ids, **kwargs):
    mask = action_token_mask(tokenizer, ids, **kwargs)
    assert len(mask) == len(ids)
    return [token for token, flag in zip(tokenizer.convert_ids_to_tokens(ids), mask, strict=True) if flag]


# In the byte alphabet of BPE, Ġ is a space and Ċ a line feed.
@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("<action>look</action>", ["<action", ">look", "</", "action", ">"]),
        ("go.\n<action>look</action>", ["<action", ">look", "</", "action", ">"]),
        # Glued to a neighbour on either side: the token overlaps the block, so it belongs to it.
        ("I <action>look</action>.", ["Ġ<", "action", ">look", "</", "action", ">."]),
        ("<action>look</action>\n\nok", ["<action", ">look", "</", "action", ">ĊĊ"]),
        ("<action>look</action><search>x</search>", ["<action", ">look", "</", "action", "><"]),
        # Two blocks: only the first is executed.
        ("<action>look</action> go <action>x</action>", ["<action", ">look", "</", "action", ">"]),
        # Mixed case falls apart into other tokens.
        ("<ACTION>go</Action>", ["<", "A", "C", "T", "I", "O", "N", ">go", "</", "A", "c", "tion", ">"]),
        # An empty block has two tags, here with their inner brackets in one token.
        ("so <action></action>", ["Ġ<", "action", "></", "action", ">"]),
        # Quoted inside the reasoning: what the executor runs is what is marked.
        (
            "<think>or <action>look</action>?</think><action>go</action>",
            ["Ġ<", "action", ">look", "</", "action", ">"],
        ),
        # A nested opening tag is part of the executed block.
        (
            "<action>go <action>look</action>",
            ["<action", ">go", "Ġ<", "action", ">look", "</", "action", ">"],
        ),
        # No closing tag: the next complete block is the action.
        ("<search>look <action>go</action>", ["Ġ<", "action", ">go", "</", "action", ">"]),
        # One emoji of four tokens inside the block, ...
        ("<action>😀</action>", ["<action", ">", "ð", "Ł", "ĺ", "Ģ", "</", "action", ">"]),
        # ... and characters of several tokens before and behind it, which are no part of it.
        ("抽😀<action>look</action>", ["<", "action", ">look", "</", "action", ">"]),
        ("é<action>é</action>é", ["<action", ">", "Ã", "©", "</", "action", ">"]),
    ],
)
def test_tokens_that_overlap_the_block_are_marked(text, masked):
    ids = encode(BPE, text)
    assert masked_tokens(BPE, ids) == masked


@pytest.mark.parametrize("tokenizer", [BPE, WORDS, PIECES], ids=list(tokenizers.ALL))
@pytest.mark.parametrize(
    "text", ["", "look", "<action>go", "go</action>", "<action>go</search>", "<action >x</action>"]
)
def test_reply_without_a_complete_block_has_an_empty_mask(tokenizer, text):
    ids = encode(tokenizer, text)
    assert action_token_mask(tokenizer, ids) == [False] * len(ids)
    assert action_token_mask(tokenizer, ids, text) == [False] * len(ids)


def test_empty_reply_has_an_empty_mask_even_with_a_recorded_text():
    assert action_token_mask(BPE, [], "<action>look</action>") == []


def test_declared_tags_decide_which_block_is_marked():
    ids = encode(BPE, "<answer>yes</answer><action>look</action>")
    assert masked_tokens(BPE, ids, tags=("action",)) == ["><", "action", ">look", "</", "action", ">"]


def test_special_tokens_are_never_action_tokens():
    special = BPE.convert_tokens_to_ids(tokenizers.END)
    ids = encode(BPE, "<action>look</action>")
    with_special = [special, *ids[:3], special, *ids[3:], special]
    assert action_token_mask(BPE, with_special) == [False, *[True] * 3, False, *[True] * (len(ids) - 3), False]


def test_special_token_inside_a_split_character_stays_out():
    special = BPE.convert_tokens_to_ids(tokenizers.END)
    ids = encode(BPE, "<action>😀</action>")
    at = BPE.convert_ids_to_tokens(ids).index("ĺ")
    mask = action_token_mask(BPE, [*ids[:at], special, *ids[at:]])
    assert mask == [True] * at + [False] + [True] * (len(ids) - at)


@pytest.mark.parametrize(("tokenizer", "byte"), [(BPE, "Ã"), (PIECES, "<0xC3>")], ids=["byte_bpe", "unigram"])
def test_broken_byte_before_the_block_stays_out(tokenizer, byte):
    broken = [tokenizer.convert_tokens_to_ids(byte)]
    ids = [*broken, *encode(tokenizer, "<action>look</action>")]
    assert decode(tokenizer, ids).startswith("\ufffd")
    assert action_token_mask(tokenizer, ids)[:2] == [False, True]


def test_broken_bytes_inside_the_block_belong_to_it():
    ids = [*encode(BPE, "<action>x"), *encode(BPE, "é")[:1], *encode(BPE, "</action>")]
    assert all(action_token_mask(BPE, ids))


@pytest.mark.parametrize("tokenizer", [BPE, PIECES], ids=["byte_bpe", "unigram"])
def test_replacement_character_that_the_model_wrote_keeps_all_its_bytes(tokenizer):
    ids = encode(tokenizer, "<action>\ufffd</action>")
    assert len(ids) >= 5  # the character takes three of them
    assert all(action_token_mask(tokenizer, ids))


class TestRecordedText:
    """The decoded tokens hold no block: its recorded text is looked for as an exact sub-sequence."""

    def lossy(self, tokenizer, drop):
        """A tokenizer that prints nothing for the ids in `drop`, but knows their text when encoding."""

        class Lossy:
            def __len__(self):
                return len(tokenizer)

            def __getattr__(self, name):
                return getattr(tokenizer, name)

            def decode(self, ids, **kwargs):
                return tokenizer.decode([i for i in ids if i not in drop], **kwargs)

            def encode(self, text, **kwargs):
                return tokenizer.encode(text, **kwargs)

        return Lossy()

    @pytest.mark.parametrize("before", ["so", "so "])
    def test_block_is_found_with_and_without_a_leading_space(self, before):
        block = "<action>look</action>"
        ids = encode(BPE, before + block + " ok")
        lossy = self.lossy(BPE, set(encode(BPE, "action")))
        assert find_action(lossy.decode(ids, skip_special_tokens=True)) is None
        mask = action_token_mask(lossy, ids, before + block + " ok")
        inside = encode(BPE, before[2:] + block)
        num_before, num_after = len(encode(BPE, "so")), len(encode(BPE, " ok"))
        assert mask == [False] * num_before + [True] * len(inside) + [False] * num_after

    def test_block_that_is_tokenized_otherwise_is_not_located(self):
        ids = encode(BPE, "<action>look</action>.")  # `>.` is one token, the block alone ends in `>`
        lossy = self.lossy(BPE, set(encode(BPE, "action")))
        assert action_token_mask(lossy, ids, "<action>look</action>.") == [False] * len(ids)

    def test_text_is_not_consulted_when_the_tokens_hold_a_block(self):
        ids = encode(BPE, "<action>look</action> <action>go</action>")
        mask = action_token_mask(BPE, ids, "<action>go</action>")
        assert [mask.index(True), sum(mask)] == [0, 5]


class TestContentMask:
    """The action without its tags, for rules that credit only what stands between them."""

    def content(self, text, **kwargs):
        ids = encode(BPE, text)
        mask = action_masks(BPE, ids, **kwargs).content
        assert len(mask) == len(ids)
        return [token for token, flag in zip(BPE.convert_ids_to_tokens(ids), mask, strict=True) if flag]

    @pytest.mark.parametrize(
        ("text", "content"),
        [
            ("<action>look</action>", [">look"]),  # glued to its tag, it is part of both
            ("go.\n<action>go to desk 1</action>.", [">go", "Ġto", "Ġdesk", "Ġ", "1"]),
            ("<action></action>", []),
            ("no action", []),
            ("<action>😀</action>", ["ð", "Ł", "ĺ", "Ģ"]),
            # All complete blocks, also those that are not executed.
            ("<action>look</action> <action>go</action>", [">look", ">go"]),
            # Cut in the middle: all that follows the first opening tag.
            ("so <action>go to", [">go", "Ġto"]),
            ("<action>go <search>look", [">go", "Ġ<", "search", ">look"]),
            # A complete block wins over an opening tag without an end.
            ("<search>look <action>go</action>", [">go"]),
        ],
    )
    def test_contents_without_tags(self, text, content):
        assert self.content(text) == content

    def test_action_mask_of_a_cut_reply_stays_empty(self):
        ids = encode(BPE, "so <action>go to")
        assert not any(action_masks(BPE, ids).action)

    def test_end_token_of_a_cut_reply_is_no_content(self):
        ids = [*encode(BPE, "<action>go"), BPE.eos_token_id]
        assert action_masks(BPE, ids).content[-1] is False

    def test_own_tags(self):
        assert self.content("<run>go</run><action>look</action>", tags=("run",)) == [">go"]


# ---- properties ----------------------------------------------------------------------------------------------------

FRAGMENTS = [
    "<action>go to desk 1</action>",
    "<Action>打开 😀</action>",
    "<action></action>",
    "<answer>no</answer>",
    "<action>",
    "</action>",
    "😀",
    "é",
    "抽屉",
    "\ufffd",
    " x",
    "\n",
    tokenizers.END,
]


@st.composite
def replies(draw, tokenizer):
    """Whole fragments, halves of fragments (characters cut in two) and arbitrary ids."""
    ids = []
    for _ in range(draw(st.integers(1, 6))):
        whole = encode(tokenizer, draw(st.sampled_from(FRAGMENTS)))
        cut = draw(st.integers(0, len(whole)))
        arbitrary = draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=3))
        ids.extend(draw(st.sampled_from([whole, whole, whole[:cut], whole[cut:], arbitrary])))
    return ids


def byte_alphabet():
    """The byte that each character of a byte-level token stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


def first_character(data):
    """The first character that these bytes decode to, and how many of them it takes."""
    try:
        character = data[:4].decode()[0]
    except UnicodeDecodeError as error:
        if error.start == 0:
            return "\ufffd", error.end
        character = data[: error.start].decode()[0]
    return character, len(character.encode())


def mask_from_bytes(ids):
    """M worked out from the tokens' bytes: every character of the decoded reply comes from a range of bytes."""
    alphabet, special = byte_alphabet(), set(BPE.all_special_ids)
    data, ranges = b"", []
    for i in ids:
        own = b"" if i in special else bytes(alphabet[c] for c in BPE.convert_ids_to_tokens(i))
        ranges.append((len(data), len(data) + len(own)))
        data += own
    text, edges = "", [0]
    while edges[-1] < len(data):
        character, width = first_character(data[edges[-1] :])
        text += character
        edges.append(edges[-1] + width)
    assert text == decode(BPE, ids)
    block = find_action(text)
    if block is None:
        return [False] * len(ids)
    first, last = edges[block.start], edges[block.end]
    return [max(start, first) < min(end, last) for start, end in ranges]


@settings(max_examples=300, deadline=None)
@given(ids=replies(BPE))
def test_mask_equals_the_overlap_of_bytes(ids):
    assert action_token_mask(BPE, ids) == mask_from_bytes(ids)


@pytest.mark.parametrize("name", list(tokenizers.ALL))
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_masked_tokens_contain_the_executed_block_and_nothing_beside_it(name, data):
    tokenizer = {"byte_bpe": BPE, "word_level": WORDS, "unigram": PIECES}[name]
    ids = data.draw(replies(tokenizer))
    text = decode(tokenizer, ids)
    mask = action_token_mask(tokenizer, ids, text)
    block = find_action(text)
    assert any(mask) == (block is not None)  # executor and mask agree that there is an action
    if block is None:
        return
    special = set(tokenizer.all_special_ids)
    first, last = mask.index(True), len(mask) - mask[::-1].index(True)
    assert all(
        flag or ids[first + k] in special or not decode(tokenizer, [ids[first + k]]).strip()
        for k, flag in enumerate(mask[first:last])
    )  # one contiguous run
    # Everything before the first and behind the last marked token misses the block: cutting it away leaves the block.
    assert text[block.start : block.end] in decode(tokenizer, ids[first:last])
    # ... and neither end of the run can be spared.
    for shorter in (ids[first + 1 : last], ids[first : last - 1]):
        assert text[block.start : block.end] not in decode(tokenizer, shorter)


@pytest.mark.parametrize("name", list(tokenizers.ALL))
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_spans_cover_the_decoded_text_in_order(name, data):
    tokenizer = {"byte_bpe": BPE, "word_level": WORDS, "unigram": PIECES}[name]
    ids = data.draw(replies(tokenizer))
    spans = token_spans(tokenizer, ids)
    assert len(spans) == len(ids)
    position = 0
    for start, end in spans:
        assert start <= position <= end or start == end <= position
        position = max(position, end)
    assert position == len(decode(tokenizer, ids))


@pytest.mark.parametrize("name", list(tokenizers.ALL))
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_content_lies_inside_the_action_when_all_blocks_are_executed(name, data):
    tokenizer = {"byte_bpe": BPE, "word_level": WORDS, "unigram": PIECES}[name]
    ids = data.draw(replies(tokenizer))
    masks = action_masks(tokenizer, ids, every=True)
    assert masks.action == action_token_mask(tokenizer, ids, every=True)
    blocks = find_actions(decode(tokenizer, ids), every=True)
    if blocks:
        assert all(inside for inside, content in zip(masks.action, masks.content, strict=True) if content)
        assert any(masks.content) == any(block.content for block in blocks)


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [
        (BPE, ["Ã"]),  # bytes that never become a character
        (BPE, ["ð", "Ł"]),
        (BPE, [*["Ã"] * 15, "ð", "Ł", "ĺ", "Ģ"]),  # a character that begins where waiting for one ends
        (PIECES, ["<0xC3>"]),  # sentencepiece judges a whole run of bytes
        (PIECES, ["<0xC3>", "<0xA9>"]),
        (PIECES, ["<0xC3>", "<0x41>"]),
        (BPE, [tokenizers.END]),
        (BPE, ["<action", ">"]),
    ],
)
def test_masks_take_linear_time(tokenizer, tokens):
    ids = tokenizer.convert_tokens_to_ids(tokens)
    opening, closing = (encode(tokenizer, text) for text in ("<action>", "</action>"))

    def work(text):
        masks = action_masks(tokenizer, [*opening, *ids * (len(text) // len(ids)), *closing])
        assert masks.action[0] and masks.action[-1]

    assert growth(work, "x", size=2**9) < 60
