"""Chat templates of real model families, each with a small tokenizer that has its markup as special tokens.

Most come out of the TRL that is installed; `FORMS` are further ones, written after what the families print.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from transformers import AddedToken

from taspo_trl.environments.base import PromptTemplate, Traits, traits_of
from taspo_trl.environments.tools import ToolEnvironment
from taspo_trl.errors import ConfigurationError
from taspo_trl.rollout.templates import ChatRenderer
from tests.tokenizers import byte_bpe


_LITERAL = re.compile(
    r"<\|[^<>|'\"{}\s]{1,40}\|?>|<[a-z_]{1,30}\|>|<\|[a-z_]{1,30}>|<｜[^<>'\"{}\s]{1,40}｜>|</?s>|<(?:start|end)_of_\w+>"
    r"|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|ARGS|CALL_ID|SYSTEM_PROMPT|THINK|gMASK)\]|<sop>"
    r"|</?(?:think|tool_call|tool_response)>"
)
_PLAIN_ADDED = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}

FORMS = {
    "mistral_v1": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
    ),
    "mistral_v3": (  # counts replies, and wants nine characters that name the call
        "{{ bos_token }}{% set ns = namespace(k=0) %}{% for m in messages %}"
        "{% if m['role'] in ['user', 'assistant'] and not m['tool_calls'] %}"
        "{% if (m['role'] == 'user') != (ns.k % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% set ns.k = ns.k + 1 %}{% endif %}"
        "{% if m['role'] == 'user' %}"
        "{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
        "{{ '[INST]' + m['content'] + '[/INST]' }}"
        "{% elif m['role'] == 'tool' %}{% if (m['tool_call_id'] or '') | length != 9 %}"
        "{{ raise_exception('tool call ids have nine characters') }}{% endif %}"
        "{{ '[TOOL_RESULTS]' + m['content'] + '[/TOOL_RESULTS]' }}"
        "{% elif m['tool_calls'] %}{{ '[TOOL_CALLS] ' + (m['tool_calls'] | tojson) + '</s>' }}"
        "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
    ),
    "mistral_v7": (
        "{{ bos_token }}{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
        "{% for m in messages %}"
        "{% if m['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}"
        "{% elif m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}"
        "{% elif m['role'] == 'tool' %}{{ '[TOOL_RESULTS]' + m['content'] + '[/TOOL_RESULTS]' }}"
        "{% else %}{{ m['content'] }}{% if m['tool_calls'] %}{{ '[TOOL_CALLS][' }}"
        "{% for c in m['tool_calls'] %}{{ (c['function'] | tojson) + (', ' if not loop.last else '') }}{% endfor %}"
        "{{ ']' }}{% endif %}{{ '</s>' }}{% endif %}{% endfor %}"
    ),
    "mistral_v13": (
        "{{ bos_token }}{% if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
        "{% for m in messages %}"
        "{% if m['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + m['content'] + '[/SYSTEM_PROMPT]' }}"
        "{% elif m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}"
        "{% elif m['role'] == 'tool' %}{{ '[TOOL_RESULTS]' + m['content'] + '[/TOOL_RESULTS]' }}"
        "{% else %}{{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
        "{{ '[TOOL_CALLS]' + c['function']['name'] + '[ARGS]' + (c['function']['arguments'] | tojson) }}{% endfor %}"
        "{{ '</s>' }}{% endif %}{% endfor %}"
    ),
    "deepseek_tools": (
        "{{ bos_token }}{% if tools %}{{ '## Tools\\n' + (tools | tojson) }}{% endif %}"
        "{% for m in messages %}"
        "{% if m['role'] == 'system' %}{{ m['content'] }}"
        "{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
        "{% elif m['role'] == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}"
        "{% else %}{{ '<｜Assistant｜>' + (m['content'] or '') }}{% if m['tool_calls'] %}"
        "{{ '<｜tool▁calls▁begin｜>' }}{% for c in m['tool_calls'] %}"
        "{{ '<｜tool▁call▁begin｜>' + c['function']['name'] + "
        "'<｜tool▁sep｜>' + (c['function']['arguments'] | tojson) + '<｜tool▁call▁end｜>' }}{% endfor %}"
        "{{ '<｜tool▁calls▁end｜>' }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
    ),
}


def names() -> list[str]:
    """All templates that TRL ships, and the further forms."""
    folder = resources.files("trl") / "chat_templates"
    return [*sorted(path.name[:-6] for path in folder.iterdir() if path.name.endswith(".jinja")), *sorted(FORMS)]


def source(name: str) -> str:
    if name in FORMS:
        return FORMS[name]
    return (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer(name: str):
    """A byte-level tokenizer with the template and its markup as tokens."""
    template = source(name)
    literals = list(dict.fromkeys(_LITERAL.findall(template)))
    made = byte_bpe(template, bos_token="<|bos|>")
    made.add_tokens([AddedToken(text, special=text not in _PLAIN_ADDED, normalized=False) for text in literals])
    try:
        printed = made.apply_chat_template(
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "REPLY"}], tokenize=False
        )
        ends = _LITERAL.findall(printed.rpartition("REPLY")[2])
    except Exception:
        ends = []
    if ends:
        made.eos_token = ends[0]
    return made


# ---- what each template can hold ------------------------------------------------------------------------------------

PLAIN, SYSTEM = PromptTemplate(first="Task: {task}\n{observation}", later="", reply="{observation}"), "Rules."
TEXT = Traits(PLAIN, ("action",), 2, 5)
WITH_SYSTEM = replace(TEXT, prompt=replace(PLAIN, system=SYSTEM))


class Adder:
    """A class for TRL with one tool."""

    def reset(self, seed=None, **kwargs) -> None:
        self.calls: list[tuple[int, str]] = []

    def add(self, amount: int, text: str) -> str:
        """
        Add.

        Args:
            amount: How much.
            text: Why.
        """
        self.calls.append((amount, text))
        return f"RESULT {len(self.calls)}"

    def get_reward(self) -> float:
        return float(self.calls == [(7, "two words")])


TOOLS = traits_of(ToolEnvironment(Adder()))


def refusal(name: str, traits: Traits, context: str | None = None) -> str:
    """Why the template is refused for an environment; empty when it is taken."""
    renderer = ChatRenderer(tokenizer(name))
    try:
        renderer.for_environment(traits).check_chat(traits, context)
    except ConfigurationError as error:
        return str(error)
    return ""


def row(name: str) -> list[str]:
    """The template's line of docs/templates.md."""
    renderer = ChatRenderer(tokenizer(name))
    if refusal(name, TEXT, "window"):
        return [f"`{name}`", *["refused"] * 3, "", "", "", "refused"]
    ends = [renderer.tokenizer.convert_ids_to_tokens(i) for i in renderer.end_tokens()[0]]
    tools = refusal(name, TOOLS)
    return [
        f"`{name}`",
        "yes",
        "refused" if refusal(name, TEXT, "conversation") else "yes",
        "refused" if refusal(name, WITH_SYSTEM, "window") else "yes",
        " ".join(f"`{end}`" for end in ends),
        "open" if renderer.opens_thinking else "",
        "pinned" if renderer.date else "",
        "refused" if tools else f"{renderer.for_environment(TOOLS).notation.name}",
    ]


HEAD = ["template", "window", "conversation", "system message", "ends a reply", "thinking", "date", "tools"]


def table() -> str:
    rows = [HEAD, ["---"] * len(HEAD), *(row(name) for name in names())]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in rows)


DOC = Path(__file__).parents[2] / "docs" / "templates.md"
START_MARK, END_MARK = "<!-- table -->\n", "\n<!-- /table -->"


if __name__ == "__main__":  # python -m tests.rollout.templates: write the table of the installed TRL anew
    before, _, rest = DOC.read_text(encoding="utf-8").partition(START_MARK)
    DOC.write_text(before + START_MARK + table() + END_MARK + rest.partition(END_MARK)[2], encoding="utf-8")
