"""Every block of README and guides runs, or says in a comment that readers do not see why no test can run it."""

from __future__ import annotations

import importlib.util
import os
import re
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import transformers

from taspo_trl.cli import main
from tests import tiny
from tests.documents import DOCS, ROOT, Block, has_recording_bash, shell_commands, split
from tests.test_docs import own_command


PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
LANGUAGES = ("python", "bash", "sh", "shell", "console")
REASONS = {
    "GPU", "data", "key", "minutes", "network", "server", "sketch", "tests/porting runs it", "tracker",
    "until interrupted",
}  # fmt: skip
NEEDS = {"porting.md": ("gymnasium",), "viewer.md": ("IPython",)}
SMALLER_COMMANDS = {
    "train": "--max_steps 1 --per_device_train_batch_size 8 --max_turns 3 --bf16 false",
    "eval": "--limit 2 --max-turns 3",
    "credit": "--groups 1 --generations 2 --max-turns 3 --resamples 5",
}
"""What a block's command gets on top, so that it takes a second: which options there are is tested elsewhere."""
SMALLER_CODE = {
    r"max_steps=10\b": "max_steps=1", r"per_device_train_batch_size=64": "per_device_train_batch_size=8, max_turns=3",
    r"num_generations=8": "num_generations=4", r"size=48": "size=2", r"size=60": "size=3",
    r"num_steps=200": "num_steps=2",
}  # fmt: skip


def blocks_of(page: Path) -> list[Block]:
    return [block for block in split(page)[1] if block.language in LANGUAGES]


RUN = [page for page in PAGES if any(not block.not_run for block in blocks_of(page))]


def test_what_is_not_run_says_why():
    for page in PAGES:
        for block in blocks_of(page):
            assert not block.not_run or set(block.not_run.split(", ")) <= REASONS, f"{block}: {block.not_run}"
    assert len(RUN) >= 7, "the comments have swallowed the pages"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A clone's folder as a reader has it after the quickstart, whose policy is here an untrained one."""
    folder = tmp_path_factory.mktemp("clone")
    model = folder / "model"
    tiny.model().save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    (folder / "examples").symlink_to(ROOT / "examples")
    trained = "--config examples/household_tiny.yaml --model_name_or_path model --output_dir runs/quickstart-tiny"
    kept = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", *trained.split(), *SMALLER_COMMANDS["train"].split()]) == 0
    finally:
        os.chdir(kept)
    (folder / "runs" / "first").symlink_to("quickstart-tiny")
    return folder


@pytest.mark.skipif(not has_recording_bash(), reason="there is no bash 4 to expand the commands")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_blocks_run_in_their_order(page, workspace, tmp_path, monkeypatch, recwarn):
    missing = [name for name in NEEDS.get(page.name, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(webbrowser, "open", lambda *_, **__: True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks_of(page):
        if block.not_run:
            continue
        if block.language == "python":
            run_code(block, names)
            continue
        for words in shell_commands(block, tmp_path):
            own = own_command(words)
            assert own is not None, f"{block}: {words[0]} is no command of ours; say why it is not run"
            command, arguments = own
            is_comparison = "--compare" in arguments or "--records" in arguments
            more = "" if is_comparison else SMALLER_COMMANDS.get(command, "")
            assert main([command, *arguments, *more.split()]) == 0, f"{block}: {' '.join(words)}"


def run_code(block: Block, names: dict[str, Any]) -> None:
    """Execute a block in the page's names; what a page's reader has already is there."""
    code = block.text
    for pattern, smaller in SMALLER_CODE.items():
        code = re.sub(pattern, smaller, code)
    if re.search(r"\btokenizer\b|processing_class", code) and "tokenizer" not in names:
        names["tokenizer"] = transformers.AutoTokenizer.from_pretrained("runs/quickstart-tiny")
        names["model"] = transformers.AutoModelForCausalLM.from_pretrained("runs/quickstart-tiny")
    code = code.replace('"out/_trajectories', '"runs/quickstart-tiny/_trajectories')
    code = code.replace("trainer.processing_class", "tokenizer")
    exec(compile(code, str(block), "exec"), names)
