"""The `taspo` command: each sub-command on the embedded worlds, exit codes, help, mistakes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import subprocess
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from taspo_trl.checkpoints import weights_digest
from taspo_trl.cli import COMMANDS, main
from taspo_trl.cli.sources import environment_factory, imported, json_arguments
from taspo_trl.cli.train import _resuming
from taspo_trl.errors import ConfigurationError, RolloutError
from taspo_trl.evaluation import EvaluationResult
from taspo_trl.records import read_records
from taspo_trl.redaction import Secret, redact_tracebacks
from taspo_trl.trainer import TASPOTrainer
from taspo_trl.training.model_folder import check_model_folder, loading
from tests import tiny
from tests.checkpoints import put_checkpoint
from tests.launching import free_port


SMALL = '{"preset": "small", "size": 6}'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved tiny model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A finished `taspo train`, from a YAML file and flags that win over it."""
    folder = tmp_path_factory.mktemp("run")
    config = folder / "config.yaml"
    config.write_text(
        "environment: household\n"
        "dataset_kwargs: {preset: small, size: 6}\n"
        "num_generations: 4\nper_device_train_batch_size: 8\nmax_completion_length: 8\n"
        "max_steps: 5\nlogging_steps: 1\nreport_to: none\nsave_strategy: 'no'\nuse_cpu: true\nbf16: false\n"
        "save_trajectories: full\neval_split: valid_seen\n"
    )
    output = folder / "out"
    arguments = ["--config", str(config), "--model_name_or_path", str(model), "--output_dir", str(output)]
    assert main(["train", *arguments, "--max_steps", "1", "--disable_tqdm", "true"]) == 0
    return output


def evaluate(model, path, *more):
    arguments = ["--model", str(model), "--dataset-kwargs", SMALL, "--max-completion-length", "8"]
    return main(["eval", *arguments, "--output", str(path), *more])


def test_interrupted_training_ends_with_the_command_that_goes_on(model, tmp_path, monkeypatch, capsys):
    step, calls = TASPOTrainer.training_step, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return step(*arguments, **options)

    monkeypatch.setattr(TASPOTrainer, "training_step", interrupted)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    arguments = [
        "--model_name_or_path", str(model), "--output_dir", str(tmp_path / "run"), "--dataset_kwargs", SMALL,
        "--num_generations", "2", "--per_device_train_batch_size", "2", "--max_completion_length", "4",
        "--max_steps", "2", "--save_steps", "1", "--report_to", "none", "--use_cpu", "--bf16", "false",
    ]  # fmt: skip
    assert main(["train", *arguments]) == 130
    *_, before, last = capsys.readouterr().err.splitlines()
    assert before == "taspo train: interrupted"
    command = shlex.join(["taspo", "train", *arguments, "--resume_from_checkpoint", "last"])
    assert last == f"Go on from {tmp_path}/run/checkpoint-1 with {command}"


def test_the_command_that_goes_on_names_the_checkpoint_once(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for given in (["--resume-from-checkpoint", "a"], ["--resume_from_checkpoint=a"], []):
        told = _resuming(["--config", "a b.yaml", *given, "--seed", "1"])
        assert told == ("the same launcher and taspo train --config 'a b.yaml' --seed 1 --resume_from_checkpoint last")


def test_what_code_of_the_user_says_is_redacted(monkeypatch, capsys):
    key = Secret("CANARY-in-an-environment")

    def failing(arguments):
        error = RolloutError(f"all episodes ended: {key.reveal()}")
        error.add_note(f"go on with --hub_token {key.reveal()}")
        raise error

    monkeypatch.setattr("taspo_trl.cli.view.main", failing)
    assert main(["view"]) == 1
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    redact_tracebacks()
    try:
        raise RuntimeError(f"reward function: {key.reveal()}")
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=lambda: {}[key.reveal()])
    thread.start()
    thread.join()
    told = capsys.readouterr().err
    assert "CANARY" not in told and told.count("***") == 4
    assert "RuntimeError: reward function: ***" in told and "test_what_code_of_the_user" in told


# ---- the commands ---------------------------------------------------------------------------------------------------


def test_train_leaves_a_model_and_records(run):
    assert (run / "model.safetensors").exists() and (run / "training_args.bin").exists()
    assert len(list(read_records(run / "_trajectories"))) == 8
    state = json.loads((run / "trainer_state.json").read_text())
    assert any("turns/mean" in entry for entry in state["log_history"]), "logged, though nothing reported it"


@pytest.mark.slow
def test_accelerate_launches_the_same_command_on_two_processes(model, tmp_path):
    config = Path(__file__).resolve().parents[1] / "examples" / "accelerate" / "cpu.yaml"
    launch = f"-m accelerate.commands.launch --config_file {config} --main_process_port {free_port()}"
    flags = f"--model_name_or_path {model} --environment household --output_dir {tmp_path / 'out'} --use_cpu true"
    sizes = "--num_generations 4 --per_device_train_batch_size 4 --max_completion_length 8 --max_turns 3 --max_steps 1"
    quiet = "--report_to none --save_strategy no --bf16 false --disable_tqdm true"
    done = subprocess.run(
        [sys.executable, *f"{launch} -m taspo_trl.cli train {flags} {sizes} {quiet}".split()],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert len(list(read_records(tmp_path / "out" / "_trajectories"))) == 8, "two groups, written once"


def test_eval_plays_each_task_once_and_says_what_it_was(run, tmp_path, capsys):
    assert evaluate(run, tmp_path / "a.json") == 0
    printed = capsys.readouterr().out
    result = EvaluationResult.load(tmp_path / "a.json")
    assert len(result.plays) == len({play.task_id for play in result.plays}) == 6
    assert result.settings["environment"] == "household" and result.settings["split"] == "valid_seen"
    assert {"taspo_trl", "torch", "transformers"} <= set(result.settings["versions"])
    assert result.settings["date_string"] is None  # its template prints none
    assert result.settings["weights"] == weights_digest(run), "a run made anew in the folder is another one"
    assert len(result.settings["tasks_digest"]) == 16 and result.settings["seed"] == 0
    for text in ("micro mean", "macro mean", "Wilson", "turns", "ends:"):
        assert text in printed
    assert not list(tmp_path.glob("*.progress.jsonl"))


def test_eval_with_several_seeds_and_a_paired_comparison(run, model, tmp_path, capsys):
    assert evaluate(run, tmp_path / "b.json", "--seeds", "0", "1", "--temperature", "1.0") == 0
    assert "Over 2 seeds" in capsys.readouterr().out
    assert evaluate(model, tmp_path / "c.json", "--limit", "3", "--markdown") == 0
    printed = capsys.readouterr().out
    assert "| family | n | success |" in printed
    assert main(["eval", "--compare", str(tmp_path / "c.json"), str(tmp_path / "b-seed0.json")]) == 0
    printed = capsys.readouterr().out
    assert "McNemar" in printed
    pairs = next(line for line in printed.splitlines() if "all" in line.split()).split()[3]
    assert pairs == "3"


def test_eval_lets_an_agent_try_several_times_and_overwrites_no_other_result(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--model", str(model), "--dataset-kwargs", SMALL, "--limit", "2", "--max-turns", "2"]
    flags += ["--max-completion-length", "8", "--examples", "1"]
    assert main(["eval", *flags, "--agent", "reflexion", "--attempts", "2", "--note-tokens", "5"]) == 0
    printed = capsys.readouterr().out
    path = next(Path("evaluations").glob("*-household-valid_seen-*-reflexion2-seed0.json"))
    result = EvaluationResult.load(path)
    assert result.settings["environment_kwargs"] == {"reply_format": "think"}
    assert result.settings["agent"]["notes"]["max_note_tokens"] == 5
    assert [len(play.attempts) for play in result.plays] == [2, 2], "an untrained policy solves nothing"
    for text in (
        "agent reflexion, at most 2 attempts",
        "Success within so many attempts",
        "a play took 2.00 attempts",
    ):
        assert text in " ".join(printed.split())
    assert main(["eval", *flags, "--agent", "react", "-o", str(path)]) == 1
    assert "with other settings (agent). Choose another" in " ".join(capsys.readouterr().err.split())
    assert EvaluationResult.load(path) == result and not list(Path("evaluations").glob("*.progress.jsonl"))
    assert main(["eval", *flags, "--agent", "react"]) == 0
    other = next(Path("evaluations").glob("*-react-seed0.json"))
    capsys.readouterr()
    assert main(["eval", "--compare", str(other), str(path)]) == 0
    assert "The first could try 1, the second 2 times" in capsys.readouterr().out
    assert main(["eval", "--compare", str(other), str(path), "--within", "1"]) == 0
    assert "could try" not in capsys.readouterr().out


def test_analyze_writes_guidance_again(run, model, tmp_path, capsys):
    output = tmp_path / "analysis"
    assert main(["analyze", str(run), "--model", str(model), "--output", str(output)]) == 0
    assert "guidance/coverage" in capsys.readouterr().out
    assert json.loads((output / "summary.json").read_text())["analyzer"] == "extractive"
    assert len(list(read_records(output))) == 8


def test_view_writes_one_page(run, tmp_path, capsys):
    assert main(["view", str(run), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize("arguments", [[], ["list"]])
def test_env_list_names_each_environment_and_its_extra(arguments, capsys):
    assert main(["env", *arguments]) == 0
    printed = capsys.readouterr().out
    for text in ("household", "alfworld", "webshop", "search_qa", "taspo_trl[search]"):
        assert text in printed


def test_env_download_says_what_there_is_to_download(capsys):
    assert main(["env", "download", "webshop"]) == 1
    assert "official files by path" in capsys.readouterr().err


# ---- help and mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    try:
        code = main([name, "--help"])
    except SystemExit as end:  # argparse
        code = end.code
    assert code == 0
    assert f"taspo {name}" in capsys.readouterr().out


def test_usage_and_version(capsys):
    assert main([]) == 2 and main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trian"], 2, "did you mean 'train'"),
        (["train", "--output_dir", "x", "--num_generation", "4"], 1, "Did you mean `num_generations`?"),
        (["train", "--output_dir", "x"], 1, "`model_name_or_path` is missing"),
        (["train", "--output_dir", "x", "--resume_from_checkpoint", "true"], 1, "There is no checkpoint in x"),
        (["train", "--output_dir", "x", "--model_name_or_path", "tests/no"], 1, "There is no model folder tests/no"),
        (
            ["train", "--output_dir", "x", "--guidance", "alligned"],
            1,
            "`guidance` must be one of",
        ),
        (["env", "download", "alfword"], 1, "Did you mean `alfworld`?"),
        (["eval", "--model", "./nowhere"], 1, "There is no model folder ./nowhere"),
        (["eval"], 1, "`--model` is missing"),
        (["eval", "--model", "x", "--attempts", "3"], 1, "no option of `--agent plain`, but of reflexion and retry"),
        (["eval", "--model", "x", "--reflection-model", "y"], 1, "is read by `--agent reflexion` alone"),
        (["eval", "--model", "x", "--reply-format", "{action}"], 1, "`--reply-format` needs `--player`"),
        (["eval", "--model", "x", "--within", "1"], 1, "`--within` needs `--compare"),
        (
            ["eval", "--compare", "none.json", "none.json"],
            1,
            "There is no result file none.json. `taspo eval -o FILE`",
        ),
        (["eval", "--model", "x", "--environment", "chess"], 1, "There is no environment 'chess'"),
        (["eval", "--model", "x", "--dataset-kwargs", "small"], 1, "`--dataset-kwargs` must be"),
        (["eval", "--model", "x", "--environment", "nowhere:Class"], 1, "cannot be imported"),
        (["view", "/nowhere"], 1, "/nowhere"),
        (["analyze", "/nowhere"], 1, "no file /nowhere"),
        (["analyze", "tests", "--model", "./nowhere"], 1, "There is no model folder ./nowhere"),
    ],
)
def test_mistakes_are_told_in_one_message(arguments, code, message, capsys):
    assert main(arguments) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert code == 2 or printed.count("\n") == 1


def test_wrong_field_of_a_file_names_its_nearest_neighbour(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("output_dir: x\nweight_rang: 0.3\n")
    assert main(["train", "--config", str(path)]) == 1
    assert "Did you mean `weight_range`?" in capsys.readouterr().err
    path.write_text("- a list\n")
    assert main(["train", "--config", str(path)]) == 1
    assert "must be a mapping" in capsys.readouterr().err


def test_interrupted_command_exits_with_130(monkeypatch, capsys):
    from taspo_trl.cli import view

    monkeypatch.setattr(view, "main", lambda arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["view", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_folder_of_checkpoints_is_no_model_and_the_last_whole_one_is_named(tmp_path):
    for step in (9, 10, 11):
        put_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-11" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ConfigurationError, match=r"last checkpoint is .*checkpoint-10"):
        check_model_folder(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"model\.safetensors is cut off.*beside it is .*checkpoint-10"):
        check_model_folder(str(tmp_path / "checkpoint-11"))
    check_model_folder(str(tmp_path / "checkpoint-10"))
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(str(tmp_path))


def test_a_model_that_cannot_be_loaded_is_named_with_a_remedy(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"holds no model: .*config\.json"):
        check_model_folder(str(tmp_path))
    with (
        pytest.raises(ConfigurationError, match=r"model a/b cannot be loaded: no net\. .*`hf download a/b`"),
        loading("a/b"),
    ):
        raise OSError("no\n net.")
    with pytest.raises(ValueError, match=r"^mine$"), loading("a/b"):
        raise ValueError("mine")
    with pytest.raises(OSError, match="No space"), loading("a/b"):
        raise OSError(errno.ENOSPC, "No space left")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigurationError, match="The model runs/nope cannot be loaded"):
        tiny.trainer(tmp_path / "run", model="runs/nope")


def test_a_damaged_file_of_a_checkpoint_is_named(run, model, tmp_path, capsys):
    output = tmp_path / "run"
    arguments = [
        "--model_name_or_path", str(model), "--output_dir", str(output), "--dataset_kwargs", SMALL,
        "--num_generations", "2", "--per_device_train_batch_size", "2", "--max_completion_length", "4", "--max_turns",
        "2", "--save_steps", "1", "--report_to", "none", "--use_cpu", "--bf16", "false",
    ]  # fmt: skip
    assert main(["train", *arguments, "--max_steps", "1"]) == 0
    optimizer = output / "checkpoint-1" / "optimizer.pt"
    content = bytearray(optimizer.read_bytes())
    content[200:400] = b"\xff" * 200
    optimizer.write_bytes(bytes(content))
    capsys.readouterr()
    assert main(["train", *arguments, "--max_steps", "2", "--resume_from_checkpoint", "last"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"taspo train: {output}/checkpoint-1 cannot be resumed from: its optimizer.pt is damaged")
    assert "Start a new run from its model" in told


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-1.7B", "nobody/nothing"])
def test_model_ids_are_no_folders(name):
    check_model_folder(name)


@pytest.mark.parametrize("name", ["/nowhere/a", "./a", "../a", "~/a", "tests/a", "a/b/c"])
def test_missing_folders_are_no_model_ids(name, monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    with pytest.raises(ConfigurationError, match="There is no model folder"):
        check_model_folder(name)


def test_import_paths():
    assert imported("collections:OrderedDict") is imported("collections.OrderedDict")
    with pytest.raises(ConfigurationError, match="no import path"):
        imported("collections")
    assert environment_factory("household")().max_turns > 0


def test_keyword_arguments_are_json_or_yaml():
    assert json_arguments({"a": 1}, "x") == {"a": 1} and json_arguments(None, "x") == {}
    for text in ('{"data": "embedded", "size": 6}', "{data: embedded, size: 6}"):
        assert json_arguments(text, "x") == {"data": "embedded", "size": 6}
    for text in ("small", "[1]", "{data: embedded", "data: embedded"):
        with pytest.raises(ConfigurationError, match="`x` must be a mapping"):
            json_arguments(text, "x")


def test_missing_engine_is_told_before_missing_games(monkeypatch, tmp_path, capsys):
    from taspo_trl.environments.alfworld import downloader, environment

    monkeypatch.setattr(environment, "_engine_error", ImportError("No module named 'textworld'"))
    monkeypatch.setattr(downloader, "find_spec", lambda name: None)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    train = ["train", "--model_name_or_path", "nobody/nothing", "--environment", "alfworld", "--output_dir", "x"]
    for arguments in ([*train, "--use_cpu", "true", "--bf16", "false"], ["env", "download", "alfworld"]):
        assert main(arguments) == 1
        assert 'pip install -e ".[alfworld]"' in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gradient_checkpointing_enable", "is_gradient_checkpointing"])
def test_deprecations_inside_the_libraries_are_not_shown(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["env", "list"]) == 0
        warnings.warn(f"`{name}` is deprecated and will be removed in v6. Use `x` instead.", FutureWarning, 2)
        warnings.warn("something else is deprecated", FutureWarning, 2)
    assert [str(one.message) for one in caught] == ["something else is deprecated"]


def test_helps_keep_to_eighty_columns_and_explain_every_option(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for name in (None, *COMMANDS):
        with contextlib.suppress(SystemExit):
            main([*([name] if name else []), "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80 and " " in line.strip()] == [], name
    for name in ("analyze", "credit", "warm_start", "evaluate"):
        actions = import_module(f"taspo_trl.cli.{name}").parser()._actions
        assert [one.dest for one in actions if not one.help] == [], name


@pytest.mark.parametrize("arguments", [["--help"], ["methods"], ["methods", "opd"]], ids=" ".join)
def test_the_command_line_answers_without_loading_torch(arguments):
    code = (
        f"import sys, taspo_trl.cli as c; c.main({arguments});"
        "heavy = {'torch', 'transformers', 'trl', 'litellm', 'textworld'} & set(sys.modules);"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_the_collector_leaves_alone_what_imports_made():
    code = (
        "import gc; from taspo_trl.cli.train import load_libraries as load; load();"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000;"
        "gc.disable(); load(); assert not gc.isenabled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=120)


def test_credit_is_measured_with_a_model_and_from_a_run(model, run, tmp_path, capsys):
    arguments = ["--dataset-kwargs", SMALL, "--resamples", "20", "--output", str(tmp_path / "credit")]
    played = ["--groups", "3", "--generations", "4", "--max-completion-length", "8", "--max-turns", "3"]
    methods = ["--methods", "grpo", "contrast", "--labels", "progress", "values", "--invalid-action-penalty", "0.5"]
    values = ["--label-turns", "6", "--continuations", "2", "--reading"]
    assert main(["credit", "--model", str(model), *arguments, *played, *methods, *values]) == 0
    report = json.loads((tmp_path / "credit" / "credit.json").read_text())
    assert set(report["labels"]) == {"progress", "values"}
    assert {"grpo", "contrast", "contrast@shuffled", "perfect progress"} <= set(report["methods"])
    assert report["reading"]["none"]["tasks"] == 3 and "oracle plan" in report["reading"]
    assert (tmp_path / "credit" / "credit.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "about 0." in out and "Credit against progress" in out

    assert main(["credit", "--records", str(run), *arguments]) == 0
    assert "taspo" in json.loads((tmp_path / "credit" / "credit.json").read_text())["methods"]
    assert json.loads((tmp_path / "credit" / "credit-1.json").read_text()) == report  # paid for, and kept
    assert (tmp_path / "credit" / "credit-1.png").exists() and "credit-1.json" in capsys.readouterr().out


def test_credit_asks_for_a_model_or_a_run(model, run, capsys):
    assert main(["credit"]) == 1 and main(["credit", "--model", str(model), "--records", str(run)]) == 1
    assert "`--model`" in capsys.readouterr().err
    assert main(["credit", "--model", str(model), "--dataset-kwargs", SMALL, "--skip", "6"]) == 1
    assert "leaves no task" in capsys.readouterr().err
