"""Small tokenizers built in the test process, each awkward in the way of a real family.

- `byte_bpe`: byte-level BPE with Qwen-like pre-tokenization, trained so that tags glue to their neighbours (`><`,
  `>.`, `>\\n`, ` <`) while emoji and CJK characters fall apart into bytes.
- `word_level`: whole words; `decode` puts a space between any two tokens, and no token is white space.
- `unigram`: sentencepiece-like pieces with `▁` for a space, byte fallback, and a leading space that `decode` eats.
"""

from __future__ import annotations

import json
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CORPUS = [
    "I will go. <action>go to desk 1</action>",
    "<action>open drawer 2</action>\n<action>look</action><action>take mug 3 from desk 1</action>",
    "Done (<action>look</action>). Then <action>look</action>. <action>look</action>,\n",
    "Nothing to do: <action></action>, <answer></answer>",
    "<think>reasoning about the desk</think>\n\n<action>go to drawer 2</action>",
    "Now <search>red shoes</search>. And <answer>yes</answer>, <answer>no</answer>\n",
    "user assistant system Your task is to put a mug on the desk. You can: look, go to desk 1, open drawer 2",
]


def byte_bpe(template: str = CHATML, **kwargs: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE."""
    return _wrap(_byte_bpe(), template, **kwargs)


def word_level(template: str = CHATML, **kwargs: str) -> PreTrainedTokenizerFast:
    """Whole words and punctuation marks; anything else is `<|unknown|>`."""
    return _wrap(_word_level(), template, unk_token="<|unknown|>", **kwargs)


def unigram(template: str = CHATML, **kwargs: str) -> PreTrainedTokenizerFast:
    """Sentencepiece-like pieces."""
    return _wrap(_unigram(), template, unk_token="<unk>", **kwargs)


ALL = {"byte_bpe": byte_bpe, "word_level": word_level, "unigram": unigram}


@cache
def _byte_bpe() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, START, END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    return tokenizer.to_str()


@cache
def _word_level() -> str:
    split = pre_tokenizers.Split(Regex(r"</?\w+>|\w+|[^\s\w]"), "removed", invert=True)
    words = [word for text in _CORPUS for word, _ in split.pre_tokenize_str(text)]
    vocabulary = dict.fromkeys([PAD, "<|unknown|>", START, END, *words])
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(vocabulary)}, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = split
    return tokenizer.to_str()


@cache
def _unigram() -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<unk>", PAD, START, END],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    pieces = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    single_bytes = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer.model = models.Unigram([*pieces, *single_bytes], unk_id=0, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer.to_str()


def _wrap(tokenizer: str, template: str, **kwargs: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer),
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=template,
        clean_up_tokenization_spaces=False,
        **kwargs,
    )
