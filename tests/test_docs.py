"""The documentation says what is there: links lead somewhere, code compiles, names, options and commands exist."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

import taspo_trl
import taspo_trl.analyzer
import taspo_trl.environments
from taspo_trl.cli import COMMANDS
from taspo_trl.cli import train as train_command
from taspo_trl.cli.warm_start import learning_options
from taspo_trl.methods import METHODS
from taspo_trl.methods.registry import recipe_for
from taspo_trl.records import read_records
from tests import tiny
from tests.documents import DOCS, ROOT, anchors, blocks, has_recording_bash, links, pages, shell_commands, split
from tests.tokenizers import byte_bpe
from tests.trainer.test_trainer import history


PYTHON = blocks("python")
SHELL = blocks("bash", "sh", "shell", "console")
PUBLIC = (taspo_trl, taspo_trl.environments, taspo_trl.analyzer)


def name_of(path) -> str:
    return str(path.relative_to(ROOT))


# ---- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_and_images_lead_somewhere(page):
    for target in links(page):
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name_of(page)}: {target}"
        assert path.is_relative_to(ROOT), f"{name_of(page)}: {target} leaves the repository"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name_of(page)}: no heading {target}; there are {sorted(anchors(path))}"
        if page.is_relative_to(DOCS):
            assert path.is_relative_to(DOCS), f"{name_of(page)}: {target} is not part of the site; name it in `code`"


def test_every_page_of_the_guides_is_in_the_navigation():
    def files(nav: Any):
        if isinstance(nav, str):
            yield nav
        else:
            for one in nav.values() if isinstance(nav, dict) else nav:
                yield from files(one)

    listed = list(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


# ---- Python ---------------------------------------------------------------------------------------------------------


@cache
def imported_names(page) -> dict[str, Any]:
    """What the blocks of a page import from this package."""
    found = {}
    for block in split(page)[1]:
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.python)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "taspo_trl":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{block}: {node.module} has no {alias.name}"
                    found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles_and_names_what_exists(block):
    tree = ast.parse(block.python, filename=str(block))
    names = imported_names(block.path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "taspo_trl":
                    importlib.import_module(alias.name)
        if isinstance(node, ast.Call):
            check_keywords(node, names, block)


def check_keywords(call: ast.Call, names: dict[str, Any], block) -> None:
    """The keywords of a call of one of our functions, classes or class methods."""
    function = call.func
    if isinstance(function, ast.Name):
        target = names.get(function.id)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in names:
        owner = names[function.value.id]
        assert hasattr(owner, function.attr), f"{block}: {function.value.id} has no {function.attr}"
        target = getattr(owner, function.attr)
    else:
        return
    if not callable(target):
        return
    parameters = inspect.signature(target).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for keyword in call.keywords:
        assert keyword.arg is None or keyword.arg in parameters, f"{block}: {ast.unparse(function)}({keyword.arg}=...)"


def test_the_environment_of_the_guide_trains(tmp_path):
    """The world of `environments.md` as it stands there: its plans solve it, and its successes give turn credit."""
    block = split(DOCS / "environments.md")[1][0]
    code = block.text[block.text.index("class Vault") :]
    assert len([line for line in code.split("\n") if line]) <= 40
    names: dict[str, Any] = {"__name__": "vault"}
    exec(compile(block.text, str(block), "exec"), names)
    tokenizer = byte_bpe()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    rows = names["Vault"].dataset("train").filter(lambda row: row["key_place"] == "attic")
    plans = [
        ["go to attic", "take key", "go to cellar", "open vault"],
        ["dance", "go to attic", "take key", "go to cellar", "open vault"],
        ["go to attic", "go to cellar", "open vault", *["go to attic", "go to hall"] * 4],
        ["go to kitchen", "go to hall"] * 5,
    ]
    policy = tiny.ScriptedPolicy(
        lambda uid, turn: f"<action>{plans[int(uid.rsplit('k', 1)[1])][turn]}</action>", tokenizer
    )
    made = tiny.trainer(
        tmp_path,
        policy=policy,
        model=LlamaForCausalLM(config),
        processing_class=tokenizer,
        train_dataset=rows,
        environment_factory=names["Vault"],
        per_device_train_batch_size=4,
        max_completion_length=64,
    )
    made.train()
    made.close()
    assert history(made, "success") == [0.5] and history(made, "credit/weight_std")[0] > 0
    records = {record.trajectory.generation_idx: record for record in read_records(tmp_path / "_trajectories")}
    ends = [records[k].trajectory.stop_reason.value for k in range(4)]
    assert ends == ["solved", "solved", "max_turns", "max_turns"]
    assert [turn.valid for turn in records[1].trajectory.turns] == [False, True, True, True, True]
    assert "go to attic" in records[2].guidance.text


def test_the_tool_class_of_the_guide_is_taken_as_it_is():
    from taspo_trl.environments.tools import adapted

    (block,) = [one for one in split(DOCS / "environments.md")[1] if "class Counter" in one.text]
    names: dict[str, Any] = {"__name__": "counter"}
    exec(compile(block.text, str(block), "exec"), names)
    _, environment = adapted(names["Counter"])
    assert [tool["function"]["name"] for tool in environment.tools] == ["add"]
    assert environment.reset(seed=0, target=3).observation == "Add up to 3."
    assert environment.step('{"name": "add", "arguments": {"amount": 3}}').observation == "The counter shows 3."
    assert environment.step("").info["success"] is True


# ---- commands -------------------------------------------------------------------------------------------------------

_MODULES = {"taspo_trl.cli": None, "taspo_trl.quickstart": "quickstart"}


def own_command(words: list[str]) -> tuple[str, list[str]] | None:
    """(sub-command or "quickstart", arguments) when a command line calls this package."""
    if words[0] == "taspo":
        return words[1], words[2:]
    for module, name in _MODULES.items():
        if module in words:
            rest = words[words.index(module) + 1 :]
            return (name, rest) if name else (rest[0], rest[1:])
    return None


class Parsed(Exception):
    """Ends a command after its arguments were read."""


def option_strings(command: str, arguments: list[str], monkeypatch) -> set[str]:
    """Parse the arguments of a command with its own parser and do nothing else; returns the options that it knows."""
    known = {f"--{name}" for name in training_options()} if command == "doctor" else set()  # it takes a recipe
    parse = argparse.ArgumentParser.parse_known_args
    parsers: list[argparse.ArgumentParser] = []

    def record(parser: argparse.ArgumentParser, *args, **kwargs):
        parsers.append(parser)
        found = parse(parser, *args, **kwargs)
        if parser is not parsers[0]:  # a sub-command's
            return found
        known.update(_options(parser))
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", record)
        with pytest.raises(Parsed):
            if command == "quickstart":
                patch.setattr("sys.argv", ["quickstart", *arguments])
                importlib.import_module("taspo_trl.quickstart.__main__").main()
            else:
                importlib.import_module(f"taspo_trl.cli.{COMMANDS[command][0]}").main(arguments)
    return known


def _options(parser: argparse.ArgumentParser) -> set[str]:
    found = {text for action in parser._actions for text in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(_options, action.choices.values()))
    return found


@pytest.mark.skipif(not has_recording_bash(), reason="there is no bash 4 to expand the commands")
@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_and_their_options_exist(block, tmp_path, monkeypatch):
    """Every command of ours in a shell block, loops and variables expanded, read by the command's own parser."""
    monkeypatch.chdir(ROOT)
    seen = set()
    for words in shell_commands(block, tmp_path):
        own = own_command(words)
        if own is None:
            continue
        command, arguments = own[0], without_readers_files(own[1])
        assert command in {*COMMANDS, "quickstart"}, f"{block}: taspo {command}"
        for launcher_file in (words[k + 1] for k, word in enumerate(words) if word == "--config_file"):
            assert (ROOT / launcher_file).exists(), f"{block}: {launcher_file}"
        key = (command, *(re.sub(r"\d+", "0", one) for one in arguments))  # seeds differ in nothing that is read
        if key in seen or arguments == ["..."]:
            continue
        seen.add(key)
        if command == "train":
            training = read_training_options(arguments, tmp_path)
            if any(one.endswith(("fsdp2.yaml", "deepspeed_zero3.yaml")) for one in words):
                # A copy of the policy is refused where its weights lie in shards.
                assert recipe_for(training).needs.teacher == "rollout", f"{block}: {' '.join(arguments)}"
            continue
        known = option_strings(command, arguments, monkeypatch)
        if command == "warm-start":
            known |= {f"--{name}" for name in learning_options()}
        flags = {one.split("=")[0] for one in arguments if one.startswith("--")}
        assert flags <= known, f"{block}: {flags - known}"


def without_readers_files(arguments: list[str]) -> list[str]:
    """The arguments without `--config recipe.yaml`, where no folder is named: a file of the reader's own."""
    for k, word in enumerate(arguments[:-1]):
        if word == "--config" and "/" not in arguments[k + 1]:
            return arguments[:k] + arguments[k + 2 :]
    return arguments


def read_training_options(arguments: list[str], tmp_path) -> Any:
    """What `taspo train` would read, on a machine without a GPU."""
    here = ["--use_cpu", "true", "--bf16", "false", "--output_dir", str(tmp_path / "out")]
    assert not [one for one in arguments if one.startswith("--") and one.split("=")[0][2:] not in training_options()]
    task, training, _ = train_command.parse([*arguments, *here])
    assert training.generation_batch_size % training.num_generations == 0
    assert ":" in task.environment or task.environment in taspo_trl.environments.ENVIRONMENTS
    return training


@cache
def training_options() -> set[str]:
    return train_command.option_names() | {"config"}


ROWS = {
    "Table 1": ("Vanilla", "GRPO", "TASPO", "OPSD", "SDAR", "StepOPSD", "OPID"),
    "Table 2": ("GRPO", "Generic Skill", "Random Success", "Nearest Success", "TASPO"),
    "Table 5": (
        "GRPO",
        "TASPO",
        "OPSD",
        "OPD, Qwen2.5-7B as the teacher",
        "OPD, Qwen3-32B as the teacher",
        "GRPO + OPSD",
    ),
    "SERL, Table 1": (
        *(
            "Vanilla",
            "ReAct",
            "Reflexion",
            "PPO",
            "RLOO, GRPO, GiGPO, HGPO",
            "OPSD, RLSD, SDPO",
            "GRPO + SDPO",
            "SERL",
        ),
    ),
}
"""Table of a paper -> its rows, as the page names them; the rows of the other tables are loops of a command."""


def test_the_papers_rows_have_commands_or_reasons():
    text = (DOCS / "reproducing.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for table, rows in ROWS.items():
        (section,) = [one for one in sections if one.startswith(table) and not one.startswith(f"{table}0")]
        for row in rows:
            assert re.search(rf"^\| {re.escape(row)} \| .{{5,}} \|$", section, re.MULTILINE), (table, row)
    for table in ("Table 3", "Table 4", "SERL, Tables 2 and 3", "SERL, Table 4"):
        assert any(one.startswith(table) and "taspo_trl.cli train" in one for one in sections), table
    assert "not implemented" not in text
    named = {name for name in METHODS if re.search(rf"\b{name}\b", text)}
    of_tables = {"grpo", "taspo", "rloo", "gigpo", "hgpo", "opsd", "opsd_sdar", "sdar", "stepopsd", "opid", "opd"}
    assert named >= of_tables | {"grpo_opsd", "grpo_opsd_sdar", "rlsd", "sdpo", "grpo_sdpo", "serl"}
    for guidance in ("none", "generic_skill", "random_success", "nearest_success", "aligned"):
        assert f"`{guidance}`" in text
    for world in ("alfworld", "webshop", "search_qa"):
        assert re.search(rf"for world in [^\n]*{world}", text)


# ---- docstrings -----------------------------------------------------------------------------------------------------


def documented_paths() -> list[str]:
    text = "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    return re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)


def resolved(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", documented_paths())
def test_what_the_api_pages_show_exists_and_has_a_docstring(path):
    target = resolved(path)
    text = inspect.getdoc(target) or ""
    assert len(text.split()) >= 3 and not text.startswith(f"{getattr(target, '__name__', '')}("), path


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring_and_a_place_on_the_api_pages(module: ModuleType):
    shown = documented_paths()
    for name in module.__all__:
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name  # a dataclass without one gets that
        assert f"{module.__name__}.{name}" in shown, name


def test_docstrings_become_google_style():
    pytest.importorskip("griffe", reason="griffe is not installed (taspo_trl[docs])")
    import importlib.util

    spec = importlib.util.spec_from_file_location("_docstrings", DOCS / "_docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (
        "What [`f`] does.\n\nParameters:\n    > Parameters that control the rest\n\n"
        "    a (`tuple[int, int]`, *optional*, defaults to `(1, 2)`), b (`str`):\n        Both: [`~x.Y`].\n"
        "    c, d:\n        As in `f`.\n\n> [!NOTE]\n> These are changed:\n> - `e`: to `1`.\n\n"
        "Returns:\n    `list[int]`: one.\n\nRaises:\n    ValueError: it is bad."
    )
    made = module.google_style(text, lambda name, shown: f"<{name} {shown}>")
    assert made == (
        "What <f f> does.\n\nArgs: Parameters that control the rest\n"
        "    a:\n        Both: <x.Y Y>.\n    b:\n        Both: <x.Y Y>.\n"
        "    c:\n        As in `f`.\n    d:\n        As in `f`.\n\n"
        "> **Note.**\n> These are changed:\n>\n> - `e`: to `1`.\n\n"
        "Returns:\n    list[int]: one.\n\nRaises:\n    ValueError: it is bad."
    )
