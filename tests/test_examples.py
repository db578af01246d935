"""What lies in `examples/`: scripts run as they are, recipes hold fields that exist and values that are accepted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from taspo_trl.cli.train import option_names, parse
from taspo_trl.evaluation import EvaluationResult
from tests.tokenizers import byte_bpe


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RECIPES = sorted(EXAMPLES.glob("*.yaml"))
WORLDS = ("alfworld", "webshop", "search_qa")
BACKBONES = ("qwen2.5-3b", "qwen2.5-7b", "qwen3-1.7b")
PAPER = {
    "num_generations": 8, "learning_rate": 1e-6, "entropy_coef": 0.001, "epsilon": 0.2, "delta": 3.0,
    "max_completion_length": 512, "temperature": 1.0, "top_p": 1.0, "weight_range": 0.4,
    "score_temperature": 0.5, "shift_clip": 2.0,
}  # fmt: skip
PAPER_OF = {
    "alfworld": {"max_turns": 50, "max_prompt_length": 2048, "beta": 0.01},
    "webshop": {"max_turns": 15, "max_prompt_length": 4096, "beta": 0.01},
    "search_qa": {"max_turns": 4, "max_prompt_length": 4096, "beta": 0.001},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder that any text can be written for."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_bpe()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path_factory.mktemp("cache")))


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package", "arguments"),
    [
        ("train_alfworld", "textworld", ["--data", "embedded", "--num-games", "6", "--max-turns", "2"]),
        ("train_webshop", "thefuzz", ["--num-goals", "6", "--max-turns", "2"]),
        ("train_search_qa", "bm25s", ["--limit", "6"]),
    ],
)
def test_smoke_runs_of_the_scripts(name, package, arguments, model, tmp_path, monkeypatch, capsys):
    pytest.importorskip(package, reason=f"the extra of {name} is not installed")
    monkeypatch.chdir(tmp_path)
    common = ["--model", str(model), "--output-dir", "out", "--max-steps", "1", "--tasks-per-step", "1"]
    script(name).main([*common, "--num-generations", "2", "--max-completion-length", "8", *arguments])
    assert "eval_success" in capsys.readouterr().out
    (path,) = Path("out/_evaluations").glob("*.json")
    result = EvaluationResult.load(path)
    assert len(result.usable) == len(result.plays) > 0
    assert Path("out/adapter_model.safetensors").exists()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_parse(path, tmp_path):
    content = yaml.safe_load(path.read_text())
    assert set(content) <= option_names()
    task, training, _ = parse(
        ["--config", str(path), "--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    )
    assert task.environment == content["environment"]
    chosen = ("serl", "serl_immediate") if path.stem.startswith("serl_") else ("taspo", "aligned")
    assert (training.method, training.guidance) == chosen
    num_tasks = training.generation_batch_size // training.num_generations
    assert num_tasks * training.num_generations == training.generation_batch_size


@pytest.mark.parametrize(("world", "steps"), [("alfworld", 8), ("webshop", 16)])
def test_recipes_hold_serl_s_settings(world, steps):
    """Its schedule and its teacher count rollout batches; each feeds `steps` optimizer steps."""
    content = yaml.safe_load((EXAMPLES / f"serl_{world}_qwen2.5-7b.yaml").read_text())
    ours = yaml.safe_load((EXAMPLES / f"{world}_qwen2.5-7b.yaml").read_text())
    options = content["method_options"]
    assert content["steps_per_generation"] == steps and content["max_steps"] == 150 * steps
    assert (options["zero_at"], options["teacher_every"]) == (50 * steps, 10 * steps)
    assert (options["share"], options["clip"], options["teacher"]) == (0.5, 0.2, "stale")
    assert (content["beta"], float(content["learning_rate"]), content["num_generations"]) == (0.0, 1e-6, 8)
    assert content["max_turns"] == ours["max_turns"] == PAPER_OF[world]["max_turns"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_recipes_hold_the_paper_s_settings(world, backbone):
    content = yaml.safe_load((EXAMPLES / f"{world}_{backbone}.yaml").read_text())
    for name, value in (PAPER | PAPER_OF[world]).items():
        assert float(content[name]) == value if isinstance(value, float) else content[name] == value, name
