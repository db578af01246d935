"""A tokenizer of phrases for the household world: "go to" or "fridge 1" is one token, no text has unknown words."""

from __future__ import annotations

import re

from ..guidance.block import CLOSING, OPENING
from ..imitation.hints import WORDS


PAD, UNKNOWN, END, USER, ASSISTANT = "<|pad|>", "<|unknown|>", "<|end|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(preset: str = "small"):
    """A `PreTrainedTokenizerFast` over the household phrases and the words in which guidance is put.

    Args:
        preset (`str`, *optional*, defaults to `"small"`):
            Household preset whose texts it reads.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from ..environments.household import phrase_pattern, phrases

    special = [PAD, UNKNOWN, END, USER, ASSISTANT]
    guidance = [OPENING, CLOSING, "-"]
    words = list(dict.fromkeys([*special, *guidance, *phrases(preset), *WORDS]))
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token=UNKNOWN))
    # Longest first, before the household's pattern: its last alternative takes any word.
    hints = [re.escape(word) for word in sorted(WORDS, key=len, reverse=True)]
    own = [re.escape(OPENING), re.escape(CLOSING), r"-(?=\s)", rf"(?:{'|'.join(hints)})(?!\w)"]
    pattern = "|".join([*own, phrase_pattern(preset)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
