"""What a user meets first: a light import, extras that exist, a README whose tree is true."""

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "taspo_trl"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))
HEAVY = (
    "torch",
    "trl",
    "transformers",
    "litellm",
    "vllm",
    "textworld",
    "alfworld",
    "bm25s",
    "nltk",
    "peft",
    "datasets",
)


@pytest.mark.parametrize(
    "module",
    [
        "taspo_trl",
        "taspo_trl.environments",
        "taspo_trl.analyzer",
        "taspo_trl.credit",
        "taspo_trl.tokens",
        "taspo_trl.cli",
    ],
)
def test_an_import_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_public_names_are_listed_and_an_unknown_one_is_an_attribute_error():
    import taspo_trl

    assert set(taspo_trl.__all__) <= set(dir(taspo_trl))
    with pytest.raises(AttributeError, match="no_such_name"):
        taspo_trl.no_such_name  # noqa: B018


def test_every_module_opens_with_its_contract():
    for path in MODULES:
        text = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        assert text, f"{path} has no docstring"
        assert text.splitlines()[0][0].isupper() or text.startswith(("`", "vLLM")), path


def test_extras_and_base_dependencies():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = set(config["options.extras_require"])
    assert {"alfworld", "webshop", "search", "vllm", "quantization", "notebooks", "dev"} <= extras
    base = config["options"]["install_requires"]
    assert re.search(r"^trl >=1\.16,<1\.17$", base, re.MULTILINE)
    assert re.search(r"^litellm .*!=1\.82\.7,!=1\.82\.8$", base, re.MULTILINE)
    assert "vllm" not in base and "textworld" not in base, "engines are extras"


def test_messages_name_extras_that_exist():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = set(config["options.extras_require"])
    for path in [*MODULES, *(p.relative_to(ROOT).as_posix() for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))]:
        for names in re.findall(r"(?:taspo_trl|\")\.?\[([a-z_,-]+)\]\"", (ROOT / path).read_text(encoding="utf-8")):
            assert set(names.split(",")) <= extras, f"{path} names the extra {names!r}"


def test_nothing_installs_the_package_by_a_name_that_anybody_could_register():
    """It is in no index and at no address yet: only from a clone, or from an address that the reader knows."""
    files = [*MODULES, *(p.relative_to(ROOT).as_posix() for kind in ("*.md", "docs/**/*.md", "notebooks/*.ipynb",
             "examples/*", "Makefile") for p in ROOT.glob(kind) if p.is_file())]  # fmt: skip
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8")
        for line in re.findall(r"pip install [^\n#`]*", text):
            assert not re.search(r"taspo[_-]trl(?![^\s]* @ )", line), f"{path}: {line}"
        assert not re.search(r"taspo[_-]trl(?:\[[\w,]+\])?\s*==|(?:github|colab)[\w./]*/taspo", text), path
