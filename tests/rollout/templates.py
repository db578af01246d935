"""Chat templates of real model families, each with a small tokenizer that has its markup as special tokens.

Most come out of the TRL that is installed; `FORMS` are further ones, written after what the families print.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from transformers import AddedToken

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
