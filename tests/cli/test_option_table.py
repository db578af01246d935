"""Help and typing errors of `taspo train`: from a table, in no time, and true to the configuration."""

import dataclasses
import json
import subprocess
import sys

import pytest
from transformers import TrainingArguments
from trl import GRPOConfig, ModelConfig

from taspo_trl.cli import main
from taspo_trl.cli.option_table import FIRST, TABLE, help_text, make_table, options
from taspo_trl.cli.train import TaskArguments
from taspo_trl.config import TASPOConfig


def test_table_is_that_of_the_configuration():
    made = json.loads(json.dumps(make_table()))
    assert json.loads(TABLE.read_text(encoding="utf-8")) == made, "run `python -m taspo_trl.cli.option_table`"


def test_every_option_is_in_the_table_and_in_the_help():
    names = {
        one.name
        for cls in (TaskArguments, TASPOConfig, GRPOConfig, TrainingArguments, ModelConfig)
        for one in dataclasses.fields(cls)
        if one.init
    }
    assert names - {"config"} <= set(options())
    text = help_text(100)
    assert all(f"--{name} " in text for name in names)
    assert max(map(len, text.splitlines())) <= 130


def test_what_matters_comes_first_and_once():
    text = help_text(100)
    places = [text.index(f"  --{name} ") for name in FIRST if name in options()]
    assert places == sorted(places)
    assert all(text.count(f"  --{name} ") == 1 for name in options())


@pytest.mark.parametrize("arguments", [["train", "--help"], ["train", "--num_generation", "4"], ["--help"]])
def test_help_and_a_typing_error_load_nothing_heavy(arguments):
    program = (
        "import sys\nfrom taspo_trl.cli import main\n"
        f"code = main({arguments!r})\n"
        "print([m for m in ('torch', 'transformers', 'trl', 'datasets') if m in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"[] {1 if '--num_generation' in arguments else 0}"
    assert ("Did you mean `num_generations`?" in done.stderr) == ("--num_generation" in arguments)


def test_both_spellings_of_a_flag_are_one(capsys):
    for flag in ("--max-turns", "--max_turns"):
        with pytest.raises(SystemExit):
            main(["eval", flag, "no number"])
        assert "invalid int value: 'no number'" in capsys.readouterr().err


@pytest.mark.parametrize(("debug", "raised"), [([], False), (["--debug"], True)])
def test_failure_of_the_outside_is_one_line_and_a_traceback_on_request(monkeypatch, capsys, debug, raised):
    def full(arguments):
        raise OSError(28, "No space left on device", "/runs/a\nb")

    monkeypatch.setattr("taspo_trl.cli.view.main", full)
    if raised:
        with pytest.raises(OSError, match="No space left"):
            main(["view", *debug])
    else:
        assert main(["view"]) == 1
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "No space left on device" in told and "--debug" in told
        assert "Free some space there" in told


def test_bug_of_ours_is_never_hidden(monkeypatch):
    def broken(arguments):
        raise KeyError("a bug")

    monkeypatch.setattr("taspo_trl.cli.view.main", broken)
    with pytest.raises(KeyError):
        main(["view"])
