"""The command: reports, exit codes, every shipped recipe, and never a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from taspo_trl.cli import main
from taspo_trl.cli.doctor.masking import masked, secrets_of
from taspo_trl.cli.doctor.packages import extras, requirement_lines
from tests import tiny


ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "examples").glob("*.yaml"))
CANARY = "sk-canary-0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


# ---- secrets --------------------------------------------------------------------------------------------------------


def test_addresses_lose_users_and_queries():
    shown = masked("see http://me:pw12@host:80/v1?key=abc&x=1, or 'https://host/a'")
    assert shown == "see http://***@host:80/v1?***, or 'https://host/a'"


def test_secrets_are_found_at_any_depth():
    recipe = {"hub_token": CANARY + "1", "environment_kwargs": {"deep": [{"api_key": CANARY + "2"}]}, "seed": 3}
    arguments = ["--environment_kwargs", json.dumps({"password": CANARY + "3"}), f"--hub-token={CANARY}4"]
    arguments += ["--dataset_kwargs", f"{{token: {CANARY}5}}"]
    text = " ".join(f"{CANARY}{k}" for k in range(1, 6))
    assert masked(text, secrets_of(arguments, recipe)) == "*** *** *** *** ***"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_secret_is_ever_printed(tmp_path, monkeypatch, model, capsys, closed_port, form):
    monkeypatch.setenv("DEEPSEEK_API_KEY", CANARY)
    address = closed_port.replace("//", f"//user:{CANARY}@")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\nenvironment: search_qa\nhub_token: {CANARY}-hub\n"
        f"environment_kwargs: {{retriever: '{address}/retrieve?token={CANARY}', api_key: {CANARY}-key}}\n"
        "analyzer_model: deepseek/deepseek-chat\n"
        f"analyzer_api_base: {closed_port}\nnum_generations: 4\nper_device_train_batch_size: 8\nmax_steps: 1\n"
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nreport_to: none\n"
    )
    more = ["--vllm-server", f"http://me:{CANARY}@127.0.0.1:1/", "--timeout", "0.3", *form]
    code = main(["doctor", "--config", str(recipe), *more])
    printed = capsys.readouterr()
    assert code == 1
    assert "retriever" in printed.out and CANARY not in printed.out + printed.err


def test_error_of_an_option_shows_no_secret(tmp_path, capsys):
    arguments = ["--environment_kwargs", json.dumps({"api_key": CANARY}) + "x", "--output_dir", str(tmp_path)]
    main(["doctor", *arguments])
    printed = capsys.readouterr()
    assert CANARY not in printed.out + printed.err


# ---- the command ----------------------------------------------------------------------------------------------------


def test_without_a_recipe_it_reports_the_installation(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for text in ("versions", "torch", "devices", "cpu", "extras", *extras(requirement_lines("taspo_trl"))):
        assert text in printed
    assert "estimate" not in printed


def test_importing_the_command_loads_nothing_heavy():
    heavy = "{'torch', 'trl', 'transformers', 'litellm'}"
    code = f"import sys, taspo_trl.cli.doctor.command; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--timeout", "0"], 1, "`--timeout` must be greater than 0"),
        (["--processes", "-1", "--num_generations", "4"], 1, "`--processes`"),
        (["--analyzer-base", "http://h/v1"], 1, "needs `--analyzer`"),
        (["--accelerate", "/nowhere.yaml", "--num_generations", "4"], 1, "/nowhere.yaml"),
    ],
)
def test_mistakes_are_told_in_one_message(arguments, code, message, capsys):
    assert main(["doctor", *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--num_generation", "4"], ["--config", "/nowhere.yaml"], ["--loss_type", "dapo"]]
)
def test_what_training_would_refuse_is_a_failure(arguments, capsys):
    assert main(["doctor", *arguments]) == 1
    assert "FAIL  options" in capsys.readouterr().out


def test_tiny_recipe_passes_and_is_estimated(model, tmp_path, capsys):
    recipe = ROOT / "examples" / "household_tiny.yaml"
    arguments = ["--config", str(recipe), "--model_name_or_path", str(model), "--turns", "10", "--reply-tokens", "8",
                 "--prompt-tokens", "100", "--json"]  # fmt: skip
    assert main(["doctor", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["status"] for one in found["findings"]} <= {"ok", "absent", "warning"}
    batch = found["estimate"]["batch"]
    # 64 episodes of 10 turns and 8 tokens each; 40 steps use a rollout batch each.
    assert batch["sampled_tokens"] == 64 * 10 * 8 and batch["trained_tokens"] == 640 * 108
    assert found["estimate"]["rollout_batches"] == 40
    assert found["estimate"]["memory_bytes"]["peak"] > 4 * sum(p.numel() for p in tiny.model().parameters())
    assert found["estimate"]["analyzer_usd_of_a_batch"] == 0


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_shipped_recipe_is_estimated(path, model, capsys):
    is_tiny = path.stem == "household_tiny"
    arguments = ["--model_name_or_path", str(model)] if is_tiny else ["--processes", "8"]
    main(["doctor", "--config", str(path), *arguments, "--timeout", "0.2", "--json"])
    printed = capsys.readouterr().out
    found = json.loads(printed)["estimate"]
    assert found is not None, printed
    batch = found["batch"]
    assert batch["episodes"] == (64 if is_tiny else 1024 if "search" in path.stem else 128)
    assert found["memory_bytes"]["peak"] > 0
    if is_tiny:
        return
    assert found["rollout_batches"] == 150
    if path.stem.startswith("serl"):  # immediate feedback: nobody is asked
        assert batch["analyzer_calls"] == 0
    else:  # the paper's DeepSeek analyzer: each of 8 members and one extraction, in every group
        assert batch["analyzer_calls"] == batch["episodes"] / 8 * 9
        assert found["analyzer_usd_of_a_batch"] > 0
    # bf16 weights, gradients and two moments, and the KL's reference, can't take less than 10 bytes a parameter.
    billions = {"3b": 3.086, "7b": 7.616, "1.7b": 1.721}[path.stem.rsplit("-", 1)[-1].removeprefix("qwen")]
    assert 10e9 * billions < found["memory_bytes"]["peak"] < 40e9 * billions + 60e9


def test_a_recipe_for_several_processes_asks_for_their_number(model, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"# Sized for 2 GPUs.\nmodel_name_or_path: {model}\noutput_dir: {tmp_path}\nnum_generations: 8\n"
        "per_device_train_batch_size: 4\nsteps_per_generation: 1\nmax_steps: 1\nuse_cpu: true\nbf16: false\n"
    )
    assert main(["doctor", "--config", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "Add `--processes 2`" in printed and "`--processes N`" in printed
    assert main(["doctor", "--config", str(path), "--processes", "2"]) == 0
    assert "--processes" not in capsys.readouterr().out


def test_sharding_lowers_the_estimated_memory(capsys):
    def peak(name):
        recipe = ROOT / "examples" / "webshop_qwen2.5-7b.yaml"
        accelerate = ROOT / "examples" / "accelerate" / f"{name}.yaml"
        main(["doctor", "--config", str(recipe), "--accelerate", str(accelerate), "--timeout", "0.2", "--json"])
        return json.loads(capsys.readouterr().out)["estimate"]["memory_bytes"]["peak"]

    ddp, zero2, fsdp2 = peak("ddp"), peak("deepspeed_zero2"), peak("fsdp2")
    assert fsdp2 < zero2 < ddp


def test_adapters_need_no_reference_and_little_optimizer(model, capsys):
    def memory(*more):
        recipe = ROOT / "examples" / "household_tiny.yaml"
        base = ["--config", str(recipe), "--model_name_or_path", str(model), "--beta", "0.1"]
        assert main(["doctor", *base, *more]) == 0
        return capsys.readouterr().out

    lora = ["--use_peft", "true", "--lora_r", "2", "--lora_target_modules", "q_proj", "v_proj"]
    full, adapted = memory(), memory(*lora)
    assert "reference  " in full and "reference  " not in adapted and "adapters  " in adapted


def test_estimate_from_a_run(model, tmp_path, capsys):
    run = tmp_path / "run" / "checkpoint-3"
    run.mkdir(parents=True)
    log = [{"turns/mean": turns, "replies/mean_length": 6.0, "step": turns} for turns in (3.0, 5.0)]
    history = [{"eval_loss": 1.0}, *log]
    (run / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "metrics.json").write_text(json.dumps(history))
    recipe = ROOT / "examples" / "household_tiny.yaml"
    arguments = ["--config", str(recipe), "--model_name_or_path", str(model)]
    for name in ("run", "quick"):
        assert main(["doctor", *arguments, "--from-run", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["estimate"]["batch"]["sampled_tokens"] == 64 * 4 * 6
    assert main(["doctor", *arguments, "--from-run", str(tmp_path / "none")]) == 1
    printed = capsys.readouterr().err
    assert "no `trainer_state.json`" in printed and "`output_dir` of a finished" in printed


def test_unknown_model_is_told_how_to_be_fetched(tmp_path, capsys):
    arguments = ["--model_name_or_path", "nobody/nothing", "--num_generations", "4", "--output_dir", str(tmp_path)]
    main(["doctor", *arguments, "--per_device_train_batch_size", "8", "--use_cpu", "true", "--bf16", "false"])
    printed = capsys.readouterr().out
    assert "hf download nobody/nothing config.json" in printed and "the model's sizes are not" in printed
