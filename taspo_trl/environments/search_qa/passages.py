"""A retrieved passage, and how passages are put before the policy.

Pure. A passage is text from outside: it may hold anything, also what looks like the environment's own tags or a chat
template's control tokens, and must not be able to end the information block or to pose as somebody's turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


MAX_TITLE_CHARS = 200

# "<" where a tag, a comment or a control token such as <|im_end|>, </s> or <｜User｜> could begin; "x < 5" stays.
_TAG_START = re.compile(r"<(?=\s*[/|｜!?]|\s*[^\W\d])")
# The turn markers of the Llama 2 and Mistral templates.
_BRACKET_TOKEN = re.compile(r"\[(?=\s*/?\s*INST\s*\])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of a corpus, with its score where it is a search hit."""

    passage_id: str
    title: str
    """May be empty."""
    text: str
    score: float | None = None

    @property
    def contents(self) -> str:
        """Title and text in the form of the public corpora: the quoted title on a line of its own."""
        return f'"{self.title}"\n{self.text}' if self.title else self.text


def parse_contents(contents: str) -> tuple[str, str]:
    """Title and text of a passage in the form of the public corpora; without a title line the title is empty."""
    first_line, newline, rest = contents.strip().partition("\n")
    if not newline:
        return "", first_line
    title = first_line.strip()
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title.strip(), rest.strip()


def neutralize(text: str) -> str:
    """`text` without anything that opens a tag or a control token: such brackets become `‹` and `(`."""
    return _BRACKET_TOKEN.sub("(", _TAG_START.sub("‹", text))


def shorten(text: str, max_chars: int) -> str:
    """`text`, or its beginning up to a word boundary and ` ...` where it is longer than `max_chars` characters."""
    if len(text) <= max_chars:
        return text
    kept = text[: max(0, max_chars - len(" ..."))]
    head, blank, _ = kept.rpartition(" ")
    # Text without blanks near the cut, for example Chinese, is cut where the limit falls.
    return f"{head if blank and len(head) > len(kept) // 2 else kept} ..."


def render_passages(passages: Sequence[Passage], max_passage_chars: int) -> str:
    """The observation of a search: numbered passages in plain text inside `<information>` tags.

    Args:
        passages (`Sequence[Passage]`):
            The hits, best first. None gives a sentence that says so.
        max_passage_chars (`int`):
            Limit of one passage's text; the rest is cut at a word boundary.
    """
    body = "\n\n".join(
        _render_one(number, passage, max_passage_chars) for number, passage in enumerate(passages, start=1)
    )
    return f"<information>\n{body or 'No passage matches this search.'}\n</information>"


def _render_one(number: int, passage: Passage, max_passage_chars: int) -> str:
    # White space is collapsed: a line of its own is what would let a passage pose as the next one.
    title = shorten(neutralize(" ".join(passage.title.split())), MAX_TITLE_CHARS)
    text = shorten(neutralize(" ".join(passage.text.split())), max_passage_chars)
    return f"Doc {number}: {title}\n{text}" if title else f"Doc {number}:\n{text}"
