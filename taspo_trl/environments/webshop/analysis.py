"""Text to search terms, as the original's Lucene index analysed it.

Pure. The chain is Lucene's `EnglishAnalyzer` with Porter's stemmer: words by the Unicode rules (UAX 29), possessive
endings off, lower case, 33 stop words out, stems.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ._extra import require


_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

_APOSTROPHES = "'\N{RIGHT SINGLE QUOTATION MARK}\N{FULLWIDTH APOSTROPHE}"
_MAX_WORD_LENGTH = 255

# A piece between two word boundaries is a word when it holds a letter, a numeral, an ideograph, an emoji or a flag.
# Lucene's grammar follows Unicode 12, where more symbols counted as emoji (stars, floral hearts, arms, game tiles);
# the property has been narrowed since, hence the ranges. The sound marks of half-width Katakana are letters by
# category, but they only extend a word: one behind a bracket or a symbol begins none.
_EMOJI = (
    r"\p{Extended_Pictographic}\u2388\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    r"\u2708-\u2712\u2765-\u2767\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F\U0001F12F\U0001F16C-\U0001F16F\U0001F1AD"
    r"\U0001F1AE\U0001F200\U0001F260-\U0001F265\U0001F300-\U0001F53D\U0001F546-\U0001F64F\U0001F680-\U0001F6FF"
    r"\U0001F7D5-\U0001F7DB\U0001FA00-\U0001FAFF"
)
_WORD = (
    r"(?V1)[[\p{L}\p{Nd}\p{WB=ALetter}\p{WB=Numeric}\p{WB=Katakana}\p{Script=Han}"
    + _EMOJI
    + r"]--[\uFF9E\uFF9F]]|\p{Regional_Indicator}[^\p{Regional_Indicator}]*\p{Regional_Indicator}"
)


@lru_cache(maxsize=1)
def _tools() -> tuple[Any, Any, Any]:
    """The boundary pattern, the word test and the stemmer; both packages come with the `webshop` extra."""
    regex = require("regex")
    porter = require("nltk.stem.porter")
    # Martin Porter's own later additions are what Lucene's stemmer implements.
    stemmer = porter.PorterStemmer(porter.PorterStemmer.MARTIN_EXTENSIONS)
    boundary = regex.compile(r"(?wV1)\b")
    return boundary, regex.compile(_WORD), stemmer


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """The stem of a lower-case word."""
    return _tools()[2].stem(word, to_lowercase=False)


def split_words(text: str) -> list[str]:
    """The words of a text in their order, unchanged."""
    boundary, is_word, _ = _tools()
    words = [piece for piece in boundary.split(text) if piece and is_word.search(piece)]
    return [
        word[start : start + _MAX_WORD_LENGTH] for word in words for start in range(0, len(word), _MAX_WORD_LENGTH)
    ]


def analyze(text: str) -> list[str]:
    """The search terms of a text, in their order, repetitions kept."""
    terms = []
    for word in split_words(text):
        if len(word) >= 2 and word[-1] in "sS" and word[-2] in _APOSTROPHES:
            word = word[:-2]
        word = word.lower()
        if word and word not in STOP_WORDS:
            terms.append(stem(word))
    return terms
