"""`taspo warm-start`: from an oracle, a function and a chat model to a trained model, and again where it stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers.utils.hub
from huggingface_hub import HfApi
from safetensors.torch import load_file

from taspo_trl.cli import main
from taspo_trl.environments.household import solve
from taspo_trl.imitation.recording import recorded_episodes
from tests import tiny
from tests.analyzer.endpoint import Endpoint, Reply
from tests.hub_server import TOKEN, USER, HubServer, card_faults
from tests.launching import torchrun


SMALL = ("--dataset-kwargs", "{preset: small, size: 4}", "--max-completion-length", "8", "--use_cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def warm_start(*arguments):
    return main(["warm-start", *map(str, arguments)])


def test_an_oracle_s_episodes_become_a_model_once(model, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {model}\nenvironment: household\ndataset_kwargs: {{preset: small, size: 4}}\n"
        "max_completion_length: 8\nhistory_length: 1\nlearning_rate: 1.0\n"
    )
    options = ("--config", recipe, "-o", tmp_path / "out", "--player", "oracle", "--use_cpu", "--bf16", "false")
    options += ("--max_steps", "3", "--save_steps", "2", "--use_peft", "--lora-r", "2", "--guided-share", "0.5")
    assert warm_start(*options) == 0
    said = capsys.readouterr().out
    assert "4 of 4 episodes are recorded" in said and "4 successes with" in said and "left out: none" in said
    summary = json.loads((tmp_path / "out/warm_start.json").read_text())
    assert summary["turns"] == sum(len(solve(row)) for row in rows())
    assert summary["loss"]["first"] != summary["loss"]["last"], "the last step is logged, whatever `--logging_steps`"
    assert summary["imitation"]["num_steps"] == 3 and summary["imitation"]["learning_rate"] == 1e-4, "that of a LoRA"
    card = (tmp_path / "out/README.md").read_text()
    assert "| Played by | `oracle` |" in card and "| Tuning | LoRA of rank 2, merged |" in card
    assert "base_model" not in card and str(tmp_path) not in card, "a local folder is no name on the Hub"
    from transformers import AutoModelForCausalLM

    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    before = dict(tiny.model().named_parameters())
    moved = [name for name, value in trained.named_parameters() if not value.equal(before[name])]
    assert moved and all("proj" in name for name in moved), "a merged LoRA"
    assert json.loads((tmp_path / "out/_warm_start/recording.json").read_text())["rollout"]["history_length"] == 1
    assert warm_start(*options) == 1
    assert "holds a model already" in capsys.readouterr().err

    assert main(["train", "--model_name_or_path", str(tmp_path / "out/checkpoint-2"), "--output_dir", "none"]) == 1
    assert "is an adapter on" in capsys.readouterr().err
    # A checkpoint is an adapter: it is merged, and trained on as a whole.
    onward = ("--model", tmp_path / "out/checkpoint-2", "--from", tmp_path / "out/_warm_start", *SMALL)
    assert warm_start(*onward, "-o", tmp_path / "onward", "--max_steps", "1", "--learning_rate", "1e-2") == 0
    further = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "onward").named_parameters())
    assert all(not further[name].equal(value) for name, value in before.items())
    capsys.readouterr()
    resuming = [*options[:3], tmp_path / "again", *options[4:], "--resume_from_checkpoint"]
    assert warm_start(*resuming, tmp_path / "out/checkpoint-2") == 0
    resumed = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "again").named_parameters())
    assert all(value.equal(resumed[name]) for name, value in trained.named_parameters())


def rows():
    return list(tiny.household_rows(size=4))


def test_a_chat_model_is_paid_once_for_each_turn(model, tmp_path, monkeypatch, capsys):
    """It reads the policy's own prompts; its replies outlive the recording, which a budget cuts short."""
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "cache"))
    plans = {tuple(solve(row)): row for row in rows()}

    def play(received, number):
        text = received.body["messages"][-1]["content"]
        task = text.split("Task: ")[1].split("\n")[0]
        plan = next(plan for plan in plans if tasks[plan] == task)
        turn = next((k for k in reversed(range(len(plan))) if f"> {plan[k]}" in text), -1) + 1
        return Reply(f"<action>{plan[turn]}</action>")

    from taspo_trl.environments import HouseholdEnvironment

    world = HouseholdEnvironment()
    tasks = {plan: world.reset(seed=0, **row).info["task"] for plan, row in plans.items()}
    num_turns = sum(len(plan) for plan in plans)
    with Endpoint(play) as endpoint:
        options = ("--model", model, "-o", tmp_path / "out", "--player", "openai/fake", "--api-base", endpoint.url)
        options += (*SMALL, "--record-only", "--episodes", "1", "--workers", "1")
        assert warm_start(*options, "--budget-tokens", "700") == 0
        said = capsys.readouterr().out
        assert "to be played again by the same command" in said and "(budget)" in said
        first = len(endpoint.received)
        assert 0 < first < num_turns
        assert warm_start(*options) == 0
        assert "4 of 4 episodes are recorded" in capsys.readouterr().out
        assert len(endpoint.received) == num_turns and not endpoint.errors
        body = endpoint.received[0].body
        assert body["temperature"] == 1.0 and "response_format" not in body and body["max_tokens"] == 8
        (tmp_path / "out/_warm_start/episodes.jsonl").unlink()
        assert warm_start(*options) == 0
        assert len(endpoint.received) == num_turns, "what was paid for is found again"
        assert warm_start(*options, "--workers", "4") == 0, "how many ask at once makes no other recording"
    again = tmp_path / "again"
    copied = shutil.copytree(tmp_path / "out/_warm_start", tmp_path / "kept")
    assert len(recorded_episodes(copied)) == 4
    assert warm_start("--model", model, "-o", again, "--from", copied, *SMALL, "--max-steps", "1") == 0
    assert (again / "config.json").exists() and not (again / "_warm_start").exists()


def test_the_finished_model_goes_to_the_hub(model, tmp_path, monkeypatch, capsys):
    with HubServer() as server:
        api = HfApi(endpoint=server.url, token="hf_another", library_name="transformers")
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", api)
        options = ("--model", model, "--player", "oracle", *SMALL, "--max_steps", "2", "--save_steps", "1")
        asked = ("--push_to_hub", "--hub_model_id", f"{USER}/warm")
        assert warm_start(*options, "-o", tmp_path / "no", *asked) == 1
        assert f"The repository '{USER}/warm' cannot be made on the Hub" in capsys.readouterr().err
        assert not (tmp_path / "no").exists(), "before anybody plays"
        assert warm_start(*options, "-o", tmp_path / "out", *asked, "--hub_token", TOKEN) == 0
        assert not server.unknown
        repository = server.repositories[f"{USER}/warm"]
    assert f"{server.url}/{USER}/warm/commit/{repository.sha}" in capsys.readouterr().out
    assert repository.private and repository.commits[1:] == [], "once, when it is finished"
    here = {one.name for one in (tmp_path / "out").iterdir() if one.is_file()}
    assert set(repository.files) == here >= {"model.safetensors", "README.md", "warm_start.json"}
    assert (tmp_path / "out/checkpoint-1").is_dir() and (tmp_path / "out/_warm_start").is_dir()
    assert not card_faults(repository.files["README.md"].decode())


def test_mistakes(model, tmp_path, capsys):
    def refused(*arguments):
        assert warm_start("-o", tmp_path / "out", *arguments) == 1
        return capsys.readouterr().err

    assert "`--model` is missing" in refused("--player", "oracle")
    assert "Nobody plays" in refused("--model", model)
    assert "cannot be imported" in refused("--model", model, "--player", "nowhere:nobody", *SMALL)
    assert "holds no episodes" in refused("--model", model, "--from", tmp_path / "none", *SMALL)
    assert "it is `--use_peft --lora_r RANK`" in refused("--model", model, "--player", "oracle", "--lora-rank", "4")
    assert "goes up once, when it is finished" in refused("--model", model, "--hub_strategy", "every_save")
    assert "`--hub_model_id` has no effect without" in refused(
        "--model", "none/", "--player", "x", "--hub_model_id", "me/it"
    )
    assert "weighs prompts" in refused("--model", model, "--player", "oracle", "--completion_only_loss", "true")
    assert "Did you mean `max_steps`" in refused("--model", model, "--player", "oracle", "--max-stepz", "4")
    assert "invalid choice" in refused("--model", model, "--player", "oracle", "--lr-scheduler-type", "steep")
    assert "add `--use_peft`" in refused("--model", model, "--player", "oracle", "--load_in_4bit", *SMALL)
    assert not (tmp_path / "out/_warm_start/recording.json").exists(), "refused before anybody played"
    assert "must begin with a provider" in refused("--model", model, "--player", "gpt", *SMALL)


def test_two_processes_learn_what_one_does(model, tmp_path):
    """The first one plays, both learn; a step of theirs is a step of one process with twice as many forwards."""
    options = ["--model", model, "--player", "oracle", *SMALL, "--bf16", "false", "--prompt_loss", "0.1"]
    options += ["--max_steps", "2", "--learning_rate", "1e-2", "--per_device_train_batch_size", "3"]
    root = Path(__file__).resolve().parents[2]
    command = [
        sys.executable,
        *torchrun(2),
        "-m",
        "taspo_trl.cli",
        "warm-start",
        *options,
        "-o",
        str(tmp_path / "two"),
    ]
    command += ["--gradient_accumulation_steps", "1"]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert warm_start(*options, "-o", tmp_path / "one", "--gradient_accumulation_steps", "2") == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        assert torch.allclose(value, two[name], atol=1e-5), name
    assert json.loads((tmp_path / "two/warm_start.json").read_text())["processes"] == 2
    assert (tmp_path / "two/_warm_start/episodes.jsonl").read_text().count("\n") == 4
