"""The whole path end to end: training raises held-out success, and the quickstart leaves what it promises."""

import json

import pytest
import torch
import transformers
from rich.console import Console

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.config import has_bf16_cpu
from taspo_trl.environments import HouseholdEnvironment
from taspo_trl.evaluation import compare
from taspo_trl.quickstart.demonstrations import DemonstrationSettings
from taspo_trl.quickstart.policy import WarmStart, tiny_policy
from taspo_trl.quickstart.run import Quickstart, run
from taspo_trl.records import read_records


TOOL_FAMILIES = ("clean", "heat", "cool")
# A short warm start needs its steps for playing without a block, as the held-out tasks are played.
FEWER_BLOCKS = DemonstrationSettings(guided_share=0.3)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two minutes of one core; more where cores are shared
def test_training_raises_held_out_success(tmp_path):
    """A short warm start on demonstrations that mostly skip the tool; then 12 steps on the families that need one."""

    def tasks(split):
        data = HouseholdEnvironment.dataset(split, preset="small")
        return data.select([k for k, family in enumerate(data["family"]) if family in TOOL_FAMILIES])

    model, tokenizer = tiny_policy(WarmStart(num_steps=600, demonstrations=FEWER_BLOCKS), cache_dir=tmp_path)
    trainer = TASPOTrainer(
        model=model,
        args=TASPOConfig(
            output_dir=str(tmp_path / "run"),
            max_steps=12,
            num_generations=8,
            per_device_train_batch_size=64,
            max_completion_length=8,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            invalid_action_penalty=0.2,
            micro_batch_tokens=8192,
            per_device_eval_batch_size=72,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=has_bf16_cpu(),
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        processing_class=tokenizer,
        train_dataset=tasks("train"),
        eval_dataset=tasks("valid_seen"),
        environment_factory=HouseholdEnvironment,
    )
    trainer.evaluate()
    before = trainer.last_evaluation
    trainer.train()
    trainer.evaluate()
    trainer.close()
    paired = compare(before, trainer.last_evaluation)
    assert paired.num_pairs == 72
    assert paired.only_second > paired.only_first and paired.p_value < 0.02, paired

    logs = [entry for entry in trainer.state.log_history if "success" in entry]
    assert max(entry["guidance/coverage"] for entry in logs) > 0.3, "the guidance took part"
    assert max(entry["credit/weight_std"] for entry in logs) > 0.01


def test_the_quickstart_leaves_a_summary_metrics_trajectories_and_plots(tmp_path, monkeypatch):
    monkeypatch.setenv("TASPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transformers.utils.logging, "disable_progress_bar", lambda: None)
    folder = tmp_path / "run"
    warm_start = WarmStart(num_steps=4, num_turns=150)
    settings = Quickstart(output_dir=str(folder), num_steps=1, num_tasks=6, warm_start=warm_start)
    summary = run(settings, Console(quiet=True))

    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["steps"] == 1
    assert {split: one["num_tasks"] for split, one in summary["splits"].items()} == {
        "valid_seen": 6,
        "valid_unseen": 6,
    }
    assert len(summary["splits"]["valid_seen"]["families"]) == 6, "stratified by family"
    assert "McNemar" in (folder / "summary.txt").read_text()
    assert any("success" in entry for entry in json.loads((folder / "metrics.json").read_text()))
    assert len(list(read_records(folder / "_trajectories"))) == 64
    for name in ("learning_curves", "success_by_family", "credit_weights"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    transformers.AutoModelForCausalLM.from_pretrained(folder)
