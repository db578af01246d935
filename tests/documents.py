"""The repository's Markdown, taken apart: pages, headings, links, code blocks, and the commands in shell blocks."""

from __future__ import annotations

import re
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_NOT_OURS = {"build", "dist", "node_modules", "runs", "outputs", "shared", "templates"}
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>\w*)[^\n]*$")
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_NOT_RUN = re.compile(r"^ *<!-- not run: (.+) -->$")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of code."""

    path: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    """Why no test runs it, from `<!-- not run: ... -->` on the line before it; readers do not see that."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def python(self) -> str:
        """The code without a last `...` in a call, which stands for what the reader adds."""
        return re.sub(r",\s*\.\.\.\s*\)", ")", self.text)


@cache
def pages() -> tuple[Path, ...]:
    """Every Markdown file of the repository that is written for people."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    ours = (one for one in found if not any(part in _NOT_OURS or part.startswith(".") for part in one.parts[:-1]))
    return tuple(sorted(ROOT / one for one in ours))


def split(path: Path) -> tuple[str, list[Block]]:
    """(the page without its code, its blocks of code)."""
    prose: list[str] = []
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    start, held = 0, []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, start, held = fence, number, []
        elif opened is not None and line.strip() == opened["fence"]:
            mark = _NOT_RUN.match(prose[-1]) if prose else None
            blocks.append(Block(path, start, opened["language"], "\n".join(held), mark[1] if mark else ""))
            opened = None
        elif opened is not None:
            held.append(line.removeprefix(opened["indent"]))
        else:
            prose.append(line)
    assert opened is None, f"{path}:{start}: the block is never closed"
    return "\n".join(prose), blocks


def blocks(*languages: str) -> list[Block]:
    return [block for path in pages() for block in split(path)[1] if block.language in languages]


def links(path: Path) -> Iterator[str]:
    """Targets of links and images, those of other sites left out."""
    prose = re.sub(r"`[^`\n]*`", "``", split(path)[0])
    for found in _LINK.finditer(prose):
        if not re.match(r"[a-z]+:", found[1]):
            yield found[1]


def anchors(path: Path) -> set[str]:
    """Anchors that headings have both on GitHub and in the built site."""
    text = split(path)[0]
    return {_site_slug(heading) for heading in _HEADING.findall(text)} & {
        _github_slug(heading) for heading in _HEADING.findall(text)
    }


def _plain(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()


def _github_slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", _plain(heading).lower()).replace(" ", "-")


def _site_slug(heading: str) -> str:
    text = unicodedata.normalize("NFKD", _plain(heading)).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


# ---- shell ----------------------------------------------------------------------------------------------------------

_RECORDER = 'command_not_found_handle() { printf "%s\\x1f" "$@"; printf "\\x1e"; }\n'


def shell_commands(block: Block, folder: Path) -> list[list[str]]:
    """The external commands that bash would run for a block, with their arguments: loops and variables are expanded.

    Nothing is run: with an empty search path bash finds no program and hands each command to a function, which prints.
    """
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", _RECORDER + block.text],
        env={"PATH": str(folder / "nothing")},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "syntax error" not in done.stderr, f"{block}: {done.stderr}"
    return [record.split("\x1f")[:-1] for record in done.stdout.split("\x1e") if "\x1f" in record]


def has_recording_bash() -> bool:
    """Whether there is a bash that calls `command_not_found_handle` (4.0 or newer)."""
    bash = shutil.which("bash")
    if bash is None:
        return False
    text = subprocess.run([bash, "-c", "echo $BASH_VERSINFO"], capture_output=True, text=True, check=False).stdout
    return text.strip().isdigit() and int(text) >= 4
